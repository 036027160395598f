"""The differences that `read-store verify` prints, for values of every type."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streams_app.cli.read_store import columns_of
from streams_app.operations.verify_result import difference_json
from streams_app.read_store.core.comparing import Difference, DifferenceKind
from streams_app.read_store.core.merge import Cell, CellChange, StoredCell, Value

LONG = 10**5_000


def difference(stored: Value, value: Value) -> Difference:
    change = CellChange(Cell("f", "a\0b", "n\0"), 1, value)
    return Difference(DifferenceKind.REFUSED, change, None if stored is None else StoredCell(1, stored), "")


VALUES: list[tuple[Any, Any, str]] = [
    ("a\ud800", "a\ud800", '"a\\ud800"'), (LONG, hex(LONG), f'"{hex(LONG)}"'), ("", "", '""'), (0, 0, "0"), (None, None, "-"),
    ("a\0", "a\0", '"a\\u0000"'),
]  # fmt: skip


@pytest.mark.parametrize(("value", "in_json", "cell"), VALUES, ids=["surrogate", "long", "empty", "zero", "nothing", "nul"])
def test_value_without_a_json_form_is_printed_as_it_is(value: Any, in_json: Any, cell: str) -> None:
    one = difference(value, value)
    row = json.loads(difference_json(one))
    columns = {column.title: column.cells for column in columns_of([one])}

    assert (in_json, in_json) == (row["store"], row["source"])
    assert [cell] == columns["IN THE STORE"] == columns["IN THE SOURCE"]
