"""The read store in PostgreSQL, with a row for each (fold, group_key) and a column for each name.

The store owns the table of ``read_stores.NAME.table``, which users may have created with their own column types, and the table
``<table>_progress``. A batch is one statement, which receives its rows as one JSON array; the server converts each value to the
type of its column. Values are read as JSON. The value of a typed column is read as a number or text that can be written into the
column again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import orjson

from streams_app.delivery.batch import TP
from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.read_store.core.column_types import ColumnKind, ColumnType, SupportedTypes
from streams_app.read_store.core.group_rows import (
    ExistingColumn,
    RequiredColumns,
    RowKey,
    RowState,
    fit_to_columns,
    rejection_of,
    row_key,
    rows_of,
    table_faults,
    types_of,
)
from streams_app.read_store.core.merge import Cell, CellChange, JsonText, StoredCell, Value
from streams_app.read_store.core.store import CheckpointStep, Counts, NotStorableError, Repair
from streams_app.read_store.core.values import json_text, json_value, possible, text_fault
from streams_app.read_store.postgresql.connection import Connection
from streams_app.read_store.postgresql.errors import REJECTIONS, bisecting_rejected, rejecting_all, trial_or_commit
from streams_app.read_store.postgresql.store import CHECKPOINT_COLUMNS, KEYS, LOCK, PostgresStore, key_fault
from streams_app.read_store.postgresql.version_guard import (
    Layout,
    apply_statement,
    is_same_value,
    is_value_written,
    is_version_newer,
)
from streams_app.settings import ReadStoreSettings

OWN: Final = {
    "fold": "text NOT NULL", "group_key": "text NOT NULL", "versions": "jsonb NOT NULL DEFAULT '{}'",
    "updated_ms": "bigint NOT NULL DEFAULT 0",
}  # fmt: skip
NAME_TYPE: Final = "jsonb"
TYPES: Final = SupportedTypes(
    {
        "jsonb": ColumnKind.JSON, "bigint": ColumnKind.INTEGER, "integer": ColumnKind.INTEGER, "numeric": ColumnKind.NUMERIC,
        "double precision": ColumnKind.DOUBLE, "text": ColumnKind.TEXT, "character varying": ColumnKind.TEXT,
        "boolean": ColumnKind.BOOLEAN, "timestamp with time zone": ColumnKind.MOMENT,
    },
    bits={"integer": 32},
)  # fmt: skip

# Free space in each page lets an update stay in the page of its row, so that no index is written.
CREATE: Final = """
CREATE TABLE {table} (fold {fold}, group_key {group_key}, {columns}, versions {versions}, updated_ms {updated_ms},
PRIMARY KEY (fold, group_key)) WITH (fillfactor = 85)
"""
FOUND: Final = """
SELECT attname::text, format_type(atttypid, atttypmod), attnotnull, atthasdef OR attidentity <> '', attgenerated <> ''
FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
_BATCH: Final = """
    SELECT fold, group_key, versions, {columns} FROM jsonb_populate_recordset(NULL::{table}, $6::jsonb)"""
_BEFORE: Final = """
    SELECT cell.given, cell.stored, cell.is_same
    FROM batch$ LEFT JOIN {table} AS found USING (fold, group_key),
        LATERAL unnest(ARRAY[{given}], ARRAY[{stored}], ARRAY[{is_same}]) AS cell (given, stored, is_same)
    WHERE cell.given IS NOT NULL"""
# Selects the columns for which the batch has a newer version than the row.
NEWER: Final = "jsonb_each(excluded.versions) AS given WHERE " + is_version_newer(
    "given.value::bigint", "(stored.versions ->> given.key)::bigint"
)
_ASSIGNMENTS: Final = """
        {columns},
        versions = stored.versions || (SELECT jsonb_object_agg(given.key, given.value) FROM {newer}),
        updated_ms = CASE WHEN {is_written} THEN excluded.updated_ms ELSE stored.updated_ms END"""
COUNT_VERSIONED: Final = "SELECT count(*) FROM {table}, jsonb_each(versions) AS entry WHERE fold = $1 AND entry.value::bigint >= 0"
RESET_VERSIONS: Final = """
UPDATE {table} SET versions = (SELECT jsonb_object_agg(entry, -1) FROM jsonb_object_keys(versions) AS entry)
WHERE fold = $1 AND EXISTS (SELECT FROM jsonb_each(versions) AS entry WHERE entry.value::bigint >= 0)
"""
PAGE: Final = """
SELECT group_key, versions::text, {values} FROM {table} WHERE fold = $1 {beyond} ORDER BY group_key LIMIT $2
"""

BEYOND: Final = "AND group_key > $3"

READ: Final = """
SELECT fold, group_key, versions::text, {values}
FROM unnest($1::text[], $2::text[]) AS given$ (fold, group_key) JOIN {table} USING (fold, group_key)
"""

STORED_FORM: Final = "SELECT fold, group_key, NULL, {values} FROM jsonb_populate_recordset(NULL::{table}, $1::jsonb)"

# Excludes other writers during a repair, so that no row changes between its comparison and its update.
LOCK_TABLE: Final = "LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE"

REPAIR: Final = """
INSERT INTO {table} AS stored (fold, group_key, {columns}, versions, updated_ms)
SELECT fold, group_key, {columns}, versions, $2::bigint FROM jsonb_populate_recordset(NULL::{table}, $1::jsonb)
ON CONFLICT (fold, group_key) DO UPDATE SET {assignments}, versions = stored.versions || excluded.versions,
    updated_ms = excluded.updated_ms
"""

ASSIGNMENT: Final = '"{column}" = CASE WHEN excluded.versions ? \'{column}\' THEN excluded."{column}" ELSE stored."{column}" END'


class PostgresGroupStore(PostgresStore):
    """A read store in PostgreSQL with a row per group.

    The types of the columns are read together with the checkpoint, which every owner of a partition reads before it writes.
    """

    count_versioned_sql = COUNT_VERSIONED
    reset_versions_sql = RESET_VERSIONS

    def __init__(self, settings: ReadStoreSettings) -> None:
        super().__init__(settings)
        self._columns = settings.columns
        self._wanted = RequiredColumns(OWN, settings.columns.values(), TYPES, NAME_TYPE)
        self._types: dict[str, ColumnType] = {}

    async def missing(self) -> list[str]:
        async def check(connection: Connection) -> list[str]:
            return [] if await self._read_types(connection) else [f"table {self._settings.table}"]

        return [*await self._pool.call(check), *await super().missing()]

    async def checkpoints(self) -> dict[TP, int]:
        await self._with_tables(self._load_types)
        return await super().checkpoints()

    def rejection(self, change: CellChange) -> str | None:
        """Values are checked only once the types of the columns are loaded; :meth:`checkpoints`, among others, loads them."""
        return rejection_of(change, self._columns, self._types) or key_fault(row_key(change))

    async def cells(self, fold: str, after: Cell | None, limit: int) -> list[tuple[Cell, StoredCell]]:
        groups = max(1, limit // len(self._columns))

        async def run(connection: Connection) -> list[tuple[Cell, StoredCell]]:
            await self._load_types(connection)
            beyond = after.group_key if after else None
            while True:
                sql = self._sql(PAGE, beyond="" if beyond is None else BEYOND)
                rows = await connection.fetch(sql, fold, groups, *(() if beyond is None else (beyond,)))
                found = [cell for row in rows for cell in self._cells_of((fold, *row))]
                if found or not rows:
                    return found
                beyond = rows[-1]["group_key"]  # these rows have no synced cells: users have inserted them

        return await self._pool.call(run)

    async def read(self, cells: Sequence[Cell]) -> dict[Cell, StoredCell]:
        return await self._pool.call(lambda connection: self._read(connection, cells))

    async def names(self, groups: Sequence[tuple[str, str]]) -> list[Cell]:
        return list(await self.read([Cell(*group, name) for group in groups for name in self._columns]))

    async def as_stored(self, changes: Sequence[CellChange]) -> list[CellChange]:
        async def run(connection: Connection) -> list[CellChange]:
            fitting, _ = fit_to_columns(changes, self._columns, await self._load_types(connection))
            sql = self._sql(STORED_FORM)
            rows = await bisecting_rejected(connection, fitting, lambda part: connection.fetch(sql, self._rows(part)))
            converted = {RowKey(*row[:2]): dict(zip(self._types, row[3:], strict=True)) for row in rows}
            columns = [self._columns[one.cell.name] for one in fitting]
            return [
                replace(one, value=_value(converted[row_key(one)][column], self._types[column].kind))
                for one, column in zip(fitting, columns, strict=True)
            ]

        return await self._pool.call(run)

    async def repair(self, repairs: Sequence[Repair], now_ms: int, *, is_trial: bool = False) -> int:
        async def run(connection: Connection) -> int:
            with rejecting_all(repair.change for repair in repairs):
                async with trial_or_commit(connection, is_trial=is_trial):
                    await connection.execute(self._sql(LOCK_TABLE))
                    stored = await self._read(connection, [repair.change.cell for repair in repairs])
                    versions = {cell: found.version for cell, found in stored.items()}
                    as_found = [change for change, found in repairs if found == versions.get(change.cell)]
                    fitting, _ = fit_to_columns(as_found, self._columns, self._types)
                    await connection.execute(self._sql(REPAIR), self._rows(fitting), now_ms)
                    return len(fitting)

        return await self._pool.call(run)

    def _tables(self) -> list[tuple[str, dict[str, str], str]]:
        """Return name, columns and primary key of the checkpoint table, whose columns do not depend on the settings."""
        return [(f"{self._settings.table}_progress", CHECKPOINT_COLUMNS, "topic, partition")]

    async def _initialise(self, connection: Connection) -> list[str]:
        table = self._settings.table
        async with connection.transaction():
            await connection.fetchval(LOCK, table)
            if await self._read_types(connection):
                done = f"table {table} already exists"
            else:
                columns = ", ".join(f'"{column}" {NAME_TYPE}' for column in self._columns.values())
                await connection.execute(CREATE.format(table=self._names["table"], columns=columns, **OWN))
                done = f"created table {table}"
            return [done, *await super()._initialise(connection)]

    async def _read_types(self, connection: Connection) -> dict[str, ColumnType]:
        """Return the type of each column of a changed name; empty if there is no table."""
        table = self._names["table"]
        found = {name: ExistingColumn(*rest) for name, *rest in await connection.fetch(FOUND, table)}
        keys = {frozenset(columns) for (columns,) in await connection.fetch(KEYS, table)}
        faults = table_faults(found, keys, self._wanted) if found else []
        if faults:
            raise ConfigurationError([f"{self._settings.section}.table: {self._settings.table}: {fault}" for fault in faults])
        return types_of(found, self._wanted)

    async def _load_types(self, connection: Connection) -> dict[str, ColumnType]:
        """Read and return the types of the columns; if they have changed, build the statement that writes a batch into them.

        Raises:
            TryAgainError: There is no table that can store a row per group. The user can create it while the worker retries.
        """
        try:
            types = await self._read_types(connection)
        except ConfigurationError as error:
            raise TryAgainError(f"{self._pool.what}: {error}") from error
        if not types:
            init = f"streams-app read-store init --store {self._settings.name}"
            raise TryAgainError(f"{self._pool.what}: no table {self._settings.table}; run `{init}`")
        if types != self._types:
            self._apply_sql = apply_statement(
                self._names["table"], self._names["checkpoints"], _layout(self._names["table"], types)
            )
        self._types = types
        return types

    async def _written(self, connection: Connection, changes: Sequence[CellChange], step: CheckpointStep, now_ms: int) -> Counts:
        converted, rejected = fit_to_columns(changes, self._columns, self._types or await self._load_types(connection))
        if rejected:
            raise NotStorableError(rejected)  # the types were not loaded when `rejection` was called
        try:
            return await super()._written(connection, converted, step, now_ms)
        except (NotStorableError, *REJECTIONS):
            self._types = {}  # read again before the next write, because a user may have changed them
            raise

    def _arguments(self, changes: Sequence[CellChange]) -> tuple[Any, ...]:
        """Return the arguments for the parameters from $6 on: only one, the rows of the batch as JSON."""
        return (self._rows(changes),)

    def _rows(self, converted: Sequence[CellChange]) -> str:
        """Return the rows of a batch as a JSON array, which is a parameter of several statements."""
        return orjson.dumps([_object(key, row) for key, row in rows_of(converted, self._columns).items()]).decode()

    async def _read(self, connection: Connection, cells: Sequence[Cell]) -> dict[Cell, StoredCell]:
        await self._load_types(connection)
        keys = possible(dict.fromkeys(RowKey(*cell[:2]) for cell in cells), text_fault)
        rows = await connection.fetch(self._sql(READ), [key.fold for key in keys], [key.group_key for key in keys])
        found = dict(cell for row in rows for cell in self._cells_of(tuple(row)))
        return {cell: found[cell] for cell in cells if cell in found}

    def _cells_of(self, row: tuple[Any, ...]) -> Iterator[tuple[Cell, StoredCell]]:
        """Yield the stored cells of a row, which consists of fold, group, versions, and a value for each column."""
        fold, group_key, versions, *values = row
        known = orjson.loads(versions)
        names = {column: name for name, column in self._columns.items()}
        for (column, of_type), value in zip(self._types.items(), values, strict=True):
            if column in known:
                yield Cell(fold, group_key, names[column]), StoredCell(known[column], _value(value, of_type.kind))

    def _sql(self, template: str, beyond: str = "") -> str:
        """Return the SQL of a template, for the columns that the table had when their types were last read."""
        return template.format(
            table=self._names["table"],
            beyond=beyond,
            columns=", ".join(f'"{column}"' for column in self._types),
            values=", ".join(f'to_jsonb("{column}")::text' for column in self._types),
            assignments=", ".join(ASSIGNMENT.format(column=column) for column in self._types),
        )


def _object(key: RowKey, row: RowState) -> dict[str, Any]:
    """Build the JSON object of a row. A deleted value is omitted: a column of JSON would store ``null`` as a value."""
    texts = {column: json_text(value) for column, value in row.values.items()}
    given = {column: orjson.Fragment(text.encode()) for column, text in texts.items() if text is not None}
    return {"fold": key.fold, "group_key": key.group_key, "versions": row.versions, **given}


def _value(text: str | None, kind: ColumnKind) -> Value:
    """Convert the JSON that the server returns for a column; a column of JSON keeps the text unchanged."""
    if text is None:
        return None
    return JsonText(text) if kind is ColumnKind.JSON else json_value(text)


def _layout(table: str, types: Mapping[str, ColumnType]) -> Layout:
    """Return the layout of a table with a row per group and the given columns.

    Args:
        table: Name of the table, quoted.
        types: Type of each column of a changed name. The names of the columns consist of letters, digits and ``_``.
    """
    columns = ", ".join(f'"{column}"' for column in types)
    return Layout(
        key="fold, group_key",
        columns=f"fold, group_key, {columns}, versions, updated_ms",
        values=f"fold, group_key, {columns}, versions, $1::bigint",
        batch=_BATCH.format(columns=columns, table=table),
        before=_BEFORE.format(
            table=table,
            given=", ".join(_version(column, "batch$") for column in types),
            stored=", ".join(_version(column, "found") for column in types),
            is_same=", ".join(_is_same(column, known, "batch$", "found") for column, known in types.items()),
        ),
        assignments=_ASSIGNMENTS.format(
            columns=",\n        ".join(_assignment(column, known) for column, known in types.items()),
            newer=NEWER,
            is_written=" OR ".join(_is_written(column, known) for column, known in types.items()),
        ),
        is_newer=f"EXISTS (SELECT FROM {NEWER})",
    )


def _version(column: str, side: str) -> str:
    return f"({side}.versions ->> '{column}')::bigint"


def _assignment(column: str, known: ColumnType) -> str:
    return f'"{column}" = CASE WHEN {_is_written(column, known)} THEN excluded."{column}" ELSE stored."{column}" END'


def _is_written(column: str, known: ColumnType) -> str:
    """Return an SQL condition under which the value of a column is written. It is false if the batch does not set the column."""
    is_same = _is_same(column, known, "excluded", "stored")
    guard = is_value_written(_version(column, "excluded"), _version(column, "stored"), is_same)
    return f"(excluded.versions ? '{column}' AND {guard})"


def _is_same(column: str, known: ColumnType, left: str, right: str) -> str:
    as_text = known.kind in (ColumnKind.JSON, ColumnKind.NUMERIC)
    return is_same_value(f'{left}."{column}"', f'{right}."{column}"', as_text=as_text)
