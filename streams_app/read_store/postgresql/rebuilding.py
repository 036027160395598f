"""Rebuilding in PostgreSQL: one transaction replaces the rows of the current tables by those of the new ones.

The current table stays, so its grants, views, triggers, policies and indexes stay with it, and no reader waits. Only a table whose
columns differ from the settings is replaced as a whole: both tables are renamed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final, TypeVar

import asyncpg

from streams_app.delivery.batch import TP
from streams_app.errors import ConfigurationError, InternalError
from streams_app.read_store.core.rebuilding import (
    FORMER_SUFFIX,
    NEW_SUFFIX,
    OWNER,
    RebuildOwnership,
    behind,
    check_table_names,
    own_columns,
)
from streams_app.read_store.core.store import ReadStore
from streams_app.read_store.postgresql.connection import LONG_SECONDS, Connection, PostgresPool
from streams_app.read_store.postgresql.store import CHECKPOINT_COLUMNS, COLUMNS, LOCK, quoted, table_statement
from streams_app.settings import ReadStoreSettings

T = TypeVar("T")

PARTS: Final = ("", "_progress")
EXISTS: Final = "SELECT to_regclass($1) IS NOT NULL"
LIKE: Final = "CREATE TABLE {new} (LIKE {table} INCLUDING ALL) WITH (fillfactor = 85)"
REMOVE: Final = "DELETE FROM {table} AS former WHERE NOT EXISTS (SELECT FROM {new} AS filled WHERE {is_same_row})"
# Rows that differ only in when they were written keep their time. Text shows each digit of a number.
PUT: Final = """
INSERT INTO {table} ({columns}) SELECT {columns} FROM {new} AS filled
WHERE NOT EXISTS (SELECT FROM {table} AS former WHERE {is_same_row} AND {is_same})
ON CONFLICT ({key}) DO UPDATE SET {assignments}
"""
COPY: Final = "CREATE TABLE {former} AS TABLE {table}"
SELECT_CHECKPOINTS: Final = "SELECT topic, partition, next_offset FROM {checkpoints}"
DISOWN: Final = "DELETE FROM {checkpoints} WHERE topic = $1 AND partition = $2"
CHECKPOINT_KEY: Final = ("topic", "partition")
HOLD_SECONDS: Final = "SET LOCAL idle_in_transaction_session_timeout = '60s'"


class PostgresRebuilding:
    """Creates the new tables of a rebuild in PostgreSQL, and replaces the current rows by theirs."""

    def __init__(self, declared: ReadStoreSettings, store: ReadStore) -> None:
        self._declared = declared
        self._table = declared.table
        self._new = f"{declared.table}{NEW_SUFFIX}"
        self._store = store
        self._ownership = RebuildOwnership(declared.table, store)
        self._holder: Connection | None = None
        self._has_same_columns = False
        self._pool = PostgresPool(declared.url, declared, f"read store {declared.name}")

    async def prepare(self) -> list[str]:
        """If the columns of the current tables do not fit the settings, the new tables have the columns of the settings."""
        check_table_names(self._declared, await self._pool.call(self._named))
        await self._pool.call(self._require_droppable)
        found = await self._pool.call_long(self._drop_left)
        try:
            is_there = await self._pool.call(self._make_alike)
            await self._store.initialise()
            self._has_same_columns = is_there
        except ConfigurationError:  # the current columns differ from the settings, which is a reason to rebuild
            await self._pool.call_long(self._drop_left)
            await self._store.initialise()
            found.append(f"{self._table} has other columns: {self._table}{FORMER_SUFFIX} will keep its grants, views and triggers")
        await self._ownership.claim()
        return found

    async def switch(self, recreated: Collection[TP]) -> Collection[TP]:
        if self._holder is not None:
            return await self._switch(self._holder, recreated)
        return await self._pool.call(lambda connection: self._switch(connection, recreated))

    async def with_writers_paused(self, function: Callable[[], Awaitable[T]]) -> T:
        """A lock on the current tables blocks writers, but not readers."""

        async def run(connection: Connection) -> T:
            async with connection.transaction():
                await connection.execute(HOLD_SECONDS)
                await self._lock(connection)
                self._holder = connection
                try:
                    return await function()
                finally:
                    self._holder = None

        return await self._pool.call(run)

    async def close(self) -> None:
        await self._pool.close()

    async def _require_droppable(self, connection: Connection) -> None:
        """Reject a rebuild whose switch could not remove the tables of the rebuild before: other objects depend on them.

        This is the case if the columns had changed, because views then stay with the former table.
        """
        for part in PARTS:
            former = f"{self._table}{FORMER_SUFFIX}{part}"
            attempt = connection.transaction()
            await attempt.start()
            try:
                await connection.execute(f"DROP TABLE IF EXISTS {quoted(former)}")
            except asyncpg.DependentObjectsStillExistError as error:
                fault = (
                    f"{former}, the copy of the rebuild before, cannot be replaced: drop what depends on it first: {error.detail}"
                )
                raise ConfigurationError([f"{self._declared.section}.table: {fault}"]) from error
            finally:
                await attempt.rollback()

    async def _drop_left(self, connection: Connection) -> list[str]:
        await connection.fetchval(LOCK, self._table)
        found = []
        if await _exists(connection, self._new):
            rows = await connection.fetchval(f"SELECT count(*) FROM {quoted(self._new)}")
            found.append(f"removed {self._new} with {rows} rows, left by an interrupted rebuild")
        for part in PARTS:
            await connection.execute(f"DROP TABLE IF EXISTS {quoted(self._new + part)}")
        return found

    async def _make_alike(self, connection: Connection) -> bool:
        """Create the new tables with the types and constraints of the current ones; return whether there is a current table."""
        async with connection.transaction():
            await connection.fetchval(LOCK, self._table)
            for part in PARTS:
                if await _exists(connection, f"{self._table}{part}"):
                    await connection.execute(LIKE.format(new=quoted(self._new + part), table=quoted(self._table + part)))
            is_there = await _exists(connection, self._new)
            if is_there and not await _exists(connection, f"{self._new}_progress"):
                # A checkpoint table shows that the table belongs to a store.
                await connection.execute(table_statement(f"{self._new}_progress", CHECKPOINT_COLUMNS, ", ".join(CHECKPOINT_KEY)))
            return is_there

    async def _switch(self, connection: Connection, recreated: Collection[TP]) -> Collection[TP]:
        async with connection.transaction():
            await connection.fetchval(LOCK, self._table)
            is_new = await _exists(connection, f"{self._new}_progress")
            if not is_new and not await _exists(connection, self._table):
                raise InternalError(f"there is neither a table {self._table} nor a new one")
            new = await _checkpoints(connection, self._new) if is_new else None
            if not self._ownership.check(new):
                return set()
            await connection.execute("SET LOCAL statement_timeout = 0")
            is_there = await self._lock(connection)
            old = await _checkpoints(connection, self._table) if "_progress" in is_there else {}
            if left := behind(old, new or {}, recreated):
                return left
            await connection.execute(DISOWN.format(checkpoints=quoted(f"{self._new}_progress")), *OWNER)
            for part in PARTS:
                await self._replace(connection, part, is_there)
            self._ownership.begin_switch()
            return set()

    async def _replace(self, connection: Connection, part: str, is_there: Collection[str]) -> None:
        """Replace the rows of the current table, or the table itself if it has other columns; keep a copy of what was there."""
        table, new, former = (f"{self._table}{suffix}{part}" for suffix in ("", NEW_SUFFIX, FORMER_SUFFIX))
        await connection.execute(f"DROP TABLE IF EXISTS {quoted(former)}")
        if part in is_there and self._has_same_columns:
            key, columns = self._columns_of(part)
            statements = [COPY.format(former=quoted(former), table=quoted(table))]
            statements += replacing(quoted(table), quoted(new), key, columns)
            statements.append(f"DROP TABLE {quoted(new)}")
        else:
            statements = [_rename(new, table)]
            if part in is_there:
                statements.insert(0, _rename(table, former))
            elif is_there:  # a checkpoint table shows that the former table belongs to a store
                statements.insert(0, table_statement(former, CHECKPOINT_COLUMNS, ", ".join(CHECKPOINT_KEY)))
        try:
            for statement in statements:
                await connection.execute(statement, timeout=LONG_SECONDS)
        except asyncpg.IntegrityConstraintViolationError as error:
            fault = f"{table} cannot have the rows that the topics and the source give, and was not changed: {error}"
            raise ConfigurationError([f"{self._declared.section}.table: {fault}"]) from error

    def _columns_of(self, part: str) -> tuple[Sequence[str], Sequence[str]]:
        """Return the key of a table, and all columns that the store writes."""
        if part:
            return CHECKPOINT_KEY, list(CHECKPOINT_COLUMNS)
        if self._declared.shape == "cells":
            return ("fold", "group_key", "name"), list(COLUMNS)
        return ("fold", "group_key"), own_columns(self._declared)

    async def _named(self, connection: Connection) -> list[str]:
        """List the existing tables that have the name of a new or a former table."""
        names = [f"{self._table}{suffix}{part}" for suffix in (NEW_SUFFIX, FORMER_SUFFIX) for part in PARTS]
        return [name for name in names if await _exists(connection, name)]

    async def _lock(self, connection: Connection) -> list[str]:
        """Block writers of the current table and its checkpoint table, if they exist; return the suffixes of those that exist."""
        is_there = [part for part in PARTS if await _exists(connection, f"{self._table}{part}")]
        for part in is_there:
            await connection.execute(f"LOCK TABLE {quoted(self._table + part)} IN SHARE ROW EXCLUSIVE MODE")
        return is_there


def replacing(table: str, new: str, key: Sequence[str], columns: Sequence[str]) -> list[str]:
    """Return statements that give a table the rows of another one, and write only those that differ (pure).

    Args:
        table: Quoted name of the table.
        new: Quoted name of the other one.
        key: Columns of the primary key, which are never NULL.
        columns: Columns that are replaced, with the key. Others keep their contents.
    """
    names = {column: _identifier(column) for column in columns}
    rest = [name for column, name in names.items() if column not in key]
    fields = {
        "table": table, "new": new, "key": ", ".join(names[column] for column in key), "columns": ", ".join(names.values()),
        "is_same_row": " AND ".join(f"filled.{names[column]} = former.{names[column]}" for column in key),
        "assignments": ", ".join(f"{name} = excluded.{name}" for name in rest),
        "is_same": " AND ".join(
            f"filled.{name}::text IS NOT DISTINCT FROM former.{name}::text" for name in rest if name != '"updated_ms"'
        ),
    }  # fmt: skip
    return [REMOVE.format(**fields), PUT.format(**fields)]


def _rename(table: str, name: str) -> str:
    return f"ALTER TABLE {quoted(table)} RENAME TO {quoted(_bare(name))}"


def _bare(table: str) -> str:
    return table.rpartition(".")[2]


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


async def _exists(connection: Connection, table: str) -> bool:
    return bool(await connection.fetchval(EXISTS, quoted(table)))


async def _checkpoints(connection: Connection, table: str) -> dict[TP, int]:
    rows = await connection.fetch(SELECT_CHECKPOINTS.format(checkpoints=quoted(f"{table}_progress")))
    return {TP(topic, partition): offset for topic, partition, offset in rows}
