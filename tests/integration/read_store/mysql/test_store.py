"""A read store in MySQL or MariaDB beyond the contract: keys, types, limits and sessions that servers treat in their own way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import pytest

from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.read_store.core.merge import Cell, CellChange
from streams_app.read_store.core.store import Counts, NotStorableError
from tests.helpers.read_store.mysql import Mysql, execute_mysql, global_setting
from tests.helpers.read_store.stores import P0, write

LIKES, SHARES = Cell("f", "a", "likes"), Cell("f", "a", "shares")
NAMES = {"likes": "likes", "shares": "shares"}
KEY = "PRIMARY KEY (fold, group_key)"


@pytest.fixture(params=["cells", "groups"])
async def harness(mysql_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Mysql]:
    made = Mysql(mysql_url, request.param)
    await made.store.initialise()
    yield made
    await made.close()


async def of_columns(mysql_url: str, columns: str) -> Mysql:
    """Return a store with a row per group, in a table with the given columns of names."""
    made = Mysql(mysql_url, "groups", NAMES)
    await made.run(f"CREATE TABLE cells ({made.system_columns}, {columns}, {KEY})")
    await made.store.initialise()
    await made.store.checkpoints()
    return made


# Keys


async def test_groups_that_differ_in_case_accents_or_spaces_have_a_row_each(harness: Mysql) -> None:
    groups = ["a", "A", "ä", "á", "a ", "a  ", " a", "ß", "ss", "a\0", "İ", "😀", "😁", ""]
    changes = [CellChange(Cell("f", group, "likes"), 5, number) for number, group in enumerate(groups)]
    counts = [await write(harness.store, changes), await write(harness.store, changes)]
    older = await write(harness.store, [CellChange(Cell("f", "A", "likes"), 4, 99)])
    pages = [await harness.store.cells("f", None, 999), await harness.store.cells("f", Cell("f", "a", "likes"), 999)]
    read = await harness.store.read([change.cell for change in changes])

    assert [Counts(written=len(groups)), Counts(unchanged=len(groups))] == counts
    assert Counts(stale=1) == older
    assert sorted(groups) == [cell.group_key for cell, _ in pages[0]]
    assert [group for group in sorted(groups) if group > "a"] == [cell.group_key for cell, _ in pages[1]]
    assert [str(number) for number in range(len(groups))] == [str(read[change.cell].value) for change in changes]


async def test_longest_key_of_wide_characters_is_stored_and_a_longer_one_is_rejected(harness: Mysql) -> None:
    groups, names = (704, 0) if harness.is_groups else (448, 256)
    longest = Cell("f" * 64, "😀" * groups, "😀" * names if names else "likes")
    too_long = longest._replace(group_key=longest.group_key + "x")
    reason = harness.store.rejection(CellChange(too_long, 1, 1))

    assert Counts(written=1) == await write(harness.store, [CellChange(longest, 1, 1)])
    assert {longest} == (await harness.store.read([longest, too_long])).keys()
    assert f"group_key has {groups + 1} characters, {groups} are possible" == reason


@pytest.mark.parametrize("kind", ["varchar(99) COLLATE utf8mb4_general_ci", "varchar(99) COLLATE utf8mb4_bin", "text"])
@pytest.mark.parametrize("shape", ["cells", "groups"])
async def test_table_whose_keys_are_not_compared_byte_by_byte_is_rejected(mysql_url: str, kind: str, shape: str) -> None:
    harness = Mysql(mysql_url, shape, {"likes": "likes"})
    columns = f"{harness.system_columns}, likes longtext" if harness.is_groups else harness.cell_columns
    key = "(fold, group_key(9))" if harness.is_groups else "(fold, group_key(9), name)"
    await harness.run(f"CREATE TABLE cells ({columns.replace('VARBINARY(704)', kind)}, PRIMARY KEY {key})")
    for call in (harness.store.initialise, harness.store.missing):
        with pytest.raises(ConfigurationError) as caught:
            await call()
    with pytest.raises(TryAgainError):
        await harness.store.checkpoints()
    await harness.close()
    fault = caught.value.faults[0]

    assert f"{kind.partition(' ')[0]} COLLATE utf8mb4_" in fault
    assert "_nopad_bin" in fault or "_0900_bin" in fault


@pytest.mark.parametrize("shape", ["cells", "groups"])
async def test_table_without_transactions_is_rejected(mysql_url: str, shape: str) -> None:
    harness = Mysql(mysql_url, shape, {"likes": "likes"})
    columns = f"{harness.system_columns}, likes longtext" if harness.is_groups else harness.cell_columns
    key = "fold, group_key" if harness.is_groups else "fold, group_key, name"
    await harness.run(f"CREATE TABLE cells ({columns.replace('704', '99')}, PRIMARY KEY ({key})) ENGINE = MyISAM")
    for call in (harness.store.initialise, harness.store.missing):
        with pytest.raises(ConfigurationError, match="has the engine MyISAM; expected InnoDB, which has transactions"):
            await call()
    await harness.close()


async def test_second_unique_key_of_a_user_rejects_a_value_and_leaves_the_other_row_unchanged(mysql_url: str) -> None:
    harness = await of_columns(mysql_url, "likes bigint UNIQUE, shares bigint")
    other = Cell("f", "b", "likes")
    await write(harness.store, [CellChange(LIKES, 5, 1), CellChange(SHARES, 5, 2)], now_ms=1)
    with pytest.raises(NotStorableError) as caught:
        await write(harness.store, [CellChange(other, 9, 1), CellChange(Cell("f", "b", "shares"), 9, 3)], now_ms=2)
    await write(harness.store, [CellChange(Cell("f", "b", "shares"), 9, 3)], now_ms=2)
    rows = await harness.rows()
    await harness.close()

    assert {other: "is refused: Duplicate entry for key 'likes' (error 1062)"} == {
        cell: why.replace("cells.likes", "likes") for cell, why in caught.value.cells.items()
    }
    assert [("a", "likes", 1, 5, 1), ("a", "shares", 2, 5, 1), ("b", "shares", 3, 9, 2)] == rows


# Values


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("decimal(12,2)", 1.005, "1.01"), ("decimal(12,2)", -1.005, "-1.01"), ("decimal(12,2)", "7", "7.00"),
        ("decimal(65,30)", Decimal("12345678901234567890.123456789"), "12345678901234567890.123456789" + "0" * 21),
        ("datetime(6)", "2026-11-23T10:00:00.5+02:00", "2026-11-23 08:00:00.500000"),
        ("datetime", "2026-11-23T10:00:00.5", "2026-11-23 10:00:01"), ("datetime(3)", "2026-11-23", "2026-11-23 00:00:00.000"),
        ("timestamp(6) NULL", "2026-11-23T10:00:00Z", "2026-11-23 10:00:00.000000"),
        ("varchar(3)", "äö ", "äö "), ("mediumtext", 7, "7"), ("longtext", "a", '"a"'), ("int", "5", "5"),
        ("double", 0.1, "0.1"), ("double", 1.7976931348623157e308, "1.7976931348623157e308"), ("boolean", False, "0"),
    ],
)  # fmt: skip
async def test_value_in_a_typed_column_compares_equal_to_what_the_server_made_of_it(
    mysql_url: str, kind: str, value: Any, expected: str
) -> None:
    async with global_setting(mysql_url, "time_zone", "'+05:00'"):
        harness = await of_columns(mysql_url, f"likes {kind}, shares {kind}")
        counts = [await write(harness.store, [CellChange(LIKES, version, value)]) for version in (1, 2)]
        as_stored = await harness.store.as_stored([CellChange(LIKES, 2, value)])
        read = await harness.store.read([LIKES])
        rows = await execute_mysql(mysql_url, "SET time_zone = '+00:00'", "SELECT CAST(likes AS CHAR) FROM cells")
        await harness.close()

    assert ([Counts(written=1), Counts(unchanged=1)], [(expected,)]) == (counts, rows)
    assert (type(as_stored[0].value), as_stored[0].value) == (type(read[LIKES].value), read[LIKES].value)


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("text CHARACTER SET utf8mb3", "a 😀", "Incorrect string value"),
        ("varchar(9) CHARACTER SET latin1", "漢", "Incorrect string"),
        ("text", "x" * 70_000, "Data too long"), ("timestamp NULL", "1960-01-01T00:00:00Z", "Incorrect datetime value"),
    ],
)  # fmt: skip
async def test_value_that_a_loose_server_would_cut_is_rejected_alone(mysql_url: str, kind: str, value: str, reason: str) -> None:
    async with global_setting(mysql_url, "sql_mode", "''"):
        harness = await of_columns(mysql_url, f"likes {kind}, shares bigint")
        with pytest.raises(NotStorableError) as caught:
            await write(harness.store, [CellChange(LIKES, 1, value), CellChange(SHARES, 1, 1)], 5)
        left = await harness.rows(), await harness.store.checkpoints()
        counts = await write(harness.store, [CellChange(SHARES, 1, 1)], 5)
        await harness.close()
    ((cell, why),) = caught.value.cells.items()

    assert (LIKES, ([], {}), Counts(written=1)) == (cell, left, counts)
    assert reason in why
    assert "😀" not in why and "F0" not in why and "1960" not in why and "E6" not in why


async def test_table_in_utf8mb3_takes_all_values_but_those_with_wider_characters(mysql_url: str) -> None:
    harness = Mysql(mysql_url)
    await harness.run(f"CREATE TABLE cells ({harness.cell_columns}, PRIMARY KEY (fold, group_key, name)) CHARACTER SET utf8mb3")
    await harness.store.initialise()
    with pytest.raises(NotStorableError) as caught:
        await write(harness.store, [CellChange(LIKES, 1, "😀"), CellChange(SHARES, 1, "漢")])
    counts = await write(harness.store, [CellChange(SHARES, 1, "漢"), CellChange(Cell("f", "😀", "likes"), 1, 1)])
    await harness.close()

    assert {LIKES} == caught.value.cells.keys()
    assert Counts(written=2) == counts


async def test_table_with_the_type_json_of_mysql_is_rejected_because_it_rounds_numbers(mysql_url: str) -> None:
    ((version,),) = await execute_mysql(mysql_url, "SELECT VERSION()")
    harness = Mysql(mysql_url)
    await harness.run(
        f"CREATE TABLE cells ({harness.cell_columns.replace('longtext', 'json')}, PRIMARY KEY (fold, group_key, name))"
    )
    if "MariaDB" in version:
        await harness.store.initialise()
        counts = [await write(harness.store, [CellChange(LIKES, one, Decimal("0.1" + "0" * 40))]) for one in (1, 2)]
        assert [Counts(written=1), Counts(unchanged=1)] == counts
    else:
        with pytest.raises(ConfigurationError, match="value json"):
            await harness.store.initialise()
    await harness.close()


# Limits of the server


async def test_batch_larger_than_a_packet_is_written_in_one_transaction_and_a_larger_value_is_rejected(
    mysql_url: str,
) -> None:
    async with global_setting(mysql_url, "max_allowed_packet", "1048576"):
        harness = Mysql(mysql_url)
        await harness.store.initialise()
        changes = [CellChange(Cell("f", f"g{number}", "likes"), 1, "x" * 100_000) for number in range(30)]
        too_large = CellChange(LIKES, 1, "'" * 700_000)  # twice as long in a statement
        with pytest.raises(NotStorableError) as caught:
            await write(harness.store, [*changes, too_large], 5)
        left = await harness.store.checkpoints()
        counts = await write(harness.store, changes, 5)
        await harness.close()

    assert {LIKES} == caught.value.cells.keys()
    assert "max_allowed_packet" in caught.value.cells[LIKES]
    assert ({}, Counts(written=30)) == (left, counts)


async def test_more_columns_than_a_row_has_room_for_are_a_configuration_error(mysql_url: str) -> None:
    harness = Mysql(mysql_url, "groups", {f"n{number}": f"n{number}" for number in range(900)})
    with pytest.raises(ConfigurationError, match="900 columns of longtext do not fit a row"):
        await harness.store.initialise()
    await harness.close()


# Connections


async def test_connection_closed_while_idle_is_replaced_without_an_error(harness: Mysql) -> None:
    await write(harness.store, [CellChange(LIKES, 1, 1)], 1)
    database = harness.url.rpartition("/")[2]
    idle = f"SELECT id FROM information_schema.processlist WHERE db = '{database}' AND id <> CONNECTION_ID()"
    for (number,) in await execute_mysql(harness.url.replace(database, "mysql"), idle):
        await execute_mysql(harness.url, f"KILL {number}")

    assert Counts(written=1) == await write(harness.store, [CellChange(LIKES, 2, 2)], 2)
    assert {P0: 2} == await harness.store.checkpoints()


async def test_error_names_the_server_without_the_password(mysql_url: str) -> None:
    wrong = mysql_url.replace("root@", "nobody:s3cret@")
    harness = Mysql(wrong)
    with pytest.raises(TryAgainError, match=r"check the user in read_stores\.dashboard\.url and the password in .*") as caught:
        await harness.store.probe()
    await harness.close()

    assert ("s3cret" in str(caught.value), getattr(caught.value, "exit_code", None)) == (False, 1)
