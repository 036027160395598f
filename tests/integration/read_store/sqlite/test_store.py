"""The read store in a real SQLite file: atomic transactions, locked files, sources, and a killed process."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.health.metrics import Metrics
from streams_app.read_store.core.merge import Cell, CellChange
from streams_app.read_store.core.store import Counts
from streams_app.read_store.sqlite.store import SqliteStore
from streams_app.read_store.sync.store_sync import StoreSync, SyncResult
from streams_app.settings import Settings
from tests.helpers.kafka.records import Raw
from tests.helpers.manual_clock import ManualClock
from tests.helpers.read_store.stores import P0, sync_on, write

LIKES, SHARES = Cell("f", "a", "likes"), Cell("f", "a", "shares")
SUM = "SELECT account_id, metric, SUM(value) FROM post_metrics GROUP BY account_id, metric"


def folded(offset: int, names: Any, version: int | None = None, group: str = "a") -> Raw:
    fold = {"name": "f", "version": offset if version is None else version}
    return Raw(offset, key=group.encode(), value=json.dumps({"id": group, "m": names, "fold": fold}).encode())


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


async def test_concurrent_initialisations_of_a_file_wait_for_each_other(tmp_path: Path) -> None:
    for number in range(50):
        stores = [SqliteStore(f"sqlite:///{tmp_path}/{number}.db", "cells", "dashboard") for _ in range(4)]
        reports = await asyncio.gather(*(store.initialise() for store in stores))
        for store in stores:
            await store.close()

        assert 2 == sum(line.startswith("created") for lines in reports for line in lines)


def cells(path: Path) -> list[Any]:
    return run(path, "SELECT group_key, name, value, version, updated_ms FROM cells ORDER BY 1, 2")


async def test_column_type_that_would_change_values_is_rejected(path: Path) -> None:
    run(path, "CREATE TABLE cells (fold, group_key, name, value TEXT, version, updated_ms, PRIMARY KEY (fold, group_key, name))")
    store = SqliteStore(f"sqlite:///{path}", "cells", "dashboard")
    with pytest.raises(ConfigurationError, match="has a column value of type TEXT, which would change values"):
        await store.initialise()
    await store.close()


async def test_missing_file_is_awaited_and_never_created_by_reading(path: Path) -> None:
    store = SqliteStore(f"sqlite:///{path}", "cells", "dashboard")
    for call in (store.checkpoints, store.missing):
        with pytest.raises(TryAgainError, match="the file does not exist"):
            await call()
    await store.close()


async def test_group_and_name_of_any_characters_are_one_cell(store: SqliteStore) -> None:
    odd = Cell("f", "{}'\";--\n\x00ä", "')\x00%s")

    assert [Counts(written=1), Counts(unchanged=1)] == [await write(store, [CellChange(odd, 1, 1)]) for _ in range(2)]


async def test_file_that_is_no_database_is_awaited_until_it_is_replaced(path: Path) -> None:
    await asyncio.to_thread(path.write_bytes, b"this is no database, and it is longer than a header of one" * 10)
    store = SqliteStore(f"sqlite:///{path}", "cells", "dashboard")
    with pytest.raises(TryAgainError, match="not a database"):
        await store.checkpoints()
    await asyncio.to_thread(path.unlink)
    await store.initialise()

    assert {} == await store.checkpoints()
    await store.close()


async def test_replaced_file_is_opened_and_receives_nothing_of_the_former_one(store: SqliteStore, path: Path) -> None:
    other = path.with_name("other.db")
    prepared = SqliteStore(f"sqlite:///{other}", "cells", "dashboard")
    await prepared.initialise()
    await write(prepared, [CellChange(SHARES, 3, 3)], 7)
    await prepared.close()
    await write(store, [CellChange(LIKES, 9, 9)], 5)
    await asyncio.to_thread(other.replace, path)
    progress = await store.checkpoints()
    counts = await write(store, [CellChange(LIKES, 4, 4)], 8)
    await store.close()

    assert ({P0: 7}, Counts(written=1)) == (progress, counts)
    assert [("a", "likes", 4, 4, 0), ("a", "shares", 3, 3, 0)] == cells(path)
    assert [("ok",)] == run(path, "PRAGMA integrity_check")


async def test_removed_file_is_awaited(store: SqliteStore, path: Path) -> None:
    await write(store, [CellChange(LIKES, 1, 1)], 5)
    await asyncio.to_thread(path.unlink)
    with pytest.raises(TryAgainError, match="the file does not exist"):
        await write(store, [CellChange(LIKES, 2, 2)], 6)


async def test_closing_removes_all_files_beside_the_database(store: SqliteStore, path: Path) -> None:
    for number in range(20):
        await write(store, [CellChange(LIKES, number, number)], number)
        await store.close()

        assert not path.with_name(f"{path.name}-wal").exists()


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
        self.sync = StoreSync(settings, settings.read_store(None), self.metrics, ManualClock(50))

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


async def test_sync_writes_the_source_values_of_the_changed_names_only(begin: Callable[[str], Run], path: Path) -> None:
    worker = begin("sql")
    result = await sync_on(worker.sync, [folded(0, ["likes"]), folded(1, ["likes", "absent"]), folded(2, ["likes"], group="b")], 3)

    assert SyncResult(3, 0, 3, 3, 0, 0, 3) == result
    assert [("a", "absent", None, 1, 50), ("a", "likes", 7, 1, 50), ("b", "likes", 9, 2, 50)] == cells(path)
    assert [3, 0, 0] == worker.counted()
    assert {P0: 3} == await worker.sync.store.checkpoints()


async def test_carried_values_out_of_order_never_overwrite_a_newer_cell(begin: Callable[[str], Run], path: Path) -> None:
    worker = begin("carried")
    for offset, version, names in [(0, 5, {"likes": 5}), (1, 3, {"likes": 3, "shares": 3}), (2, 6, {"likes": 5})]:
        await sync_on(worker.sync, [folded(offset, names, version)], offset + 1)

    assert [("a", "likes", 5, 6, 50), ("a", "shares", 3, 3, 50)] == cells(path)
    assert [2, 1, 1] == worker.counted()


async def test_unavailable_source_does_not_change_store_or_progress(
    begin: Callable[[str], Run], path: Path, write_db: Path
) -> None:
    worker = begin("sql")
    hidden = await asyncio.to_thread(write_db.rename, write_db.with_suffix(".hidden"))
    with pytest.raises(TryAgainError, match=r"source .*the file does not exist"):
        await sync_on(worker.sync, [folded(0, ["likes"])], 1)

    assert ([], {}) == (cells(path), await worker.sync.store.checkpoints())

    await asyncio.to_thread(hidden.rename, write_db)

    assert 1 == (await sync_on(worker.sync, [folded(0, ["likes"])], 1)).written
