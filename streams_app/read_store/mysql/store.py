"""The read store in MySQL or MariaDB, with a row for each (fold, group_key, name).

The store owns the table of ``read_stores.NAME.table`` and the table ``<table>_progress``. A batch is one transaction: it locks the
checkpoint and the rows of the batch, merges the changes into them by the version guard, and writes them. Two transactions that
insert the same row cannot lock it before; then the second insertion fails, and its transaction is repeated.
Values are JSON as text, so that numbers keep all their digits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from asyncmy.errors import MySQLError

from streams_app.delivery.batch import TP
from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.read_store.core.bisect_rejected import rejected_cells
from streams_app.read_store.core.merge import Cell, CellChange, JsonText, StoredCell, merge
from streams_app.read_store.core.store import TABLE_NAME, CheckpointError, CheckpointStep, Counts, NotStorableError, Repair
from streams_app.read_store.core.values import json_fault, json_text, possible, surrogate_fault
from streams_app.read_store.mysql.connection import (
    NO_TABLE,
    REPEATED,
    MysqlConnection,
    MysqlPool,
    RowTooLargeError,
    error_text,
    is_about_value,
    number_of,
)
from streams_app.read_store.mysql.tables import (
    CHECKPOINT_KEY,
    KEY_SIZES,
    cell_columns,
    checkpoint_columns,
    described,
    initialised,
    put_rows,
    quoted,
    rows_of_keys,
    text,
)
from streams_app.settings import ReadStoreSettings

T = TypeVar("T")

KEY: Final = ("fold", "group_key", "name")
COLUMNS: Final = (*KEY, "value", "version", "updated_ms")
CHECKPOINT: Final = "SELECT next_offset FROM {checkpoints} WHERE topic = %s AND `partition` = %s FOR UPDATE"
ADD_CHECKPOINT: Final = "INSERT INTO {checkpoints} (topic, `partition`, next_offset, updated_ms) VALUES (%s, %s, %s, %s)"
MOVE_CHECKPOINT: Final = "UPDATE {checkpoints} SET next_offset = %s, updated_ms = %s WHERE topic = %s AND `partition` = %s"
SELECT_CHECKPOINTS: Final = "SELECT topic, `partition`, next_offset FROM {checkpoints}"
NOWHERE: Final = CheckpointStep(TP("", -1), None, 0)
COUNT_VERSIONED: Final = "SELECT COUNT(*) FROM {table} WHERE fold = %s AND version >= 0"
RESET_VERSIONS: Final = "UPDATE {table} SET version = -1 WHERE fold = %s AND version >= 0"
REMOVE: Final = "DELETE FROM {table} WHERE fold = %s AND group_key = %s"
PAGE: Final = "SELECT group_key, name, version, value FROM {table} WHERE fold = %s {beyond} ORDER BY group_key, name LIMIT %s"
BEYOND: Final = "AND (group_key > %s OR group_key = %s AND name > %s)"
ATTEMPTS: Final = 5
"""Maximum number of attempts of a transaction that deadlocks, or that inserts a row which another one has just inserted."""


class MysqlStore:
    """A read store in MySQL or MariaDB with a row per cell; the version guard is :func:`.merge`."""

    count_versioned_sql = COUNT_VERSIONED
    reset_versions_sql = RESET_VERSIONS

    def __init__(self, settings: ReadStoreSettings) -> None:
        table = settings.table
        if TABLE_NAME.fullmatch(table) is None:
            what = "(letters, digits and _; at most 45)"
            raise ConfigurationError([f"{settings.section}.table: '{table}' is not a valid name of a table {what}"])
        self._settings = settings
        self._table = table
        self._checkpoint_table = f"{table}_progress"
        self._names = {"table": quoted(table), "checkpoints": quoted(self._checkpoint_table)}
        self._pool = MysqlPool(settings.url, settings, f"read store {settings.name}")

    async def initialise(self) -> list[str]:
        return await self._pool.call(self._initialise)

    async def missing(self) -> list[str]:
        return await self._pool.call(self._missing)

    async def probe(self) -> None:
        await self._with_tables(lambda connection: self._transaction(connection, [], NOWHERE, 0, is_trial=True))

    async def checkpoints(self) -> dict[TP, int]:
        async def read(connection: MysqlConnection) -> dict[TP, int]:
            rows = await connection.fetch(SELECT_CHECKPOINTS.format(**self._names))
            return {TP(text(topic), number): offset for topic, number, offset in rows}

        return await self._with_tables(read)

    async def apply(self, changes: Sequence[CellChange], step: CheckpointStep, now_ms: int) -> Counts:
        return await self._with_tables(lambda connection: self._written(connection, changes, step, now_ms))

    async def set_checkpoint(self, tp: TP, offset: int, now_ms: int) -> None:
        async def run(connection: MysqlConnection) -> None:
            async with connection.transaction():
                await self._move(connection, await self._checkpoint(connection, tp), tp, offset, now_ms)

        await self._with_tables(lambda connection: self._repeated(lambda: run(connection)))

    def rejection(self, change: CellChange) -> str | None:
        if fault := key_fault(dict(zip(KEY, change.cell, strict=True))):
            return fault
        fault = json_fault(change.value)
        return f"the value {fault}" if fault else None

    async def count_versioned(self, fold: str) -> int | None:
        if await self.missing():
            return None
        sql = self.count_versioned_sql.format(**self._names)
        ((found,),) = await self._pool.call(lambda connection: connection.fetch(sql, fold), is_long=True)
        return int(found or 0)

    async def reset_versions(self, fold: str) -> None:
        sql = self.reset_versions_sql.format(**self._names)
        await self._pool.call(lambda connection: connection.execute(sql, fold), is_long=True)

    async def close(self) -> None:
        await self._pool.close()

    async def cells(self, fold: str, after: Cell | None, limit: int) -> list[tuple[Cell, StoredCell]]:
        sql = PAGE.format(**self._names, beyond=BEYOND if after else "")
        arguments = (fold, *((after.group_key, after.group_key, after.name) if after else ()), limit)
        rows = await self._with_tables(lambda connection: connection.fetch(sql, *arguments))
        return [(Cell(fold, text(group), text(name)), StoredCell(version, _value(value))) for group, name, version, value in rows]

    async def read(self, cells: Sequence[Cell]) -> dict[Cell, StoredCell]:
        async def run(connection: MysqlConnection) -> dict[Cell, StoredCell]:
            return {cell: found for cell, (found, _) in (await self._stored(connection, cells)).items()}

        return await self._pool.call(run)

    async def names(self, groups: Sequence[tuple[str, str]]) -> list[Cell]:
        async def run(connection: MysqlConnection) -> list[Cell]:
            rows = await rows_of_keys(connection, self._table, KEY[:2], possible(groups, surrogate_fault), KEY)
            return [Cell(*map(text, row)) for row in rows]

        return await self._pool.call(run)

    async def remove_groups(self, groups: Sequence[tuple[str, str]]) -> int:
        sql = REMOVE.format(**self._names)

        async def run(connection: MysqlConnection) -> int:
            async with connection.transaction():
                return sum([await connection.execute(sql, *group) for group in possible(groups, surrogate_fault)])

        return await self._pool.call(lambda connection: self._repeated(lambda: run(connection)))

    async def as_stored(self, changes: Sequence[CellChange]) -> list[CellChange]:
        return [replace(change, value=_value(json_text(change.value))) for change in changes]

    async def repair(self, repairs: Sequence[Repair], now_ms: int, *, is_trial: bool = False) -> int:
        async def run(connection: MysqlConnection) -> int:
            async with connection.transaction(is_trial=is_trial):
                return await self._repaired(connection, repairs, now_ms)

        async def rejecting(connection: MysqlConnection) -> int:
            try:
                return await self._repeated(lambda: run(connection))
            except (MySQLError, RowTooLargeError) as error:
                if not is_about_value(error):
                    raise
                raise NotStorableError({repair.change.cell: _why(error) for repair in repairs}) from None

        return await self._with_tables(rejecting)

    async def _repaired(self, connection: MysqlConnection, repairs: Sequence[Repair], now_ms: int) -> int:
        stored = await self._stored(connection, [repair.change.cell for repair in repairs], lock=True)
        versions = {cell: found.version for cell, (found, _) in stored.items()}
        as_found = [change for change, found in repairs if found == versions.get(change.cell)]
        await self._put(connection, [(*one.cell, json_text(one.value), one.version, now_ms) for one in as_found], stored)
        return len(as_found)

    async def _initialise(self, connection: MysqlConnection) -> list[str]:
        setting = f"{self._settings.section}.table"
        return [
            await initialised(connection, setting, self._table, cell_columns(connection), KEY),
            await initialised(connection, setting, self._checkpoint_table, checkpoint_columns(connection), CHECKPOINT_KEY),
        ]

    async def _missing(self, connection: MysqlConnection) -> list[str]:
        missing = []
        for table, columns, key in (
            (self._table, cell_columns(connection), KEY),
            (self._checkpoint_table, checkpoint_columns(connection), CHECKPOINT_KEY),
        ):
            found = await described(connection, table)
            if found is not None and (fault := found.unsafe(columns)):
                raise ConfigurationError([f"{self._settings.section}.table: {table} {fault}"])
            if found is None or found.fault(columns, key):
                missing.append(f"table {table}")
        return missing

    async def _written(
        self, connection: MysqlConnection, changes: Sequence[CellChange], step: CheckpointStep, now_ms: int
    ) -> Counts:
        """Write a batch. If the server rejects it, find the rejected changes."""
        try:
            return await self._transaction(connection, changes, step, now_ms)
        except (MySQLError, RowTooLargeError) as error:
            if not is_about_value(error):
                raise
            rejected = await self._rejected(connection, changes, step, now_ms) if changes else {}
            if not rejected:
                raise
            raise NotStorableError(rejected) from None

    async def _rejected(
        self, connection: MysqlConnection, changes: Sequence[CellChange], step: CheckpointStep, now_ms: int
    ) -> dict[Cell, str]:
        """Bisect a rejected batch; return the rejected cells, each with the reason. Empty if the changes are not the cause."""

        async def fault(part: Sequence[CellChange]) -> str | None:
            try:
                await self._transaction(connection, part, step, now_ms, is_trial=True)
            except (MySQLError, RowTooLargeError) as error:
                if not is_about_value(error):
                    raise
                return _why(error)
            return None

        return await rejected_cells(changes, fault)

    async def _transaction(
        self,
        connection: MysqlConnection,
        changes: Sequence[CellChange],
        step: CheckpointStep,
        now_ms: int,
        *,
        is_trial: bool = False,
    ) -> Counts:
        """Write changes and the checkpoint in one transaction; a trial is rolled back."""

        async def run() -> Counts:
            async with connection.transaction(is_trial=is_trial):
                found = await self._checkpoint(connection, step.tp)
                if found not in (step.after, step.to):
                    raise CheckpointError(self._pool.what, step.tp, found, step.after)
                await self._move(connection, found, step.tp, step.to, now_ms)
                return await self._merge(connection, changes, now_ms)

        return await self._repeated(run)

    async def _repeated(self, run: Callable[[], Awaitable[T]]) -> T:
        """Run a transaction; repeat it if the server has ended it in favour of another one."""
        for _ in range(ATTEMPTS - 1):
            try:
                return await run()
            except MySQLError as error:
                if number_of(error) not in REPEATED:
                    raise
        return await run()

    async def _checkpoint(self, connection: MysqlConnection, tp: TP) -> int | None:
        """Lock and return a checkpoint; other transactions of the partition wait until this one has ended."""
        rows = await connection.fetch(CHECKPOINT.format(**self._names), *tp)
        return int(rows[0][0]) if rows else None

    async def _move(self, connection: MysqlConnection, found: int | None, tp: TP, to: int, now_ms: int) -> None:
        if found is None:  # another transaction that adds the same checkpoint waits, and then fails and is repeated
            await connection.execute(ADD_CHECKPOINT.format(**self._names), *tp, to, now_ms)
        else:
            await connection.execute(MOVE_CHECKPOINT.format(**self._names), to, now_ms, *tp)

    async def _merge(self, connection: MysqlConnection, changes: Sequence[CellChange], now_ms: int) -> Counts:
        converted = [replace(change, value=_value(json_text(change.value))) for change in changes]
        stored = await self._stored(connection, [change.cell for change in changes], lock=True)
        merged = merge({cell: found for cell, (found, _) in stored.items()}, converted)
        rows = [(*one.cell, json_text(one.value), one.version, now_ms) for one in merged.written]
        rows += [(*one.cell, json_text(one.value), one.version, stored[one.cell][1]) for one in merged.confirmed]
        await self._put(connection, rows, stored)
        return Counts(len(merged.written), merged.stale, merged.unchanged)

    async def _put(self, connection: MysqlConnection, rows: Sequence[tuple[Any, ...]], stored: dict[Cell, Any]) -> None:
        """Write rows: update those that are stored, and insert the others."""
        ordered = sorted((tuple(str(one) if isinstance(one, str) else one for one in row) for row in rows), key=lambda row: row[:3])
        for is_new in (False, True):
            some = [row for row in ordered if (Cell(*row[:3]) not in stored) is is_new]
            await put_rows(connection, self._table, KEY, COLUMNS, some, is_new=is_new)

    async def _stored(
        self, connection: MysqlConnection, cells: Sequence[Cell], *, lock: bool = False
    ) -> dict[Cell, tuple[StoredCell, int]]:
        """Return the given cells that are stored, each with its time."""
        asked = possible(cells, surrogate_fault)
        rows = await rows_of_keys(connection, self._table, KEY, asked, COLUMNS, "FOR UPDATE" if lock else "")
        return {
            Cell(*map(text, key)): (StoredCell(version, _value(value)), updated_ms) for *key, value, version, updated_ms in rows
        }

    async def _with_tables(self, function: Callable[[MysqlConnection], Awaitable[T]]) -> T:
        """Run a function as :meth:`.MysqlPool.call` does. If a table is missing, the error names the command that creates it."""
        try:
            return await self._pool.call(function)
        except TryAgainError as error:
            if error.__cause__ is not None and number_of(error.__cause__) in NO_TABLE:
                raise TryAgainError(f"{error}; run `streams-app read-store init --store {self._settings.name}`") from error
            raise


def key_fault(key: dict[str, str], sizes: Any = KEY_SIZES) -> str | None:
    """Return the reason why a primary key can never be stored, or None if it can.

    Args:
        key: Value of each column.
        sizes: Maximum number of characters of each column.
    """
    for column, value in key.items():
        if fault := surrogate_fault(value):
            return f"group or name {fault}"
        if len(value) > sizes[column]:
            return f"{column} has {len(value)} characters, {sizes[column]} are possible"
    return None


def _why(error: BaseException) -> str:
    return f"is refused: {error_text(error)}"


def _value(found: Any) -> JsonText | None:
    return None if found is None else JsonText(text(found))
