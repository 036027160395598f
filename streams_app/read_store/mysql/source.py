"""Current values from a query on a MySQL or MariaDB database, over read-only connections."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from asyncmy.constants import FIELD_TYPE

from streams_app.errors import TryAgainError
from streams_app.read_store.core.errors import SourceFailedError
from streams_app.read_store.core.merge import CellChange
from streams_app.read_store.core.query_rows import check_columns, names_of, plain_groups, with_values
from streams_app.read_store.core.source import by_fold
from streams_app.read_store.core.values import json_value, possible, surrogate_fault
from streams_app.read_store.mysql.connection import MysqlConnection, MysqlPool, error_text, is_about_value
from streams_app.settings import ReadStoreSettings

TOKENS: Final = re.compile(
    r"""
      '(?:[^'\\]|\\.|'')*'              # text
    | "(?:[^"\\]|\\.|"")*"              # text, or a name
    | `(?:[^`]|``)*`                     # a name
    | --(?=\s)[^\n]* | \#[^\n]* | /\*.*?\*/
    | (?<![:\w]):(?P<name>groups|names)\b
    """,
    re.VERBOSE | re.DOTALL,
)


class MysqlSource:
    """Source that runs a SELECT on a MySQL or MariaDB database, once for each fold in a batch."""

    carries_values = False

    def __init__(self, url: str, sql: str, settings: ReadStoreSettings) -> None:
        self._sql = sql
        self._setting = f"{settings.section}.sql"
        self._pool = MysqlPool(url, settings, f"{settings.section} source", is_source=True)

    async def current(self, changes: Sequence[CellChange]) -> list[CellChange]:
        found = []
        for mentioned in by_fold(changes):
            rows = await self._query({"groups": plain_groups(mentioned), "names": names_of(mentioned)})
            found += with_values(mentioned, rows, self._setting)
        return found

    async def check(self) -> None:
        await self._query({"groups": [], "names": []})

    async def close(self) -> None:
        await self._pool.close()

    async def _query(self, given: Mapping[str, Sequence[str]]) -> list[tuple[Any, ...]]:
        async def run(connection: MysqlConnection) -> list[tuple[Any, ...]]:
            lists = {name: [connection.literal(str(one)) for one in _storable(texts)] for name, texts in given.items()}
            types, rows = await connection.fetch_described(with_lists(self._sql, lists))
            check_columns(len(types), self._setting)
            return [tuple(map(_plain, row, types)) for row in rows]

        try:
            return await self._pool.call(run)
        except TryAgainError as error:
            fault = error.__cause__
            if fault is not None and is_about_value(fault):
                raise SourceFailedError(str(error), error_text(fault), is_data_error=True) from fault
            raise


def with_lists(sql: str, lists: Mapping[str, Sequence[str]]) -> str:
    """Replace the parameters ``:groups`` and ``:names`` of a query by lists for ``IN (:groups)`` (pure); an empty one is NULL.

    Args:
        lists: The elements of each list, as SQL.
    """
    return TOKENS.sub(lambda token: ", ".join(lists[token["name"]]) or "NULL" if token["name"] else token[0], sql)


def _plain(value: Any, type_code: int) -> Any:
    """Convert a value that the driver returns: JSON is parsed, and a timestamp is a time in UTC."""
    if type_code == FIELD_TYPE.JSON and isinstance(value, str):
        return json_value(value)
    if type_code == FIELD_TYPE.TIMESTAMP and isinstance(value, datetime):
        return value.replace(tzinfo=UTC)
    return value


def _storable(texts: Sequence[str]) -> list[str]:
    """Remove texts with an unpaired surrogate: no row has them."""
    return [one for (one,) in possible([(each,) for each in texts], surrogate_fault)]
