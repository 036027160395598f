"""The read store in a SQLite file, with a row for each (fold, group_key) and a column for each name.

The store owns the table of ``read_stores.NAME.table``, which users may have created with their own column types, and the table
``<table>_progress``. A batch is one transaction: it reads the rows of the batch, merges the changes into them by the version guard,
and writes them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

import orjson

from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.read_store.core.column_types import ColumnKind, ColumnType, SupportedTypes
from streams_app.read_store.core.group_rows import (
    KEY,
    ExistingColumn,
    RequiredColumns,
    RowKey,
    RowState,
    fit_to_columns,
    rejection_of,
    row_key,
    table_faults,
    types_of,
)
from streams_app.read_store.core.merge import Cell, CellChange, StoredCell, Value, merge
from streams_app.read_store.core.store import Counts, NotStorableError, Repair
from streams_app.read_store.core.values import possible, surrogate_fault
from streams_app.read_store.sqlite.errors import bisecting_rejected, rejecting_all
from streams_app.read_store.sqlite.store import CHECKPOINT_COLUMNS, CHECKPOINT_KEY, CREATE_CHECKPOINTS, KEYS, SqliteStore
from streams_app.read_store.sqlite.values import sqlite_column_value

T = TypeVar("T")

OWN: Final = {
    "fold": "TEXT NOT NULL", "group_key": "TEXT NOT NULL", "versions": "TEXT NOT NULL DEFAULT '{}'",
    "updated_ms": "INTEGER NOT NULL DEFAULT 0",
}  # fmt: skip
TYPES: Final = SupportedTypes(
    {
        "": ColumnKind.ANY, "ANY": ColumnKind.ANY, "INTEGER": ColumnKind.INTEGER, "INT": ColumnKind.INTEGER,
        "BIGINT": ColumnKind.INTEGER, "NUMERIC": ColumnKind.NUMERIC, "REAL": ColumnKind.DOUBLE,
        "DOUBLE PRECISION": ColumnKind.DOUBLE, "TEXT": ColumnKind.TEXT, "BOOLEAN": ColumnKind.BOOLEAN,
    },
    has_sizes=False,
)  # fmt: skip
"""The supported types. Types such as JSON and DATE are not supported, because SQLite converts their values to numbers."""

# Columns have no type: otherwise SQLite would convert the text "007" to a number, or a number to text.
CREATE: Final = """
CREATE TABLE {table} (fold {fold}, group_key {group_key}, {columns}, versions {versions}, updated_ms {updated_ms},
PRIMARY KEY (fold, group_key)) WITHOUT ROWID
"""
FOUND: Final = """
SELECT name, upper(type), "notnull", dflt_value IS NOT NULL OR hidden > 1, hidden > 1 FROM pragma_table_xinfo(?) ORDER BY cid
"""
SELECT: Final = """
WITH asked$ (fold, group_key) AS (VALUES {keys}) SELECT fold, group_key, updated_ms, versions, {columns}
FROM asked$ JOIN {table} USING (fold, group_key)
"""
UPSERT: Final = """
INSERT INTO {table} (fold, group_key, updated_ms, versions, {columns}) VALUES {rows} ON CONFLICT (fold, group_key)
DO UPDATE SET updated_ms = excluded.updated_ms, versions = excluded.versions, {assignments}
"""
COUNT_VERSIONED: Final = "SELECT COUNT(*) FROM {table}, json_each(versions) AS entry WHERE fold = ? AND entry.value >= 0"
RESET_VERSIONS: Final = "UPDATE {table} SET versions = (SELECT json_group_object(key, -1) FROM json_each(versions)) WHERE fold = ?"
BESIDE: Final = 4
"""Number of columns of a row that are not columns of changed names."""

GROUP_PAGE: Final = 'SELECT group_key FROM "{table}" WHERE fold = ? {beyond} ORDER BY group_key LIMIT ?'


class SqliteGroupStore(SqliteStore):
    """A read store in SQLite with a row per group; the version guard is :func:`.merge`."""

    count_versioned_sql = COUNT_VERSIONED
    reset_versions_sql = RESET_VERSIONS

    def __init__(self, url: str, table: str, name: str, columns: Mapping[str, str], *, timeout_seconds: float = 600.0) -> None:
        """The values of ``columns`` become part of SQL text, so they have only letters, digits and ``_``."""
        super().__init__(url, table, name, timeout_seconds=timeout_seconds)
        self._columns = columns
        self._names = {column: name for name, column in columns.items()}
        self._wanted = RequiredColumns(OWN, self._names, TYPES, "")
        self._types: dict[str, ColumnType] = {}

    def rejection(self, change: CellChange) -> str | None:
        """Values are checked only once the types of the columns are loaded; :meth:`apply`, among others, loads them."""
        return rejection_of(change, self._columns, self._types) or super().rejection(change)

    async def cells(self, fold: str, after: Cell | None, limit: int) -> list[tuple[Cell, StoredCell]]:
        sql = GROUP_PAGE.format(table=self._table, beyond="AND group_key > ?" if after else "")

        groups = max(1, limit // len(self._columns))

        def run(connection: sqlite3.Connection) -> list[tuple[Cell, StoredCell]]:
            self._require_tables(connection)
            beyond = (after.group_key,) if after else ()
            statement = sql
            while True:
                keys = [RowKey(fold, key) for (key,) in connection.execute(statement, (fold, *beyond, groups))]
                found = self._cells_of(connection, keys)
                if found or not keys:
                    return found
                # These rows have no synced cells: users have inserted them.
                beyond, statement = (keys[-1].group_key,), GROUP_PAGE.format(table=self._table, beyond="AND group_key > ?")

        return await self._thread.call(run)

    async def read(self, cells: Sequence[Cell]) -> dict[Cell, StoredCell]:
        def run(connection: sqlite3.Connection) -> dict[Cell, StoredCell]:
            self._require_tables(connection)
            keys = possible(dict.fromkeys(RowKey(*cell[:2]) for cell in cells), surrogate_fault)
            rows = dict(self._cells_of(connection, keys))
            return {cell: rows[cell] for cell in cells if cell in rows}

        return await self._thread.call(run)

    async def names(self, groups: Sequence[tuple[str, str]]) -> list[Cell]:
        return list(await self.read([Cell(*group, name) for group in groups for name in self._columns]))

    async def as_stored(self, changes: Sequence[CellChange]) -> list[CellChange]:
        await self._thread.call(self._require_tables)
        converted, _ = fit_to_columns(changes, self._columns, self._types)
        return [replace(change, value=sqlite_column_value(change.value)) for change in converted]

    async def repair(self, repairs: Sequence[Repair], now_ms: int, *, is_trial: bool = False) -> int:
        def run(connection: sqlite3.Connection) -> int:
            connection.execute("BEGIN IMMEDIATE")
            self._require_tables(connection)
            rows = self._read(connection, list(dict.fromkeys(row_key(repair.change) for repair in repairs)))
            touched: dict[RowKey, RowState] = {}
            written = 0
            for (change, found), value in zip(repairs, self._values_of(repairs), strict=True):
                key, column = row_key(change), self._columns[change.cell.name]
                row = rows.setdefault(key, RowState())
                if row.versions.get(column) == found:
                    row.set_value(column, value, change.version)
                    row.updated_ms = now_ms
                    touched[key] = row
                    written += 1
            with rejecting_all(repair.change for repair in repairs):
                for key, row in touched.items():
                    self._upsert(connection, {key: row})
            connection.execute("ROLLBACK" if is_trial else "COMMIT")
            return written

        return await self._thread.call(run)

    def _tables(self) -> tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...]:
        """Return name, CREATE statement, columns and key of the checkpoint table, whose columns do not depend on the settings."""
        return ((self._checkpoint_table, CREATE_CHECKPOINTS, CHECKPOINT_COLUMNS, CHECKPOINT_KEY),)

    def _make(self, connection: sqlite3.Connection) -> list[str]:
        if self._read_types(connection):
            done = f"table {self._table} already exists in {self._path}"
        else:
            connection.execute(CREATE.format(table=f'"{self._table}"', columns=self._column_list(), **OWN))
            done = f"created table {self._table} in {self._path}"
        return [done, *super()._make(connection)]

    def _missing(self, connection: sqlite3.Connection) -> list[str]:
        return [*([] if self._read_types(connection) else [f"table {self._table}"]), *super()._missing(connection)]

    def _require_tables(self, connection: sqlite3.Connection) -> None:
        try:
            super()._require_tables(connection)
            self._types = self._read_types(connection)
        except ConfigurationError as error:
            # The user can correct the table while the worker waits.
            raise TryAgainError(f"read store {self._name} {self._path}: {error}") from error

    def _read_types(self, connection: sqlite3.Connection) -> dict[str, ColumnType]:
        """Return the type of each column of a changed name; empty if there is no table."""
        found = {name: ExistingColumn(*rest) for name, *rest in connection.execute(FOUND, (self._table,))}
        keys = {frozenset(columns.split(",")) for (columns,) in connection.execute(KEYS, (self._table,))}
        faults = table_faults(found, keys, self._wanted) if found else []
        if faults:
            raise ConfigurationError(
                [f"read_stores.{self._name}.table: {self._table} in {self._path}: {fault}" for fault in faults]
            )
        return types_of(found, self._wanted)

    def _write(self, connection: sqlite3.Connection, changes: Sequence[CellChange], now_ms: int) -> Counts:
        fitting, rejected = fit_to_columns(changes, self._columns, self._types)
        if rejected:
            raise NotStorableError(rejected)  # the types were not loaded when `rejection` was called
        converted = [replace(change, value=sqlite_column_value(change.value)) for change in fitting]
        return bisecting_rejected(connection, converted, lambda part: self._merge(connection, part, now_ms))

    def _merge(self, connection: sqlite3.Connection, changes: Sequence[CellChange], now_ms: int) -> Counts:
        rows = self._read(connection, list(dict.fromkeys(row_key(change) for change in changes)))
        merged = merge({cell: stored for key, row in rows.items() for cell, stored in self._stored_in(key, row)}, changes)
        for change in merged.written + merged.confirmed:
            rows.setdefault(row_key(change), RowState()).set_value(self._columns[change.cell.name], change.value, change.version)
        for key in {row_key(change) for change in merged.written}:
            rows[key].updated_ms = now_ms
        touched = dict.fromkeys(row_key(change) for change in merged.written + merged.confirmed)
        for some in _parts(list(touched), _most(connection, BESIDE + len(self._names))):
            self._upsert(connection, {key: rows[key] for key in some})
        return Counts(len(merged.written), merged.stale, merged.unchanged)

    def _read(self, connection: sqlite3.Connection, keys: Sequence[RowKey]) -> dict[RowKey, RowState]:
        found = {}
        for some in _parts(keys, _most(connection, len(KEY))):
            sql = SELECT.format(keys=_values(some), columns=self._column_list(), table=f'"{self._table}"')
            for fold, group_key, updated_ms, versions, *values in connection.execute(sql, [text for key in some for text in key]):
                row = RowState(dict(zip(self._names, values, strict=True)), orjson.loads(versions), updated_ms)
                found[RowKey(fold, group_key)] = row
        return found

    def _upsert(self, connection: sqlite3.Connection, rows: Mapping[RowKey, RowState]) -> None:
        given = [
            (*key, row.updated_ms, orjson.dumps(row.versions).decode(), *(row.values.get(column) for column in self._names))
            for key, row in rows.items()
        ]
        assignments = ", ".join(f'"{column}" = excluded."{column}"' for column in self._names)
        sql = UPSERT.format(table=f'"{self._table}"', columns=self._column_list(), rows=_values(given), assignments=assignments)
        connection.execute(sql, [value for row in given for value in row])

    def _stored_in(self, key: RowKey, row: RowState) -> Iterator[tuple[Cell, StoredCell]]:
        for column, version in row.versions.items():
            if column in self._names:
                yield Cell(*key, self._names[column]), StoredCell(version, row.values[column])

    def _column_list(self) -> str:
        return ", ".join(f'"{column}"' for column in self._names)

    def _values_of(self, repairs: Sequence[Repair]) -> list[Value]:
        converted, _ = fit_to_columns([repair.change for repair in repairs], self._columns, self._types)
        return [sqlite_column_value(change.value) for change in converted]

    def _cells_of(self, connection: sqlite3.Connection, keys: Sequence[RowKey]) -> list[tuple[Cell, StoredCell]]:
        rows = self._read(connection, keys)
        return [cell for key in keys if key in rows for cell in self._stored_in(key, rows[key])]


def _values(rows: Sequence[Sequence[object]]) -> str:
    """Return SQL placeholders for the values of several rows, all of which have the same number of values."""
    return ", ".join([f"({', '.join('?' * len(rows[0]))})"] * len(rows))


def _most(connection: sqlite3.Connection, columns: int) -> int:
    """Return the maximum number of rows of a statement with a parameter for each value; SQLite limits the number of parameters."""
    return connection.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER) // columns


def _parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for begin in range(0, len(items), size):
        yield items[begin : begin + size]
