"""A small pool of connections to MySQL or MariaDB, which are opened on demand; any error closes the connection.

Every error of the server becomes a :class:`~streams_app.errors.TryAgainError` that names the server, without credentials and
without the values of rows. If the server rejects the credentials or denies a right, the error is an
:class:`~streams_app.read_store.core.errors.AccessDeniedError` with a remedy.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, unquote

import asyncmy
from asyncmy.errors import MySQLError

from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.read_store.core.errors import AccessDeniedError, TooSlowError
from streams_app.settings import ReadStoreSettings, UrlParts, has_late_at, redacted
from streams_app.tls import trusting

T = TypeVar("T")

MAX_CONNECTIONS: Final = 2
"""Maximum number of connections of a pool. A store writes one batch at a time; the second connection is for concurrent reads."""

GRACE_SECONDS: Final = 2.0
"""Time that the client waits beyond the timeout of the server."""

PORT: Final = 3306
LOCALHOST: Final = "127.0.0.1"
PACKET_RESERVE: Final = 4_096
"""Bytes of a packet that are left free for the rest of a statement."""

# The session of a store does not depend on the settings of the server: values are never cut, and times are in UTC.
OF_STORE: Final = (
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION', "
    "innodb_lock_wait_timeout = {lock}, lock_wait_timeout = {lock}, time_zone = '+00:00'",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
)
OF_SOURCE: Final = ("SET SESSION lock_wait_timeout = {lock}, time_zone = '+00:00'", "SET SESSION TRANSACTION READ ONLY")

OLDEST_MYSQL: Final = (8, 0, 19)
"""The first version that has a collation for exact keys, and names for the values of an insertion."""

LIMIT_MARIADB: Final = "SET SESSION max_statement_time = {seconds}"
LIMIT_MYSQL: Final = "SET SESSION max_execution_time = {ms}"

DEADLOCK, LOCK_TIMEOUT, TOO_BIG_ROW, TABLE_EXISTS = 1213, 1205, 1118, 1050
REPEATED: Final = (DEADLOCK, 1062, 3101)
"""Errors of a transaction that another one has overtaken: a deadlock, a row that it has just inserted, a conflict in a cluster."""

NO_TABLE: Final = (1146, 1054)
"""Errors about a table or a column that does not exist."""

LOST: Final = (1053, 1927, 2006, 2013, 2055, 4031)
"""The connection was lost: the server stopped, ended it, or closed it because it was idle."""

READ_ONLY: Final = (1290, 1792, 1836, 3100)
TOO_SLOW: Final = (1969, 3024, 1317)
VALUE_CLASSES: Final = ("22", "23", "45")
"""Classes of SQLSTATE for errors about a value: its data, a constraint, or a user's trigger that raises an error."""

VALUE_ERRORS: Final = (
    TOO_BIG_ROW, 1242, 1264, 1265, 1364, 1366, 1369, 1406, 1690, 3140, 3141, 3156, 3157, 3819, 4025, 4038,
)  # fmt: skip
"""Errors about a value whose SQLSTATE is not in :data:`VALUE_CLASSES` on every server."""

ROW_TEXT: Final = re.compile(r"(entry|value):? ?'.*' (?=(?:for|in|to)\b)", re.DOTALL | re.IGNORECASE)
"""The part of a message that has the contents of a row."""

DENIED: Final = (1044, 1142, 1143, 1227, 1370)
REJECTED: Final = (1045, 1130, 1698, 1524)
NO_DATABASE: Final = (1049,)
NO_TLS: Final = 3159


class RowTooLargeError(Exception):
    """A row does not fit a packet of the server."""


class MysqlConnection:
    """A connection, with the properties of its server that statements depend on."""

    def __init__(self, raw: Any, *, is_mariadb: bool, max_packet: int) -> None:
        self._raw = raw
        self.is_mariadb = is_mariadb
        self.max_bytes = max(1, max_packet - PACKET_RESERVE)

    async def fetch(self, sql: str, *arguments: object) -> list[tuple[Any, ...]]:
        """Execute a query, whose parameters are ``%s``, and return its rows."""
        async with self._raw.cursor() as cursor:
            await cursor.execute(sql, arguments or None)
            return [tuple(row) for row in await cursor.fetchall()]

    async def fetch_described(self, sql: str) -> tuple[list[int], list[tuple[Any, ...]]]:
        """Execute a query without parameters; return the type codes of its columns, and its rows."""
        async with self._raw.cursor() as cursor:
            await cursor.execute(sql)
            return [column[1] for column in cursor.description or ()], [tuple(row) for row in await cursor.fetchall()]

    async def execute(self, sql: str, *arguments: object) -> int:
        """Execute a statement; return the number of affected rows."""
        async with self._raw.cursor() as cursor:
            return int(await cursor.execute(sql, arguments or None))

    def literal(self, value: object) -> str:
        """Return a value, or a tuple of values, as SQL."""
        return str(self._raw.literal(value))

    @asynccontextmanager
    async def transaction(self, *, is_trial: bool = False) -> AsyncIterator[None]:
        """Open a transaction for the body of an ``async with`` statement; commit it afterwards, or roll a trial back."""
        await self._raw.begin()
        try:
            yield
        except Exception:
            # Any error of the body; the caller may repeat it on this connection. If it is cancelled, the pool drops the connection.
            if self._raw.connected:
                await self._raw.rollback()
            raise
        await (self._raw.rollback() if is_trial else self._raw.commit())

    def close(self) -> None:
        self._raw.close()


class MysqlPool:
    """Runs functions on the connections of a small pool; different calls may use different connections."""

    def __init__(self, url: str, settings: ReadStoreSettings, what: str, *, is_source: bool = False) -> None:
        """If ``is_source``, ``url`` is that of the source, and the connections are read-only."""
        self._setting = f"{settings.section}.{'source_url' if is_source else 'url'}"
        self._parts = _parts_of(url, self._setting)
        self._settings = settings
        self.what = f"{what} {redacted(url)}"
        self._is_source = is_source
        self._opened: set[MysqlConnection] = set()
        self._idle: list[MysqlConnection] = []
        self._free: asyncio.Semaphore | None = None

    async def call(self, function: Callable[[MysqlConnection], Awaitable[T]], *, is_long: bool = False) -> T:
        """Run ``function(connection)`` and return its result. If the connection was lost while idle, run it again on another one.

        Args:
            is_long: Whether the function may exceed ``timeout``. The time limit for locks still applies.

        Raises:
            AccessDeniedError: The server rejects the user, the password or the database, or denies a right.
            TooSlowError: A statement exceeded the timeout; it was rolled back, or its outcome is unknown.
            TryAgainError: The server is unavailable or returned an error; a transaction was rolled back, or its outcome is unknown.
        """
        self._free = self._free or asyncio.Semaphore(MAX_CONNECTIONS)
        try:
            async with asyncio.timeout(None if is_long else self._seconds + GRACE_SECONDS), self._free:
                return await self._run(function, is_long=is_long)
        except (MySQLError, OSError, TimeoutError, RuntimeError) as error:
            raise self._converted(error) from error

    async def close(self) -> None:
        """Close all connections immediately. A later call opens new ones."""
        self._free = None
        self._idle = []
        while self._opened:
            self._opened.pop().close()

    async def _run(self, function: Callable[[MysqlConnection], Awaitable[T]], *, is_long: bool) -> T:
        while True:
            is_used = bool(self._idle)
            connection = self._idle.pop() if self._idle else await self._connected()
            try:
                if is_long:
                    await self._limit(connection, 0)
                found = await function(connection)
                if is_long:
                    await self._limit(connection, self._settings.timeout_ms)
            except BaseException as error:  # after any exception, also a cancellation, no transaction must stay open
                self._drop(connection)
                if number_of(error) in READ_ONLY:  # the server was demoted; new connections find the one that replaces it
                    while self._idle:
                        self._drop(self._idle[-1])
                if is_used and number_of(error) in LOST:
                    continue
                raise
            if connection in self._opened:  # otherwise the pool was closed meanwhile
                self._idle.append(connection)
            return found

    def _drop(self, connection: MysqlConnection) -> None:
        connection.close()
        self._opened.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    @property
    def _seconds(self) -> float:
        return self._settings.timeout_ms / 1000

    async def _connected(self) -> MysqlConnection:
        """Connect to the first server of the URL that answers; of several servers, a store uses one that accepts writes."""
        *others, last = self._parts.hosts
        for host, port in others:
            try:
                connection = await self._connected_to(unquote(host), port, must_accept_writes=not self._is_source)
            except (MySQLError, OSError, TimeoutError):
                continue
            if connection is not None:
                return connection
        found = await self._connected_to(unquote(last[0]), last[1], must_accept_writes=False)
        assert found is not None
        return found

    async def _connected_to(self, host: str, port: int | None, *, must_accept_writes: bool) -> MysqlConnection | None:
        address: dict[str, Any] = (
            {"unix_socket": host} if host.startswith("/") else {"host": host or LOCALHOST, "port": port or PORT}
        )
        raw = await asyncmy.connect(
            **address, user=self._parts.username, password=self._password, database=unquote(self._parts.path.strip("/")),
            charset="utf8mb4", autocommit=True, connect_timeout=max(1, round(self._seconds)), ssl=self._tls(),
        )  # fmt: skip
        try:
            async with raw.cursor() as cursor:
                await cursor.execute("SELECT VERSION(), @@max_allowed_packet, @@global.read_only")
                version, max_packet, is_read_only = (await cursor.fetchall())[0]
            connection = MysqlConnection(raw, is_mariadb="mariadb" in str(version).lower(), max_packet=int(max_packet))
            if not (self._is_source or connection.is_mariadb):
                _require_new(str(version), self._setting)
            if must_accept_writes and is_read_only:
                connection.close()
                return None
            for statement in OF_SOURCE if self._is_source else OF_STORE:
                await connection.execute(statement.format(lock=max(1, self._settings.timeout_ms * 3 // 4_000)))
            await self._limit(connection, self._settings.timeout_ms)
        except BaseException:  # after any exception, nothing else would close this connection
            raw.close()
            raise
        self._opened.add(connection)
        return connection

    async def _limit(self, connection: MysqlConnection, ms: int) -> None:
        """Limit the time of a statement; 0 means no limit. MySQL limits only queries; the client limits all statements."""
        template = LIMIT_MARIADB if connection.is_mariadb else LIMIT_MYSQL
        await connection.execute(template.format(seconds=ms / 1000, ms=ms))

    @property
    def _password(self) -> str:
        """The password, read for each connection, because the file may change."""
        given = self._settings.source_password if self._is_source else self._settings.password
        return given if given is not None else self._parts.password or ""

    def _tls(self) -> ssl.SSLContext | None:
        if self._settings.ssl_cafile is not None:
            return trusting(self._settings.ssl_cafile, f"{self._settings.section}.ssl_cafile")
        if dict(parse_qsl(self._parts.query)).get("ssl-mode", "disabled").lower() == "disabled":
            return None
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # encrypted, as `required` means for MySQL; ssl_cafile also verifies the server
        return context

    def _converted(self, error: BaseException) -> TryAgainError:
        text, number = f"{self.what}: {error_text(error)}", number_of(error)
        if number in TOO_SLOW or isinstance(error, TimeoutError):
            return TooSlowError(text)
        if number == LOCK_TIMEOUT:
            return TryAgainError(f"{text} (another transaction holds a lock)")
        if advice := self._advice(number):
            return AccessDeniedError(f"{text}; {advice}")
        return TryAgainError(text)

    def _advice(self, number: int | None) -> str | None:
        """Return the remedy if the server rejects credentials or a right, or None for any other error."""
        section, of = self._settings.section, "source_" if self._is_source else ""
        if number in REJECTED:
            return f"check the user in {self._setting} and the password in {section}.{of}password_file"
        if number in NO_DATABASE:
            return f"name a database that exists in {self._setting}, or create it"
        if number == NO_TLS:
            return f"set {section}.ssl_cafile, or add ?ssl-mode=required to {self._setting}"
        if number not in DENIED:
            return None
        user, table = self._parts.username or "USER", self._settings.table
        if self._is_source:
            return f"GRANT SELECT on what {section}.sql reads TO {user}"
        return (
            f"GRANT SELECT, INSERT, UPDATE ON {table}, and ON {table}_progress TO {user}; `read-store init` needs CREATE on the "
            "database, too, and `read-store rebuild` that, DELETE, DROP and ALTER"
        )


def _require_new(version: str, setting: str) -> None:
    if numbers_of(version) < OLDEST_MYSQL:
        raise ConfigurationError([f"{setting}: MySQL {version} is too old for a read store; use 8.0.19 or newer"])


def numbers_of(version: str) -> tuple[int, ...]:
    """Return the numbers at the beginning of a version, such as ``8.0.36-log``."""
    return tuple(map(int, re.findall(r"\d+", version.partition("-")[0])))


def number_of(error: BaseException) -> int | None:
    """Return the number of an error of the server or the driver, such as 1213; None for any other error."""
    return error.args[0] if isinstance(error, MySQLError) and error.args and isinstance(error.args[0], int) else None


def is_about_value(error: BaseException) -> bool:
    """Return whether an error is about a value that the table never accepts."""
    if isinstance(error, RowTooLargeError):
        return True
    number, state = number_of(error), str(getattr(error, "sqlstate", None) or "")
    return number is not None and (number in VALUE_ERRORS or (state[:2] in VALUE_CLASSES and number != DEADLOCK))


def error_text(error: BaseException) -> str:
    """Return the message of an error without the contents of rows, which must not be in logs or dead letters."""
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
        return "no answer in time"
    number = number_of(error)
    text = str(error.args[1]) if number is not None and len(error.args) > 1 else str(error) or repr(error)
    return ROW_TEXT.sub(r"\1 ", text) + (f" (error {number})" if number else "")


def _parts_of(url: str, setting: str) -> UrlParts:
    """Split a URL.

    Raises:
        ConfigurationError: It is not valid. The message omits it, because a part of the password may have been parsed as the port.
    """
    try:
        parts = UrlParts.of(url)
    except ValueError:
        parts = None
    is_valid = parts is not None and parts.path.strip("/") and not has_late_at(url)
    if parts is None or not is_valid or (len(parts.hosts) > 1 and not all(host for host, _ in parts.hosts)):
        fault = "expected mysql://USER@HOST:PORT/DATABASE; / # ? @ in a password are written as %2F %23 %3F %40"
        raise ConfigurationError([f"{setting}: {fault}"])
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name != "ssl-mode" or value.lower() not in ("disabled", "required"):
            raise ConfigurationError([f"{setting}: the only parameters are ssl-mode=required and ssl-mode=disabled"])
    return parts


def parts_by_size(texts: Sequence[str], max_bytes: int, max_items: int) -> list[Sequence[str]]:
    """Split SQL texts into parts, each of which fits one statement (pure).

    Raises:
        RowTooLargeError: A single text does not fit.
    """
    parts: list[list[str]] = []
    size = 0
    for text in texts:
        length = len(text.encode("utf-8", "surrogatepass")) + len(" OR ")
        if length > max_bytes:
            raise RowTooLargeError(f"has {length} bytes, but max_allowed_packet of the server allows {max_bytes} for a row")
        if not parts or size + length > max_bytes or len(parts[-1]) == max_items:
            parts.append([])
            size = 0
        parts[-1].append(text)
        size += length
    return list(parts)
