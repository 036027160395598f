"""MySQL or MariaDB as a source of values: lists of groups and names, types of the driver, and faults of a query."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from streams_app.errors import TryAgainError
from streams_app.read_store.core.errors import SourceFailedError, TooSlowError
from streams_app.read_store.core.merge import Cell, CellChange
from streams_app.read_store.registry import open_source
from streams_app.settings import ReadStoreSettings
from tests.helpers.read_store.mysql import execute_mysql, global_setting

SQL = "SELECT account, metric, value FROM numbers WHERE account IN (:groups) AND metric IN (:names) -- :groups"


def settings(url: str, sql: str, timeout: str = "5s") -> ReadStoreSettings:
    return ReadStoreSettings.model_validate(
        {"name": "dashboard", "url": "sqlite:///x.db", "folds": ["f"], "source_url": url, "sql": sql, "timeout": timeout}
    )


async def current(url: str, sql: str, *wanted: Cell, timeout: str = "5s") -> list[CellChange]:
    source = open_source(settings(url, sql, timeout))
    try:
        await source.check()
        return await source.current([CellChange(cell, 1) for cell in wanted])
    finally:
        await source.close()


@pytest.mark.parametrize("sql_mode", ["", "NO_BACKSLASH_ESCAPES,ANSI_QUOTES"])
async def test_values_are_found_by_groups_and_names_of_any_characters(mysql_url: str, sql_mode: str) -> None:
    odd = ["a'b", 'a"\\', "%s :names", "a\0", "😀", "\ud800"]
    await execute_mysql(
        mysql_url,
        "CREATE TABLE numbers (account VARCHAR(99), metric VARCHAR(99), value INT)",
        "INSERT INTO numbers VALUES ('a''b', 'n', 1), ('a\"\\\\', 'n', 2), ('%s :names', 'n', 3), ('a\\0', 'n', 4), "
        "('😀', 'n', 5), ('A''B', 'n', 6)",
    )
    async with global_setting(mysql_url, "sql_mode", f"'{sql_mode}'"):
        found = await current(mysql_url, SQL, *(Cell("f", group, "n") for group in odd), Cell("f", "a'b", "missing"))

    assert [1, 2, 3, 4, 5, None, None] == [change.value for change in found]


async def test_number_is_found_by_its_text_and_text_is_not_taken_for_a_number(mysql_url: str) -> None:
    await execute_mysql(
        mysql_url,
        "CREATE TABLE numbers (account BIGINT, metric VARCHAR(99), value INT)",
        "INSERT INTO numbers VALUES (7, 'n', 1), (8, 'n', 2)",
    )
    found = await current(mysql_url, SQL, Cell("f", "7", "n"), Cell("f", '"8"', "n"), Cell("f", "7abc", "n"), Cell("f", "abc", "n"))

    assert [1, 2, None, None] == [change.value for change in found]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("CAST(1.10 AS DECIMAL(9,2))", Decimal("1.10")), ("18446744073709551615", 2**64 - 1), ("0.1e0", 0.1), ("NULL", None),
        ("DATE '2026-01-02'", "2026-01-02"), ("TIMESTAMP '2026-01-02 03:04:05'", "2026-01-02T03:04:05"), ("x'00ff'", b"\x00\xff"),
        ("(SELECT moment FROM moments)", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).isoformat()), ("TRUE", 1), ("'ä'", "ä"),
    ],
)  # fmt: skip
async def test_value_keeps_its_type(mysql_url: str, expression: str, expected: Any) -> None:
    await execute_mysql(
        mysql_url,
        "CREATE TABLE moments (moment TIMESTAMP NULL)",
        "SET time_zone = '+05:00'",
        "INSERT INTO moments VALUES ('2026-01-02 08:04:05')",
    )
    sql = f"SELECT 'a', 'n', {expression} FROM (SELECT 1 AS one) AS row_of_one WHERE 'a' IN (:groups)"
    found = await current(mysql_url, sql, Cell("f", "a", "n"))

    assert (type(expected), expected) == (type(found[0].value), found[0].value)


async def test_row_without_a_name_reports_a_deleted_group(mysql_url: str) -> None:
    found = await current(
        mysql_url, "SELECT 'a', NULL, NULL FROM (SELECT 1 AS one) AS t WHERE 'a' IN (:groups)", Cell("f", "a", "n")
    )

    assert [(None, True)] == [(change.value, change.is_group_gone) for change in found]


async def test_fault_of_a_query_says_whether_a_value_is_the_cause(mysql_url: str) -> None:
    await execute_mysql(mysql_url, "CREATE TABLE numbers (account VARCHAR(99), value BIGINT)")
    await execute_mysql(mysql_url, "INSERT INTO numbers VALUES ('a', 9223372036854775807)")
    cell = Cell("f", "a", "n")
    with pytest.raises(SourceFailedError) as caught:
        await current(mysql_url, "SELECT account, 'n', value + 1 FROM numbers WHERE account IN (:groups)", cell)
    with pytest.raises(TryAgainError, match="returns 2 columns; expected group, name, value"):
        await current(mysql_url, "SELECT account, value FROM numbers WHERE account IN (:groups)", cell)
    with pytest.raises(TryAgainError, match="doesn't exist") as absent:
        await current(mysql_url, "SELECT account, 'n', value FROM absent WHERE account IN (:groups)", cell)
    with pytest.raises(TryAgainError, match="READ ONLY"):
        await current(mysql_url, "DELETE FROM numbers WHERE account NOT IN (:groups)", cell)
    with pytest.raises(TooSlowError):
        await current(mysql_url, "SELECT 'a', 'n', SLEEP(60) FROM numbers WHERE 'a' IN (:groups, 'a')", cell, timeout="300ms")

    assert (True, False) == (caught.value.is_data_error, isinstance(absent.value, SourceFailedError))
    assert [("a",)] == await execute_mysql(mysql_url, "SELECT account FROM numbers")
