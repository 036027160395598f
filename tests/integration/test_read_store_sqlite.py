"""The read store in a real SQLite file: one transaction or nothing, locked files, sources, and a process that is killed."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from streams_app.delivery.batch import TP
from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.metrics import Metrics
from streams_app.read_store.merge import Cell, Change
from streams_app.read_store.sqlite import SqliteStore
from streams_app.read_store.store import Counts
from streams_app.read_store.sync import Sync, SyncResult
from streams_app.settings import Settings
from tests.manual_clock import ManualClock

LIKES, SHARES = Cell("f", "a", "likes"), Cell("f", "a", "shares")
P0 = TP("s.f", 0)
SUM = "SELECT account_id, metric, SUM(value) FROM post_metrics GROUP BY account_id, metric"


@dataclass
class Record:
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int | None = None


def folded(offset: int, names: Any, version: int | None = None, group: str = "a") -> Record:
    fold = {"name": "f", "version": offset if version is None else version}
    return Record(offset, group.encode(), json.dumps({"id": group, "m": names, "fold": fold}).encode())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "read.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    opened = SqliteStore(f"sqlite:///{path}", "cells", "dashboard")
    await opened.initialise()
    yield opened
    await opened.close()


def run(path: Path, sql: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(sql).fetchall()


def cells(path: Path) -> list[Any]:
    return run(path, "SELECT group_key, name, value, version, updated_ms FROM cells ORDER BY 1, 2")


async def test_initialising_again_changes_nothing(store: SqliteStore, path: Path) -> None:
    await store.apply([Change(LIKES, 1, 7)], {P0: 2}, 5)
    said = await store.initialise()

    assert [f"table {table} is there already in {path}" for table in ("cells", "cells_progress")] == said
    assert [("a", "likes", 7, 1, 5)] == cells(path)
    assert [] == await store.missing()


async def test_initialising_creates_only_the_table_that_is_missing(store: SqliteStore, path: Path) -> None:
    await store.apply([Change(LIKES, 1, 7)], {P0: 2}, 5)
    await store.close()
    run(path, "DROP TABLE cells_progress")

    assert ["table cells_progress"] == await store.missing()
    assert [f"table cells is there already in {path}", f"created table cells_progress in {path}"] == await store.initialise()
    assert [("a", "likes", 7, 1, 5)] == cells(path)


async def test_table_with_other_columns_is_refused_and_left_as_it_is(path: Path) -> None:
    run(path, "CREATE TABLE cells (fold TEXT, likes INTEGER)")
    store = SqliteStore(f"sqlite:///{path}", "cells", "dashboard")
    with pytest.raises(ConfigurationError, match="has the columns fold, likes; expected fold, group_key, name, value"):
        await store.initialise()
    with pytest.raises(
        TryAgainError, match="no table cells and no table cells_progress; run `streams-app read-store init --store dashboard`"
    ):
        await store.apply([Change(LIKES, 1, 7)], {P0: 2}, 5)
    await store.close()

    assert [("cells",)] == run(path, "SELECT name FROM sqlite_master WHERE type = 'table'")


async def test_missing_file_is_waited_for_and_never_created_by_reading(path: Path) -> None:
    store = SqliteStore(f"sqlite:///{path}", "cells", "dashboard")
    for call in (store.progress, store.missing):
        with pytest.raises(TryAgainError, match="there is no such file"):
            await call()
    await store.close()


async def test_changes_and_progress_are_written_and_counted(store: SqliteStore, path: Path) -> None:
    first = await store.apply([Change(LIKES, 5, 1), Change(SHARES, 5, 2)], {P0: 6}, 100)
    second = await store.apply([Change(LIKES, 4, 9), Change(SHARES, 7, 2)], {P0: 8, TP("s.f", 1): 3}, 200)
    third = await store.apply([Change(SHARES, 6, 9), Change(LIKES, 8, None)], {P0: 9}, 300)

    assert [Counts(written=2), Counts(stale=1, unchanged=1), Counts(written=1, stale=1)] == [first, second, third]
    assert [("a", "likes", None, 8, 300), ("a", "shares", 2, 7, 100)] == cells(path)
    assert {P0: 9, TP("s.f", 1): 3} == await store.progress()


@pytest.mark.parametrize("value", [0, -(2**63), 2**63 - 1, 1.5, "", "007", "1", "{}\n\x00", b"\x00\xff", None])
async def test_value_comes_back_as_it_was_and_is_the_same_again(store: SqliteStore, path: Path, value: Any) -> None:
    counts = [await store.apply([Change(LIKES, version, value)], {}, 0) for version in (1, 2)]
    ((found,),) = run(path, "SELECT value FROM cells")

    assert (type(value), value) == (type(found), found)
    assert [Counts(written=1), Counts(unchanged=1)] == counts


async def test_group_and_name_of_any_characters_are_one_cell(store: SqliteStore) -> None:
    odd = Cell("f", "{}'\";--\n\x00ä", "')\x00%s")

    assert [Counts(written=1), Counts(unchanged=1)] == [await store.apply([Change(odd, 1, 1)], {}, 0) for _ in range(2)]


async def test_progress_goes_down_where_it_is_told_to(store: SqliteStore) -> None:
    await store.apply([], {P0: 90}, 0)
    await store.apply([], {P0: 0}, 0)

    assert {P0: 0} == await store.progress()


@pytest.mark.parametrize("table", ["cells", "cells_progress"])
async def test_failure_in_the_middle_leaves_neither_changes_nor_progress(store: SqliteStore, path: Path, table: str) -> None:
    await store.apply([Change(LIKES, 1, 7)], {P0: 2}, 5)
    run(path, f"CREATE TRIGGER broken BEFORE INSERT ON {table} BEGIN SELECT RAISE(ABORT, 'the disk is full'); END")
    with pytest.raises(TryAgainError, match="the disk is full"):
        await store.apply([Change(SHARES, 3, 1), Change(LIKES, 3, 9)], {P0: 4}, 6)

    assert [("a", "likes", 7, 1, 5)] == cells(path)
    assert {P0: 2} == await store.progress()

    run(path, "DROP TRIGGER broken")

    assert Counts(written=2) == await store.apply([Change(SHARES, 3, 1), Change(LIKES, 3, 9)], {P0: 4}, 6)
    assert {P0: 4} == await store.progress()


async def test_locked_file_is_tried_again_and_works_later(store: SqliteStore, path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(TryAgainError, match="locked"):
            await store.apply([Change(LIKES, 1, 7)], {P0: 2}, 5)
        other.execute("ROLLBACK")

    assert {} == await store.progress()
    assert Counts(written=1) == await store.apply([Change(LIKES, 1, 7)], {P0: 2}, 5)


async def test_file_that_is_no_database_is_waited_for_until_it_is_replaced(path: Path) -> None:
    await asyncio.to_thread(path.write_bytes, b"this is no database, and it is longer than a header of one" * 10)
    store = SqliteStore(f"sqlite:///{path}", "cells", "dashboard")
    with pytest.raises(TryAgainError, match="not a database"):
        await store.progress()
    await asyncio.to_thread(path.unlink)
    await store.initialise()

    assert {} == await store.progress()
    await store.close()


WRITER = """
import asyncio, sys
from streams_app.read_store.merge import Cell, Change
from streams_app.read_store.sqlite import SqliteStore
from streams_app.delivery.batch import TP

async def main():
    store = SqliteStore("sqlite:///" + sys.argv[1], "cells", "dashboard")
    for offset in range(10**9):
        changes = [Change(Cell("f", "a", f"name-{n}"), offset, offset) for n in range(50)]
        await store.apply(changes, {TP("s.f", 0): offset + 1}, 0)
        if offset == 20:
            print("going", flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("attempt", range(3))
async def test_process_killed_while_it_writes_leaves_one_whole_batch(store: SqliteStore, path: Path, attempt: int) -> None:
    writer = await asyncio.create_subprocess_exec(sys.executable, "-c", WRITER, str(path), stdout=asyncio.subprocess.PIPE)
    assert writer.stdout is not None
    assert b"going\n" == await writer.stdout.readline()
    writer.kill()
    await writer.wait()
    progress = (await store.progress())[P0]

    assert [(50, progress - 1, progress - 1)] == run(path, "SELECT COUNT(*), MIN(value), MAX(version) FROM cells")
    assert progress > 20


@pytest.fixture
def write_db(tmp_path: Path) -> Path:
    file = tmp_path / "write.db"
    run(file, "CREATE TABLE post_metrics (account_id, metric TEXT, value)")
    run(file, "INSERT INTO post_metrics VALUES ('a', 'likes', 3), ('a', 'likes', 4), ('b', 'likes', 9), (7, 'shares', 1.5)")
    return file


class Run:
    """One worker's life: a sync with a store, a source and metrics of its own."""

    def __init__(self, path: Path, write_db: Path, source: str) -> None:
        settings = Settings.model_validate({
            "app_id": "t",
            "folds": [{"name": "f", "source": "s", "group_key": "id", "changed": "m", "keep": "last", "quiet_period": "1s"}],
            "read_stores": [{"name": "dashboard", "url": f"sqlite:///{path}", "table": "cells", "folds": ["f"], "source": source,
                             "source_url": f"sqlite:///{write_db}", "sql": SUM}],
        })  # fmt: skip
        self.metrics = Metrics(settings)
        self.sync = Sync(settings, settings.read_store(None), self.metrics, ManualClock(50))

    def counted(self) -> list[float | None]:
        name, value_of = "streams_app_read_store_writes_total", self.metrics.registry.get_sample_value
        return [value_of(name, {"store": "dashboard", "result": result}) for result in ("written", "stale", "unchanged")]


@pytest.fixture
async def begin(store: SqliteStore, path: Path, write_db: Path) -> AsyncIterator[Callable[[str], Run]]:
    runs: list[Run] = []

    def one(source: str) -> Run:
        runs.append(Run(path, write_db, source))
        return runs[-1]

    yield one
    for begun in runs:
        await begun.sync.close()


async def test_sync_writes_the_sources_values_of_the_changed_names_only(begin: Callable[[str], Run], path: Path) -> None:
    worker = begin("sql")
    result = await worker.sync.sync_once(
        P0, [folded(0, ["likes"]), folded(1, ["likes", "absent"]), folded(2, ["likes"], group="b")], 3
    )

    assert SyncResult(3, 0, 3, 3, 0, 0, 3) == result
    assert [("a", "absent", None, 1, 50), ("a", "likes", 7, 1, 50), ("b", "likes", 9, 2, 50)] == cells(path)
    assert [3, 0, 0] == worker.counted()
    assert {P0: 3} == await worker.sync.progress()


async def test_carried_values_that_come_out_of_order_never_take_a_cell_back(begin: Callable[[str], Run], path: Path) -> None:
    worker = begin("carried")
    for offset, version, names in [(0, 5, {"likes": 5}), (1, 3, {"likes": 3, "shares": 3}), (2, 6, {"likes": 5})]:
        await worker.sync.sync_once(P0, [folded(offset, names, version)], offset + 1)

    assert [("a", "likes", 5, 6, 50), ("a", "shares", 3, 3, 50)] == cells(path)
    assert [2, 1, 1] == worker.counted()


@pytest.mark.parametrize("source", ["sql", "carried"])
async def test_batch_delivered_again_after_a_crash_changes_nothing(begin: Callable[[str], Run], path: Path, source: str) -> None:
    batch = [folded(0, {"likes": 7}), folded(1, {"shares": 2})]
    await begin(source).sync.sync_once(P0, batch, 2)
    before = cells(path)
    again = begin(source)  # another process: what it knows is in the file

    assert {P0: 2} == await again.sync.progress()
    assert SyncResult(2, 0, 2, 0, 0, 2, 2) == await again.sync.sync_once(P0, batch, 2)
    assert before == cells(path)


async def test_records_of_others_are_passed_over_and_the_progress_moves_on(begin: Callable[[str], Run], path: Path) -> None:
    others = [Record(4, None, b"{}"), Record(5, b"a", b"not JSON"), Record(8, b"a", None)]
    sync = begin("sql").sync
    result = await sync.sync_once(P0, others, 9)

    assert (3, 3, 0, {P0: 9}) == (result.records, result.rejected, result.cells, await sync.progress())
    assert [] == cells(path)


async def test_source_that_is_away_leaves_store_and_progress_as_they_were(
    begin: Callable[[str], Run], path: Path, write_db: Path
) -> None:
    worker = begin("sql")
    hidden = await asyncio.to_thread(write_db.rename, write_db.with_suffix(".hidden"))
    with pytest.raises(TryAgainError, match=r"source .*there is no such file"):
        await worker.sync.sync_once(P0, [folded(0, ["likes"])], 1)

    assert ([], {}) == (cells(path), await worker.sync.progress())

    await asyncio.to_thread(hidden.rename, write_db)

    assert 1 == (await worker.sync.sync_once(P0, [folded(0, ["likes"])], 1)).written
