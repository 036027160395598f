"""The read store in a SQLite file, with a row for each (fold, group_key, name).

The store owns the table of ``read_stores.NAME.table`` and the table ``<table>_progress``. Both are written in one transaction, so a
crash leaves either both the changes and their checkpoint, or neither.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from streams_app.delivery.batch import TP
from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.read_store.core.errors import TooSlowError
from streams_app.read_store.core.merge import Cell, CellChange, StoredCell, merge
from streams_app.read_store.core.store import TABLE_NAME, CheckpointError, CheckpointStep, Counts, Repair
from streams_app.read_store.core.values import possible, surrogate_fault
from streams_app.read_store.sqlite.connection import SqliteThread, sqlite_path
from streams_app.read_store.sqlite.errors import bisecting_rejected, rejecting_all
from streams_app.read_store.sqlite.values import sqlite_value

COLUMNS: Final = ("fold", "group_key", "name", "value", "version", "updated_ms")
CHECKPOINT_COLUMNS: Final = ("topic", "partition", "next_offset", "updated_ms")
KEY: Final = ("fold", "group_key", "name")
CHECKPOINT_KEY: Final = ("topic", "partition")
RESERVED: Final = "sqlite_"
"""Prefix of the names of SQLite's own tables."""

WATCHED_STEPS: Final = 10_000
"""Instructions of SQLite's virtual machine between two checks of the timeout: about a millisecond."""

WAL_ATTEMPTS: Final = 10
"""Maximum number of attempts to enable WAL mode. If another process does the same, one retry is usually enough."""

KEYS: Final = """
SELECT group_concat(part.name) FROM pragma_index_list(?) AS key, pragma_index_info(key.name) AS part
WHERE key."unique" AND NOT key.partial GROUP BY key.name
"""
VALUE_TYPE: Final = "SELECT type FROM pragma_table_info(?) WHERE name = 'value' AND upper(type) NOT IN ('', 'BLOB')"

# `value` has no type: otherwise SQLite would convert the text "007" to a number, or a number to text.
CREATE: Final = """
CREATE TABLE IF NOT EXISTS {table} (
    fold TEXT NOT NULL, group_key TEXT NOT NULL, name TEXT NOT NULL,
    value, version INTEGER NOT NULL, updated_ms INTEGER NOT NULL,
    PRIMARY KEY (fold, group_key, name)
) WITHOUT ROWID
"""
CREATE_CHECKPOINTS: Final = """
CREATE TABLE IF NOT EXISTS {table} (
    topic TEXT NOT NULL, partition INTEGER NOT NULL, next_offset INTEGER NOT NULL, updated_ms INTEGER NOT NULL,
    PRIMARY KEY (topic, partition)
) WITHOUT ROWID
"""
SELECT: Final = "SELECT version, value FROM {table} WHERE fold = ? AND group_key = ? AND name = ?"
UPSERT: Final = """
INSERT INTO {table} (fold, group_key, name, value, version, updated_ms) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (fold, group_key, name)
DO UPDATE SET value = excluded.value, version = excluded.version, updated_ms = excluded.updated_ms
"""
CONFIRM: Final = "UPDATE {table} SET version = ? WHERE fold = ? AND group_key = ? AND name = ?"
COUNT_VERSIONED: Final = "SELECT COUNT(*) FROM {table} WHERE fold = ? AND version >= 0"
RESET_VERSIONS: Final = "UPDATE {table} SET version = -1 WHERE fold = ?"
SELECT_CHECKPOINTS: Final = "SELECT topic, partition, next_offset FROM {table}"
UPSERT_CHECKPOINT: Final = """
INSERT INTO {table} (topic, partition, next_offset, updated_ms) VALUES (?, ?, ?, ?)
ON CONFLICT (topic, partition) DO UPDATE SET next_offset = excluded.next_offset, updated_ms = excluded.updated_ms
"""

PAGE: Final = """
SELECT group_key, name, version, value FROM "{table}" WHERE fold = ? {beyond} ORDER BY group_key, name LIMIT ?
"""

BEYOND: Final = "AND (group_key, name) > (?, ?)"

READ: Final = 'SELECT version, value FROM "{table}" WHERE fold = ? AND group_key = ? AND name = ?'

NAMES: Final = 'SELECT name FROM "{table}" WHERE fold = ? AND group_key = ?'

REMOVE: Final = 'DELETE FROM "{table}" WHERE fold = ? AND group_key = ?'

CHANGE: Final = """
UPDATE "{table}" SET value = ?, version = ?, updated_ms = ? WHERE fold = ? AND group_key = ? AND name = ? AND version = ?
"""

ADD: Final = """
INSERT INTO "{table}" (value, version, updated_ms, fold, group_key, name) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (fold, group_key, name) DO NOTHING
"""


class SqliteStore:
    """A read store in SQLite with a row per cell; the version guard is :func:`.merge`."""

    count_versioned_sql = COUNT_VERSIONED
    reset_versions_sql = RESET_VERSIONS

    def __init__(self, url: str, table: str, name: str, *, timeout_seconds: float = 600.0) -> None:
        self._seconds = timeout_seconds
        if TABLE_NAME.fullmatch(table) is None or table.startswith(RESERVED):
            what = "(letters, digits and _; at most 45; not sqlite_...)"
            raise ConfigurationError([f"read_stores.{name}.table: '{table}' is not a valid name of a table {what}"])
        self._name = name
        self._table = table
        self._checkpoint_table = f"{table}_progress"
        self._path = sqlite_path(url, f"read_stores.{name}.url")
        self._thread = SqliteThread(self._path, f"read store {name}", prepare=_prepare)

    async def initialise(self) -> list[str]:
        if not self._path.parent.is_dir():
            raise ConfigurationError(
                [f"read_stores.{self._name}.url: there is no folder {self._path.parent}; create it, or name another file"]
            )
        return await self._thread.call(self._initialise, mode="rwc")

    async def missing(self) -> list[str]:
        return await self._thread.call(self._missing)

    async def probe(self) -> None:
        await self._thread.call(self._probe)

    async def checkpoints(self) -> dict[TP, int]:
        return await self._thread.call(self._read_checkpoints)

    async def apply(self, changes: Sequence[CellChange], step: CheckpointStep, now_ms: int) -> Counts:
        is_over = threading.Event()

        def run(connection: sqlite3.Connection) -> Counts:
            # An interrupt from another thread has no effect between two statements, so the handler checks the timeout, too.
            connection.set_progress_handler(is_over.is_set, WATCHED_STEPS)
            try:
                return self._apply(connection, changes, step, now_ms)
            finally:
                connection.set_progress_handler(None, 0)

        try:
            async with asyncio.timeout(self._seconds):
                return await self._thread.call(run)
        except TimeoutError as error:
            is_over.set()
            raise TooSlowError(f"read store {self._name} {self._path}: no answer within {self._seconds:g} s") from error

    async def set_checkpoint(self, tp: TP, offset: int, now_ms: int) -> None:
        await self._thread.call(lambda connection: self._begin(connection, tp, offset, now_ms))

    def rejection(self, change: CellChange) -> str | None:
        if fault := next(filter(None, map(surrogate_fault, change.cell)), None):
            return f"group or name {fault}"
        fault = surrogate_fault(change.value) if isinstance(change.value, str) else None
        return f"the value {fault}" if fault else None

    async def count_versioned(self, fold: str) -> int | None:
        return await self._thread.call(lambda connection: self._guarded(connection, fold)) if self._path.exists() else None

    async def reset_versions(self, fold: str) -> None:
        await self._thread.call(lambda connection: connection.execute(self._sql(self.reset_versions_sql, self._table), (fold,)))

    async def close(self) -> None:
        await self._thread.close()

    async def cells(self, fold: str, after: Cell | None, limit: int) -> list[tuple[Cell, StoredCell]]:
        sql = PAGE.format(table=self._table, beyond=BEYOND if after else "")
        arguments = (fold, *(after[1:] if after else ()), limit)
        rows = await self._thread.call(lambda connection: connection.execute(sql, arguments).fetchall())
        return [(Cell(fold, group_key, name), StoredCell(version, value)) for group_key, name, version, value in rows]

    async def read(self, cells: Sequence[Cell]) -> dict[Cell, StoredCell]:
        sql = READ.format(table=self._table)

        def run(connection: sqlite3.Connection) -> dict[Cell, StoredCell]:
            rows = ((cell, connection.execute(sql, cell).fetchone()) for cell in possible(cells, surrogate_fault))
            return {cell: StoredCell(*row) for cell, row in rows if row is not None}

        return await self._thread.call(run)

    async def names(self, groups: Sequence[tuple[str, str]]) -> list[Cell]:
        sql = NAMES.format(table=self._table)

        def run(connection: sqlite3.Connection) -> list[Cell]:
            return [Cell(*group, name) for group in possible(groups, surrogate_fault) for (name,) in connection.execute(sql, group)]

        return await self._thread.call(run)

    async def remove_groups(self, groups: Sequence[tuple[str, str]]) -> int:
        sql = REMOVE.format(table=self._table)

        def run(connection: sqlite3.Connection) -> int:
            connection.execute("BEGIN IMMEDIATE")
            removed = sum(connection.execute(sql, group).rowcount for group in possible(groups, surrogate_fault))
            connection.execute("COMMIT")
            if removed:
                connection.execute("VACUUM")  # pages that were split before may have copies of rows in their unused part
            # The log has former versions of pages, also those that an interrupted call has changed.
            is_busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if is_busy:
                raise TryAgainError(f"read store {self._name} {self._path}: a reader uses the log, so it still has removed rows")
            return removed

        return await self._thread.call(run)

    async def as_stored(self, changes: Sequence[CellChange]) -> list[CellChange]:
        return [replace(change, value=sqlite_value(change.value)) for change in changes]

    async def repair(self, repairs: Sequence[Repair], now_ms: int, *, is_trial: bool = False) -> int:
        change, add = CHANGE.format(table=self._table), ADD.format(table=self._table)

        def run(connection: sqlite3.Connection) -> int:
            connection.execute("BEGIN IMMEDIATE")
            written = 0
            with rejecting_all(repair.change for repair in repairs):
                for wanted, found in repairs:
                    arguments = (sqlite_value(wanted.value), wanted.version, now_ms, *wanted.cell)
                    done = connection.execute(add, arguments) if found is None else connection.execute(change, (*arguments, found))
                    written += done.rowcount
            connection.execute("ROLLBACK" if is_trial else "COMMIT")
            return written

        return await self._thread.call(run)

    def _tables(self) -> tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...]:
        return (
            (self._table, CREATE, COLUMNS, KEY),
            (self._checkpoint_table, CREATE_CHECKPOINTS, CHECKPOINT_COLUMNS, CHECKPOINT_KEY),
        )

    def _initialise(self, connection: sqlite3.Connection) -> list[str]:
        # With WAL, readers continue while the agent writes. The mode is stored in the file, so it is set once, here.
        _use_wal(connection)
        connection.execute("BEGIN IMMEDIATE")
        done = self._make(connection)
        connection.execute("COMMIT")
        return done

    def _make(self, connection: sqlite3.Connection) -> list[str]:
        done = []
        for table, create, columns, key in self._tables():
            if not _columns(connection, table):
                connection.execute(create.format(table=_quoted(table)))
                done.append(f"created table {table} in {self._path}")
            elif fault := _fault(connection, table, columns, key):
                raise ConfigurationError([f"read_stores.{self._name}.table: {table} in {self._path} {fault}"])
            else:
                done.append(f"table {table} already exists in {self._path}")
        return done

    def _missing(self, connection: sqlite3.Connection) -> list[str]:
        return [f"table {table}" for table, _, columns, key in self._tables() if _fault(connection, table, columns, key)]

    def _guarded(self, connection: sqlite3.Connection, fold: str) -> int | None:
        if self._missing(connection):
            return None
        (found,) = connection.execute(self._sql(self.count_versioned_sql, self._table), (fold,)).fetchone()
        return int(found)

    def _probe(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(self._sql(UPSERT_CHECKPOINT, self._checkpoint_table), ("", -1, 0, 0))
        connection.execute("ROLLBACK")

    def _read_checkpoints(self, connection: sqlite3.Connection) -> dict[TP, int]:
        self._require_tables(connection)
        rows = connection.execute(self._sql(SELECT_CHECKPOINTS, self._checkpoint_table)).fetchall()
        return {TP(topic, partition): next_offset for topic, partition, next_offset in rows}

    def _begin(self, connection: sqlite3.Connection, tp: TP, offset: int, now_ms: int) -> None:
        self._require_tables(connection)
        connection.execute(self._sql(UPSERT_CHECKPOINT, self._checkpoint_table), (*tp, offset, now_ms))

    def _apply(self, connection: sqlite3.Connection, changes: Sequence[CellChange], step: CheckpointStep, now_ms: int) -> Counts:
        # IMMEDIATE takes the lock before the read; otherwise another transaction could write between the read and the write.
        connection.execute("BEGIN IMMEDIATE")
        found = self._read_checkpoints(connection).get(step.tp)
        if found not in (step.after, step.to):
            raise CheckpointError(f"read store {self._name} {self._path}", step.tp, found, step.after)
        counts = self._write(connection, changes, now_ms)
        connection.execute(self._sql(UPSERT_CHECKPOINT, self._checkpoint_table), (*step.tp, step.to, now_ms))
        connection.execute("COMMIT")
        return counts

    def _write(self, connection: sqlite3.Connection, changes: Sequence[CellChange], now_ms: int) -> Counts:
        converted = [replace(change, value=sqlite_value(change.value)) for change in changes]
        return bisecting_rejected(connection, converted, lambda part: self._merge(connection, part, now_ms))

    def _merge(self, connection: sqlite3.Connection, changes: Sequence[CellChange], now_ms: int) -> Counts:
        merged = merge(self._stored(connection, (change.cell for change in changes)), changes)
        connection.executemany(
            self._sql(UPSERT, self._table),
            [(*change.cell, change.value, change.version, now_ms) for change in merged.written],
        )
        connection.executemany(self._sql(CONFIRM, self._table), [(change.version, *change.cell) for change in merged.confirmed])
        return Counts(len(merged.written), merged.stale, merged.unchanged)

    def _stored(self, connection: sqlite3.Connection, cells: Iterable[Cell]) -> dict[Cell, StoredCell]:
        # Rows are read one by one by primary key: a prepared statement takes microseconds, and any text works as a key.
        select = self._sql(SELECT, self._table)
        found = {}
        for cell in cells:
            row = connection.execute(select, cell).fetchone()
            if row is not None:
                found[cell] = StoredCell(version=row[0], value=row[1])
        return found

    def _require_tables(self, connection: sqlite3.Connection) -> None:
        missing = self._missing(connection)
        if missing:
            raise TryAgainError(
                f"read store {self._name} {self._path}: no {' and no '.join(missing)}; "
                f"run `streams-app read-store init --store {self._name}`"
            )

    def _sql(self, template: str, table: str) -> str:
        return template.format(table=_quoted(table))


def _prepare(connection: sqlite3.Connection) -> None:
    # In WAL mode, a power failure may lose the newest transactions, with their changes and checkpoint; these are synced again.
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA secure_delete = ON")  # what is replaced or removed is overwritten, also by a worker


def _use_wal(connection: sqlite3.Connection) -> None:
    """Enable WAL mode, and wait for other processes that do the same. SQLite itself does not wait for the lock that this needs.

    Raises:
        sqlite3.Error: Another process keeps the file locked.
    """
    for _ in range(WAL_ATTEMPTS - 1):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:
            # SQLite waits for this lock, which the other process releases once it has changed the mode.
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        else:
            return
    connection.execute("PRAGMA journal_mode = WAL")


def _columns(connection: sqlite3.Connection, table: str) -> tuple[str, ...]:
    return tuple(row[0] for row in connection.execute("SELECT name FROM pragma_table_info(?) ORDER BY cid", (table,)))


def _fault(connection: sqlite3.Connection, table: str, columns: tuple[str, ...], key: tuple[str, ...]) -> str | None:
    """Return how a table differs from the expected one, or None if it does not."""
    found = _columns(connection, table)
    if found != columns:
        return f"has the columns {', '.join(found)}; expected {', '.join(columns)}"
    if typed := connection.execute(VALUE_TYPE, (table,)).fetchone():
        return f"has a column value of type {typed[0]}, which would change values; expected one without a type"
    if not any(set(names.split(",")) == set(key) for (names,) in connection.execute(KEYS, (table,))):
        return f"has no PRIMARY KEY ({', '.join(key)})"
    return None


def _quoted(table: str) -> str:
    return f'"{table}"'  # checked against TABLE_NAME, which allows no quote
