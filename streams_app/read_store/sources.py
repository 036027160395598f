"""Where the current values come from: the record itself, or a query of the write database.

The SQL of ``read_stores.NAME.sql`` gets two parameters and returns three columns:

* ``:groups``: the group keys. SQLite gets a JSON array for ``json_each(:groups)``, of a number also its text; PostgreSQL gets an
  array of text for ``= ANY(:groups)``, or ``= ANY(:groups::bigint[])`` where they are numbers;
* ``:names``: the changed names in the same form;
* rows ``(group, name, value)``, at most one for each pair.

It may return more pairs than asked for. A pair without a row is gone from the source: its value becomes NULL. A row belongs to the
group of its type, text or number; where there is none, to the one that reads the same: ids are often text here and numbers there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Protocol

import orjson

from streams_app.errors import ConfigurationError
from streams_app.read_store.merge import Change
from streams_app.read_store.record import group_text
from streams_app.read_store.rows import check_columns, names_of, typed_groups, with_values
from streams_app.read_store.sqlite_thread import SqliteThread, sqlite_path
from streams_app.read_store.store import POSTGRESQL, needing
from streams_app.settings import ReadStoreSettings


class ValueSource(Protocol):
    """Knows the current value of every cell.

    Its methods raise :class:`~streams_app.errors.TryAgainError` when the values cannot be had now.
    """

    carries_values: bool
    """The records must carry the values."""

    async def current(self, changes: Sequence[Change]) -> list[Change]:
        """The same changes with current values, at least as new as the records that announced them."""

    async def check(self) -> None:
        """Tries the source without asking for anything."""

    async def close(self) -> None:
        """Interrupts what is under way and lets go."""


class CarriedSource:
    """The values in the records (folds with ``keep = "last"``)."""

    carries_values = True

    async def current(self, changes: Sequence[Change]) -> list[Change]:
        """As they are."""
        return list(changes)

    async def check(self) -> None:
        """Always well."""

    async def close(self) -> None:
        """Holds nothing."""


class SqliteSource:
    """A parametrised SELECT on a SQLite file; one query a fold and batch. The connection can only read."""

    carries_values = False

    def __init__(self, url: str, sql: str, section: str) -> None:
        """Opens nothing yet.

        Args:
            url: ``sqlite:///FILE``.
            sql: The query.
            section: Of the settings, for messages.

        Raises:
            ConfigurationError: Not a URL of a SQLite file.
        """
        self._sql = sql
        self._setting = f"{section}.sql"
        self._thread = SqliteThread(sqlite_path(url, f"{section}.source_url"), f"{section} source", prepare=_prepare)

    async def current(self, changes: Sequence[Change]) -> list[Change]:
        """Asks once for each fold among the changes.

        Raises:
            TryAgainError: The database is away or locked, or the SQL does not do what it must.
        """
        found = []
        for mentioned in by_fold(changes):
            rows = await self._query(typed_groups(mentioned), names_of(mentioned))
            found += with_values(mentioned, rows, self._setting)
        return found

    async def check(self) -> None:
        """Runs the SQL for no group and no name.

        Raises:
            TryAgainError: It does not run, or does not return three columns.
        """
        await self._query([], [])

    async def close(self) -> None:
        """Interrupts a running query and closes the file."""
        await self._thread.close()

    async def _query(self, groups: list[Any], names: list[str]) -> list[tuple[Any, ...]]:
        parameters = {"groups": orjson.dumps(groups).decode(), "names": orjson.dumps(names).decode()}

        def run(connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
            cursor = connection.execute(self._sql, parameters)
            check_columns(len(cursor.description or ()), self._setting)
            return cursor.fetchall()

        return await self._thread.call(run)


def open_source(settings: ReadStoreSettings) -> ValueSource:
    """The source of ``source``; nothing is opened yet.

    Raises:
        ConfigurationError: A source this version cannot use.
    """
    if settings.source == "carried":
        return CarriedSource()
    if settings.source != "sql":
        raise ConfigurationError([f'{settings.section}.source: "{settings.source}" is unknown; use "sql" or "carried"'])
    assert settings.source_url is not None  # the settings were checked
    assert settings.sql is not None
    if settings.source_url.startswith(POSTGRESQL):
        with needing("asyncpg", settings):
            # Only those need the driver who have that database.
            from streams_app.read_store.postgresql_source import PostgresSource
        return PostgresSource(settings.source_url, settings.sql, settings)
    return SqliteSource(settings.source_url, settings.sql, settings.section)


def by_fold(changes: Sequence[Change]) -> list[list[Change]]:
    """Changes of each fold, in their order."""
    found: dict[str, list[Change]] = {}
    for change in changes:
        found.setdefault(change.cell.fold, []).append(change)
    return list(found.values())


def _prepare(connection: sqlite3.Connection) -> None:
    # Not opened read-only: a WAL database without its side files cannot be read then.
    connection.execute("PRAGMA query_only = ON")
    connection.text_factory = group_text  # text that is not UTF-8 must not fail the batch for ever
