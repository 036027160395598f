"""What a store in SQLite with a row a group holds, and how it is repaired; see :class:`.readable_store.ReadableStore`."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from streams_app.read_store.core.columns import RowKey, RowState, held_by, row_key
from streams_app.read_store.core.merge import Cell, CellChange, Stored, Value
from streams_app.read_store.core.values import possible, surrogate_fault
from streams_app.read_store.targets.readable_store import Repair
from streams_app.read_store.targets.sqlite_groups import SqliteGroups, as_held
from streams_app.read_store.targets.sqlite_refusals import refused_together

KEYS: Final = 'SELECT group_key FROM "{table}" WHERE fold = ? {beyond} ORDER BY group_key LIMIT ?'


class SqliteGroupsBack(SqliteGroups):
    """A store in SQLite that reads back; a row a group."""

    async def cells(self, fold: str, after: Cell | None, limit: int) -> list[tuple[Cell, Stored]]:
        """A page of the cells of a fold, whole groups."""
        sql = KEYS.format(table=self._table, beyond="AND group_key > ?" if after else "")

        groups = max(1, limit // len(self._columns))

        def run(connection: sqlite3.Connection) -> list[tuple[Cell, Stored]]:
            self._require_tables(connection)
            beyond = (after.group_key,) if after else ()
            statement = sql
            while True:
                keys = [RowKey(fold, key) for (key,) in connection.execute(statement, (fold, *beyond, groups))]
                found = self._cells_of(connection, keys)
                if found or not keys:
                    return found
                # Rows of which nothing was synced yet: somebody else has made them.
                beyond, statement = (keys[-1].group_key,), KEYS.format(table=self._table, beyond="AND group_key > ?")

        return await self._thread.call(run)

    async def read(self, cells: Sequence[Cell]) -> dict[Cell, Stored]:
        """What the store holds of some cells."""

        def run(connection: sqlite3.Connection) -> dict[Cell, Stored]:
            self._require_tables(connection)
            keys = possible(dict.fromkeys(RowKey(*cell[:2]) for cell in cells), surrogate_fault)
            rows = dict(self._cells_of(connection, keys))
            return {cell: rows[cell] for cell in cells if cell in rows}

        return await self._thread.call(run)

    async def names(self, groups: Sequence[tuple[str, str]]) -> list[Cell]:
        """The cells of some groups."""
        return list(await self.read([Cell(*group, name) for group in groups for name in self._columns]))

    async def held(self, changes: Sequence[CellChange]) -> list[CellChange]:
        """The same changes with values as their columns would hold them."""
        await self._thread.call(self._require_tables)
        held, _ = held_by(changes, self._columns, self._types)
        return [replace(change, value=as_held(change.value)) for change in held]

    async def repair(self, repairs: Sequence[Repair], now_ms: int, *, is_trial: bool = False) -> int:
        """Writes cells that are still as they were found."""

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
                    row.take(column, value, change.version)
                    row.updated_ms = now_ms
                    touched[key] = row
                    written += 1
            with refused_together(repair.change for repair in repairs):
                for key, row in touched.items():
                    self._upsert(connection, {key: row})
            connection.execute("ROLLBACK" if is_trial else "COMMIT")
            return written

        return await self._thread.call(run)

    def _values_of(self, repairs: Sequence[Repair]) -> list[Value]:
        held, _ = held_by([repair.change for repair in repairs], self._columns, self._types)
        return [as_held(change.value) for change in held]

    def _cells_of(self, connection: sqlite3.Connection, keys: Sequence[RowKey]) -> list[tuple[Cell, Stored]]:
        rows = self._read(connection, keys)
        return [cell for key in keys if key in rows for cell in self._stored_in(key, rows[key])]
