"""One SQLite connection on one thread, for code that lives on an event loop.

A thread of its own and not the shared pool: the calls stay in order, and a connection is never closed while it is in use.
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
"""How long SQLite waits for a lock before the call fails. Short: the caller repeats it, and SIGTERM should not wait."""

PREFIX: Final = "sqlite:///"


def sqlite_path(url: str, setting: str) -> Path:
    """The file of ``sqlite:///relative.db`` or ``sqlite:////absolute.db``.

    Args:
        url: URL as it is configured.
        setting: Name of the setting, for the message.

    Raises:
        ConfigurationError: Another form, or a database in memory: it would forget the progress with every fault.
    """
    path = unquote(url.removeprefix(PREFIX))
    if not url.startswith(PREFIX) or not path or "?" in url or path == ":memory:":
        raise ConfigurationError([f"{setting}: expected sqlite:///FILE (sqlite:////FILE for an absolute path)"])
    return Path(path)


class SqliteThread:
    """Runs functions of a connection, one after the other.

    Any fault of SQLite closes the connection; the next call opens the file afresh. It does so, too, where another file has taken
    the place of the one that is open: SQLite itself would go on writing into a file that nobody finds any more.
    """

    def __init__(self, path: Path, what: str, *, prepare: Callable[[sqlite3.Connection], None] | None = None) -> None:
        """Opens nothing yet.

        Args:
            path: The database file.
            what: Name in messages: "read store" or "source".
            prepare: Run on every new connection.
        """
        self._path = path
        self._what = what
        self._prepare = prepare
        self._executor: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None
        self._opened: os.stat_result | None = None

    async def call(self, function: Callable[[sqlite3.Connection], T], *, mode: Literal["rw", "rwc"] = "rw") -> T:
        """Runs ``function(connection)`` on the thread.

        A transaction it leaves open is rolled back. When the caller is cancelled, the running statement is interrupted.

        Args:
            function: Uses the connection, which is in autocommit mode.
            mode: ``rwc`` creates the file where it is missing.

        Raises:
            TryAgainError: SQLite or the file system refused.
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
        """Interrupts, closes, ends the thread. A later call opens again."""
        executor, self._executor = self._executor, None
        if executor is None:
            return
        self.interrupt()
        await asyncio.get_running_loop().run_in_executor(executor, self._end)
        executor.shutdown(wait=False)

    def interrupt(self) -> None:
        """Makes the running statement fail; safe from any thread."""
        connection = self._connection
        if connection is not None:
            with suppress(sqlite3.ProgrammingError):  # closed by its own thread in this moment
                connection.interrupt()

    def _run(self, function: Callable[[sqlite3.Connection], T], mode: str) -> T:
        try:
            if self._connection is not None and not self._is_in_place():
                self._close_replaced(self._connection)
            if self._connection is None:
                self._connection = self._open(mode)
            return function(self._connection)
        except sqlite3.Error as error:
            self._close_connection()
            raise TryAgainError(f"{self._what} {self._path}: {error}") from error
        except BaseException:  # whatever it is, the transaction is not to stay open
            self._close_connection()
            raise

    def _open(self, mode: str) -> sqlite3.Connection:
        found = self._stat()  # before it is opened: what takes its place in between is noticed with the next call
        if mode == "rw" and found is None:
            raise TryAgainError(f"{self._what} {self._path}: there is no such file")
        connection = sqlite3.connect(
            f"file:{quote(str(self._path))}?mode={mode}",
            uri=True,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            # Opened and used on this object's thread; interrupt() is the one call from outside, and SQLite allows it.
            check_same_thread=False,
        )
        try:
            self._opened = found or self._stat()
            if self._prepare is not None:
                self._prepare(connection)
        except BaseException:  # whatever it is, nobody else knows of this connection
            connection.close()
            raise
        return connection

    def _is_in_place(self) -> bool:
        """Whether the file that is open is still the one that the path names."""
        found = self._stat()
        return found is not None and self._opened is not None and os.path.samestat(found, self._opened)

    def _stat(self) -> os.stat_result | None:
        with suppress(FileNotFoundError, NotADirectoryError):
            return self._path.stat()
        return None

    def _close_replaced(self, connection: sqlite3.Connection) -> None:
        """Closes a file that another one has taken the place of.

        What was written last stands in a file beside it, which still has its place: SQLite would take that for a part of the new
        one. So it is emptied before.
        """
        with suppress(sqlite3.Error):  # another process is in the old file: it says so itself
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self._close_connection()

    def _end(self) -> None:
        if self._connection is not None:
            # An interrupt that met an idle connection would meet the checkpoint that closing makes, and what was written would stay
            # in the file beside the database; the next statement forgets it.
            with suppress(sqlite3.Error):
                self._connection.execute("SELECT 1").fetchall()
        self._close_connection()

    def _close_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()  # rolls an open transaction back
