"""Where the current values come from: the record itself, or a query of the write database.

The SQL of ``read_stores.NAME.sql`` gets two parameters and returns three columns:

* ``:groups``: JSON array of group keys as text, for ``json_each(:groups)``; of a number the number, too;
* ``:names``: JSON array of changed names, for ``json_each(:names)``;
* rows ``(group, name, value)``, at most one for each pair.

It may return more pairs than asked for. A pair without a row is gone from the source: its value becomes NULL. A row belongs to the
group of its type, text or number; where there is none, to the one that reads the same: ids are often text here and numbers there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

import orjson

from streams_app.codec import MAX_SAFE_INTEGER, TEXT_MARK
from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.read_store.merge import Cell, Change, Value
from streams_app.read_store.record import column_value, group_column, group_of_column, group_text
from streams_app.read_store.sqlite_thread import SqliteThread, sqlite_path
from streams_app.settings import ReadStoreSettings

COLUMNS: Final = 3


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
        self._section = section
        self._thread = SqliteThread(sqlite_path(url, f"{section}.source_url"), f"{section} source", prepare=_prepare)

    async def current(self, changes: Sequence[Change]) -> list[Change]:
        """Asks once for each fold among the changes; in the order of the changes.

        Raises:
            TryAgainError: The database is away or locked, or the SQL does not do what it must.
        """
        by_fold: dict[str, list[Change]] = {}
        for change in changes:
            by_fold.setdefault(change.cell.fold, []).append(change)
        values: dict[Cell, Value] = {}
        for mentioned in by_fold.values():
            columns = list(dict.fromkeys(change.cell.group_key for change in mentioned))
            names = list(dict.fromkeys(change.cell.name for change in mentioned))
            pairs = self._pairs(await self._query([group for column in columns for group in _asked(column)], names))
            same_text = _by_text(pairs)
            for change in mentioned:
                _, column, name = change.cell
                row = (column, name) if (column, name) in pairs else same_text.get((_plain(column), name))
                if row is not None:
                    values[change.cell] = pairs[row]
        return [replace(change, value=values.get(change.cell)) for change in changes]

    async def check(self) -> None:
        """Runs the SQL for no group and no name.

        Raises:
            TryAgainError: It does not run, or does not return three columns.
        """
        await self._query([], [])

    async def close(self) -> None:
        """Interrupts a running query and closes the file."""
        await self._thread.close()

    async def _query(self, groups: list[Any], names: list[str]) -> list[tuple[Any, Any, Any]]:
        parameters = {"groups": orjson.dumps(groups).decode(), "names": orjson.dumps(names).decode()}

        def run(connection: sqlite3.Connection) -> list[tuple[Any, Any, Any]]:
            cursor = connection.execute(self._sql, parameters)
            columns = len(cursor.description or ())
            if columns != COLUMNS:
                raise TryAgainError(f"{self._section}.sql returns {columns} columns; expected group, name, value")
            return cursor.fetchall()

        return await self._thread.call(run)

    def _pairs(self, rows: Sequence[tuple[Any, Any, Any]]) -> dict[tuple[str, str], Value]:
        pairs: dict[tuple[str, str], Value] = {}
        for group, name, value in rows:
            pair = (_column(group), _text(name))
            if pair in pairs:
                # Which of them is right nobody can tell; a wrong figure that looks right is worse than a late one.
                raise TryAgainError(f"{self._section}.sql returns several rows for one group and name; aggregate them (GROUP BY)")
            pairs[pair] = column_value(value)
        return pairs


def open_source(settings: ReadStoreSettings) -> ValueSource:
    """The source of ``source``; nothing is opened yet.

    Raises:
        ConfigurationError: A source this version cannot use.
    """
    if settings.source == "carried":
        return CarriedSource()
    if settings.source == "sql" and settings.source_url and settings.sql:
        return SqliteSource(settings.source_url, settings.sql, settings.section)
    if settings.source == "sql":
        raise ConfigurationError([f'{settings.section}: source = "sql" needs source_url and sql'])
    raise ConfigurationError([f'{settings.section}.source: "{settings.source}" is unknown; use "sql" or "carried"'])


def _prepare(connection: sqlite3.Connection) -> None:
    # Not opened read-only: a WAL database without its side files cannot be read then.
    connection.execute("PRAGMA query_only = ON")
    connection.text_factory = group_text  # text that is not UTF-8 must not fail the batch for ever


def _column(value: Any) -> str:
    """What a group that a query names is called in the read store."""
    return group_column(TEXT_MARK + value.encode()) if isinstance(value, str) else _text(value)


def _asked(column: str) -> list[Any]:
    """A group as a query is asked for it: SQLite takes no number of a list for the text it reads as."""
    group = group_of_column(column)
    return [group] if isinstance(group, str) else [group, column]


def _plain(column: str) -> str:
    """A group as it reads, whatever its type."""
    group = group_of_column(column)
    return group if isinstance(group, str) else column


def _by_text(pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, str]]:
    """Pairs by how they read; without those that read as another one does, as nobody can tell which is meant."""
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for column, name in pairs:
        found.setdefault((_plain(column), name), []).append((column, name))
    return {text: same[0] for text, same in found.items() if len(same) == 1}


def _text(value: Any) -> str:
    """A name, or a group that is no text, as text: a number as JSON writes it, which is how the group key writes it."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) <= MAX_SAFE_INTEGER:
        value = int(value)  # the canonical group key knows no 1.0
    return group_text(value) if isinstance(value, bytes) else orjson.dumps(value).decode()
