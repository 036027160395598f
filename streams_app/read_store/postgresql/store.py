"""The read store in PostgreSQL, with a row for each (fold, group_key, name).

The store owns the table of ``read_stores.NAME.table`` and the table ``<table>_progress``. A batch is one statement, which writes
newer rows and the checkpoint atomically, see :mod:`streams_app.read_store.postgresql.version_guard`.
Values are compared as the text of their ``jsonb``, in which the server sorts the names of objects and keeps all digits of numbers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

import asyncpg

from streams_app.delivery.batch import TP
from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.read_store.core.merge import Cell, CellChange, JsonText, StoredCell
from streams_app.read_store.core.store import TABLE_NAME, CheckpointError, CheckpointStep, Counts, Repair
from streams_app.read_store.core.values import json_fault, json_text, possible, text_fault
from streams_app.read_store.postgresql.connection import LONG_SECONDS, Connection, PostgresPool
from streams_app.read_store.postgresql.errors import bisecting_rejected, rejecting_all, trial_or_commit
from streams_app.read_store.postgresql.version_guard import Layout, apply_statement, is_same_value, is_version_newer
from streams_app.settings import ReadStoreSettings

T = TypeVar("T")

COLUMNS: Final = {
    "fold": "text", "group_key": "text", "name": "text", "value": "jsonb", "version": "bigint", "updated_ms": "bigint",
}  # fmt: skip
CHECKPOINT_COLUMNS: Final = {"topic": "text", "partition": "integer", "next_offset": "bigint", "updated_ms": "bigint"}

MAX_KEY_BYTES: Final = 2_600
"""Maximum size of fold, group and name together, in bytes. PostgreSQL limits the entries of an index to 2 704 bytes."""

# Free space in each page lets an update stay in the page of its row, so that no index is written.
CREATE: Final = "CREATE TABLE {table} ({columns}, PRIMARY KEY ({key})) WITH (fillfactor = 85)"
FOUND: Final = """
SELECT attname::text, format_type(atttypid, NULL) FROM pg_attribute
WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
KEYS: Final = """
SELECT array_agg(attname::text) FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY(indkey)
WHERE indrelid = to_regclass($1) AND indisunique AND indisvalid AND indimmediate AND indpred IS NULL AND indexprs IS NULL
GROUP BY indexrelid
"""
_BATCH: Final = """
    SELECT fold, group_key, name, value::jsonb AS value, version
    FROM unnest($6::text[], $7::text[], $8::text[], $9::text[], $10::bigint[]) AS given (fold, group_key, name, value, version)"""
_BEFORE: Final = f"""
    SELECT batch$.version AS given, found.version AS stored,
        {is_same_value("found.value", "batch$.value", as_text=True)} AS is_same
    FROM batch$ LEFT JOIN {{table}} AS found USING (fold, group_key, name)"""
_ASSIGNMENTS: Final = f"""
        version = excluded.version,
        (value, updated_ms) = (
            SELECT CASE WHEN is_same THEN stored.value ELSE excluded.value END,
                CASE WHEN is_same THEN stored.updated_ms ELSE excluded.updated_ms END
            FROM (SELECT {is_same_value("stored.value", "excluded.value", as_text=True)}) AS compared (is_same)
        )"""
SET_CHECKPOINT: Final = """
INSERT INTO {checkpoints} AS stored (topic, partition, next_offset, updated_ms) VALUES ($1, $2, $3, $4)
ON CONFLICT (topic, partition) DO UPDATE SET next_offset = excluded.next_offset, updated_ms = excluded.updated_ms
"""
SELECT_CHECKPOINTS: Final = "SELECT topic, partition, next_offset FROM {checkpoints}"
NOWHERE: Final = CheckpointStep(TP("", -1), None, 0)
COUNT_VERSIONED: Final = "SELECT count(*) FROM {table} WHERE fold = $1 AND version >= 0"
RESET_VERSIONS: Final = "UPDATE {table} SET version = -1 WHERE fold = $1 AND version >= 0"
LOCK: Final = "SELECT pg_advisory_xact_lock(hashtext('streams_app'), hashtext($1))"

PAGE: Final = """
SELECT group_key, name, version, value::text FROM {table} WHERE fold = $1 {beyond} ORDER BY group_key, name LIMIT $2
"""

BEYOND: Final = "AND (group_key, name) > ($3, $4)"

READ: Final = """
SELECT fold, group_key, name, version, value::text
FROM unnest($1::text[], $2::text[], $3::text[]) AS given$ (fold, group_key, name) JOIN {table} USING (fold, group_key, name)
"""

REMOVE: Final = "DELETE FROM {table} WHERE fold = $1 AND group_key = $2"
NAMES: Final = """
SELECT fold, group_key, name FROM unnest($1::text[], $2::text[]) AS given$ (fold, group_key) JOIN {table} USING (fold, group_key)
"""

STORED_FORM: Final = "SELECT value::jsonb::text FROM unnest($1::text[]) WITH ORDINALITY AS given (value, place) ORDER BY place"

REPAIR: Final = """
WITH given$ AS MATERIALIZED (
    SELECT fold, group_key, name, value::jsonb AS value, version, found
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[])
        AS given (fold, group_key, name, value, version, found)
), changed$ AS (
    UPDATE {table} AS stored SET value = given$.value, version = given$.version, updated_ms = $7::bigint
    FROM given$
    WHERE (stored.fold, stored.group_key, stored.name, stored.version) = (given$.fold, given$.group_key, given$.name, given$.found)
    RETURNING 1
), added$ AS (
    INSERT INTO {table} (fold, group_key, name, value, version, updated_ms)
    SELECT fold, group_key, name, value, version, $7::bigint FROM given$ WHERE found IS NULL ORDER BY fold, group_key, name
    ON CONFLICT (fold, group_key, name) DO NOTHING
    RETURNING 1
)
SELECT (SELECT count(*) FROM changed$) + (SELECT count(*) FROM added$)
"""


class PostgresStore:
    """A read store in PostgreSQL with a row per cell."""

    count_versioned_sql = COUNT_VERSIONED
    reset_versions_sql = RESET_VERSIONS

    def __init__(self, settings: ReadStoreSettings) -> None:
        table = settings.table
        if not all(map(TABLE_NAME.fullmatch, table.split(".", 1))):
            what = "(letters, digits and _; at most 45; SCHEMA.TABLE where it is in a schema)"
            raise ConfigurationError([f"{settings.section}.table: '{table}' is not a valid name of a table {what}"])
        self._settings = settings
        self._names = {"table": quoted(table), "checkpoints": quoted(f"{table}_progress")}
        self._apply_sql = apply_statement(self._names["table"], self._names["checkpoints"], _layout(self._names["table"]))
        self._pool = PostgresPool(settings.url, settings, f"read store {settings.name}")

    async def initialise(self) -> list[str]:
        return await self._pool.call(self._initialise)

    async def missing(self) -> list[str]:
        async def check(connection: Connection) -> list[str]:
            return [f"table {table}" for table, columns, key in self._tables() if await _fault(connection, table, columns, key)]

        return await self._pool.call(check)

    async def probe(self) -> None:
        await self._try([])

    async def checkpoints(self) -> dict[TP, int]:
        async def read(connection: Connection) -> dict[TP, int]:
            return {
                TP(topic, number): offset
                for topic, number, offset in await connection.fetch(SELECT_CHECKPOINTS.format(**self._names))
            }

        return await self._with_tables(read)

    async def apply(self, changes: Sequence[CellChange], step: CheckpointStep, now_ms: int) -> Counts:
        return await self._with_tables(lambda connection: self._written(connection, changes, step, now_ms))

    async def set_checkpoint(self, tp: TP, offset: int, now_ms: int) -> None:
        sql = SET_CHECKPOINT.format(**self._names)
        await self._with_tables(lambda connection: connection.execute(sql, *tp, offset, now_ms))

    def rejection(self, change: CellChange) -> str | None:
        if fault := key_fault(change.cell):
            return fault
        fault = json_fault(change.value)
        return f"the value {fault}" if fault else None

    async def count_versioned(self, fold: str) -> int | None:
        if await self.missing():
            return None
        sql = self.count_versioned_sql.format(**self._names)
        return await self._pool.call_long(lambda connection: connection.fetchval(sql, fold, timeout=LONG_SECONDS))

    async def reset_versions(self, fold: str) -> None:
        sql = self.reset_versions_sql.format(**self._names)
        await self._pool.call_long(lambda connection: connection.execute(sql, fold, timeout=LONG_SECONDS))

    async def close(self) -> None:
        await self._pool.close()

    async def cells(self, fold: str, after: Cell | None, limit: int) -> list[tuple[Cell, StoredCell]]:
        sql = PAGE.format(**self._names, beyond=BEYOND if after else "")
        arguments = (fold, limit, *(after[1:] if after else ()))
        rows = await self._pool.call(lambda connection: connection.fetch(sql, *arguments))
        return [(Cell(fold, group_key, name), StoredCell(version, _value(value))) for group_key, name, version, value in rows]

    async def read(self, cells: Sequence[Cell]) -> dict[Cell, StoredCell]:
        sql, cells = READ.format(**self._names), possible(cells, text_fault)
        rows = await self._pool.call(lambda connection: connection.fetch(sql, *_keys(cells)))
        return {Cell(*cell): StoredCell(version, _value(value)) for *cell, version, value in rows}

    async def names(self, groups: Sequence[tuple[str, str]]) -> list[Cell]:
        sql = NAMES.format(**self._names)
        asked = possible(groups, text_fault)
        given = [fold for fold, _ in asked], [group_key for _, group_key in asked]
        return [Cell(*row) for row in await self._pool.call(lambda connection: connection.fetch(sql, *given))]

    async def remove_groups(self, groups: Sequence[tuple[str, str]]) -> int:
        sql = REMOVE.format(**self._names)

        async def run(connection: Connection) -> int:
            return sum([int((await connection.execute(sql, *group)).split()[-1]) for group in possible(groups, text_fault)])

        return await self._pool.call(run)

    async def as_stored(self, changes: Sequence[CellChange]) -> list[CellChange]:
        async def run(connection: Connection) -> list[Any]:
            return await bisecting_rejected(
                connection, changes, lambda part: connection.fetch(STORED_FORM, [json_text(one.value) for one in part])
            )

        rows = await self._pool.call(run)
        return [replace(change, value=_value(row[0])) for change, row in zip(changes, rows, strict=True)]

    async def repair(self, repairs: Sequence[Repair], now_ms: int, *, is_trial: bool = False) -> int:
        changes = [repair.change for repair in repairs]
        cells = _keys([change.cell for change in changes])
        rest = [json_text(change.value) for change in changes], [change.version for change in changes]
        sql = REPAIR.format(**self._names)

        async def run(connection: Connection) -> int:
            with rejecting_all(changes):
                async with trial_or_commit(connection, is_trial=is_trial):
                    return int(await connection.fetchval(sql, *cells, *rest, [repair.found for repair in repairs], now_ms))

        return await self._pool.call(run)

    async def _try(self, changes: Sequence[CellChange]) -> None:
        """Write changes and roll the transaction back, to find out whether writes succeed.

        The checkpoint in the transaction is that of a partition that does not exist.
        """

        async def run(connection: Connection) -> None:
            transaction = connection.transaction()
            await transaction.start()
            try:
                await self._written(connection, changes, NOWHERE, 0)
            finally:
                await transaction.rollback()

        await self._pool.call(run)

    def _tables(self) -> list[tuple[str, dict[str, str], str]]:
        table = self._settings.table
        return [(table, COLUMNS, "fold, group_key, name"), (f"{table}_progress", CHECKPOINT_COLUMNS, "topic, partition")]

    async def _initialise(self, connection: Connection) -> list[str]:
        done = []
        async with connection.transaction():
            await connection.fetchval(LOCK, self._settings.table)
            for table, columns, key in self._tables():
                if not await _columns(connection, table):
                    await connection.execute(table_statement(table, columns, key))
                    done.append(f"created table {table}")
                elif fault := await _fault(connection, table, columns, key):
                    raise ConfigurationError([f"{self._settings.section}.table: {table} {fault}"])
                else:
                    done.append(f"table {table} already exists")
        return done

    async def _written(self, connection: Connection, changes: Sequence[CellChange], step: CheckpointStep, now_ms: int) -> Counts:
        async def run(part: Sequence[CellChange]) -> Counts:
            row = await connection.fetchrow(self._apply_sql, now_ms, *step.tp, step.after, step.to, *self._arguments(part))
            assert row is not None  # an aggregate always returns a row
            if not row["is_checkpoint_written"]:
                raise CheckpointError(self._pool.what, step.tp, row["found"], step.after)
            return Counts(row["written"], row["stale"], row["unchanged"])

        return await bisecting_rejected(connection, changes, run)

    def _arguments(self, changes: Sequence[CellChange]) -> tuple[Any, ...]:
        """Return the arguments for the parameters $6 to $10: lists of the folds, groups, names, values and versions of changes."""
        return (
            [change.cell.fold for change in changes],
            [change.cell.group_key for change in changes],
            [change.cell.name for change in changes],
            [json_text(change.value) for change in changes],
            [change.version for change in changes],
        )

    async def _with_tables(self, function: Callable[[Connection], Awaitable[T]]) -> T:
        """Run a function as :meth:`.PostgresPool.call` does. If a table is missing, the error names the command that creates it."""
        try:
            return await self._pool.call(function)
        except TryAgainError as error:
            init = f"streams-app read-store init --store {self._settings.name}"
            if isinstance(error.__cause__, asyncpg.UndefinedObjectError):  # the row type of the table
                raise TryAgainError(f"{self._pool.what}: no table {self._settings.table}; run `{init}`") from error
            if isinstance(error.__cause__, (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError)):
                raise TryAgainError(f"{error}; run `{init}`") from error
            raise


def quoted(table: str) -> str:
    """Return the name of a table, ``table`` or ``schema.table`` without quotes, as a quoted SQL identifier."""
    return ".".join(f'"{part}"' for part in table.split("."))


def key_fault(key: Sequence[str]) -> str | None:
    """Return the reason why a primary key, given as the values of its columns, can never be stored, or None if it can."""
    for text in key:
        if fault := text_fault(text):
            return f"group or name {fault}"
    size = sum(len(text.encode()) for text in key)
    return f"group and name have {size} bytes, {MAX_KEY_BYTES} are possible" if size > MAX_KEY_BYTES else None


async def _columns(connection: Connection, table: str) -> dict[str, str]:
    return {name: kind for name, kind in await connection.fetch(FOUND, quoted(table))}


async def _fault(connection: Connection, table: str, columns: Mapping[str, str], key: str) -> str | None:
    """Return how a table differs from the expected one, or None if it does not."""
    found = await _columns(connection, table)
    if found != columns:
        return f"has the columns {_column_list(found)}; expected {_column_list(columns)}"
    keys = [set(names) for (names,) in await connection.fetch(KEYS, quoted(table))]
    return None if set(key.split(", ")) in keys else f"has no PRIMARY KEY ({key})"


def _column_list(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def table_statement(table: str, columns: Mapping[str, str], key: str) -> str:
    """Return the statement that creates a table with a primary key; all columns but ``value`` are NOT NULL.

    Args:
        table: Name of the table, not quoted.
        key: Columns of the primary key, separated by commas.
    """
    definitions = ", ".join(f"{name} {kind}{'' if name == 'value' else ' NOT NULL'}" for name, kind in columns.items())
    return CREATE.format(table=quoted(table), columns=definitions, key=key)


def _keys(cells: Sequence[Cell]) -> list[list[str]]:
    return [[cell.fold for cell in cells], [cell.group_key for cell in cells], [cell.name for cell in cells]]


def _value(text: str | None) -> JsonText | None:
    return None if text is None else JsonText(text)


def _layout(table: str) -> Layout:
    """Return the layout of a table with a row per cell; ``table`` is its quoted name."""
    return Layout(
        key="fold, group_key, name",
        columns="fold, group_key, name, value, version, updated_ms",
        values="fold, group_key, name, value, version, $1::bigint",
        batch=_BATCH,
        before=_BEFORE.format(table=table),
        assignments=_ASSIGNMENTS,
        is_newer=is_version_newer("excluded.version", "stored.version"),
    )
