"""Rebuilding in MySQL and MariaDB: one transaction replaces the rows of the current tables by those of the new ones.

The current table stays, so its grants, views, triggers and indexes stay with it, and no reader waits. Statements such as CREATE
TABLE end a transaction here, so they are executed before and after it. Only a table whose columns differ from the settings is
replaced as a whole: one statement renames all tables.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from asyncmy.errors import MySQLError

from streams_app.delivery.batch import TP
from streams_app.errors import ConfigurationError, InternalError, TryAgainError
from streams_app.read_store.core.rebuilding import (
    FORMER_SUFFIX,
    NEW_SUFFIX,
    OWNER,
    RebuildOwnership,
    behind,
    check_table_names,
)
from streams_app.read_store.core.store import ReadStore
from streams_app.read_store.mysql.connection import MysqlConnection, MysqlPool, error_text, is_about_value
from streams_app.read_store.mysql.groups import own_columns
from streams_app.read_store.mysql.store import COLUMNS, KEY, SELECT_CHECKPOINTS
from streams_app.read_store.mysql.tables import CHECKPOINT_KEY, checkpoint_columns, create, described, listed, quoted, text
from streams_app.settings import ReadStoreSettings

T = TypeVar("T")

PARTS: Final = ("", "_progress")
# Locks the rows and the gaps between them, so that no transaction of a worker begins.
HOLD: Final = "SELECT next_offset FROM {checkpoints} FOR UPDATE"
# In other isolation levels there are no gaps, or a query reads what was there when the transaction began.
SERIALIZABLE: Final = "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"
DISOWN: Final = "DELETE FROM {checkpoints} WHERE topic = %s AND `partition` = %s"


class MysqlRebuilding:
    """Creates the new tables of a rebuild in MySQL or MariaDB, and replaces the current rows by theirs."""

    def __init__(self, declared: ReadStoreSettings, store: ReadStore) -> None:
        self._declared = declared
        self._table = declared.table
        self._new = f"{declared.table}{NEW_SUFFIX}"
        self._former = f"{declared.table}{FORMER_SUFFIX}"
        self._store = store
        self._ownership = RebuildOwnership(declared.table, store)
        self._holder: MysqlConnection | None = None
        self._has_same_columns = False
        self._is_replaced = False
        self._pool = MysqlPool(declared.url, declared, f"read store {declared.name}")

    async def prepare(self) -> list[str]:
        """If the columns of the current tables do not fit the settings, the new tables have the columns of the settings."""
        check_table_names(self._declared, await self._pool.call(self._named))
        found = await self._pool.call(self._drop_left, is_long=True)
        try:
            is_there = await self._pool.call(self._make_alike)
            await self._store.initialise()
            self._has_same_columns = is_there
        except ConfigurationError:  # the current columns differ from the settings, which is a reason to rebuild
            await self._pool.call(self._drop_left, is_long=True)
            await self._store.initialise()
            self._has_same_columns = False
            found.append(f"{self._table} has other columns: {self._former} will keep its triggers")
        await self._ownership.claim()
        return found

    async def switch(self, recreated: Collection[TP]) -> Collection[TP]:
        if self._holder is not None:
            # An error of the server is not converted here: it may have ended the transaction, so that all of it must be repeated.
            return await self._replace(self._holder, recreated)
        if self._has_same_columns:
            return await self.with_writers_paused(lambda: self.switch(recreated))
        return await self._pool.call(lambda connection: self._rename(connection, recreated), is_long=True)

    async def with_writers_paused(self, function: Callable[[], Awaitable[T]]) -> T:
        """Locks on the checkpoints block writers, but not readers.

        Tables with other columns are not locked, because they could not be renamed then. Their workers have other settings, too.
        """
        if not self._has_same_columns:
            return await function()

        async def run(connection: MysqlConnection) -> T:
            await connection.execute(SERIALIZABLE)
            async with connection.transaction():
                await connection.fetch(HOLD.format(checkpoints=quoted(f"{self._table}_progress")))
                self._holder = connection
                try:
                    return await function()
                finally:
                    self._holder = None

        found = await self._pool.call(run, is_long=True)
        if self._is_replaced:
            with suppress(TryAgainError):  # otherwise the next rebuild removes them
                await self._pool.call(self._drop_left, is_long=True)
        return found

    async def close(self) -> None:
        await self._pool.close()

    async def _drop_left(self, connection: MysqlConnection) -> list[str]:
        found = []
        if await described(connection, self._new) is not None:
            ((rows,),) = await connection.fetch(f"SELECT COUNT(*) FROM {quoted(self._new)}")
            found.append(f"removed {self._new} with {rows} rows, left by an interrupted rebuild")
        for part in PARTS:
            await connection.execute(f"DROP TABLE IF EXISTS {quoted(self._new + part)}")
        return found

    async def _make_alike(self, connection: MysqlConnection) -> bool:
        """Create the new tables with the types and constraints of the current ones; return whether there is a current table."""
        if await described(connection, self._table) is None:
            return False
        if await described(connection, f"{self._table}_progress") is None:
            await create(connection, f"{self._table}_progress", checkpoint_columns(connection), CHECKPOINT_KEY)
        for part in PARTS:
            await connection.execute(f"CREATE TABLE {quoted(self._new + part)} LIKE {quoted(self._table + part)}")
        return True

    async def _replace(self, connection: MysqlConnection, recreated: Collection[TP]) -> Collection[TP]:
        """Give the current tables the rows of the new ones, in the transaction of the connection."""
        new = await _checkpoints(connection, self._new)
        is_owned = new is not None and OWNER in new  # the transaction that replaces the rows removes it
        if not self._ownership.check(new if is_owned else None):
            return set()
        if left := self._behind(await _checkpoints(connection, self._table), new, recreated):
            return left
        await self._pool.call(self._make_former, is_long=True)
        await connection.execute(DISOWN.format(checkpoints=quoted(f"{self._new}_progress")), *OWNER)
        for part in PARTS:
            table, new_table, former = self._table + part, self._new + part, self._former + part
            key, columns = self._columns_of(connection, part)
            kept = await self._written_columns(connection, table)
            try:
                await connection.execute(
                    f"INSERT INTO {quoted(former)} ({listed(kept)}) SELECT {listed(kept)} FROM {quoted(table)}"
                )
                for statement in replacing(table, new_table, key, columns):
                    await connection.execute(statement)
            except MySQLError as error:
                if not is_about_value(error):
                    raise
                fault = (
                    f"{table} cannot have the rows that the topics and the source give, and was not changed: {error_text(error)}"
                )
                raise ConfigurationError([f"{self._declared.section}.table: {fault}"]) from error
        self._ownership.begin_switch()
        self._is_replaced = True
        return set()

    async def _rename(self, connection: MysqlConnection, recreated: Collection[TP]) -> Collection[TP]:
        """Replace the current tables, if there are any, by the new ones."""
        new = await _checkpoints(connection, self._new)
        is_there = [part for part in PARTS if await described(connection, self._table + part) is not None]
        if new is None and not is_there:
            raise InternalError(f"there is neither a table {self._table} nor a new one")
        if self._ownership.check(new):
            old = await _checkpoints(connection, self._table) if is_there == list(PARTS) else None
            if left := self._behind(old, new, recreated):
                return left
            for part in PARTS:
                await connection.execute(f"DROP TABLE IF EXISTS {quoted(self._former + part)}")
            if is_there == [""]:  # a checkpoint table shows that the former table belongs to a store
                await create(connection, f"{self._former}_progress", checkpoint_columns(connection), CHECKPOINT_KEY)
            names = [(self._table + part, self._former + part) for part in is_there]
            names += [(self._new + part, self._table + part) for part in PARTS]
            self._ownership.begin_switch()
            await connection.execute("RENAME TABLE " + ", ".join(f"{quoted(one)} TO {quoted(other)}" for one, other in names))
        await connection.execute(DISOWN.format(checkpoints=quoted(f"{self._table}_progress")), *OWNER)
        return set()

    def _behind(self, old: Mapping[TP, int] | None, new: Mapping[TP, int] | None, recreated: Collection[TP]) -> Collection[TP]:
        return behind(old or {}, {tp: offset for tp, offset in (new or {}).items() if tp != OWNER}, recreated)

    async def _make_former(self, connection: MysqlConnection) -> None:
        """Create the tables for the copy of the current rows; those of the rebuild before are removed."""
        for part in PARTS:
            await connection.execute(f"DROP TABLE IF EXISTS {quoted(self._former + part)}")
            await connection.execute(f"CREATE TABLE {quoted(self._former + part)} LIKE {quoted(self._table + part)}")

    async def _written_columns(self, connection: MysqlConnection, table: str) -> list[str]:
        """Return the columns of a table that are not computed."""
        found = await described(connection, table)
        return [] if found is None else [name for name, column in found.columns.items() if not column.is_computed]

    def _columns_of(self, connection: MysqlConnection, part: str) -> tuple[Sequence[str], Sequence[str]]:
        """Return the key of a table, and all columns that the store writes."""
        if part:
            return CHECKPOINT_KEY, (*CHECKPOINT_KEY, "next_offset", "updated_ms")
        if self._declared.shape == "cells":
            return KEY, COLUMNS
        return KEY[:2], [*own_columns(connection), *self._declared.columns.values()]

    async def _named(self, connection: MysqlConnection) -> list[str]:
        """List the existing tables that have the name of a new or a former table."""
        names = [f"{self._table}{suffix}{part}" for suffix in (NEW_SUFFIX, FORMER_SUFFIX) for part in PARTS]
        return [name for name in names if await described(connection, name) is not None]


def replacing(table: str, new: str, key: Sequence[str], columns: Sequence[str]) -> list[str]:
    """Return statements that give a table the rows of another one, and write only those that differ (pure).

    Args:
        key: Columns of the primary key, which are never NULL.
        columns: Columns that are replaced, with the key. Others keep their contents.
    """
    rest = [column for column in columns if column not in key]
    is_same_row = " AND ".join(f"`filled$`.{quoted(column)} = `former$`.{quoted(column)}" for column in key)
    # Rows that differ only in when they were written keep their time. Bytes show each digit, case and accent.
    is_same = " AND ".join(
        f"CAST(`filled$`.{quoted(column)} AS BINARY) <=> CAST(`former$`.{quoted(column)} AS BINARY)"
        for column in rest
        if column != "updated_ms"
    )
    assignments = ", ".join(f"`former$`.{quoted(column)} = `filled$`.{quoted(column)}" for column in rest)
    given = ", ".join(f"`filled$`.{quoted(column)}" for column in columns)
    both = f"{quoted(table)} AS `former$` {{}} JOIN {quoted(new)} AS `filled$` ON {is_same_row}"
    return [
        f"DELETE `former$` FROM {both.format('LEFT')} WHERE `filled$`.{quoted(key[0])} IS NULL",
        f"UPDATE {both.format('')} SET {assignments} WHERE NOT ({is_same})",
        f"INSERT INTO {quoted(table)} ({listed(columns)}) SELECT {given} FROM {both.format('RIGHT')} "
        f"WHERE `former$`.{quoted(key[0])} IS NULL",
    ]


async def _checkpoints(connection: MysqlConnection, table: str) -> dict[TP, int] | None:
    """Return the checkpoints of a table; None if it has no checkpoint table."""
    if await described(connection, f"{table}_progress") is None:
        return None
    rows = await connection.fetch(SELECT_CHECKPOINTS.format(checkpoints=quoted(f"{table}_progress")))
    return {TP(text(topic), partition): offset for topic, partition, offset in rows}
