"""Current values from a query on a SQLite file, and how a fetch and a table name are checked before the query."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.read_store.core.merge import Cell, CellChange
from streams_app.read_store.core.source import CarriedSource
from streams_app.read_store.sqlite.source import SqliteSource
from streams_app.read_store.sqlite.store import SqliteStore
from streams_app.read_store.sync.store_sync import parts_of
from streams_app.settings import ReadStoreSettings
from tests.helpers.kafka.records import Raw

LIKES, SHARES = Cell("f", "a", "likes"), Cell("f", "a", "shares")
SUM = """
SELECT account_id, metric, SUM(value) FROM post_metrics
WHERE account_id IN (SELECT value FROM json_each(:groups)) AND metric IN (SELECT value FROM json_each(:names))
GROUP BY account_id, metric
"""


def run(path: Path, sql: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(sql).fetchall()


@pytest.fixture
def write_db(tmp_path: Path) -> Path:
    file = tmp_path / "write.db"
    run(file, "CREATE TABLE post_metrics (account_id, metric TEXT, value)")
    run(file, "INSERT INTO post_metrics VALUES ('a', 'likes', 3), ('a', 'likes', 4), ('b', 'likes', 9), (7, 'shares', 1.5)")
    return file


async def changes_of(file: Path, sql: str, *wanted: Cell) -> list[CellChange]:
    settings = ReadStoreSettings(name="dashboard", url="sqlite:///read.db", folds=("f",), source_url=f"sqlite:///{file}", sql=sql)
    source = SqliteSource(f"sqlite:///{file}", sql, settings)
    try:
        return await source.current([CellChange(cell, 1) for cell in wanted])
    finally:
        await source.close()


async def current(file: Path, sql: str, *wanted: Cell) -> list[Any]:
    return [change.value for change in await changes_of(file, sql, *wanted)]


async def test_sql_returns_the_current_values_in_the_order_of_the_changes(write_db: Path) -> None:
    assert [9, 7] == await current(write_db, SUM, Cell("f", "b", "likes"), LIKES)


async def test_name_without_a_row_is_missing_from_the_source(write_db: Path) -> None:
    assert [7, None, None] == await current(write_db, SUM, LIKES, SHARES, Cell("f", "absent", "likes"))


async def test_row_without_a_name_deletes_its_group_and_a_missing_row_affects_only_its_name(write_db: Path) -> None:
    sql = f"{SUM} UNION ALL SELECT value, NULL, NULL FROM json_each(:groups) WHERE value = 'b'"
    found = await changes_of(write_db, sql, LIKES, SHARES, Cell("f", "c", "likes"))
    run(write_db, "DELETE FROM post_metrics WHERE account_id = 'b'")
    (gone,) = await changes_of(write_db, sql, Cell("f", "b", "likes"))

    assert [(7, False), (None, False), (None, False)] == [(change.value, change.is_group_gone) for change in found]
    assert (None, True) == (gone.value, gone.is_group_gone)


async def test_ambiguous_deletion_of_a_group_with_values_is_retried(write_db: Path) -> None:
    sql = f"{SUM} UNION ALL SELECT value, NULL, NULL FROM json_each(:groups)"
    for cell, group in ((LIKES, "a"), (Cell("f", "7", "shares"), "7")):
        with pytest.raises(
            TryAgainError, match=f"for group '{group}' a row without a name, which says that it is gone, beside rows of its names"
        ):
            await current(write_db, sql, cell)


async def test_sql_may_return_more_pairs_than_requested(write_db: Path) -> None:
    assert [7] == await current(write_db, "SELECT account_id, metric, SUM(value) FROM post_metrics GROUP BY 1, 2", LIKES)


async def test_numeric_group_is_found_by_its_canonical_text(write_db: Path) -> None:
    sql = "SELECT CAST(account_id AS REAL), metric, value FROM post_metrics WHERE account_id = 7"

    assert [1.5] == await current(write_db, sql, Cell("f", "7", "shares"))


async def test_number_and_text_with_the_same_spelling_have_separate_rows(write_db: Path) -> None:
    run(write_db, "INSERT INTO post_metrics VALUES ('7', 'shares', 2)")

    assert [1.5, 2] == await current(write_db, SUM, Cell("f", "7", "shares"), Cell("f", '"7"', "shares"))


@pytest.mark.parametrize("group", ["7", '"7"'])
@pytest.mark.parametrize("kind", ["TEXT", "INTEGER"])
async def test_row_of_another_type_matches_if_it_is_unambiguous(tmp_path: Path, kind: str, group: str) -> None:
    file = tmp_path / "write.db"
    run(file, f"CREATE TABLE post_metrics (account_id {kind}, metric TEXT, value)")
    run(file, "INSERT INTO post_metrics VALUES (7, 'shares', 3)")

    assert [3] == await current(file, SUM, Cell("f", group, "shares"))


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT account_id, metric, value FROM post_metrics", "several rows for one group and name"),
        ("SELECT account_id, metric FROM post_metrics", "returns 2 columns; expected group, name, value"),
        ("DELETE FROM post_metrics", "readonly"),
        ("SELECT * FROM absent", "no such table"),
        ("SELECT", "syntax|incomplete"),
    ],
)
async def test_misbehaving_sql_is_retried(write_db: Path, sql: str, message: str) -> None:
    with pytest.raises(TryAgainError, match=message):
        await current(write_db, sql, LIKES)

    assert [(4,)] == run(write_db, "SELECT COUNT(*) FROM post_metrics")


async def test_each_fold_is_queried_for_its_own_changes(write_db: Path) -> None:
    assert [7, 9] == await current(write_db, SUM, Cell("f", "a", "likes"), Cell("g", "b", "likes"))


async def test_carried_values_are_returned_unchanged() -> None:
    changes = [CellChange(LIKES, 3, 7), CellChange(SHARES, 3, None)]

    assert changes == await CarriedSource().current(changes)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [([], []), ([1, 1, 1, 1], [3, 1]), ([6, 4, 1], [2, 1]), ([99, 1, 99], [1, 1, 1]), ([0, 0, 0], [3])],
)
def test_fetch_is_split_into_batches_by_count_and_size(sizes: list[int], expected: list[int]) -> None:
    records: Sequence[Raw] = [Raw(offset, key=None, value=b"." * size) for offset, size in enumerate(sizes)]
    found = list(parts_of(records, max_records=3, max_bytes=10))

    assert expected == [len(step) for step in found]
    assert records == [record for step in found for record in step]


@pytest.mark.parametrize("table", ["", "1a", "a b", 'a"b', "a;--", "sqlite_x", "a" * 50, "ä", "a\n"])
def test_table_name_that_would_inject_sql_is_rejected(table: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a valid name of a table"):
        SqliteStore("sqlite:///x.db", table, "dashboard")
