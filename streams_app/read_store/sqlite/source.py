"""Current values from a query on a SQLite file, over a read-only connection."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from typing import Any, Final

import orjson

from streams_app.errors import TryAgainError
from streams_app.read_store.core.errors import SourceFailedError, TooSlowError
from streams_app.read_store.core.merge import CellChange
from streams_app.read_store.core.query_rows import check_columns, names_of, typed_groups, with_values
from streams_app.read_store.core.record import group_text
from streams_app.read_store.core.source import by_fold
from streams_app.read_store.sqlite.connection import SqliteThread, sqlite_path
from streams_app.settings import ReadStoreSettings

DATA_ERRORS: Final = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH)
"""Error codes of SQLite that a single value can cause, such as invalid JSON. ``SQLITE_ERROR`` is also the code of a query that
fails for every group, for example because a table is missing."""


class SqliteSource:
    """Source that runs a parametrised SELECT on a SQLite file, once for each fold in a batch, over a read-only connection."""

    carries_values = False

    def __init__(self, url: str, sql: str, settings: ReadStoreSettings) -> None:
        self._sql = sql
        self._setting = f"{settings.section}.sql"
        self._seconds = settings.timeout_ms / 1000
        path = sqlite_path(url, f"{settings.section}.source_url")
        self._thread = SqliteThread(path, f"{settings.section} source", prepare=_prepare)

    async def current(self, changes: Sequence[CellChange]) -> list[CellChange]:
        found = []
        for mentioned in by_fold(changes):
            rows = await self._query(typed_groups(mentioned), names_of(mentioned))
            found += with_values(mentioned, rows, self._setting)
        return found

    async def check(self) -> None:
        await self._query([], [])

    async def close(self) -> None:
        await self._thread.close()

    async def _query(self, groups: list[Any], names: list[str]) -> list[tuple[Any, ...]]:
        parameters = {"groups": orjson.dumps(groups).decode(), "names": orjson.dumps(names).decode()}

        def run(connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
            cursor = connection.execute(self._sql, parameters)
            check_columns(len(cursor.description or ()), self._setting)
            return cursor.fetchall()

        try:
            async with asyncio.timeout(self._seconds):
                return await self._thread.call(run)  # a cancellation interrupts the statement
        except TryAgainError as error:
            fault = error.__cause__
            # The low byte is the primary error code; the others extend it.
            if isinstance(fault, sqlite3.Error) and getattr(fault, "sqlite_errorcode", 0) & 0xFF in DATA_ERRORS:
                raise SourceFailedError(str(error), str(fault), is_data_error=True) from fault
            raise
        except TimeoutError as error:
            raise TooSlowError(f"{self._setting} did not return within {self._seconds:g} s") from error


def _prepare(connection: sqlite3.Connection) -> None:
    # The file is not opened read-only: otherwise a WAL database without its -wal and -shm files could not be read.
    connection.execute("PRAGMA query_only = ON")
    connection.text_factory = group_text  # text that is not UTF-8 must not make the batch fail forever
