"""What a store in OpenSearch tells of its cells, and repairs that leave alone what has changed; in both shapes."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from streams_app.read_store.core.comparing import differences
from streams_app.read_store.core.merge import Cell, Change, JsonText, Stored, Value
from streams_app.read_store.targets.port import Counts
from streams_app.read_store.targets.reading_back import ReadBack, Repair, open_read_back
from tests.integration.searching import Search
from tests.integration.targets import write

LIKES, SHARES, OTHER = Cell("f", "a", "likes"), Cell("f", "a", "shares"), Cell("g", "a", "likes")


def back(search: Search) -> ReadBack:
    assert isinstance(search.store, ReadBack)
    return search.store


async def fill(search: Search, *cells: tuple[Cell, int, Value]) -> None:
    written = await back(search).repair([Repair(Change(*cell), None) for cell in cells], 100)
    assert len(cells) == written


async def test_pages_have_every_cell_of_one_fold_once_in_the_order_of_the_key(search: Search) -> None:
    odd = [Cell("f", group, name) for group in ("", "a", "ä", "[1]", "z" * 600) for name in ("", "x", "a.b", "'\"")]
    await fill(search, (OTHER, 1, 1), *((cell, 1, 1) for cell in odd))
    found: list[Cell] = []
    while page := await back(search).cells("f", found[-1] if found else None, 3):
        found += [cell for cell, _ in page]

    assert sorted(odd) == found


async def test_what_is_not_there_is_left_out_and_a_cell_without_a_value_is_there(search: Search) -> None:
    await fill(search, (LIKES, 3, None))

    assert {LIKES: Stored(3, None)} == await back(search).read([LIKES, SHARES, Cell("f", "b", "likes")])
    assert [(LIKES, Stored(3, None))] == await back(search).cells("f", None, 9)
    assert {} == await back(search).read([])


async def test_a_value_that_was_written_is_the_one_it_was_made_of(search: Search) -> None:
    values: list[Any] = [
        None, 0, 2**63 - 1, 2**64, 1.5, 1.0, "", "007", True, False, b"\x00\xff", JsonText('{"b":[1,null],"a":1.0}'), '{"a":1}',
        Decimal("0.10"), Decimal("12345678901234567890.5"), 1e300, -0.0, JsonText("[]"),
    ]  # fmt: skip
    changes = [Change(Cell("f", "a", f"n{number}"), 1, value) for number, value in enumerate(values)]
    await write(search.store, changes)
    held = await back(search).held(changes)

    assert [] == differences(held, await back(search).read([change.cell for change in changes]), is_carried=False)


async def test_a_repair_is_written_where_the_cell_is_as_it_was_found(search: Search) -> None:
    await fill(search, (LIKES, 5, 1), (SHARES, 5, 1), (OTHER, 5, 1))
    missing = Cell("f", "b", "likes")
    repairs = [
        Repair(Change(LIKES, 5, 2), 5),
        Repair(Change(SHARES, 4, 2), 4),
        Repair(Change(OTHER, 5, 2), None),
        Repair(Change(missing, 7, 2), None),
    ]
    written = await back(search).repair(repairs, 200)
    read = await back(search).read([LIKES, SHARES, OTHER, missing])

    assert 2 == written
    assert [Stored(5, 2), Stored(5, 1), Stored(5, 1), Stored(7, 2)] == [read[cell] for cell in (LIKES, SHARES, OTHER, missing)]


async def test_a_repair_may_lower_a_version_and_records_are_judged_by_that_one(search: Search) -> None:
    await fill(search, (LIKES, 5, 1))
    await back(search).repair([Repair(Change(LIKES, 3, None), 5)], 200)

    assert {LIKES: Stored(3, None)} == await back(search).read([LIKES])
    assert Counts(written=1) == await write(search.store, [Change(LIKES, 4, 9)])


async def test_a_store_of_either_shape_can_be_verified(search: Search) -> None:
    store = open_read_back(search.settings)
    await store.close()

    assert search.shape == store.shape_read_back
