"""The read store in PostgreSQL, a row for each (fold, group_key) and a column for each name.

Owns the table of ``read_stores.NAME.table``, which people may have made themselves with columns of their types, and the one beside
it, ``<table>_progress``. A batch is one statement, see :mod:`streams_app.read_store.targets.postgresql_groups_sql`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from streams_app.delivery.batch import TP
from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.read_store.core.columns import (
    ExistingColumn,
    RowKey,
    RowState,
    Wanted,
    held_by,
    refusal_of,
    row_key,
    rows_of,
    table_faults,
    types_of,
)
from streams_app.read_store.core.fitting import POSTGRESQL, ColumnType
from streams_app.read_store.core.merge import CellChange
from streams_app.read_store.core.values import json_text
from streams_app.read_store.databases.postgresql_pool import Connection
from streams_app.read_store.targets.port import Counts, NotStorableError, ProgressStep
from streams_app.read_store.targets.postgresql import KEYS, LOCK, PROGRESS_COLUMNS, PostgresStore, key_fault
from streams_app.read_store.targets.postgresql_groups_sql import (
    FOUND,
    GUARDED,
    LOWER,
    NAME_TYPE,
    OWN,
    apply_statement,
    create_statement,
)
from streams_app.read_store.targets.postgresql_refusals import REFUSALS
from streams_app.settings import ReadStoreSettings


class PostgresGroups(PostgresStore):
    """See :class:`streams_app.read_store.targets.port.ReadStore`.

    The types of the columns are looked up with the progress, which every owner of a partition asks for before it writes.
    """

    guarded_sql = GUARDED
    lower_sql = LOWER

    def __init__(self, settings: ReadStoreSettings) -> None:
        """Connects nothing yet.

        Raises:
            ConfigurationError: A URL or a table name that cannot be used.
        """
        super().__init__(settings)
        self._columns = settings.columns
        self._wanted = Wanted(OWN, settings.columns.values(), POSTGRESQL, NAME_TYPE)
        self._types: dict[str, ColumnType] = {}

    async def missing(self) -> list[str]:
        """Tables that are not there.

        Raises:
            ConfigurationError: A table lacks a column, or has one of a type that cannot be used.
        """

        async def look(connection: Connection) -> list[str]:
            return [] if await self._look(connection) else [f"table {self._settings.table}"]

        return [*await self._pool.call(look), *await super().missing()]

    async def progress(self) -> dict[TP, int]:
        """The offset to go on with, for each partition ever synced."""
        await self._with_tables(self._known)
        return await super().progress()

    def refusal(self, change: CellChange) -> str | None:
        """A name needs a column, and a value one of its type, as far as the types are known."""
        return refusal_of(change, self._columns, self._types) or key_fault(row_key(change))

    def _tables(self) -> list[tuple[str, dict[str, str], str]]:
        """Those whose columns are always the same."""
        return [(f"{self._settings.table}_progress", PROGRESS_COLUMNS, "topic, partition")]

    async def _initialise(self, connection: Connection) -> list[str]:
        table = self._settings.table
        async with connection.transaction():
            await connection.fetchval(LOCK, table)
            if await self._look(connection):
                done = f"table {table} is there already"
            else:
                await connection.execute(create_statement(self._names["table"], dict.fromkeys(self._columns.values(), NAME_TYPE)))
                done = f"created table {table}"
            return [done, *await super()._initialise(connection)]

    async def _look(self, connection: Connection) -> dict[str, ColumnType]:
        """Types of the columns of names; empty: there is no table.

        Raises:
            ConfigurationError: The table cannot hold groups.
        """
        table = self._names["table"]
        found = {name: ExistingColumn(*rest) for name, *rest in await connection.fetch(FOUND, table)}
        keys = {frozenset(columns) for (columns,) in await connection.fetch(KEYS, table)}
        faults = table_faults(found, keys, self._wanted) if found else []
        if faults:
            raise ConfigurationError([f"{self._settings.section}.table: {self._settings.table}: {fault}" for fault in faults])
        return types_of(found, self._wanted)

    async def _known(self, connection: Connection) -> dict[str, ColumnType]:
        """Looks the types up, and makes the statement for them.

        Raises:
            TryAgainError: There is no table that can hold groups; whoever makes it can do so while the worker waits.
        """
        try:
            types = await self._look(connection)
        except ConfigurationError as error:
            raise TryAgainError(f"{self._pool.what}: {error}") from error
        if not types:
            init = f"streams-app read-store init --store {self._settings.name}"
            raise TryAgainError(f"{self._pool.what}: no table {self._settings.table}; run `{init}`")
        if types != self._types:
            self._apply = apply_statement(self._names["table"], self._names["progress"], types)
        self._types = types
        return types

    async def _written(self, connection: Connection, changes: Sequence[CellChange], step: ProgressStep, now_ms: int) -> Counts:
        held, refused = held_by(changes, self._columns, self._types or await self._known(connection))
        if refused:
            raise NotStorableError(refused)  # the types were not known when the store was asked
        try:
            return await super()._written(connection, held, step, now_ms)
        except (NotStorableError, *REFUSALS):
            self._types = {}  # somebody may have changed them
            raise

    def _arguments(self, changes: Sequence[CellChange], step: ProgressStep, now_ms: int) -> tuple[Any, ...]:
        """What the statement is given."""
        return self._rows(changes), now_ms, step.tp.topic, step.after, step.tp.partition, step.to

    def _rows(self, held: Sequence[CellChange]) -> str:
        """A batch as JSON, as the statement takes it."""
        return orjson.dumps([_object(key, row) for key, row in rows_of(held, self._columns).items()]).decode()


def _object(key: RowKey, row: RowState) -> dict[str, Any]:
    """A value that is gone is left out; the JSON of nothing would be a value."""
    texts = {column: json_text(value) for column, value in row.values.items()}
    given = {column: orjson.Fragment(text.encode()) for column, text in texts.items() if text is not None}
    return {"fold": key.fold, "group_key": key.group_key, "versions": row.versions, **given}
