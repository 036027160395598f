"""The read store in MySQL or MariaDB, with a row for each (fold, group_key) and a column for each name.

The store owns the table of ``read_stores.NAME.table``, which users may have created with their own column types, and the table
``<table>_progress``. A batch is written as in :mod:`streams_app.read_store.mysql.store`. Values are converted to what the server
makes of them, such as the digits of a ``decimal``, before they are compared with the stored ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, Final

import orjson

from streams_app.delivery.batch import TP
from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.read_store.core.column_types import ColumnKind, ColumnType, SupportedTypes
from streams_app.read_store.core.group_rows import (
    KEY,
    RequiredColumns,
    RowKey,
    RowState,
    fit_to_columns,
    rejection_of,
    row_key,
    table_faults,
    types_of,
)
from streams_app.read_store.core.merge import Cell, CellChange, JsonText, StoredCell, Value, merge
from streams_app.read_store.core.store import CheckpointStep, Counts, NotStorableError, Repair
from streams_app.read_store.core.values import json_text, possible, surrogate_fault, value_of
from streams_app.read_store.mysql.connection import TOO_BIG_ROW, MysqlConnection, is_about_value, number_of
from streams_app.read_store.mysql.store import MysqlStore, key_fault
from streams_app.read_store.mysql.tables import (
    CHECKPOINT_KEY,
    GROUP_KEY_SIZES,
    LONG_TEXT,
    FoundTable,
    checkpoint_columns,
    create,
    described,
    exact_columns,
    initialised,
    put_rows,
    rows_of_keys,
    text,
)
from streams_app.settings import ReadStoreSettings

TYPES: Final = SupportedTypes(
    {
        "longtext": ColumnKind.JSON, "bigint": ColumnKind.INTEGER, "int": ColumnKind.INTEGER, "decimal": ColumnKind.NUMERIC,
        "double": ColumnKind.DOUBLE, "mediumtext": ColumnKind.TEXT, "text": ColumnKind.TEXT, "varchar": ColumnKind.TEXT,
        "boolean": ColumnKind.BOOLEAN, "datetime": ColumnKind.MOMENT, "timestamp": ColumnKind.MOMENT,
    },
    bits={"int": 32},
)  # fmt: skip
"""The supported types. A column of ``longtext`` has JSON; in MariaDB, ``json`` is another name of it. The type ``json`` of MySQL is
not supported, because it rounds numbers."""

EXACT: Final = Context(prec=200)
MICROSECOND_DIGITS: Final = 6
COUNT_VERSIONED: Final = """
SELECT SUM(
    CHAR_LENGTH(entries) - CHAR_LENGTH(REPLACE(entries, ':', ''))
    - (CHAR_LENGTH(entries) - CHAR_LENGTH(REPLACE(entries, ':-', ''))) DIV 2
) FROM (SELECT REPLACE(versions, ' ', '') AS entries FROM {table} WHERE fold = %s) AS `counted$`
"""
VERSION: Final = r":[ ]*-?[0-9]+"
RESET_VERSIONS: Final = f"UPDATE {{table}} SET versions = REGEXP_REPLACE(versions, '{VERSION}', ':-1') WHERE fold = %s"
PAGE: Final = "SELECT group_key FROM {table} WHERE fold = %s {beyond} ORDER BY group_key LIMIT %s"
BEYOND: Final = "AND group_key > %s"


class MysqlGroupStore(MysqlStore):
    """A read store in MySQL or MariaDB with a row per group; the version guard is :func:`.merge`."""

    count_versioned_sql = COUNT_VERSIONED
    reset_versions_sql = RESET_VERSIONS

    def __init__(self, settings: ReadStoreSettings) -> None:
        super().__init__(settings)
        self._columns = settings.columns
        self._name_of = {column: name for name, column in settings.columns.items()}
        self._types: dict[str, ColumnType] = {}

    async def checkpoints(self) -> dict[TP, int]:
        await self._with_tables(self._load_types)
        return await super().checkpoints()

    def rejection(self, change: CellChange) -> str | None:
        """Values are checked only once the types of the columns are loaded; :meth:`checkpoints`, among others, loads them."""
        key = dict(zip(KEY, row_key(change), strict=True))
        return rejection_of(change, self._columns, self._types) or key_fault(key, GROUP_KEY_SIZES)

    async def cells(self, fold: str, after: Cell | None, limit: int) -> list[tuple[Cell, StoredCell]]:
        groups = max(1, limit // len(self._columns))

        async def run(connection: MysqlConnection) -> list[tuple[Cell, StoredCell]]:
            await self._load_types(connection)
            beyond = (after.group_key,) if after else ()
            while True:
                sql = PAGE.format(**self._names, beyond=BEYOND if beyond else "")
                keys = [RowKey(fold, text(key)) for (key,) in await connection.fetch(sql, fold, *beyond, groups)]
                rows = await self._rows(connection, keys)
                found = [cell for key in keys if key in rows for cell in self._cells_of(key, rows[key])]
                if found or not keys:
                    return found
                beyond = (keys[-1].group_key,)  # these rows have no synced cells: users have inserted them

        return await self._pool.call(run)

    async def names(self, groups: Sequence[tuple[str, str]]) -> list[Cell]:
        return list(await self.read([Cell(*group, name) for group in groups for name in self._columns]))

    async def as_stored(self, changes: Sequence[CellChange]) -> list[CellChange]:
        types = await self._pool.call(self._load_types)
        return self._converted(changes, types)[0]

    def _converted(
        self, changes: Iterable[CellChange], types: Mapping[str, ColumnType]
    ) -> tuple[list[CellChange], dict[Cell, str]]:
        """Convert values to what their columns make of them; return the changes, and the cells that no column can hold."""
        fitting, rejected = fit_to_columns(changes, self._columns, types)
        return [replace(one, value=stored_form(one.value, types[self._columns[one.cell.name]])) for one in fitting], rejected

    async def _repaired(self, connection: MysqlConnection, repairs: Sequence[Repair], now_ms: int) -> int:
        types = await self._load_types(connection)
        rows = await self._rows(connection, [row_key(repair.change) for repair in repairs], lock=True)
        stored = {key: dict(row.versions) for key, row in rows.items()}
        as_found = [
            change for change, found in repairs if found == stored.get(row_key(change), {}).get(self._columns[change.cell.name])
        ]
        changes, _ = self._converted(as_found, types)
        await self._write(connection, rows, changes, {row_key(change) for change in changes}, now_ms)
        return len(changes)

    async def _initialise(self, connection: MysqlConnection) -> list[str]:
        if await self._read_types(connection):
            done = f"table {self._table} already exists"
        else:
            own = own_columns(connection)
            columns = {name: own.pop(name) for name in KEY} | dict.fromkeys(self._name_of, LONG_TEXT) | own
            try:
                is_new = await create(connection, self._table, columns, KEY)
            except Exception as error:
                if number_of(error) != TOO_BIG_ROW:
                    raise
                fault = f"{len(self._columns)} columns of longtext do not fit a row; create the table with smaller types"
                raise ConfigurationError([f"{self._settings.section}.table: {self._table}: {fault}"]) from error
            if not is_new:  # another process has just created it
                return await self._initialise(connection)
            done = f"created table {self._table}"
        setting = f"{self._settings.section}.table"
        checkpoints = await initialised(connection, setting, self._checkpoint_table, checkpoint_columns(connection), CHECKPOINT_KEY)
        return [done, checkpoints]

    async def _missing(self, connection: MysqlConnection) -> list[str]:
        found = await described(connection, self._checkpoint_table)
        is_there = found is not None and found.fault(checkpoint_columns(connection), CHECKPOINT_KEY) is None
        table = [] if await self._read_types(connection) else [f"table {self._table}"]
        return [*table, *([] if is_there else [f"table {self._checkpoint_table}"])]

    async def _read_types(self, connection: MysqlConnection) -> dict[str, ColumnType]:
        """Return the type of each column of a changed name; empty if there is no table."""
        found = await described(connection, self._table)
        if found is None:
            return {}
        wanted = RequiredColumns(own_columns(connection), self._name_of, TYPES, "longtext")
        existing = found.existing(wanted.own)
        if faults := [*table_faults(existing, found.keys, wanted), *_engine_faults(found)]:
            raise ConfigurationError([f"{self._settings.section}.table: {self._table}: {fault}" for fault in faults])
        return types_of(existing, wanted)

    async def _load_types(self, connection: MysqlConnection) -> dict[str, ColumnType]:
        """Read and return the types of the columns.

        Raises:
            TryAgainError: There is no table that can store a row per group. The user can create it while the worker retries.
        """
        try:
            types = await self._read_types(connection)
        except ConfigurationError as error:
            raise TryAgainError(f"{self._pool.what}: {error}") from error
        if not types:
            init = f"streams-app read-store init --store {self._settings.name}"
            raise TryAgainError(f"{self._pool.what}: no table {self._table}; run `{init}`")
        self._types = types
        return types

    async def _written(
        self, connection: MysqlConnection, changes: Sequence[CellChange], step: CheckpointStep, now_ms: int
    ) -> Counts:
        converted, rejected = self._converted(changes, self._types or await self._load_types(connection))
        if rejected:
            raise NotStorableError(rejected)  # the types were not loaded when `rejection` was called
        try:
            return await super()._written(connection, converted, step, now_ms)
        except Exception as error:
            if isinstance(error, NotStorableError) or is_about_value(error):
                self._types = {}  # read again before the next write, because a user may have changed them
            raise

    async def _merge(self, connection: MysqlConnection, changes: Sequence[CellChange], now_ms: int) -> Counts:
        rows = await self._rows(connection, [row_key(change) for change in changes], lock=True)
        merged = merge(dict(cell for key, row in rows.items() for cell in self._cells_of(key, row)), changes)
        changed = {row_key(change) for change in merged.written}
        await self._write(connection, rows, merged.written + merged.confirmed, changed, now_ms)
        return Counts(len(merged.written), merged.stale, merged.unchanged)

    async def _write(
        self,
        connection: MysqlConnection,
        rows: Mapping[RowKey, RowState],
        changes: Sequence[CellChange],
        changed: Iterable[RowKey],
        now_ms: int,
    ) -> None:
        """Write the rows of some changes.

        Args:
            rows: The stored rows, which are locked.
            changed: Rows whose time is set.
        """
        given: dict[RowKey, RowState] = {}
        for change in changes:
            key = row_key(change)
            row = given.setdefault(key, rows.get(key) or RowState())
            row.set_value(self._columns[change.cell.name], change.value, change.version)
        for key in changed:
            given[key].updated_ms = now_ms
        columns = (*KEY, "versions", "updated_ms", *self._types)
        for is_new in (False, True):
            some = [(key, given[key]) for key in sorted(given) if (key not in rows) is is_new]
            literals = [
                (
                    *key, orjson.dumps(row.versions).decode(), row.updated_ms,
                    *(written_form(row.values.get(column), known) for column, known in self._types.items()),
                )
                for key, row in some
            ]  # fmt: skip
            await put_rows(connection, self._table, KEY, columns, literals, is_new=is_new)

    async def _rows(self, connection: MysqlConnection, keys: Sequence[RowKey], *, lock: bool = False) -> dict[RowKey, RowState]:
        columns = (*KEY, "versions", "updated_ms", *self._types)
        asked = possible(keys, surrogate_fault)
        found = {}
        for fold, group, versions, updated_ms, *values in await rows_of_keys(
            connection, self._table, KEY, asked, columns, "FOR UPDATE" if lock else ""
        ):
            converted = {
                column: read_form(value, known) for (column, known), value in zip(self._types.items(), values, strict=True)
            }
            found[RowKey(text(fold), text(group))] = RowState(converted, orjson.loads(versions), updated_ms)
        return found

    async def _stored(
        self, connection: MysqlConnection, cells: Sequence[Cell], *, lock: bool = False
    ) -> dict[Cell, tuple[StoredCell, int]]:
        await self._load_types(connection)
        rows = await self._rows(connection, [RowKey(*cell[:2]) for cell in cells], lock=lock)
        found = {cell: (one, row.updated_ms) for key, row in rows.items() for cell, one in self._cells_of(key, row)}
        return {cell: found[cell] for cell in cells if cell in found}

    def _cells_of(self, key: RowKey, row: RowState) -> list[tuple[Cell, StoredCell]]:
        known = [column for column in row.versions if column in self._types]
        return [(Cell(*key, self._name_of[column]), StoredCell(row.versions[column], row.values[column])) for column in known]


def own_columns(connection: MysqlConnection) -> dict[str, str]:
    """Return the declarations of the columns that do not belong to a changed name."""
    rest = {"versions": f"{LONG_TEXT} NOT NULL DEFAULT ('{{}}')", "updated_ms": "bigint NOT NULL DEFAULT 0"}
    return {**exact_columns(connection, GROUP_KEY_SIZES), **rest}


def stored_form(value: Value, column: ColumnType) -> Value:
    """Convert a value that fits its column to the value that the server returns for it (pure)."""
    if value is None:
        return None
    if column.kind is ColumnKind.JSON:
        return JsonText(json_text(value) or "")
    if column.kind is ColumnKind.NUMERIC:
        return value_of(Decimal(str(value)).quantize(Decimal(1).scaleb(-column.scale), ROUND_HALF_UP, EXACT))
    if column.kind is ColumnKind.MOMENT:
        return _rounded(str(value), column.size)
    return str.__str__(value) if isinstance(value, str) else value


def written_form(value: Value, column: ColumnType) -> Any:
    """Convert a value in its stored form to a parameter of a statement (pure)."""
    if value is not None and column.kind is ColumnKind.MOMENT:
        return str(value).removesuffix("+00:00").replace("T", " ")
    if isinstance(value, Decimal):
        return format(value, "f")
    return str.__str__(value) if isinstance(value, str) else value


def read_form(value: Any, column: ColumnType) -> Value:
    """Convert a value that the driver returns to its stored form (pure)."""
    if value is None:
        return None
    if column.kind is ColumnKind.JSON:
        return JsonText(text(value))
    if column.kind is ColumnKind.BOOLEAN:
        return bool(value)
    if column.kind is ColumnKind.MOMENT and isinstance(value, datetime):
        return value.replace(tzinfo=UTC).isoformat()
    return value_of(value)


def _rounded(moment: str, digits: int) -> str:
    """Convert a time to UTC, rounded to the fraction of a second that its column has."""
    step = timedelta(microseconds=10 ** (MICROSECOND_DIGITS - digits))
    try:
        exact = datetime.fromisoformat(moment).astimezone(UTC)
        fraction = timedelta(microseconds=exact.microsecond)
        return (exact - fraction + (fraction + step / 2) // step * step).isoformat()
    except OverflowError:
        return moment  # the server rejects it


def _engine_faults(found: FoundTable) -> list[str]:
    fault = found.engine_fault()
    return [f"it {fault}"] if fault else []
