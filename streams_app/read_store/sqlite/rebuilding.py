"""Rebuilding in SQLite: one transaction renames the current and the new table, and the checkpoint table of each."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Awaitable, Callable, Collection
from typing import Final, TypeVar

from streams_app.delivery.batch import TP
from streams_app.errors import ConfigurationError, InternalError
from streams_app.read_store.core.rebuilding import (
    FORMER_SUFFIX,
    NEW_SUFFIX,
    OWNER,
    RebuildOwnership,
    behind,
    check_table_names,
    columns_not_copied,
)
from streams_app.read_store.core.store import ReadStore
from streams_app.read_store.sqlite.connection import SqliteThread, sqlite_path
from streams_app.read_store.sqlite.store import CREATE_CHECKPOINTS
from streams_app.settings import ReadStoreSettings

T = TypeVar("T")

PARTS: Final = ("", "_progress")
MADE_BY_PEOPLE: Final = """
SELECT type, name, sql FROM sqlite_master WHERE tbl_name = ? AND type IN ('index', 'trigger') AND sql IS NOT NULL
"""


NAMED: Final = re.compile(r'^CREATE TABLE\s+(?:"(?:[^"]|"")*"|`[^`]*`|\[[^]]*\]|\w+)', re.IGNORECASE)
"""The beginning of the CREATE TABLE statement that SQLite stores for a table, up to the name of the table."""
WRITTEN: Final = "SELECT name FROM pragma_table_xinfo(?) WHERE hidden = 0"


class SqliteRebuilding:
    """Creates the new tables of a rebuild in a SQLite file, and replaces the current tables by them."""

    def __init__(self, declared: ReadStoreSettings, store: ReadStore) -> None:
        self._declared = declared
        self._table = declared.table
        self._store = store
        self._ownership = RebuildOwnership(declared.table, store)
        path = sqlite_path(declared.url, f"{declared.section}.url")
        self._thread = SqliteThread(path, f"read store {declared.name}", prepare=_prepare)

    async def prepare(self) -> list[str]:
        """If the columns of the current tables do not fit the settings, the new tables have the columns of the settings."""
        check_table_names(self._declared, await self._thread.call(_tables, mode="rwc"))
        found = await self._thread.call(self._drop_left, mode="rwc")
        try:
            added = await self._thread.call(self._make_alike)
            await self._store.initialise()
        except ConfigurationError:  # the current columns differ from the settings, which is a reason to rebuild
            await self._thread.call(self._drop_left)
            await self._store.initialise()
            added = []
        await self._ownership.claim()
        return [*found, *columns_not_copied(self._declared, added)]

    async def switch(self, recreated: Collection[TP]) -> Collection[TP]:
        """Afterwards, users' indexes, triggers and views belong to the new table."""
        return await self._thread.call(lambda connection: self._switch(connection, recreated))

    async def with_writers_paused(self, function: Callable[[], Awaitable[T]]) -> T:
        """Does not pause writers: SQLite can lock only the whole file, which also contains the new table.

        A call of :meth:`switch` is safe all the same: it compares the checkpoints and renames the tables in one transaction.
        """
        return await function()

    async def close(self) -> None:
        await self._thread.close()

    def _drop_left(self, connection: sqlite3.Connection) -> list[str]:
        connection.execute("BEGIN IMMEDIATE")
        found = []
        if _exists(connection, f"{self._table}{NEW_SUFFIX}"):
            (rows,) = connection.execute(f'SELECT COUNT(*) FROM "{self._table}{NEW_SUFFIX}"').fetchone()
            found.append(f"removed {self._table}{NEW_SUFFIX} with {rows} rows, left by an interrupted rebuild")
        for part in PARTS:
            connection.execute(f'DROP TABLE IF EXISTS "{self._table}{NEW_SUFFIX}{part}"')
        connection.execute("COMMIT")
        return found

    def _make_alike(self, connection: sqlite3.Connection) -> list[str]:
        """Create the new table with the types and constraints of the current one, if there is one; return the writable columns."""
        made = connection.execute("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?", (self._table,)).fetchone()
        if made is None:
            return []
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(NAMED.sub(f'CREATE TABLE "{self._table}{NEW_SUFFIX}"', made[0], count=1))
        connection.execute(
            CREATE_CHECKPOINTS.format(table=f'"{self._table}{NEW_SUFFIX}_progress"')
        )  # shows that it belongs to a store
        connection.execute("COMMIT")
        return [column for (column,) in connection.execute(WRITTEN, (self._table,))]

    def _switch(self, connection: sqlite3.Connection, recreated: Collection[TP]) -> Collection[TP]:
        connection.execute("BEGIN IMMEDIATE")
        is_there = _exists(connection, f"{self._table}{NEW_SUFFIX}")
        if not is_there and not _exists(connection, self._table):
            raise InternalError(f"there is neither a table {self._table} nor a new one")
        new = _checkpoints(connection, f"{self._table}{NEW_SUFFIX}")
        if not self._ownership.check(new if is_there else None):
            connection.execute("ROLLBACK")
            return set()
        left = behind(_checkpoints(connection, self._table), new, recreated)
        if left:
            connection.execute("ROLLBACK")
            return left
        connection.execute(f'DELETE FROM "{self._table}{NEW_SUFFIX}_progress" WHERE (topic, partition) = (?, ?)', OWNER)
        made: list[str] = []
        for part in PARTS:
            table = f"{self._table}{part}"
            former = f"{self._table}{FORMER_SUFFIX}{part}"
            connection.execute(f'DROP TABLE IF EXISTS "{former}"')
            for kind, name, sql in connection.execute(MADE_BY_PEOPLE, (table,)).fetchall():
                quoted = name.replace('"', '""')
                connection.execute(f'DROP {kind} "{quoted}"')
                made.append(sql)
            if _exists(connection, table):
                connection.execute(f'ALTER TABLE "{table}" RENAME TO "{former}"')
            elif part and _exists(connection, f"{self._table}{FORMER_SUFFIX}"):
                connection.execute(CREATE_CHECKPOINTS.format(table=f'"{former}"'))  # shows that the former table belongs to a store
            connection.execute(f'ALTER TABLE "{self._table}{NEW_SUFFIX}{part}" RENAME TO "{table}"')
        for sql in made:
            connection.execute(sql)
        self._ownership.begin_switch()
        connection.execute("COMMIT")
        return set()


def _prepare(connection: sqlite3.Connection) -> None:
    # Without this setting, SQLite would change a view of the table to read from the renamed former table.
    connection.execute("PRAGMA legacy_alter_table = ON")


def _exists(connection: sqlite3.Connection, table: str) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)).fetchone() is not None


def _tables(connection: sqlite3.Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")}


def _checkpoints(connection: sqlite3.Connection, table: str) -> dict[TP, int]:
    if not _exists(connection, f"{table}_progress"):
        return {}
    rows = connection.execute(f'SELECT topic, partition, next_offset FROM "{table}_progress"')
    return {TP(topic, partition): offset for topic, partition, offset in rows}
