"""Values in OpenSearch: each is stored as it is, independent of other documents, in both shapes."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import Any

import pytest

from streams_app.read_store.core.merge import Cell, CellChange, JsonText
from streams_app.read_store.core.store import Counts
from tests.helpers.read_store.searching import Search
from tests.helpers.read_store.stores import write

LIKES = Cell("f", "a", "likes")


def nested(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


VALUES: list[Any] = [
    0, -(2**63), 2**63 - 1, 2**53 + 1, 2**64, 10**250, 1.5, 1.0, -0.5, 1e300, "", "007", "ä{}\n'\"\\", "a\0b", True, False,
    "x" * 40_000, "long text " * 5_000, '{"a":1}', "2026-11-23", {"a": [1, None]},
    {"likes": {"b.c": "x"}}, [1, "a", {"b": 2}], [], {}, nested(250),
]  # fmt: skip


async def test_every_value_is_stored_unchanged_after_any_former_value_of_the_name(search: Search) -> None:
    values = [*VALUES, *random.Random(1).sample(VALUES, len(VALUES))]
    counts, found = [], []
    for version, value in enumerate(values):
        given = JsonText(json.dumps(value, separators=(",", ":"))) if isinstance(value, (dict, list)) else value
        counts += [await write(search.store, [CellChange(LIKES, 2 * version + each, given)]) for each in range(2)]
        found.append(search.cells()["a", "likes"][0])

    assert [(type(value), value) for value in values] == [(type(value), value) for value in found]
    assert [Counts(written=1), Counts(unchanged=1)] * len(values) == counts


async def test_text_differs_from_the_value_that_it_spells(search: Search) -> None:
    values: list[Any] = [True, "true", JsonText("[1]"), '{"a":1}', JsonText('{"a":1}')]
    counts = [await write(search.store, [CellChange(LIKES, version, value)]) for version, value in enumerate(values)]

    assert [Counts(written=1)] * len(values) == counts


async def test_decimal_is_the_nearest_double_and_bytes_are_text(search: Search) -> None:
    values: list[Any] = [Decimal("0.10"), Decimal("12345678901234567890.123456789"), Decimal(2**70), b"\x00\xff"]
    cells = [Cell("f", str(number), "n") for number in range(len(values))]
    await write(search.store, [CellChange(cell, 1, value) for cell, value in zip(cells, values, strict=True)])

    assert [0.1, 12345678901234567890.123456789, 2**70, "\\x00ff"] == [value for value, _ in search.cells().values()]


@pytest.mark.parametrize(
    "name", ["", " ", ".", "a.b", ".a", "_id", "_source", "fold", "versions", "other", "*", "a b", "{}'\";\n$1ä漢"]
)
async def test_group_and_name_of_any_characters_are_one_cell(search: Search, name: str) -> None:
    cell = Cell("f", "{}'\";--\n$1ä漢\t\\", name)
    plain = CellChange(Cell("f", cell.group_key, "a"), 1, 2)
    counts = [await write(search.store, [CellChange(cell, version, version), plain]) for version in (1, 1, 2)]

    assert [Counts(written=2), Counts(unchanged=2), Counts(written=1, unchanged=1)] == counts
    found = search.documents()
    value = found[1].get("value") if search.shape == "cells" and found[0]["name"] != name else None
    assert 2 in (value, found[0].get("value"), found[0].get(name), found[0].get("other", {}).get(name))


async def test_long_groups_and_names_have_separate_documents(search: Search) -> None:
    cells = [Cell("f", "g" * 3_000 + str(number), "n" * 2_000) for number in range(3)]
    await write(search.store, [CellChange(cell, 1, number) for number, cell in enumerate(cells)])

    assert [0, 1, 2] == [value for value, _ in search.cells().values()]


@pytest.mark.parametrize(
    ("cell", "value", "expected"),
    [
        (LIKES, float("inf"), "the value is not a finite number"), (LIKES, Decimal("1E+400"), "the value is not a finite number"),
        (LIKES, "\ud800", "the value holds an unpaired surrogate"),
        (Cell("f", "\ud800", "n"), 1, "group or name holds an unpaired surrogate"),
        (Cell("f", "ä" * 20_000, "n"), 1, "group or name has 40000 bytes, 32766 are possible"), (LIKES, "a\0", None),
    ],
)  # fmt: skip
def test_value_that_no_document_can_store_is_reported(cell: Cell, value: Any, expected: str | None) -> None:
    assert expected == Search(9200, "t", "cells").store.rejection(CellChange(cell, 1, value))


async def test_stored_values_are_searchable(search: Search) -> None:
    rows: list[tuple[str, str, Any]] = [
        ("a", "likes", 3),
        ("b", "likes", 12),
        ("c", "likes", JsonText("[12]")),
        ("d", "title", "Green apples"),
    ]
    await write(search.store, [CellChange(Cell("f", group, name), 1, value) for group, name, value in rows])
    number, text = ("number", "text") if search.shape == "cells" else ("likes", "title")

    assert ["b"] == search.searched({"range": {number: {"gt": 5}}})
    assert ["d"] == search.searched({"match": {text: "apples"}})
    assert ["d"] == search.searched({"term": {f"{text}.keyword": "Green apples"}})
