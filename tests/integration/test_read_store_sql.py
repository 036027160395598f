"""What a read store in SQL promises beyond the contract: one transaction or nothing, tables and values as they are."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from streams_app.delivery.batch import TP
from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.read_store.core.merge import Cell, Change, JsonText
from streams_app.read_store.targets.port import Counts, ProgressError, Step
from tests.integration.conftest import CELLS, of_sql
from tests.integration.targets import P0, Postgres, Sqlite, SqlTarget, held, write

LIKES, SHARES = Cell("f", "a", "likes"), Cell("f", "a", "shares")


# Tables


@of_sql
async def test_initialising_creates_only_the_table_that_is_missing(target: SqlTarget) -> None:
    await write(target.store, [Change(LIKES, 1, 7)], 2, 5)
    await target.run("DROP TABLE cells_progress")

    assert ["table cells_progress"] == await target.store.missing()
    said = [line.partition(" in ")[0] for line in await target.store.initialise()]
    assert ["table cells is there already", "created table cells_progress"] == said
    assert [("a", "likes", held(target, 7), 1, 5)] == await target.rows()


@of_sql
async def test_of_two_workers_that_initialise_at_once_one_creates_each_table(bare: SqlTarget) -> None:
    said = await asyncio.gather(bare.store.initialise(), bare.another().initialise())
    await bare.close()

    assert [2, 2] == sorted(sum(line.startswith(word) for lines in said for line in lines) for word in ("created", "table"))


@pytest.mark.parametrize("bare", CELLS, indirect=True)
async def test_table_with_other_columns_is_refused_and_left_as_it_is(bare: SqlTarget) -> None:
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


# Values


@of_sql
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
    target: SqlTarget, value: Any, in_sqlite: Any, in_postgresql: Any
) -> None:
    counts = [await write(target.store, [Change(LIKES, version, value)]) for version in (1, 2)]
    expected = in_postgresql if isinstance(target, Postgres) else in_sqlite
    ((_, _, found, version, _),) = await target.rows()

    assert (type(expected), expected, 2) == (type(found), found, version)
    assert [Counts(written=1), Counts(unchanged=1)] == counts


# Transactions


@of_sql
@pytest.mark.parametrize("table", ["cells", "cells_progress"])
async def test_failure_in_the_middle_leaves_neither_changes_nor_progress(target: SqlTarget, table: str) -> None:
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


@of_sql
async def test_of_owners_that_go_on_from_one_place_only_one_is_taken(target: SqlTarget) -> None:
    await write(target.store, [], 3)

    async def go_on(number: int) -> str:
        changes = [Change(Cell("f", f"{number}-{n}", "likes"), 1, 1) for n in range(200)]
        try:
            await target.another().apply(changes, Step(P0, 3, 10 + number), 0)
        except ProgressError:
            return "refused"
        return "taken"

    outcomes = await asyncio.gather(*(go_on(number) for number in range(4)))

    assert ["refused"] * 3 + ["taken"] == sorted(outcomes)
    assert {str(outcomes.index("taken"))} == {group.partition("-")[0] for group, *_ in await target.rows()}


@of_sql
async def test_two_workers_on_the_same_cells_never_wait_for_each_other_in_a_circle(target: SqlTarget) -> None:
    cells = [Cell("f", f"g{number // 10}", f"n{number % 10}") for number in range(1_000)]
    target.settings = target.settings.model_copy(update={"timeout": timedelta(seconds=30)})

    async def fill(partition: int, step: int) -> None:
        store = target.another()
        for version in range(8):
            await write(store, [Change(cell, version, version) for cell in cells[::step]], tp=TP("s.f", partition))

    await asyncio.gather(fill(0, 1), fill(1, -1), fill(2, 1))

    assert {(held(target, 7), 7)} == {(value, version) for _, _, value, version, _ in await target.rows()}
