"""What a store in SQLite holds, and how it is repaired, see :mod:`streams_app.read_store.targets.readable_store`."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from streams_app.read_store.core.merge import Cell, CellChange, Stored
from streams_app.read_store.core.values import possible, sqlite_value, surrogate_fault
from streams_app.read_store.databases.sqlite_thread import SqliteThread
from streams_app.read_store.targets.readable_store import Repair
from streams_app.read_store.targets.sqlite_refusals import refused_together

PAGE: Final = """
SELECT group_key, name, version, value FROM "{table}" WHERE fold = ? {beyond} ORDER BY group_key, name LIMIT ?
"""
BEYOND: Final = "AND (group_key, name) > (?, ?)"
READ: Final = 'SELECT version, value FROM "{table}" WHERE fold = ? AND group_key = ? AND name = ?'
NAMES: Final = 'SELECT name FROM "{table}" WHERE fold = ? AND group_key = ?'
CHANGE: Final = """
UPDATE "{table}" SET value = ?, version = ?, updated_ms = ? WHERE fold = ? AND group_key = ? AND name = ? AND version = ?
"""
ADD: Final = """
INSERT INTO "{table}" (value, version, updated_ms, fold, group_key, name) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (fold, group_key, name) DO NOTHING
"""


class SqliteBack:
    """The part of a store in SQLite that reads back; a row a cell."""

    _thread: SqliteThread
    _table: str

    async def cells(self, fold: str, after: Cell | None, limit: int) -> list[tuple[Cell, Stored]]:
        """A page of the cells of a fold."""
        sql = PAGE.format(table=self._table, beyond=BEYOND if after else "")
        arguments = (fold, *(after[1:] if after else ()), limit)
        rows = await self._thread.call(lambda connection: connection.execute(sql, arguments).fetchall())
        return [(Cell(fold, group_key, name), Stored(version, value)) for group_key, name, version, value in rows]

    async def read(self, cells: Sequence[Cell]) -> dict[Cell, Stored]:
        """What the store holds of some cells."""
        sql = READ.format(table=self._table)

        def run(connection: sqlite3.Connection) -> dict[Cell, Stored]:
            rows = ((cell, connection.execute(sql, cell).fetchone()) for cell in possible(cells, surrogate_fault))
            return {cell: Stored(*row) for cell, row in rows if row is not None}

        return await self._thread.call(run)

    async def names(self, groups: Sequence[tuple[str, str]]) -> list[Cell]:
        """The cells of some groups."""
        sql = NAMES.format(table=self._table)

        def run(connection: sqlite3.Connection) -> list[Cell]:
            return [Cell(*group, name) for group in possible(groups, surrogate_fault) for (name,) in connection.execute(sql, group)]

        return await self._thread.call(run)

    async def held(self, changes: Sequence[CellChange]) -> list[CellChange]:
        """The same changes with values as SQLite would hold them."""
        return [replace(change, value=sqlite_value(change.value)) for change in changes]

    async def repair(self, repairs: Sequence[Repair], now_ms: int, *, is_trial: bool = False) -> int:
        """Writes cells that are still as they were found."""
        change, add = CHANGE.format(table=self._table), ADD.format(table=self._table)

        def run(connection: sqlite3.Connection) -> int:
            connection.execute("BEGIN IMMEDIATE")
            written = 0
            with refused_together(repair.change for repair in repairs):
                for wanted, found in repairs:
                    arguments = (sqlite_value(wanted.value), wanted.version, now_ms, *wanted.cell)
                    done = connection.execute(add, arguments) if found is None else connection.execute(change, (*arguments, found))
                    written += done.rowcount
            connection.execute("ROLLBACK" if is_trial else "COMMIT")
            return written

        return await self._thread.call(run)
