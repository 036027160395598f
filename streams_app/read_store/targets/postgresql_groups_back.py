"""What a store in PostgreSQL with a row a group holds, and how it is repaired; see :class:`.readable_store.ReadableStore`.

Values are read as the JSON that the server makes of them, whatever the type of their column. What a typed column holds becomes
the number or text that it stands for, so that it can be written into such a column again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import orjson

from streams_app.read_store.core.columns import RowKey, held_by, row_key
from streams_app.read_store.core.fitting import ColumnKind
from streams_app.read_store.core.json_values import json_value
from streams_app.read_store.core.merge import Cell, CellChange, JsonText, Stored, Value
from streams_app.read_store.core.values import possible, text_fault
from streams_app.read_store.databases.postgresql_pool import Connection
from streams_app.read_store.targets.postgresql_groups import PostgresGroups
from streams_app.read_store.targets.postgresql_refusals import accepted, ending, refused_together
from streams_app.read_store.targets.readable_store import Repair

PAGE: Final = """
SELECT group_key, versions::text, {values} FROM {table} WHERE fold = $1 {beyond} ORDER BY group_key LIMIT $2
"""
BEYOND: Final = "AND group_key > $3"
READ: Final = """
SELECT fold, group_key, versions::text, {values}
FROM unnest($1::text[], $2::text[]) AS given (fold, group_key) JOIN {table} USING (fold, group_key)
"""
HELD: Final = "SELECT fold, group_key, NULL, {values} FROM jsonb_populate_recordset(NULL::{table}, $1::jsonb)"
# No other writer for the moment of a repair: what was compared is what is written over.
LOCK_TABLE: Final = "LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE"
REPAIR: Final = """
INSERT INTO {table} AS stored (fold, group_key, {columns}, versions, updated_ms)
SELECT fold, group_key, {columns}, versions, $2::bigint FROM jsonb_populate_recordset(NULL::{table}, $1::jsonb)
ON CONFLICT (fold, group_key) DO UPDATE SET {assignments}, versions = stored.versions || excluded.versions,
    updated_ms = excluded.updated_ms
"""
ASSIGNMENT: Final = '"{column}" = CASE WHEN excluded.versions ? \'{column}\' THEN excluded."{column}" ELSE stored."{column}" END'


class PostgresGroupsBack(PostgresGroups):
    """A store in PostgreSQL that reads back; a row a group."""

    async def cells(self, fold: str, after: Cell | None, limit: int) -> list[tuple[Cell, Stored]]:
        """A page of the cells of a fold, whole groups."""
        groups = max(1, limit // len(self._columns))

        async def run(connection: Connection) -> list[tuple[Cell, Stored]]:
            await self._known(connection)
            beyond = after.group_key if after else None
            while True:
                sql = self._sql(PAGE, beyond="" if beyond is None else BEYOND)
                rows = await connection.fetch(sql, fold, groups, *(() if beyond is None else (beyond,)))
                found = [cell for row in rows for cell in self._cells_of((fold, *row))]
                if found or not rows:
                    return found
                beyond = rows[-1]["group_key"]  # rows of which nothing was synced yet: somebody else has made them

        return await self._pool.call(run)

    async def read(self, cells: Sequence[Cell]) -> dict[Cell, Stored]:
        """What the store holds of some cells."""
        return await self._pool.call(lambda connection: self._read(connection, cells))

    async def names(self, groups: Sequence[tuple[str, str]]) -> list[Cell]:
        """The cells of some groups."""
        return list(await self.read([Cell(*group, name) for group in groups for name in self._columns]))

    async def held(self, changes: Sequence[CellChange]) -> list[CellChange]:
        """The same changes with values as their columns would hold them, of which the server is asked."""

        async def run(connection: Connection) -> list[CellChange]:
            fitting, _ = held_by(changes, self._columns, await self._known(connection))
            sql = self._sql(HELD)
            rows = await accepted(connection, fitting, lambda part: connection.fetch(sql, self._rows(part)))
            held = {RowKey(*row[:2]): dict(zip(self._types, row[3:], strict=True)) for row in rows}
            columns = [self._columns[one.cell.name] for one in fitting]
            return [
                replace(one, value=_value(held[row_key(one)][column], self._types[column].kind))
                for one, column in zip(fitting, columns, strict=True)
            ]

        return await self._pool.call(run)

    async def repair(self, repairs: Sequence[Repair], now_ms: int, *, is_trial: bool = False) -> int:
        """Writes cells that are still as they were found."""

        async def run(connection: Connection) -> int:
            with refused_together(repair.change for repair in repairs):
                async with ending(connection, is_trial=is_trial):
                    await connection.execute(self._sql(LOCK_TABLE))
                    stored = await self._read(connection, [repair.change.cell for repair in repairs])
                    versions = {cell: found.version for cell, found in stored.items()}
                    as_found = [change for change, found in repairs if found == versions.get(change.cell)]
                    fitting, _ = held_by(as_found, self._columns, self._types)
                    await connection.execute(self._sql(REPAIR), self._rows(fitting), now_ms)
                    return len(fitting)

        return await self._pool.call(run)

    async def _read(self, connection: Connection, cells: Sequence[Cell]) -> dict[Cell, Stored]:
        await self._known(connection)
        keys = possible(dict.fromkeys(RowKey(*cell[:2]) for cell in cells), text_fault)
        rows = await connection.fetch(self._sql(READ), [key.fold for key in keys], [key.group_key for key in keys])
        found = dict(cell for row in rows for cell in self._cells_of(tuple(row)))
        return {cell: found[cell] for cell in cells if cell in found}

    def _cells_of(self, row: tuple[Any, ...]) -> Iterator[tuple[Cell, Stored]]:
        """What one row holds: fold, group, versions, and a value for each column."""
        fold, group_key, versions, *values = row
        known = orjson.loads(versions)
        names = {column: name for name, column in self._columns.items()}
        for (column, of_type), value in zip(self._types.items(), values, strict=True):
            if column in known:
                yield Cell(fold, group_key, names[column]), Stored(known[column], _value(value, of_type.kind))

    def _sql(self, template: str, beyond: str = "") -> str:
        """A statement for the columns of the table as they were looked up last."""
        return template.format(
            table=self._names["table"],
            beyond=beyond,
            columns=", ".join(f'"{column}"' for column in self._types),
            values=", ".join(f'to_jsonb("{column}")::text' for column in self._types),
            assignments=", ".join(ASSIGNMENT.format(column=column) for column in self._types),
        )


def _value(text: str | None, kind: ColumnKind) -> Value:
    """What a column holds, as the server tells it in JSON: a column of JSON takes the text as it is, no other one does."""
    if text is None:
        return None
    return JsonText(text) if kind is ColumnKind.JSON else json_value(text)
