"""What every target of a read store promises, on real servers: one transaction or nothing, never back, equal values left alone."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from streams_app.delivery.batch import TP
from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.read_store.core.merge import Cell, Change, JsonText
from streams_app.read_store.targets.port import Counts
from tests.integration.conftest import CELLS
from tests.integration.targets import ODD_NAME, P0, P1, Postgres, Sqlite, Target, held, write

LIKES, SHARES = Cell("f", "a", "likes"), Cell("f", "a", "shares")


# Tables


async def test_initialising_again_changes_nothing(target: Target) -> None:
    await write(target.store, [Change(LIKES, 1, 7)], 2, 5)
    said = await target.store.initialise()

    assert ["table cells is there already", "table cells_progress is there already"] == [line.partition(" in ")[0] for line in said]
    assert [("a", "likes", held(target, 7), 1, 5)] == await target.rows()
    assert [] == await target.store.missing()


async def test_initialising_creates_only_the_table_that_is_missing(target: Target) -> None:
    await write(target.store, [Change(LIKES, 1, 7)], 2, 5)
    await target.run("DROP TABLE cells_progress")

    assert ["table cells_progress"] == await target.store.missing()
    said = [line.partition(" in ")[0] for line in await target.store.initialise()]
    assert ["table cells is there already", "created table cells_progress"] == said
    assert [("a", "likes", held(target, 7), 1, 5)] == await target.rows()


async def test_two_workers_initialise_at_once(bare: Target) -> None:
    said = await asyncio.gather(bare.store.initialise(), bare.another().initialise())
    await bare.close()

    assert [2, 2] == sorted(sum(line.startswith(word) for lines in said for line in lines) for word in ("created", "table"))


@pytest.mark.parametrize("bare", CELLS, indirect=True)
async def test_table_with_other_columns_is_refused_and_left_as_it_is(bare: Target) -> None:
    if isinstance(bare, Sqlite):
        bare.path.touch()
    await bare.run("CREATE TABLE cells (fold TEXT, likes INTEGER)")
    with pytest.raises(ConfigurationError, match=r"has the columns fold.*, likes.*; expected fold.*, group_key.*, name"):
        await bare.store.initialise()

    assert ["table cells", "table cells_progress"] == await bare.store.missing()
    with pytest.raises(TryAgainError, match="run `streams-app read-store init --store dashboard`"):
        await write(bare.store, [Change(LIKES, 1, 7)], 2, 5)
    await bare.close()
    assert [] == await bare.run("SELECT * FROM cells")


# Batches


async def test_changes_and_progress_are_written_and_counted(target: Target) -> None:
    store = target.store
    first = await write(store, [Change(LIKES, 5, 1), Change(SHARES, 5, 2)], 6, 100)
    await write(store, [], 3, 150, P1)
    second = await write(store, [Change(LIKES, 4, 9), Change(SHARES, 7, 2)], 8, 200)
    third = await write(store, [Change(SHARES, 6, 9), Change(LIKES, 8, None)], 9, 300)
    again = await write(store, [Change(SHARES, 7, 2), Change(LIKES, 8, 3)], 9, 400)

    assert [Counts(written=2), Counts(stale=1, unchanged=1), Counts(written=1, stale=1), Counts(stale=1, unchanged=1)] == [
        first, second, third, again,
    ]  # fmt: skip
    assert [("a", "likes", None, 8, 300), ("a", "shares", held(target, 2), 7, target.time(100, 300))] == await target.rows()
    assert {P0: 9, P1: 3} == await store.progress()


@pytest.mark.parametrize(
    ("value", "in_sqlite", "in_postgresql"),
    [
        (0, 0, "0"), (-(2**63), -(2**63), str(-(2**63))), (2**63 - 1, 2**63 - 1, str(2**63 - 1)),
        (2**53 + 1, 2**53 + 1, str(2**53 + 1)), (2**64, float(2**64), str(2**64)), (1.5, 1.5, "1.5"), (1.0, 1.0, "1.0"),
        ("", "", '""'), ("007", "007", '"007"'), ("1", "1", '"1"'), ("ä{}\n'\"\\", "ä{}\n'\"\\", '"ä{}\\n\'\\"\\\\"'),
        (True, 1, "true"), (False, 0, "false"), (None, None, None), (b"\x00\xff", b"\x00\xff", '"\\\\x00ff"'),
        (JsonText('{"a":[1,null]}'), '{"a":[1,null]}', '{"a": [1, null]}'), ('{"a":1}', '{"a":1}', '"{\\"a\\":1}"'),
        (Decimal("0.10"), 0.1, "0.10"),
        (Decimal("12345678901234567890.123456789"), 12345678901234567890.123456789, "12345678901234567890.123456789"),
    ],
)  # fmt: skip
async def test_value_is_held_as_the_database_can_and_is_the_same_again(
    target: Target, value: Any, in_sqlite: Any, in_postgresql: Any
) -> None:
    counts = [await write(target.store, [Change(LIKES, version, value)]) for version in (1, 2)]
    expected = in_postgresql if isinstance(target, Postgres) else in_sqlite
    ((_, _, found, version, _),) = await target.rows()

    assert (type(expected), expected, 2) == (type(found), found, version)
    assert [Counts(written=1), Counts(unchanged=1)] == counts


@pytest.mark.parametrize(("left", "right"), [(1, 1.0), (1, "1"), ("a", None), ('{"a":1}', {"a": 1})])
async def test_values_of_two_types_are_two_values(target: Target, left: Any, right: Any) -> None:
    if isinstance(right, dict):
        left, right = JsonText(json.dumps(right, separators=(",", ":"))), 5
    counts = [await write(target.store, [Change(LIKES, version, value)]) for version, value in ((1, left), (2, right))]

    assert [Counts(written=1)] * 2 == counts


async def test_group_and_name_of_any_characters_are_one_cell(target: Target) -> None:
    odd = Cell("f", "{}'\";--\n$1ä漢\t\\", ODD_NAME)

    assert [Counts(written=1), Counts(unchanged=1)] == [await write(target.store, [Change(odd, 1, 1)]) for _ in range(2)]
    assert [(odd.group_key, odd.name, held(target, 1), 1, 0)] == await target.rows()


# Faults


@pytest.mark.parametrize("table", ["cells", "cells_progress"])
async def test_failure_in_the_middle_leaves_neither_changes_nor_progress(target: Target, table: str) -> None:
    batch = [Change(SHARES, 3, 1), Change(LIKES, 3, 9)]
    await write(target.store, [Change(LIKES, 1, 7)], 2, 5)
    await target.refuse(table)
    with pytest.raises(TryAgainError, match="the disk is full"):
        await write(target.store, batch, 4, 6)

    assert [("a", "likes", held(target, 7), 1, 5)] == await target.rows()
    assert {P0: 2} == await target.store.progress()

    await target.allow(table)

    assert Counts(written=2) == await write(target.store, batch, 4, 6)
    assert {P0: 4} == await target.store.progress()


async def test_a_locked_store_is_tried_again_and_works_later(target: Target) -> None:
    async with target.locked():
        with pytest.raises(TryAgainError, match="lock"):
            await write(target.store, [Change(LIKES, 1, 7)], 2, 5)
        with pytest.raises(TryAgainError, match="lock"):
            await target.store.probe()

    assert {} == await target.store.progress()
    assert Counts(written=1) == await write(target.store, [Change(LIKES, 1, 7)], 2, 5)


async def test_a_probe_leaves_nothing(target: Target) -> None:
    await target.store.probe()

    assert {} == await target.store.progress()


async def test_a_store_that_was_closed_is_opened_again(target: Target) -> None:
    await write(target.store, [Change(LIKES, 1, 7)], 2, 5)
    await target.store.close()

    assert {P0: 2} == await target.store.progress()


async def test_a_lowered_guard_lets_lower_versions_through_and_keeps_the_values(target: Target) -> None:
    other = Cell("g", "a", "likes")
    await write(target.store, [Change(LIKES, 9, 7), Change(SHARES, 8, 1), Change(other, 9, 7)], 2, 5)
    before = await target.store.guarded("f")
    await target.store.lower("f")
    after = await target.store.guarded("f"), await target.store.guarded("g")
    counts = await write(target.store, [Change(LIKES, 1, 2), Change(other, 1, 2)], now_ms=6)

    assert (2, (0, 1), Counts(written=1, stale=1)) == (before, after, counts)
    assert [
        ("a", "likes", held(target, 2), 1, 6),
        ("a", "likes", held(target, 7), 9, 5),
        ("a", "shares", held(target, 1), -1, target.time(5, 6)),
    ] == await target.rows()


async def test_a_store_without_tables_guards_nothing(bare: Target) -> None:
    assert None is await bare.store.guarded("f")
    await bare.close()


WRITER = """
import asyncio, sys
from streams_app.delivery.batch import TP
from streams_app.read_store.core.merge import Cell, Change
from streams_app.read_store.targets.choice import open_store
from streams_app.read_store.targets.port import Step
from streams_app.settings import ReadStoreSettings

async def main():
    store = open_store(ReadStoreSettings.model_validate_json(sys.argv[1]))
    for offset in range(10**9):
        changes = [Change(Cell("f", "a", f"name-{n}"), offset, offset) for n in range(50)]
        await store.apply(changes, Step(TP("s.f", 0), offset or None, offset + 1), 0)
        if offset == 20:
            print("going", flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("attempt", range(3))
async def test_process_killed_while_it_writes_leaves_one_whole_batch(target: Target, attempt: int) -> None:
    writer = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITER, target.settings.model_dump_json(exclude={"timeout"}), stdout=asyncio.subprocess.PIPE
    )
    assert writer.stdout is not None
    assert b"going\n" == await writer.stdout.readline()
    writer.kill()
    await writer.wait()
    # The server may still be doing what the process asked for last: a statement of the store comes after it.
    await write(target.store, [Change(Cell("f", "a", "name-0"), 0, 0)], 0, 0, P1)
    progress, rows = (await target.store.progress())[P0], await target.rows()

    assert (50, {(held(target, progress - 1), progress - 1)}) == (len(rows), {(value, version) for _, _, value, version, _ in rows})
    assert progress > 20


async def test_two_workers_on_the_same_cells_never_wait_for_each_other_in_a_circle(target: Target) -> None:
    cells = [Cell("f", f"g{number // 10}", f"n{number % 10}") for number in range(1_000)]
    target.settings = target.settings.model_copy(update={"timeout": timedelta(seconds=30)})

    async def fill(partition: int, step: int) -> None:
        store = target.another()
        for version in range(8):
            await write(store, [Change(cell, version, version) for cell in cells[::step]], tp=TP("s.f", partition))

    await asyncio.gather(fill(0, 1), fill(1, -1), fill(2, 1))

    assert {(held(target, 7), 7)} == {(value, version) for _, _, value, version, _ in await target.rows()}
