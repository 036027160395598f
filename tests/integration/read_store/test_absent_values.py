"""``check`` of every read store, in both shapes, with a source that does not have the names of records."""

from __future__ import annotations

from typing import Any

import pytest

from streams_app import Fold, Settings
from streams_app.finding import Level
from streams_app.read_store.core.merge import Cell, CellChange
from streams_app.read_store.sync.findings import read_store_findings
from tests.helpers.read_store.stores import StoreHarness, write


@pytest.mark.parametrize(
    ("answer", "level", "text"),
    [
        ({}, Level.WARNING, "the source returns no value for any name that was requested for 2 groups (likes)"),
        ({("a", "likes"): 3}, Level.OK, "the source has 1 of 2 values of stored groups"),
        ({("a", None): None, ("b", None): None}, Level.OK, "the source has 0 of 2 values of stored groups"),
        ({("a", "total"): 3}, Level.ERROR, "pairs it was not asked for"),
    ],
)
async def test_check_asks_the_source_for_stored_groups(harness: StoreHarness, answer: Any, level: Level, text: str) -> None:
    await write(harness.store, [CellChange(Cell("f", group, "likes"), 1) for group in "ab"])
    fold = Fold(name="f", source="s", group_key="id", changed="names", quiet_period="1s")
    given = {"source": "python", "current": lambda fold, pairs: answer if pairs else {}}
    settings = Settings(app_id="app", folds=(fold,), read_stores=(harness.settings.model_copy(update=given),))
    *_, last = [finding async for finding in read_store_findings(settings)]

    assert (level, True) == (last.level, text in last.text), last
