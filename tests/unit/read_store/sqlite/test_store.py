"""What a store in SQLite rejects before its file is opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams_app.read_store.core.merge import Cell, CellChange, JsonText
from streams_app.read_store.registry import open_store
from streams_app.settings import ReadStoreSettings

HALF = "\ud83d"


@pytest.mark.parametrize("given", [{}, {"shape": "groups", "columns": {"likes": "likes", HALF: "half"}}])
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (CellChange(Cell("f", "a", "likes"), 1, HALF), "the value holds an unpaired surrogate"),
        (CellChange(Cell("f", "a", "likes"), 1, JsonText(f'["{HALF}"]')), "the value holds an unpaired surrogate"),
        (CellChange(Cell("f", HALF, "likes"), 1, 1), "group or name holds an unpaired surrogate"),
        (CellChange(Cell("f", "a", HALF), 1, 1), "group or name holds an unpaired surrogate"),
        (CellChange(Cell("f", "a\0", "likes"), 1, "a\0"), None),
        (CellChange(Cell("f", "a", "likes"), 1, JsonText('["\\ud83d"]')), None),
    ],
)
def test_invalid_unicode_is_rejected_in_either_layout(
    tmp_path: Path, given: dict[str, object], change: CellChange, expected: str | None
) -> None:
    fields = {"name": "dashboard", "url": f"sqlite:///{tmp_path}/read.db", "folds": ["f"], "source": "carried", **given}
    store = open_store(ReadStoreSettings.model_validate(fields))

    assert expected == store.rejection(change)
