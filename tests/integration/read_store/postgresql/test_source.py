"""Current values from a query of a real PostgreSQL: one statement for many groups, and reports of faulty queries."""

from __future__ import annotations

from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import asyncpg
import pytest

from streams_app.errors import TryAgainError
from streams_app.read_store.core.merge import Cell, CellChange, JsonText
from streams_app.read_store.registry import open_source
from streams_app.settings import ReadStoreSettings

LIKES, SHARES = Cell("f", "a", "likes"), Cell("f", "a", "shares")
SUM = """
SELECT account_id, metric, SUM(value) FROM post_metrics
WHERE account_id = ANY(:groups) AND metric = ANY(:names) GROUP BY account_id, metric
"""
TABLES = """
CREATE TABLE post_metrics (account_id text, metric text, value bigint);
INSERT INTO post_metrics VALUES ('a', 'likes', 3), ('a', 'likes', 4), ('b', 'likes', 9), ('7', 'shares', 1);
CREATE TABLE numbered (account_id bigint, metric text, value bigint);
INSERT INTO numbered VALUES (7, 'likes', 9007199254740993);
"""

pytestmark = pytest.mark.timeout(60)


class Source:
    """A database with tables, and the results of a query on it."""

    def __init__(self, url: str) -> None:
        self.url = url

    def settings(self, sql: str, timeout: str) -> ReadStoreSettings:
        return ReadStoreSettings.model_validate(
            {"name": "dashboard", "url": "sqlite:///x.db", "folds": ["f"], "source_url": self.url, "sql": sql, "timeout": timeout}
        )

    async def run(self, sql: str) -> None:
        connection = await asyncpg.connect(self.url)
        await connection.execute(sql)
        await connection.close()

    async def current(self, sql: str, *wanted: Cell, timeout: str = "5s") -> list[Any]:
        source = open_source(self.settings(sql, timeout))
        try:
            return [change.value for change in await source.current([CellChange(cell, 1) for cell in wanted])]
        finally:
            await source.close()

    async def check(self, sql: str) -> None:
        source = open_source(self.settings(sql, "5s"))
        try:
            await source.check()
        finally:
            await source.close()


@pytest.fixture
async def source(postgresql_url: str) -> AsyncIterator[Source]:
    made = Source(postgresql_url)
    await made.run(TABLES)
    yield made


async def test_one_statement_returns_the_values_of_many_groups_and_names(source: Source) -> None:
    wanted = [Cell("f", "b", "likes"), LIKES, SHARES, Cell("f", "absent", "likes")]

    assert [9, 7, None, None] == await source.current(SUM, *wanted)


@pytest.mark.parametrize("group", ["7", '"7"'])
async def test_group_is_found_as_a_number_on_either_side(source: Source, group: str) -> None:
    sql = "SELECT account_id, metric, value FROM numbered WHERE account_id = ANY(:groups::bigint[]) AND metric = ANY(:names)"

    assert [2**53 + 1] == await source.current(sql, Cell("f", group, "likes"))
    assert [1] == await source.current(SUM, Cell("f", group, "shares"))


async def test_group_of_several_fields_is_requested_as_json(source: Source) -> None:
    sql = "SELECT jsonb_build_array(account_id, 1), metric, value FROM post_metrics WHERE '[\"b\",1]' = ANY(:groups) AND value = 9"

    assert [9] == await source.current(sql, Cell("f", '["b",1]', "likes"))


TYPES: list[tuple[str, Any]] = (
    [
        ("1.50::numeric", Decimal("1.50")), ("3::numeric", 3), ("'NaN'::float8", None), ("'NaN'::numeric", None), ("true", True),
        ("NULL::text", None), ("'007'", "007"), ("""'{"a": [1, null]}'::jsonb""", JsonText('{"a":[1,null]}')),
        ("""'{"a":1}'::json""", JsonText('{"a":1}')), ("ARRAY[1, 2]", JsonText("[1,2]")), ("DATE '2026-11-23'", "2026-11-23"),
        ("9223372036854775807", 2**63 - 1), (r"'\x00ff'::bytea", b"\x00\xff"), ("0.1::float8", 0.1),
        ("int4range(1, 5)", "[1,5)"), ("int4range(NULL, 5, '[]')", "(,6)"), ("'empty'::int4range", "empty"), ("B'101'", "101"),
        ("daterange('2026-01-01', '2026-02-01')", "[2026-01-01,2026-02-01)"),
        ("'{[1,3),[5,7)}'::int4multirange", JsonText('["[1,3)","[5,7)"]')),
        ("'1e400'::jsonb", 10**400), ("'1e400'::json", Decimal("1e400")),
        ("'0.12345678901234567890'::jsonb", Decimal("0.12345678901234567890")),
        ("""'{"a": 12345678901234567890123}'::jsonb""", JsonText('{"a":12345678901234567890123}')),
        ("'00000000-0000-0000-0000-000000000001'::uuid", "00000000-0000-0000-0000-000000000001"),
    ]
)  # fmt: skip
"""Expression in SQL, and its value."""


async def test_types_of_values_are_preserved(source: Source) -> None:
    found = {value: (await source.current(f"SELECT 'a', 'likes', {value}", LIKES))[0] for value, _ in TYPES}

    assert {value: (type(expected), expected) for value, expected in TYPES} == {
        value: (type(one), one) for value, one in found.items()
    }


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT account_id, metric FROM post_metrics WHERE false", "sql returns 2 columns; expected group, name, value"),
        ("SELECT account_id, metric, value FROM post_metrics", "several rows for one group and name"),
        ("DELETE FROM post_metrics RETURNING account_id, metric, value", "read-only transaction"),
        ("SELECT * FROM absent", 'relation "absent" does not exist'),
        ("SELECT", "returns 0 columns"),
        (
            "SELECT account_id, metric, value FROM numbered WHERE account_id = ANY(:groups)",
            "bigint = text",
        ),
        ("SELECT 'a', 'b', 1; SELECT 2", "cannot insert multiple commands"),
        ("SELECT 'a', 'b', 1 WHERE 'x' = ANY(:group)", "syntax error"),
    ],
)
async def test_misbehaving_sql_is_retried(source: Source, sql: str, message: str) -> None:
    with pytest.raises(TryAgainError, match=message):
        await source.current(sql, LIKES)


async def test_rows_without_a_name_or_a_group_are_ignored(source: Source) -> None:
    sql = "SELECT 'a', NULL, 1 UNION ALL SELECT 'a', NULL, 2 UNION ALL SELECT NULL, 'likes', 3 UNION ALL SELECT 'a', 'likes', 4"

    assert [4, None] == await source.current(sql, LIKES, Cell("f", "a", "null"))


async def test_check_finds_faults_without_requesting_values(source: Source) -> None:
    await source.check(SUM)
    with pytest.raises(TryAgainError, match=r"read_stores\.dashboard\.sql returns 1 columns"):
        await source.check("SELECT account_id FROM post_metrics WHERE account_id = ANY(:groups)")


async def test_slow_query_is_cancelled_by_the_server(source: Source) -> None:
    with pytest.raises(TryAgainError, match="statement timeout"):
        await source.current("SELECT 'a', 'likes', pg_sleep(30)::text", LIKES, timeout="2s")


async def test_group_or_name_never_becomes_sql(source: Source) -> None:
    odd = "'); DROP TABLE post_metrics; --"
    await source.run("INSERT INTO post_metrics VALUES ($odd$" + odd + "$odd$, $odd$" + odd + "$odd$, 5)")

    assert [5, 7, None] == await source.current(SUM, Cell("f", odd, odd), LIKES, Cell("f", "a\0", "likes"))
