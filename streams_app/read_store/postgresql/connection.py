"""A small pool of connections to PostgreSQL, which are opened on demand and reopened after an error.

Every error of the server becomes a :class:`~streams_app.errors.TryAgainError` that names the server, without credentials. If the
server rejects the credentials or denies a right, the error is an :class:`~streams_app.read_store.core.errors.AccessDeniedError`
with a remedy. The server ends a statement at its timeout; if the server does not answer at all, the client gives up a little later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import parse_qsl, unquote

import asyncpg

from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.read_store.core.errors import AccessDeniedError, TooSlowError
from streams_app.read_store.core.values import json_value
from streams_app.settings import ReadStoreSettings, UrlParts, has_late_at, redacted
from streams_app.tls import trusting

T = TypeVar("T")

Connection: TypeAlias = "asyncpg.pool.PoolConnectionProxy[asyncpg.Record]"

MAX_CONNECTIONS: Final = 2
"""Maximum number of connections of a pool. A store writes one batch at a time; the second connection is for concurrent reads."""

GRACE_SECONDS: Final = 2.0
"""Time that the client waits beyond the timeout of the server."""

LONG_SECONDS: Final = 3600.0
LOCALHOST: Final = "localhost"
PORT: Final = 5432
FILES: Final = ("sslrootcert", "sslcert", "sslkey", "sslcrl", "passfile")
"""Parameters of a URL whose value is the path of a file."""

FAULTS: Final = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError)


class PostgresPool:
    """Runs functions on the connections of a small pool; different calls may use different connections."""

    def __init__(self, url: str, settings: ReadStoreSettings, what: str, *, is_source: bool = False) -> None:
        """If ``is_source``, ``url`` is that of the source, and the connections are read-only."""
        if has_late_at(url) or not _is_url(url):
            # The message omits the URL, because a part of the password may be in the position of the port.
            setting = f"{settings.section}.{'source_url' if is_source else 'url'}"
            raise ConfigurationError(
                [f"{setting}: expected postgresql://USER@HOST:PORT/DATABASE; / # ? @ in a password are written as %2F %23 %3F %40"]
            )
        self._url = url
        self._settings = settings
        self.what = f"{what} {redacted(url)}"
        self._is_source = is_source
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None

    async def call(self, function: Callable[[Connection], Awaitable[T]]) -> T:
        """Run ``function(connection)`` and return its result. If the caller is cancelled, ask the server to cancel the statement.

        Raises:
            AccessDeniedError: The server rejects the user, the password or the database, or denies a right.
            TooSlowError: A statement exceeded the timeout; it was rolled back, or its outcome is unknown.
            TryAgainError: The server is unavailable or returned an error; a transaction was rolled back, or its outcome is unknown.
            ConfigurationError: A password file or CA file cannot be read, or a parameter of the URL is invalid.
        """
        try:
            if self._pool is None:
                self._pool = await self._opened()
            async with self._pool.acquire(timeout=self._seconds + GRACE_SECONDS) as connection:
                try:
                    return await function(connection)
                except (asyncpg.QueryCanceledError, TimeoutError) as error:
                    raise TooSlowError(f"{self.what}: {_text(_without_row(error))}") from error
        except asyncpg.exceptions.ClientConfigurationError as error:
            raise ConfigurationError([f"{self.what}: {_text(error)}"]) from error
        except FAULTS as error:
            if isinstance(error, asyncpg.ReadOnlySQLTransactionError) and self._pool is not None:
                # The server was demoted without a restart. New connections find the server that replaces it.
                await self._pool.expire_connections()
            text = f"{self.what}: {_text(_without_row(error))}"
            if advice := self._advice(error):
                raise AccessDeniedError(f"{text}; {advice}") from error
            raise TryAgainError(text) from error

    async def call_long(self, function: Callable[[Connection], Awaitable[T]]) -> T:
        """Run ``function(connection)`` like :meth:`call`, in a transaction without ``statement_timeout``.

        ``lock_timeout`` still applies. The time limit of the client also applies, unless the function passes another time limit
        with each statement.
        """

        async def run(connection: Connection) -> T:
            async with connection.transaction():
                await connection.execute("SET LOCAL statement_timeout = 0")
                return await function(connection)

        return await self.call(run)

    async def close(self) -> None:
        """Close all connections immediately. A later call opens new ones."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.terminate()

    @property
    def _seconds(self) -> float:
        return self._settings.timeout_ms / 1000

    def _advice(self, error: BaseException) -> str | None:
        """Return the remedy if the server rejects credentials or a right, or None for any other error."""
        section, of = self._settings.section, "source_" if self._is_source else ""
        url = f"{section}.{of}url"
        if isinstance(error, asyncpg.InvalidAuthorizationSpecificationError):
            return f"check the user in {url} and the password in {section}.{of}password_file"
        if isinstance(error, asyncpg.InvalidCatalogNameError):
            return f"name a database that exists in {url}, or create it"
        if not isinstance(error, asyncpg.InsufficientPrivilegeError):
            return None
        user, table = UrlParts.of(self._url).username or "USER", self._settings.table
        if self._is_source:
            return f"GRANT SELECT on what {section}.sql reads TO {user}"
        return (
            f"GRANT SELECT, INSERT, UPDATE ON {table}, {table}_progress TO {user}, with USAGE on their schema; `read-store init` "
            "needs CREATE on the schema, too, and `read-store rebuild` that and DELETE on both tables"
        )

    def _password(self) -> str:
        return (self._settings.source_password if self._is_source else self._settings.password) or ""

    async def _opened(self) -> asyncpg.Pool[asyncpg.Record]:
        if absent := _absent_files(self._url):
            raise ConfigurationError([f"{self.what}: {fault}" for fault in absent])
        options = {
            "application_name": f"streams_app {self._settings.name}",
            "statement_timeout": str(self._settings.timeout_ms),
            "lock_timeout": str(self._settings.timeout_ms * 3 // 4),  # expires first, because its message is more specific
            "idle_in_transaction_session_timeout": str(self._settings.timeout_ms),
        }
        if self._is_source:
            options["default_transaction_read_only"] = "on"
        address, given = servers_of(self._url)
        if (self._settings.source_password_file if self._is_source else self._settings.password_file) is not None:
            given["password"] = self._password  # read for each connection, because it may change
        if self._settings.ssl_cafile is not None:
            given["ssl"] = trusting(self._settings.ssl_cafile, f"{self._settings.section}.ssl_cafile")
        return await asyncpg.create_pool(
            address, min_size=0, max_size=MAX_CONNECTIONS, timeout=self._seconds, command_timeout=self._seconds + GRACE_SECONDS,
            server_settings=options, init=_prepare, reset=_keep_session, **given,
        )  # fmt: skip


def _is_url(url: str) -> bool:
    """Return whether a URL names a database, and each of its hosts is valid."""
    try:
        parts = UrlParts.of(url)
    except ValueError:
        return False
    are_named = len(parts.hosts) == 1 or all(host for host, _ in parts.hosts)
    return are_named and bool(parts.path.strip("/"))


def servers_of(url: str) -> tuple[str, dict[str, Any]]:
    """Return a URL without its servers and credentials, and these as arguments of ``asyncpg.connect``.

    asyncpg would parse them by ``urllib.parse``, which rejects IPv6 addresses among several hosts.
    """
    parts = UrlParts.of(url)
    given: dict[str, Any] = {"user": parts.username, "password": parts.password}
    if any(host or port for host, port in parts.hosts):
        given["host"] = [unquote(host) or LOCALHOST for host, _ in parts.hosts]
    if any(port for _, port in parts.hosts):  # otherwise asyncpg uses PGPORT, or 5432
        given["port"] = [port or PORT for _, port in parts.hosts]
    rest = f"{parts.scheme}://{parts.path}" + (f"?{parts.query}" if parts.query else "")
    return rest, {name: value for name, value in given.items() if value}


def _absent_files(url: str) -> list[str]:
    given = parse_qsl(UrlParts.of(url).query)
    return [f"{name}: there is no file {file}" for name, file in given if name in FILES and not Path(file).is_file()]


async def _prepare(connection: Any) -> None:
    for kind in ("json", "jsonb"):
        await connection.set_type_codec(kind, schema="pg_catalog", encoder=_identity, decoder=json_value)


async def _keep_session(connection: Any) -> None:
    """Do nothing when a connection is returned to the pool.

    Calls do not change the session of a connection, and to reset the session would take a round trip after each call.
    """


def _identity(text: str) -> str:
    return text


def _without_row(error: Exception) -> Exception:
    """Remove the detail of an error of the server, because it contains whole rows, which must not be in logs or dead letters."""
    if isinstance(error, asyncpg.PostgresError):
        error.detail = None
    return error


def _text(error: BaseException) -> str:
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
        return "no answer in time"
    return str(error) or repr(error)
