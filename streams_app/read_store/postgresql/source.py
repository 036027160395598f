"""Current values from a query on a PostgreSQL database, over read-only connections."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import asyncpg

from streams_app.errors import TryAgainError
from streams_app.read_store.core.errors import SourceFailedError
from streams_app.read_store.core.merge import CellChange
from streams_app.read_store.core.query_rows import check_columns, names_of, plain_groups, with_values
from streams_app.read_store.core.source import by_fold
from streams_app.read_store.core.values import value_of
from streams_app.read_store.postgresql.connection import Connection, PostgresPool
from streams_app.settings import ReadStoreSettings

DATA_ERRORS: Final = (
    asyncpg.DataError, asyncpg.CardinalityViolationError, asyncpg.PLPGSQLError, asyncpg.ProgramLimitExceededError,
)  # fmt: skip
"""Errors that a single value can cause, by a cast, a division by zero, or a user's function that raises an error."""

TOKENS: Final = re.compile(
    r"""
      '(?:[^']|'')*'                     # text
    | "(?:[^"]|"")*"                       # a name
    | --[^\n]* | /\*.*?\*/                 # comments; one within another is not understood
    | \$(?P<quote>\w*)\$.*?\$(?P=quote)\$ # text between dollars
    | ::                                   # a cast
    | :(?P<name>groups|names)\b
    """,
    re.VERBOSE | re.DOTALL,
)


class PostgresSource:
    """Source that runs a parametrised SELECT on a PostgreSQL database, once for each fold in a batch."""

    carries_values = False

    def __init__(self, url: str, sql: str, settings: ReadStoreSettings) -> None:
        self._sql, self._used = numbered(sql)
        self._setting = f"{settings.section}.sql"
        self._pool = PostgresPool(url, settings, f"{settings.section} source", is_source=True)
        self._is_checked = False

    async def current(self, changes: Sequence[CellChange]) -> list[CellChange]:
        found = []
        for mentioned in by_fold(changes):
            given = {"groups": plain_groups(mentioned), "names": names_of(mentioned)}
            rows = await self._query([_without_nul(given[name]) for name in self._used])
            found += with_values(mentioned, rows, self._setting)
        return found

    async def check(self) -> None:
        self._is_checked = False
        await self._query([[] for _ in self._used])

    async def close(self) -> None:
        await self._pool.close()

    async def _query(self, arguments: list[list[str]]) -> list[tuple[Any, ...]]:
        async def run(connection: Connection) -> list[tuple[Any, ...]]:
            if not self._is_checked:
                # The columns are checked once: a query of other columns might return no rows, which would delete every value.
                statement = await connection.prepare(self._sql)
                check_columns(len(statement.get_attributes()), self._setting)
                self._is_checked = True
            return [tuple(map(_plain, row)) for row in await connection.fetch(self._sql, *arguments)]

        try:
            return await self._pool.call(run)
        except TryAgainError as error:
            fault = error.__cause__
            if isinstance(fault, DATA_ERRORS):
                raise SourceFailedError(str(error), str(fault.args[0]), is_data_error=True) from fault
            raise


def _plain(value: Any) -> Any:
    """Convert ranges and bit strings to text as PostgreSQL writes them; the driver returns them as objects of its own classes."""
    if isinstance(value, asyncpg.Range):
        return _range_text(value)
    if isinstance(value, asyncpg.BitString):
        return value.as_string()
    return [_plain(one) for one in value] if isinstance(value, list) else value


def _range_text(found: asyncpg.Range[Any]) -> str:
    if found.isempty:
        return "empty"
    lower, upper = ("" if bound is None else str(value_of(bound)) for bound in (found.lower, found.upper))
    return f"{'[' if found.lower_inc else '('}{lower},{upper}{']' if found.upper_inc else ')'}"


def _without_nul(texts: list[str]) -> list[str]:
    """Remove texts that contain U+0000: PostgreSQL cannot hold them, so a query with such a text would fail."""
    return [text for text in texts if "\0" not in text]


def numbered(sql: str) -> tuple[str, list[str]]:
    """Replace the parameters ``:groups`` and ``:names`` of a query by ``$1::text[]`` and ``$2::text[]`` (pure).

    The parameter that occurs first in the query becomes ``$1``.

    Returns:
        The query, and the names of the parameters in the order of their numbers.
    """
    used: list[str] = []

    def replaced(token: re.Match[str]) -> str:
        name = token["name"]
        if name is None:
            return token[0]
        if name not in used:
            used.append(name)
        return f"${used.index(name) + 1}::text[]"

    return TOKENS.sub(replaced, sql), used
