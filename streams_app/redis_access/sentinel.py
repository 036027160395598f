"""Redis behind Sentinel: finds the primary of a service, and connects to it.

Each new connection queries the Sentinels for the primary, and a client in use does so every second. A connection that was lost, or
whose server has become a replica, is closed by :class:`streams_app.redis_access.failover.PrimaryRetry`. The next one connects to
the new primary.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.connection import SSLConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool, SentinelManagedConnection
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError
from redis.exceptions import ConnectionError as LostConnectionError

from streams_app.clock import Clock, SystemClock
from streams_app.formatting import suggestion
from streams_app.redis_access.request_limit import LimitedRedis
from streams_app.settings import RedisSettings

SENTINEL_SECONDS: Final = 1.0
"""Timeout of connections to Sentinels and of their replies."""

FOLLOW_MS: Final = 1_000
"""Interval at which a client in use checks whether the primary has changed."""

SENTINEL_RIGHTS: Final = "-@all +@connection +sentinel|masters +sentinel|ckquorum"
"""Rights of a user of a Sentinel that suffice for workers and commands."""


class SentinelError(LostConnectionError):
    """No Sentinel names a running primary.

    Attributes:
        setting_fault: Fault of the settings; None if a retry may help.
        is_answered: Whether any Sentinel has answered.
    """

    def __init__(self, message: str, setting_fault: str | None, *, is_answered: bool) -> None:
        super().__init__(message)
        self.setting_fault = setting_fault
        self.is_answered = is_answered


@dataclass(frozen=True, slots=True)
class SentinelReply:
    """The reply of one Sentinel about the services that it monitors, or the error if it did not reply.

    Attributes:
        services: State of the primary of each service, by the name of the service, as ``SENTINEL MASTERS`` returns it.
    """

    sentinel: Redis
    services: Mapping[str, Mapping[str, Any]]
    error: Exception | None = None

    @property
    def address(self) -> str:
        """HOST:PORT of the Sentinel."""
        options = self.sentinel.connection_pool.connection_kwargs
        return f"{options['host']}:{options['port']}"


class PrimaryFinder(Sentinel):
    """Finds the primary of a service by queries to all Sentinels.

    Once a majority of the Sentinels has answered, it uses the newest configuration in their replies. If no majority answers, it
    uses the newest one in the replies that have arrived. A Sentinel that is disconnected from the others may name a former
    primary. The configuration of a later failover has a higher epoch.
    """

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        replies = await self.ask(is_majority_enough=True)
        states = [reply.services[service_name] for reply in replies if service_name in reply.services]
        newest = max((state["config-epoch"] for state in states), default=0)
        for state in states:
            if state["config-epoch"] == newest and self.check_master_state(dict(state), service_name):
                return state["ip"], state["port"]
        raise await self._error(service_name, replies)

    async def ask(self, *, is_majority_enough: bool = False) -> list[SentinelReply]:
        """Query all Sentinels concurrently, and return the reply or the error of each in the order of arrival."""
        asked = [asyncio.create_task(_reply_of(sentinel)) for sentinel in self.sentinels]
        replies: list[SentinelReply] = []
        try:
            for reply in asyncio.as_completed(asked):
                replies.append(await reply)
                if is_majority_enough and 2 * sum(one.error is None for one in replies) > len(asked):
                    break
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        return replies

    async def _error(self, service: str, replies: Sequence[SentinelReply]) -> SentinelError:
        answered = [reply for reply in replies if reply.error is None]
        known = sorted({name for reply in answered for name in reply.services})
        fault = _password_fault(replies)
        if answered and service not in known:
            near = suggestion(service, known)
            fault = f"the Sentinels know no service {service!r}{near} (they know: {', '.join(known) or 'none'})"
        replies = sorted(replies, key=lambda reply: self.sentinels.index(reply.sentinel))  # the same text each time
        texts = [_fault_of(service, reply) for reply in replies]
        texts += [text for reply in answered[:1] if service in known and (text := await _quorum_fault(reply, service))]
        message = f"no Sentinel names a primary of {service!r} that runs: {'; '.join(texts)}"
        error = SentinelError(message, fault, is_answered=bool(answered))
        error.__cause__ = next((reply.error for reply in replies if reply.error is not None), None)  # may be a fault of TLS
        return error


async def _reply_of(sentinel: Redis) -> SentinelReply:
    try:
        async with asyncio.timeout(2 * SENTINEL_SECONDS):  # to connect, and to answer
            services: Any = await sentinel.sentinel_masters()
            return SentinelReply(sentinel, services)
    except (RedisError, OSError) as error:  # a TimeoutError is an OSError
        return SentinelReply(sentinel, {}, error)


def _password_fault(replies: Sequence[SentinelReply]) -> str | None:
    for reply in replies:
        if isinstance(reply.error, AuthenticationError | NoPermissionError) or "NOAUTH" in str(reply.error):
            return (
                f"Sentinel {reply.address} does not let its user ask ({reply.error}): set redis.sentinel_username and "
                f"redis.sentinel_password_file; the rights needed are {SENTINEL_RIGHTS}"
            )
    return None


def _fault_of(service: str, reply: SentinelReply) -> str:
    if reply.error is not None:
        return f"{reply.address} does not answer ({str(reply.error).rstrip('.') or type(reply.error).__name__})"
    state = reply.services.get(service)
    if state is None:
        return f"{reply.address} does not know it"
    return f"{reply.address} says that {state['ip']}:{state['port']} is down"


async def _quorum_fault(reply: SentinelReply, service: str) -> str | None:
    """Ask a Sentinel whether enough Sentinels are available for a failover. Return the reason if it denies this, else None."""
    try:
        await reply.sentinel.execute_command("SENTINEL", "CKQUORUM", service)  # type: ignore[no-untyped-call]  # no types
    except NoPermissionError:
        return None
    except ResponseError as error:
        return f"{reply.address} cannot start a failover: {str(error).rstrip('.')}"
    except (RedisError, OSError):
        return None
    return None


class _PrimaryConnection(SentinelManagedConnection):
    """A connection to the current primary, as the Sentinels last reported it."""

    async def _connect_retry(self) -> None:
        if self.is_connected:
            self.connection_pool.follow_primary()
            if (self.host, self.port) != self.connection_pool.master_address:
                await self.disconnect()
        await super()._connect_retry()  # type: ignore[no-untyped-call]  # redis-py gives it no types

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        """Send a command; if the connection is closed, first query the Sentinels: redis-py would use the previous address."""
        if not self.is_connected:
            await self._connect_retry()
        await super().send_packed_command(command, check_health)

    # The error of a replica is not converted, so that PrimaryRetry closes the connection and the log shows a read-only Redis.
    async def read_response(self, *args: Any, **options: Any) -> Any:
        return await super(SentinelManagedConnection, self).read_response(*args, **options)


class _PrimaryTlsConnection(_PrimaryConnection, SSLConnection):
    pass


class _PrimaryPool(SentinelConnectionPool):
    """Connection pool that queries the Sentinels for the primary while its connections are in use.

    This shortens the time in which writes are lost: after a requested failover, the former primary still accepts writes for about
    ten seconds, but discards them later.
    """

    _asking: asyncio.Task[None] | None = None
    _asked_ms = 0
    _clock: Clock = SystemClock()

    async def get_master_address(self) -> tuple[str, int]:
        """Return host and port of the primary. A connection to any other server is closed before its next command.

        Unlike redis-py, this method does not close idle connections, because another task could take one from the pool meanwhile.
        """
        self.master_address: tuple[str, int] = await self.sentinel_manager.discover_master(self.service_name)
        return self.master_address

    def follow_primary(self) -> None:
        """Query the Sentinels for the primary in the background, at most once per :data:`FOLLOW_MS`; commands do not wait."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._asked_ms >= FOLLOW_MS and (self._asking is None or self._asking.done()):
            self._asked_ms = now_ms
            self._asking = asyncio.create_task(self._follow_once())

    async def _follow_once(self) -> None:
        with suppress(RedisError, OSError):  # the next connection queries the Sentinels
            await self.get_master_address()

    async def aclose(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        await super().aclose()
        await self.sentinel_manager.aclose()


def connect_by_sentinels(settings: RedisSettings, **options: Any) -> Redis:
    """Create a client for the primary that the Sentinels name, without connecting.

    Args:
        options: Arguments of connections to Redis, without host, port and database.
    """
    tls = {name: value for name, value in options.items() if name == "ssl" or name.startswith("ssl_")}
    seconds = min(SENTINEL_SECONDS, options["socket_connect_timeout"])
    finder = PrimaryFinder(  # type: ignore[no-untyped-call]  # redis-py gives it no types
        settings.nodes,
        sentinel_kwargs={
            "username": settings.sentinel_username,
            "password": settings.sentinel_password,
            "socket_connect_timeout": seconds,
            "socket_timeout": seconds,
            "retry": Retry(NoBackoff(), 0),
            "client_name": options["client_name"],
            **tls,
        },
    )
    service, database = settings.service
    kind = _PrimaryTlsConnection if "ssl" in tls else _PrimaryConnection
    pool = _PrimaryPool(service, finder, connection_class=kind, db=database, **options)  # type: ignore[no-untyped-call]  # as above
    return LimitedRedis.from_pool(pool)


@dataclass(frozen=True, slots=True)
class SentinelState:
    """State of a Redis service, as its Sentinels report it.

    Attributes:
        primary: HOST:PORT of the primary.
        faults: For each Sentinel with a fault, a description of what would prevent a failover; empty if there is none.
    """

    service: str
    primary: str
    faults: Sequence[str]


async def sentinel_state(redis: Redis) -> SentinelState | None:
    """Query all Sentinels of a client, and return the state of its service; None if the client does not use Sentinels."""
    pool = getattr(redis, "connection_pool", None)
    if not isinstance(pool, _PrimaryPool):
        return None
    finder, service = pool.sentinel_manager, pool.service_name
    host, port = await finder.discover_master(service)
    faults = []
    for reply in await finder.ask():
        state = reply.services.get(service)
        if state is None or not finder.check_master_state(dict(state), service):
            faults.append(f"Sentinel {_fault_of(service, reply)}")
        elif (fault := await _quorum_fault(reply, service)) is not None:
            faults.append(f"Sentinel {fault}")
        elif not state["num-slaves"]:
            faults.append(f"Sentinel {reply.address} knows no replica of {service!r}")
    return SentinelState(service, f"{host}:{port}", sorted(faults))
