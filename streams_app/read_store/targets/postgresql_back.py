"""What a store in PostgreSQL holds, and how it is repaired, see :mod:`streams_app.read_store.targets.readable_store`.

Values are compared as the text of their ``jsonb``, which the server itself makes of both: it sorts names and keeps the digits of
numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from streams_app.read_store.core.merge import Cell, CellChange, JsonText, Stored
from streams_app.read_store.core.values import json_text, possible, text_fault
from streams_app.read_store.databases.postgresql_pool import Connection, PostgresPool
from streams_app.read_store.targets.postgresql_refusals import accepted, ending, refused_together
from streams_app.read_store.targets.readable_store import Repair

PAGE: Final = """
SELECT group_key, name, version, value::text FROM {table} WHERE fold = $1 {beyond} ORDER BY group_key, name LIMIT $2
"""
BEYOND: Final = "AND (group_key, name) > ($3, $4)"
READ: Final = """
SELECT fold, group_key, name, version, value::text
FROM unnest($1::text[], $2::text[], $3::text[]) AS given (fold, group_key, name) JOIN {table} USING (fold, group_key, name)
"""
NAMES: Final = """
SELECT fold, group_key, name FROM unnest($1::text[], $2::text[]) AS given (fold, group_key) JOIN {table} USING (fold, group_key)
"""
HELD: Final = "SELECT value::jsonb::text FROM unnest($1::text[]) WITH ORDINALITY AS given (value, place) ORDER BY place"
REPAIR: Final = """
WITH given AS MATERIALIZED (
    SELECT fold, group_key, name, value::jsonb AS value, version, found
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[])
        AS given (fold, group_key, name, value, version, found)
), changed AS (
    UPDATE {table} AS stored SET value = given.value, version = given.version, updated_ms = $7::bigint
    FROM given
    WHERE (stored.fold, stored.group_key, stored.name, stored.version) = (given.fold, given.group_key, given.name, given.found)
    RETURNING 1
), added AS (
    INSERT INTO {table} (fold, group_key, name, value, version, updated_ms)
    SELECT fold, group_key, name, value, version, $7::bigint FROM given WHERE found IS NULL ORDER BY fold, group_key, name
    ON CONFLICT (fold, group_key, name) DO NOTHING
    RETURNING 1
)
SELECT (SELECT count(*) FROM changed) + (SELECT count(*) FROM added)
"""


class PostgresBack:
    """The part of a store in PostgreSQL that reads back; a row a cell."""

    _pool: PostgresPool
    _names: Mapping[str, str]

    async def cells(self, fold: str, after: Cell | None, limit: int) -> list[tuple[Cell, Stored]]:
        """A page of the cells of a fold."""
        sql = PAGE.format(**self._names, beyond=BEYOND if after else "")
        arguments = (fold, limit, *(after[1:] if after else ()))
        rows = await self._pool.call(lambda connection: connection.fetch(sql, *arguments))
        return [(Cell(fold, group_key, name), Stored(version, _value(value))) for group_key, name, version, value in rows]

    async def read(self, cells: Sequence[Cell]) -> dict[Cell, Stored]:
        """What the store holds of some cells."""
        sql, cells = READ.format(**self._names), possible(cells, text_fault)
        rows = await self._pool.call(lambda connection: connection.fetch(sql, *_columns(cells)))
        return {Cell(*cell): Stored(version, _value(value)) for *cell, version, value in rows}

    async def names(self, groups: Sequence[tuple[str, str]]) -> list[Cell]:
        """The cells of some groups."""
        sql = NAMES.format(**self._names)
        asked = possible(groups, text_fault)
        given = [fold for fold, _ in asked], [group_key for _, group_key in asked]
        return [Cell(*row) for row in await self._pool.call(lambda connection: connection.fetch(sql, *given))]

    async def held(self, changes: Sequence[CellChange]) -> list[CellChange]:
        """The same changes with values as the server would hold them, of which it is asked."""

        async def run(connection: Connection) -> list[Any]:
            return await accepted(connection, changes, lambda part: connection.fetch(HELD, [json_text(one.value) for one in part]))

        rows = await self._pool.call(run)
        return [replace(change, value=_value(row[0])) for change, row in zip(changes, rows, strict=True)]

    async def repair(self, repairs: Sequence[Repair], now_ms: int, *, is_trial: bool = False) -> int:
        """Writes cells that are still as they were found."""
        changes = [repair.change for repair in repairs]
        cells = _columns([change.cell for change in changes])
        rest = [json_text(change.value) for change in changes], [change.version for change in changes]
        sql = REPAIR.format(**self._names)

        async def run(connection: Connection) -> int:
            with refused_together(changes):
                async with ending(connection, is_trial=is_trial):
                    return int(await connection.fetchval(sql, *cells, *rest, [repair.found for repair in repairs], now_ms))

        return await self._pool.call(run)


def _columns(cells: Sequence[Cell]) -> list[list[str]]:
    return [[cell.fold for cell in cells], [cell.group_key for cell in cells], [cell.name for cell in cells]]


def _value(text: str | None) -> JsonText | None:
    return None if text is None else JsonText(text)
