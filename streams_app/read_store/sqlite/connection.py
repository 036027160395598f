"""One SQLite connection on its own thread, for code that runs on an event loop.

Calls run in order, and the connection is never closed while it is in use. The default thread pool of an event loop would
guarantee neither.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, TypeVar
from urllib.parse import quote, unquote

from streams_app.errors import ConfigurationError, TryAgainError

T = TypeVar("T")

BUSY_SECONDS: Final = 1.0
"""Time that SQLite waits for a lock before the call fails. It is short, because the caller retries and SIGTERM should not wait."""

PREFIX: Final = "sqlite:///"


def sqlite_path(url: str, setting: str) -> Path:
    """Return the path of the file that a URL names: ``sqlite:///relative.db`` or ``sqlite:////absolute.db``.

    Raises:
        ConfigurationError: The URL has another form, or names a database in memory. Every error closes the connection, and a
            database in memory would lose its contents then.
    """
    path = unquote(url.removeprefix(PREFIX))
    if not url.startswith(PREFIX) or not path or "?" in url or path == ":memory:":
        raise ConfigurationError([f"{setting}: expected sqlite:///FILE (sqlite:////FILE for an absolute path)"])
    return Path(path)


class SqliteThread:
    """Runs functions on one SQLite connection, one after the other, on a separate thread.

    Any error closes the connection, and the next call opens the file again. If the file was replaced, it is also opened
    again, because SQLite would continue to write into the old file, which no longer has a name.
    """

    def __init__(self, path: Path, what: str, *, prepare: Callable[[sqlite3.Connection], None] | None = None) -> None:
        """``what`` names the file in messages: "read store" or "source". ``prepare`` is called with every new connection."""
        self._path = path
        self._what = what
        self._prepare = prepare
        self._executor: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None
        self._opened: os.stat_result | None = None

    async def call(self, function: Callable[[sqlite3.Connection], T], *, mode: Literal["rw", "rwc"] = "rw") -> T:
        """Run ``function(connection)`` on the thread, and return its result.

        If the function raises, an open transaction is rolled back. If the caller is cancelled, the running statement is
        interrupted.

        Args:
            function: Uses the connection, which is in autocommit mode.
            mode: With ``rwc``, a missing file is created; with ``rw``, it is an error.

        Raises:
            TryAgainError: SQLite returned an error, or the file does not exist. Other errors of the function are raised unchanged.
        """
        if self._executor is None:
            self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=self._what.replace(" ", "-"))
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._executor, self._run, function, mode)
        except asyncio.CancelledError:
            self.interrupt()
            raise

    async def close(self) -> None:
        """Interrupt a running statement, close the connection and end the thread. A later call opens the file again."""
        executor, self._executor = self._executor, None
        if executor is None:
            return
        self.interrupt()
        await asyncio.get_running_loop().run_in_executor(executor, self._end)
        executor.shutdown(wait=False)

    def interrupt(self) -> None:
        """Make the running statement fail, if there is one; can be called from any thread."""
        connection = self._connection
        if connection is not None:
            with suppress(sqlite3.ProgrammingError):  # its own thread is closing it
                connection.interrupt()

    def _run(self, function: Callable[[sqlite3.Connection], T], mode: str) -> T:
        try:
            if self._connection is not None and not self._is_in_place():
                self._close_old_file(self._connection)
            if self._connection is None:
                self._connection = self._open(mode)
            return function(self._connection)
        except sqlite3.Error as error:
            self._close_connection()
            raise TryAgainError(f"{self._what} {self._path}: {error}") from error
        except BaseException:  # after any exception, the transaction must not stay open
            self._close_connection()
            raise

    def _open(self, mode: str) -> sqlite3.Connection:
        found = self._stat()  # before opening, so that the next call notices a replacement in between
        if mode == "rw" and found is None:
            raise TryAgainError(f"{self._what} {self._path}: the file does not exist")
        connection = sqlite3.connect(
            f"file:{quote(str(self._path))}?mode={mode}",
            uri=True,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            # Opened and used on this object's thread; only interrupt() is called from other threads, which SQLite allows.
            check_same_thread=False,
        )
        try:
            self._opened = found or self._stat()
            if self._prepare is not None:
                self._prepare(connection)
        except BaseException:  # after any exception, nothing else would close this connection
            connection.close()
            raise
        return connection

    def _is_in_place(self) -> bool:
        found = self._stat()
        return found is not None and self._opened is not None and os.path.samestat(found, self._opened)

    def _stat(self) -> os.stat_result | None:
        with suppress(FileNotFoundError, NotADirectoryError):
            return self._path.stat()
        return None

    def _close_old_file(self, connection: sqlite3.Connection) -> None:
        """Close a file that was replaced by another one.

        The last writes may still be in the write-ahead log of the old file. The log of the new file has the same name, so SQLite
        would apply these writes to the new file. Therefore the log is emptied first.
        """
        with suppress(sqlite3.Error):  # another process still uses the old file, and does this itself
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self._close_connection()

    def _end(self) -> None:
        if self._connection is not None:
            # An interrupt of an idle connection would abort the checkpoint at closing, and the writes would stay in the
            # write-ahead log. Another statement clears the interrupt.
            with suppress(sqlite3.Error):
                self._connection.execute("SELECT 1").fetchall()
        self._close_connection()

    def _close_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()  # rolls back an open transaction
