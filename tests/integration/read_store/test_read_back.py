"""Reading cells back and repairing them, with the same results for every target; changed cells are left alone."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from streams_app.operations.repairing import repaired
from streams_app.read_store.core.comparing import differences
from streams_app.read_store.core.merge import Cell, CellChange, JsonText, StoredCell, Value
from streams_app.read_store.core.store import Counts, Repair
from streams_app.read_store.registry import open_store
from tests.helpers.read_store.stores import ODD_NAME, Postgres, SqlHarness, StoreHarness, write
from tests.integration.conftest import of_groups, of_sql

LIKES, SHARES, OTHER = Cell("f", "a", "likes"), Cell("f", "a", "shares"), Cell("g", "a", "likes")

pytestmark = pytest.mark.timeout(180)


async def fill(harness: StoreHarness, *cells: tuple[Cell, int, Value]) -> None:
    written = await harness.store.repair([Repair(CellChange(*cell), None) for cell in cells], 100)
    assert len(cells) == written


async def test_pages_have_every_cell_of_one_fold_once_in_key_order(harness: StoreHarness) -> None:
    odd = [Cell("f", group, name) for group in ("", "a", "ä", "[1]", "'\"") for name in ("likes", "shares", ODD_NAME)]
    await fill(harness, (OTHER, 1, 1), *((cell, 1, 1) for cell in odd))
    found: list[Cell] = []
    while page := await harness.store.cells("f", found[-1] if found else None, 5):
        found += [cell for cell, _ in page]

    assert sorted(odd) == sorted(found)
    assert len(odd) == len(set(found))


async def test_missing_cell_is_omitted_and_a_cell_without_a_value_is_present(harness: StoreHarness) -> None:
    await fill(harness, (LIKES, 3, None))

    assert {LIKES: StoredCell(3, None)} == await harness.store.read([LIKES, SHARES])
    assert [(LIKES, StoredCell(3, None))] == await harness.store.cells("f", None, 9)
    assert {} == await harness.store.read([])


async def test_removed_groups_leave_no_row_and_others_keep_theirs(harness: StoreHarness) -> None:
    neighbour, member = Cell("f", "a ", "likes"), Cell("f", '["a",1]', "likes")
    await fill(harness, *((cell, 3, 1) for cell in (LIKES, SHARES, OTHER, neighbour, member)))
    rows = await harness.rows("f")
    removed = await harness.store.remove_groups([("f", "a"), ("f", '["a",1]'), ("f", "\ud800"), ("f", "a\0")])
    repeated = await harness.store.remove_groups([("f", "a")])
    left = await harness.store.read([LIKES, SHARES, OTHER, neighbour, member])

    assert (2 if harness.is_groups else 3, 0) == (removed, repeated)
    assert {OTHER: StoredCell(3, left[OTHER].value), neighbour: StoredCell(3, left[neighbour].value)} == left
    assert (await harness.rows("f")) == [row for row in rows if "a " in row]


NEIGHBOURS = [
    "anna", "Anna", "ANNA", "anna ", "\u00e4nna", "a\u0308nna", "annab", "ann", "a*", "a?", "a%", "a_", "[ab]", "{a}", "a:b", "f",
    "likes", "group_key", "a\\", "a\\\\", "a'b", 'a"b', "a--b", "\U0001f600", "\U0001f601", "x" * 440, "x" * 439, "AND", "*",
]  # fmt: skip


async def test_removed_group_of_any_kind_leaves_every_similar_group(harness: StoreHarness) -> None:
    cells = {key: Cell("f", key, "likes") for key in NEIGHBOURS}
    asked = list(cells.values())
    await fill(harness, *((cell, 3, 1) for cell in asked))
    for key in NEIGHBOURS:
        removed = await harness.store.remove_groups([("f", key)])
        del cells[key]
        assert (1, set(cells)) == (removed, {cell.group_key for cell in await harness.store.read(asked)}), key


@of_sql
@pytest.mark.parametrize("table", ["batch", "before", "upserted", "written_checkpoint", "given", "changed", "added", "asked"])
async def test_table_may_have_the_name_of_anything_in_the_statements(bare: SqlHarness, table: str) -> None:
    store = open_store(bare.settings.model_copy(update={"table": table}))
    bare.opened.append(store)
    await store.initialise()
    counts = [await write(store, [CellChange(LIKES, version, version)], version, 0) for version in (1, 2)]
    repaired_cells = await store.repair([Repair(CellChange(LIKES, 3, 7), 2), Repair(CellChange(SHARES, 3, 8), None)], 100)
    found = await store.read([LIKES, SHARES])
    names = await store.names([("f", "a")])
    await bare.close()

    assert ([Counts(written=1)] * 2, 2) == (counts, repaired_cells)
    assert {LIKES: 7, SHARES: 8} == {cell: int(str(stored.value)) for cell, stored in found.items()}
    assert {LIKES, SHARES} == set(names)


@pytest.mark.parametrize("text", ["a\0b", "\0", "\ud800", "x" * 600, "y" * 40_000])
async def test_store_can_be_queried_for_any_group_or_name(harness: StoreHarness, text: str) -> None:
    """The store contains the cell, or rejects it and contains nothing."""
    await fill(harness, (LIKES, 3, 1))
    group, name = Cell("f", text, "likes"), Cell("f", "a", text)
    storable = [cell for cell in (group, name) if harness.store.rejection(CellChange(cell, 4, 1)) is None]
    await fill(harness, *((cell, 4, 1) for cell in storable))
    found = await harness.store.read([LIKES, group, name])

    assert {LIKES, *storable} == found.keys()
    assert {LIKES, *storable} == set(await harness.store.names([("f", text), ("f", "a")]))
    assert "\ud800" != text or not storable


VALUES: list[Value] = [
    None, 0, 2**63 - 1, 2**64, 1.5, 1.0, "", "007", True, False, b"\x00\xff", JsonText('{"b":[1,null],"a":1.0}'), '{"a":1}',
    Decimal("0.10"), Decimal("12345678901234567890.5"), 1e300, -0.0, JsonText("[]"),
]  # fmt: skip


async def test_value_read_back_equals_the_written_one(harness: StoreHarness) -> None:
    written = [CellChange(Cell("f", str(number), "likes"), 1, value) for number, value in enumerate(VALUES)]
    await fill(harness, *((change.cell, change.version, change.value) for change in written))
    stored = await harness.store.as_stored(written)

    assert [change.cell for change in written] == [change.cell for change in stored]
    assert [] == differences(stored, await harness.store.read([change.cell for change in written]), is_carried=False)


async def test_repair_is_written_only_if_the_cell_is_unchanged(harness: StoreHarness) -> None:
    await fill(harness, (LIKES, 5, 1), (SHARES, 5, 1), (OTHER, 5, 1))
    missing = Cell("f", "b", "likes")
    repairs = [
        Repair(CellChange(LIKES, 5, 2), 5),
        Repair(CellChange(SHARES, 4, 2), 4),
        Repair(CellChange(OTHER, 5, 2), None),
        Repair(CellChange(missing, 7, 2), None),
    ]
    written = await harness.store.repair(repairs, 200)
    read = await harness.store.read([LIKES, SHARES, OTHER, missing])

    assert 2 == written
    assert [(5, "2"), (5, "1"), (5, "1"), (7, "2")] == [
        (read[cell].version, str(read[cell].value)) for cell in (LIKES, SHARES, OTHER, missing)
    ]
    assert [100, harness.time(100, 200), 200, 200] == sorted(row[4] for row in await harness.rows())


@of_groups
async def test_foreign_row_does_not_end_the_pages(harness: SqlHarness) -> None:
    await harness.run("INSERT INTO cells (fold, group_key) VALUES ('f', 'a'), ('f', 'c')")
    await fill(harness, (Cell("f", "b", "likes"), 1, 1), (Cell("f", "d", "likes"), 1, 1))
    first = await harness.store.cells("f", None, 1)
    second = await harness.store.cells("f", first[-1][0], 1)

    assert ["b", "d"] == [cell.group_key for cell, _ in first + second]
    assert [] == await harness.store.cells("f", second[-1][0], 1)


async def test_repair_may_restore_a_value_and_delete_one(harness: StoreHarness) -> None:
    await fill(harness, (LIKES, 5, 1), (SHARES, 5, None))

    assert 2 == await harness.store.repair([Repair(CellChange(LIKES, 5, None), 5), Repair(CellChange(SHARES, 5, 1), 5)], 200)
    assert {LIKES} == {cell for cell, one in (await harness.store.read([LIKES, SHARES])).items() if one.value is None}


@pytest.mark.parametrize(
    ("column_type", "value", "another"),
    [
        ("bigint", 1, 2**63 - 1), ("numeric", Decimal("0.5"), Decimal("9" * 5_000)), ("numeric(12,2)", "1.50", Decimal("2.25")),
        ("double precision", 1e300, 0.1), ("text", "abc", '"xyz"'), ("text", "1", '{"a":1}'), ("boolean", True, False),
        ("timestamptz", "2024-01-01T00:00:00Z", "2025-01-01T12:00:00.5+02:00"),
        ("jsonb", "abc", '"xyz"'), ("jsonb", 1, JsonText('{"a":[1.50]}')),
    ],
)  # fmt: skip
async def test_value_of_a_typed_column_can_be_repaired_and_rewritten_as_it_was_read(
    postgresql_url: str, column_type: str, value: Any, another: Any
) -> None:
    harness = Postgres(postgresql_url, "groups", {"likes": "likes"})
    await harness.run(f"CREATE TABLE cells ({harness.system_columns}, likes {column_type}, PRIMARY KEY (fold, group_key))")
    store = harness.store
    await store.initialise()
    await write(store, [CellChange(LIKES, 5, another)])
    expected = await harness.run("SELECT likes::text FROM cells")
    await write(store, [CellChange(LIKES, 6, value)])
    repaired_change = await store.as_stored([CellChange(LIKES, 7, another)])
    repaired = await store.repair([Repair(repaired_change[0], 6)], 200)
    ((cell, stored),) = await store.cells("f", None, 9)
    rewritten = CellChange(cell, 8, stored.value)
    rejection = store.rejection(rewritten)
    kept = await store.repair([Repair(rewritten, 7)], 300)
    found = await harness.run("SELECT likes::text FROM cells")
    await harness.close()

    assert (1, None, 1, expected) == (repaired, rejection, kept, found)


async def test_constraint_violation_leaves_the_rest_of_a_page_repaired(
    made: Callable[..., SqlHarness],
) -> None:
    harness = made(likes="likes", shares="shares")
    key = "PRIMARY KEY (fold, group_key)"
    await harness.run(f"CREATE TABLE cells ({harness.system_columns}, likes bigint CHECK (likes < 5), shares bigint, {key})")
    store = harness.store
    await store.initialise()
    await write(store, [CellChange(LIKES, 5, 1)])
    good = Cell("f", "b", "likes")
    repairs = [Repair(CellChange(LIKES, 6, 9), 5), Repair(CellChange(SHARES, 6, 2), None), Repair(CellChange(good, 6, 2), None)]
    done, rejected = await repaired(store, repairs, lambda: 200)
    read = await store.read([LIKES, SHARES, good])
    await harness.close()

    assert (2, [LIKES]) == (done, list(rejected))
    assert "is refused: " in rejected[LIKES]
    assert {LIKES: StoredCell(5, 1), SHARES: StoredCell(6, 2), good: StoredCell(6, 2)} == read


async def test_repair_may_lower_a_version_that_later_records_are_compared_with(harness: StoreHarness) -> None:
    await fill(harness, (LIKES, 5, 1))
    await harness.store.repair([Repair(CellChange(LIKES, 3, None), 5)], 200)

    assert {LIKES: StoredCell(3, None)} == await harness.store.read([LIKES])
    assert Counts(written=1) == await write(harness.store, [CellChange(LIKES, 4, 9)])
