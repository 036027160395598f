"""Promises of a read store in SQL beyond the contract: atomic transactions, exact tables and values."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from functools import partial
from typing import Any

import pytest

from streams_app.delivery.batch import TP
from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.read_store.core.merge import CarriedDecimal, Cell, CellChange, JsonText, Value
from streams_app.read_store.core.store import CheckpointError, CheckpointStep, Counts, NotStorableError
from tests.helpers.read_store.mysql import Mysql
from tests.helpers.read_store.stores import P0, Postgres, SqlHarness, Sqlite, retry_while_locked, write
from tests.integration.conftest import CELLS, of_sql

LIKES, SHARES = Cell("f", "a", "likes"), Cell("f", "a", "shares")


# Tables


@of_sql
async def test_initialising_creates_only_the_missing_table(harness: SqlHarness) -> None:
    await write(harness.store, [CellChange(LIKES, 1, 7)], 2, 5)
    await harness.run("DROP TABLE cells_progress")

    assert ["table cells_progress"] == await harness.store.missing()
    reports = [line.partition(" in ")[0] for line in await harness.store.initialise()]
    assert ["table cells already exists", "created table cells_progress"] == reports
    assert [("a", "likes", harness.in_rows(7), 1, 5)] == await harness.rows()


@of_sql
async def test_table_is_created_by_only_one_of_two_concurrent_initialisations(bare: SqlHarness) -> None:
    reports = await asyncio.gather(bare.store.initialise(), bare.another().initialise())
    await bare.close()

    assert [2, 2] == sorted(sum(line.startswith(word) for lines in reports for line in lines) for word in ("created", "table"))


@pytest.mark.parametrize("bare", CELLS, indirect=True)
async def test_table_with_other_columns_is_rejected_and_unchanged(bare: SqlHarness) -> None:
    if isinstance(bare, Sqlite):
        bare.path.touch()
    await bare.run("CREATE TABLE cells (fold TEXT, likes INTEGER)")
    with pytest.raises(ConfigurationError, match=r"has the columns fold.*, likes.*; expected fold.*, group_key.*, name"):
        await bare.store.initialise()

    assert ["table cells", "table cells_progress"] == await bare.store.missing()
    with pytest.raises(TryAgainError, match="run `streams-app read-store init --store dashboard`"):
        await write(bare.store, [CellChange(LIKES, 1, 7)], 2, 5)
    await bare.close()
    assert [] == await bare.run("SELECT * FROM cells")


@pytest.mark.parametrize("bare", CELLS, indirect=True)
async def test_table_without_the_key_is_rejected_and_unchanged(bare: SqlHarness) -> None:
    await bare.run(f"CREATE TABLE cells ({bare.cell_columns})")
    with pytest.raises(ConfigurationError, match=r"cells .*has no PRIMARY KEY \(fold, group_key, name\)"):
        await bare.store.initialise()
    missing = await bare.store.missing()
    await bare.close()

    assert ["table cells", "table cells_progress"] == missing


# Values

IN_MYSQL = {Decimal("1e400"): "1E+400", JsonText('{"a":[1,null]}'): '{"a":[1,null]}'}
"""The values that MySQL has as other text than PostgreSQL: it keeps JSON as it was written."""


VALUES: list[tuple[Value, Any, Any]] = [
    (0, 0, "0"), (-(2**63), -(2**63), str(-(2**63))), (2**63 - 1, 2**63 - 1, str(2**63 - 1)),
    (2**53 + 1, 2**53 + 1, str(2**53 + 1)), (2**64, str(2**64), str(2**64)), (1.5, 1.5, "1.5"), (1.0, 1.0, "1.0"),
    ("", "", '""'), ("007", "007", '"007"'), ("1", "1", '"1"'), ("ä{}\n'\"\\", "ä{}\n'\"\\", '"ä{}\\n\'\\"\\\\"'),
    (True, 1, "true"), (False, 0, "false"), (None, None, None), (b"\x00\xff", b"\x00\xff", '"\\\\x00ff"'),
    (JsonText('{"a":[1,null]}'), '{"a":[1,null]}', '{"a": [1, null]}'), ('{"a":1}', '{"a":1}', '"{\\"a\\":1}"'),
    (Decimal("0.10"), 0.1, "0.10"),
    (Decimal("12345678901234567890.123456789"), 12345678901234567890.123456789, "12345678901234567890.123456789"),
    (CarriedDecimal("12345678901234567.89"), "12345678901234567.89", "12345678901234567.89"),
    (Decimal("1e400"), float("inf"), "1" + "0" * 400),
]  # fmt: skip
"""Value, its form in SQLite, and that in PostgreSQL."""


@of_sql
async def test_value_is_stored_in_the_database_form_and_compares_equal(harness: SqlHarness) -> None:
    def expected(value: Value, in_sqlite: Any, in_postgresql: Any) -> Any:
        if isinstance(harness, Mysql) and isinstance(value, (Decimal, JsonText)):
            return IN_MYSQL.get(value, in_postgresql)
        return in_sqlite if isinstance(harness, Sqlite) else in_postgresql

    groups = [f"{number:02}" for number in range(len(VALUES))]
    counts = [
        await write(
            harness.store,
            [CellChange(Cell("f", group, "likes"), version, value) for group, (value, _, _) in zip(groups, VALUES, strict=True)],
        )
        for version in (1, 2)
    ]
    found = {group: (type(value), value, version) for group, _, value, version, _ in await harness.rows()}
    forms = [expected(*row) for row in VALUES]

    assert {group: (type(form), form, 2) for group, form in zip(groups, forms, strict=True)} == found
    assert [Counts(written=len(VALUES)), Counts(unchanged=len(VALUES))] == counts


# Transactions


@of_sql
@pytest.mark.parametrize("table", ["cells", "cells_progress"])
async def test_failure_in_the_middle_writes_neither_changes_nor_progress(harness: SqlHarness, table: str) -> None:
    if isinstance(harness, (Sqlite, Mysql)) and table == "cells":
        pytest.skip("SQLite and MySQL have triggers for rows alone, and those are taken for a matter of the values")
    batch = [CellChange(SHARES, 3, 1), CellChange(LIKES, 3, 9)]
    await write(harness.store, [CellChange(LIKES, 1, 7)], 2, 5)
    await harness.reject_writes(table)
    with pytest.raises(TryAgainError, match="the disk is full"):
        await write(harness.store, batch, 4, 6)
    with pytest.raises(TryAgainError, match="the disk is full"):
        await harness.store.probe()

    assert [("a", "likes", harness.in_rows(7), 1, 5)] == await harness.rows()
    assert {P0: 2} == await harness.store.checkpoints()

    await harness.allow(table)

    assert Counts(written=2) == await write(harness.store, batch, 4, 6)
    assert {P0: 4} == await harness.store.checkpoints()


@of_sql
async def test_step_is_accepted_from_only_one_of_several_owners_at_the_same_progress(harness: SqlHarness) -> None:
    await write(harness.store, [], 3)

    async def go_on(number: int) -> str:
        changes = [CellChange(Cell("f", f"{number}-{n}", "likes"), 1, 1) for n in range(200)]
        try:
            await retry_while_locked(partial(harness.another().apply, changes, CheckpointStep(P0, 3, 10 + number), 0))
        except CheckpointError:
            return "refused"
        return "taken"

    outcomes = await asyncio.gather(*(go_on(number) for number in range(4)))

    assert ["refused"] * 3 + ["taken"] == sorted(outcomes)
    assert {str(outcomes.index("taken"))} == {group.partition("-")[0] for group, *_ in await harness.rows()}


@of_sql
async def test_two_workers_on_the_same_cells_do_not_deadlock(harness: SqlHarness) -> None:
    cells = [Cell("f", f"g{number // 10}", f"n{number % 10}") for number in range(1_000)]

    async def fill(partition: int, step: int) -> None:
        store = harness.another()
        for version in range(8):
            changes = [CellChange(cell, version, version) for cell in cells[::step]]
            await retry_while_locked(partial(write, store, changes, tp=TP("s.f", partition)))

    await asyncio.gather(fill(0, 1), fill(1, -1), fill(2, 1))

    assert {(harness.in_rows(7), 7)} == {(value, version) for _, _, value, version, _ in await harness.rows()}


# Additions of users to the table


async def forbid(harness: SqlHarness, column: str, *, by_trigger: bool, is_late: bool = False) -> None:
    """Add a constraint that rejects the value 9 in a column."""
    if isinstance(harness, Sqlite):
        await harness.run(
            f"CREATE TRIGGER forbidden BEFORE INSERT ON cells WHEN NEW.{column} = 9 BEGIN SELECT RAISE(ABORT, 'no nine'); END"
        )
    elif by_trigger and isinstance(harness, Mysql):
        await harness.run(
            f"CREATE TRIGGER forbidden BEFORE INSERT ON cells FOR EACH ROW IF NEW.{column} = '9' THEN "
            "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no nine'; END IF"
        )
    elif by_trigger:
        assert isinstance(harness, Postgres)
        when = "CONSTRAINT TRIGGER forbidden AFTER" if is_late else "TRIGGER forbidden BEFORE"
        async with harness.connected() as connection:
            await connection.execute(
                "CREATE FUNCTION forbid() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no nine'; END $$;"
                f"CREATE {when} INSERT ON cells {'INITIALLY DEFERRED' if is_late else ''} FOR EACH ROW "
                f"WHEN (NEW.{column} = '9') EXECUTE FUNCTION forbid()"
            )
    else:
        await harness.run(f"ALTER TABLE cells ADD CONSTRAINT forbidden CHECK ({column} <> '9')")


@of_sql
@pytest.mark.parametrize("how", ["constraint", "trigger", "late trigger"])
async def test_constraint_or_trigger_violation_is_found_and_the_rest_can_be_written(harness: SqlHarness, how: str) -> None:
    if isinstance(harness, Sqlite) and how != "trigger":
        pytest.skip("SQLite adds no constraint to a table")
    if isinstance(harness, Mysql) and how == "late trigger":
        pytest.skip("MySQL has no deferred triggers")
    await forbid(
        harness, '"likes"' if harness.is_groups else "value", by_trigger=how != "constraint", is_late=how == "late trigger"
    )
    cells = [Cell("f", f"g{number}", "likes") for number in range(20)]
    batch = [CellChange(cell, 1, 9 if number in (7, 13) else 1) for number, cell in enumerate(cells)]
    with pytest.raises(NotStorableError) as caught:
        await write(harness.store, [*batch, CellChange(SHARES, 1, 1)], 5)
    left = await harness.rows(), await harness.store.checkpoints()
    counts = await write(harness.store, [change for change in batch if change.cell not in caught.value.cells], 5)

    assert {cells[7], cells[13]} == caught.value.cells.keys()
    assert all(("constraint" if how == "constraint" else "no nine") in why.lower() for why in caught.value.cells.values())
    assert (([], {}), Counts(written=18)) == (left, counts)
