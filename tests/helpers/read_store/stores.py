"""The read stores in tests: the store, and access to its data that does not use our code.

This module has the SQL stores; ``searching`` has OpenSearch.
"""

from __future__ import annotations

import json
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import asyncpg

from streams_app.delivery.batch import TP
from streams_app.errors import TryAgainError
from streams_app.read_store.core.merge import CellChange
from streams_app.read_store.core.store import CheckpointStep, Counts, ReadableStore, ReadStore
from streams_app.read_store.registry import open_store
from streams_app.read_store.sync.dead_letters import OutputRecord
from streams_app.read_store.sync.store_sync import StoreSync, SyncResult
from streams_app.settings import ReadStoreSettings

T = TypeVar("T")

P0, P1 = TP("s.f", 0), TP("s.f", 1)
ODD_NAME = '\')%s\\x00{"a"}'
COLUMNS = {
    "likes": "likes", "shares": "Shares", ODD_NAME: "odd", **{f"n{number}": f"n{number}" for number in range(10)},
    **{f"name-{number}": f"name_{number}" for number in range(50)},
}  # fmt: skip
"""Names that have a column in a store of groups."""

LONG_TIMEOUT = "30s"
"""How long a store waits for its database: longer than a busy machine takes for a connection and a transaction."""


async def write(store: ReadStore, changes: Sequence[CellChange], to: int | None = None, now_ms: int = 0, tp: TP = P0) -> Counts:
    """Write one transaction from the store's progress; the progress stays unless a new one is given."""
    stands = (await store.checkpoints()).get(tp)
    return await store.apply(changes, CheckpointStep(tp, stands, (stands or 0) if to is None else to), now_ms)


async def retry_while_locked(call: Callable[[], Awaitable[T]]) -> T:
    """Retry while SQLite reports a locked file, as an agent does: SQLite has no queue, and gives up after a second."""
    while True:
        try:
            return await call()
        except TryAgainError as error:
            if "database is locked" not in str(error):
                raise


async def sync_on(sync: StoreSync, records: Sequence[OutputRecord], to: int, tp: TP = P0) -> SyncResult:
    """Run one sync from the store's progress."""
    return await sync.sync_once(CheckpointStep(tp, (await sync.store.checkpoints()).get(tp), to), records)


class StoreHarness(ABC):
    """One store of any database, and access to its data without our code."""

    has_transactions: ClassVar[bool]
    """Whether changes and progress are written together; otherwise changes may be visible before the progress that passes them."""

    def __init__(self, url: str, shape: str, **given: Any) -> None:
        self.shape = shape
        self.settings = ReadStoreSettings.model_validate(
            {"name": "dashboard", "url": url, "folds": ["f"], "source": "carried", "shape": shape, **given}
        )
        self.opened: list[ReadableStore] = []
        self.store = self.another()

    @property
    def is_groups(self) -> bool:
        """Return whether one row or document contains all cells of a group."""
        return self.shape == "groups"

    def another(self) -> ReadableStore:
        """Return a store as of another process, on the same tables or indices."""
        self.opened.append(open_store(self.settings))
        return self.opened[-1]

    def with_short_timeout(self) -> ReadableStore:
        """Return another store with a short timeout for locks."""
        return self.another()

    async def close(self) -> None:
        """Close all its stores."""
        for store in self.opened:
            await store.close()

    @abstractmethod
    async def rows(self, fold: str | None = None) -> list[tuple[Any, ...]]:
        """Return group, name, value, version and time of every cell of a fold, or of all, sorted.

        All cells of a group's row or document have its time.
        """

    @abstractmethod
    def locked(self) -> AbstractAsyncContextManager[None]:
        """Lock the store against writes for the block."""

    def in_rows(self, value: int) -> Any:
        """Return a number in the format of :meth:`rows`."""
        return value

    def time(self, of_cell: int, of_row: int) -> int:
        """Return when a cell changed, in the format of :meth:`rows`."""
        return of_row if self.is_groups else of_cell


class SqlHarness(StoreHarness):
    """One database with one store, whose table is called ``cells`` in either shape."""

    has_transactions = True
    system_columns: ClassVar[str] = (
        "fold TEXT NOT NULL, group_key TEXT NOT NULL, versions TEXT NOT NULL DEFAULT '{}', updated_ms INTEGER NOT NULL DEFAULT 0"
    )
    """The columns that a table with a row per group always has, as SQL."""
    cell_columns: ClassVar[str] = "fold TEXT, group_key TEXT, name TEXT, value, version BIGINT, updated_ms BIGINT"
    """The columns of a table with a row per cell, as SQL, without its key."""
    integer: ClassVar[str] = "bigint"
    """The type to which CAST converts a text that is a number."""

    def __init__(self, url: str, shape: str = "cells", columns: Mapping[str, str] = COLUMNS) -> None:
        self.columns = dict(columns) if shape == "groups" else {}
        super().__init__(url, shape, table="cells", timeout=LONG_TIMEOUT, columns=self.columns)

    def with_short_timeout(self) -> ReadableStore:
        """Open the same store with a timeout of two seconds."""
        self.opened.append(open_store(self.settings.model_copy(update={"timeout": timedelta(seconds=2)})))
        return self.opened[-1]

    @abstractmethod
    async def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Execute a statement over a separate connection."""

    @abstractmethod
    async def reject_writes(self, table: str) -> None:
        """Make every write to a table fail, for a reason other than its values."""

    @abstractmethod
    async def allow(self, table: str) -> None:
        """Undo :meth:`reject_writes`."""

    async def rows(self, fold: str | None = None) -> list[tuple[Any, ...]]:
        of_fold = f"FROM cells WHERE fold LIKE '{fold or '%'}'"
        if not self.is_groups:
            return sorted(await self.run(f"SELECT group_key, name, {self.shown('value')}, version, updated_ms {of_fold}"))
        columns = ", ".join(self.shown(f'"{column}"') for column in self.columns.values())
        found = []
        for group, versions, time, *values in await self.run(f"SELECT group_key, versions, updated_ms, {columns} {of_fold}"):
            version_of = json.loads(versions)
            assert version_of.keys() <= set(self.columns.values())
            found += [
                (group, name, value, version_of[column], time)
                for (name, column), value in zip(self.columns.items(), values, strict=True)
                if column in version_of
            ]
        return sorted(found)

    def shown(self, column: str) -> str:
        """Return the expression that selects a value."""
        return column


class Sqlite(SqlHarness):
    """A file of SQLite."""

    def __init__(self, path: Path, shape: str = "cells", columns: Mapping[str, str] = COLUMNS) -> None:
        self.path = path
        super().__init__(f"sqlite:///{path}", shape, columns)

    async def run(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            return connection.execute(sql).fetchall()

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield

    async def reject_writes(self, table: str) -> None:
        await self.run(f"CREATE TRIGGER broken BEFORE INSERT ON {table} BEGIN SELECT RAISE(ABORT, 'the disk is full'); END")

    async def allow(self, table: str) -> None:
        await self.run("DROP TRIGGER broken")


class Postgres(SqlHarness):
    """A database of a PostgreSQL server."""

    system_columns = (
        "fold TEXT NOT NULL, group_key TEXT NOT NULL, versions jsonb NOT NULL DEFAULT '{}', updated_ms bigint NOT NULL DEFAULT 0"
    )
    cell_columns = SqlHarness.cell_columns.replace("value", "value JSONB")

    def __init__(self, url: str, shape: str = "cells", columns: Mapping[str, str] = COLUMNS) -> None:
        self.url = url
        super().__init__(url, shape, columns)

    async def run(self, sql: str) -> list[tuple[Any, ...]]:
        async with self.connected() as connection:
            return [tuple(row) for row in await connection.fetch(sql)]

    def shown(self, column: str) -> str:
        return f"{column}::text"

    def in_rows(self, value: int) -> Any:
        return str(value)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
        connection = await asyncpg.connect(self.url)
        try:
            yield connection
        finally:
            await connection.close()

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        async with self.connected() as other, other.transaction():
            await other.execute("LOCK TABLE cells, cells_progress IN SHARE MODE")
            yield

    async def reject_writes(self, table: str) -> None:
        async with self.connected() as connection:
            await connection.execute(
                "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'the disk is full'; END $$;"
                f"CREATE TRIGGER broken BEFORE INSERT ON {table} FOR EACH STATEMENT EXECUTE FUNCTION refuse()"
            )

    async def allow(self, table: str) -> None:
        await self.run(f"DROP TRIGGER broken ON {table}")
