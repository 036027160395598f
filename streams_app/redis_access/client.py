"""Connects to Redis for workers and commands, and explains errors.

This module owns the connection options; every caller closes the client that it opened. :mod:`streams_app.redis_access.failover`
handles failovers.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Final, Literal, cast

from redis.asyncio import Connection, ConnectionPool, Redis, RedisCluster, SSLConnection
from redis.asyncio.cluster import ClusterNode
from redis.backoff import ExponentialBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
)
from redis.exceptions import TimeoutError as SilentError

from streams_app.errors import ConfigurationError, StreamsAppError, TryAgainError
from streams_app.redis_access.failover import FailoverCluster, PrimaryRetry, is_no_primary
from streams_app.redis_access.request_limit import LimitedRedis
from streams_app.redis_access.sentinel import SentinelError, connect_by_sentinels
from streams_app.settings import RedisSettings
from streams_app.tls import NO_TLS, causes, speaks_tls, tls_fault, trust_text

REDIS_ERRORS: Final = (RedisError, RedisClusterException, OSError)
"""Errors of an unavailable Redis; the cluster client has its own class hierarchy."""

ANSWER_SECONDS: Final = 5.0
"""Timeout of connecting to Redis, and of each reply, for interactive commands."""

RIGHTS: Final = "resetchannels -@all +@read +@write +@scripting +@connection -@dangerous +info +time"
"""Rights of a Redis user that suffice for workers and commands, on keys that begin with ``{APP_ID/``."""

CLUSTER_RIGHTS: Final = "+cluster|slots"
"""Rights that a user needs in a Redis Cluster in addition to :data:`RIGHTS`."""
_SCRIPT_LACKS_A_RIGHT: Final = ("ACL failure in script", "The user executing the script can't")

WANTS_PASSWORD: Final = ("NOAUTH", "HELLO must be called", "Authentication required")
"""Parts of the reply of a server that requires a password from a client that has sent none; the second is that of RESP3."""


def connect(settings: RedisSettings, *, retries: int = 2, **overrides: Any) -> Redis:
    """Create a client that retries after a lost connection, and reconnects after a failover; replies are bytes.

    If the reply to a script is lost, redis-py sends the script again, although it may have run. So every script determines by token
    and fence whether its work was already done, by this claim or by another one.

    Args:
        retries: Number of retries of a command; even with 0, a failed connection is closed.

    Raises:
        ConfigurationError: A password file cannot be read, or is empty.
    """
    options: dict[str, Any] = {
        "socket_connect_timeout": 5.0,
        "socket_timeout": 15.0,
        "health_check_interval": 15,
        "retry": PrimaryRetry(ExponentialBackoff(cap=0.5, base=0.05), retries),
        "client_name": "streams_app",
    }
    if settings.password:
        options["password"] = settings.password
    if settings.ssl_cafile:
        options["ssl_ca_certs"] = str(settings.ssl_cafile)
    options.update(overrides)
    parts = settings.parts
    if parts.scheme == "unix":
        return LimitedRedis.from_url(settings.url, **options)
    options |= {name: text for name, text in {"username": parts.username, "password": parts.password}.items() if text}
    has_tls = parts.scheme.startswith("rediss")
    if "+" not in parts.scheme:
        # Not by `from_url`: it parses the URL by urllib.parse, which in some versions rejects brackets in a password.
        ((host, port),) = settings.nodes
        kind = SSLConnection if has_tls else Connection
        return LimitedRedis.from_pool(ConnectionPool(kind, host=host, port=port, db=settings.database, **options))
    if has_tls:
        options["ssl"] = True
    if settings.has_sentinels:
        return connect_by_sentinels(settings, **options)
    options.pop("client_name")  # not an option of the cluster client
    nodes = [ClusterNode(host, port) for host, port in settings.nodes]
    # The cluster client is another class with the same commands. Each command of this project uses keys of one hash tag.
    return cast("Redis", FailoverCluster(nodes, **options))


def connect_briefly(settings: RedisSettings, answer_seconds: float = ANSWER_SECONDS) -> Redis:
    """Create a client without retries, and with a short timeout, such as for an interactive command."""
    return connect(
        settings,
        socket_connect_timeout=answer_seconds,
        socket_timeout=answer_seconds,
        health_check_interval=0,
        retries=0,
    )


async def servers_of(redis: Redis) -> dict[str, dict[str, Any]]:
    """Return the reply to ``INFO`` of each primary of a cluster by its address; that of a single server by the key ""."""
    client: Any = redis  # another class for a cluster, see connect()
    if isinstance(client, RedisCluster):
        found: dict[str, dict[str, Any]] = await client.info(target_nodes=RedisCluster.PRIMARIES)
        return found
    return {"": await client.info()}


async def why_unreachable(settings: RedisSettings, error: BaseException) -> StreamsAppError:
    """Explain why Redis cannot be used: distinguish faults of passwords, TLS and network, and name the setting to check.

    Returns:
        A :class:`~streams_app.errors.ConfigurationError` if the settings are certainly wrong, else a
        :class:`~streams_app.errors.TryAgainError`.
    """
    where = f"cannot reach Redis at {settings.redacted_url}"
    sentinel = next((cause for cause in causes(error) if isinstance(cause, SentinelError)), None)
    if sentinel is not None:
        fault = sentinel.setting_fault or (None if sentinel.is_answered else await _tls_fault(settings, error))
        return ConfigurationError([f"{where}: {fault}"]) if fault else TryAgainError(f"{where}: {sentinel}")
    if (right := missing_right(error)) is not None:
        return ConfigurationError([right_text(settings, right)])
    if any(is_no_primary(cause) for cause in causes(error)):
        advice = "name the primary in redis.url, or wait for the end of the fail-over"
        return TryAgainError(f"{redis_fault_text(error, settings)}; {advice}")
    if any(isinstance(cause, SilentError) for cause in causes(error)):
        return TryAgainError(f"{where}: it does not answer")  # a server that requires TLS would have answered with an error
    fault = _password_fault(settings, error) or await _tls_fault(settings, error)
    if fault is not None:
        return ConfigurationError([f"{where}: {fault}"])
    text = str(error).rstrip(".") or type(error).__name__
    if _is_full_of_clients(error):
        text = "it accepts no more clients: raise its maxclients, or end some of its clients (CLIENT LIST)"
    return TryAgainError(f"{where}: {text}")


def _password_fault(settings: RedisSettings, error: BaseException) -> str | None:
    text = " ".join(str(cause) for cause in causes(error))
    if any(phrase in text for phrase in WANTS_PASSWORD):
        return "a password is wanted: redis.password_file"
    if "without any password configured" in text:
        return "it has no password, and one is given: redis.password_file, or the one in redis.url"
    if any(isinstance(cause, AuthenticationError) for cause in causes(error)) or "WRONGPASS" in text:
        given = f"redis.password_file = {settings.password_file}" if settings.password_file else "the one in redis.url"
        return f"the password was rejected: {given}"
    return None


def _is_full_of_clients(error: BaseException) -> bool:
    return any("max number of clients" in str(cause) for cause in causes(error))


def missing_right(error: BaseException) -> str | None:
    """Return the message of Redis if the user lacks a right for a command or for a call within a script; None for other errors."""
    for cause in causes(error):
        if isinstance(cause, SentinelError):
            return None  # the command has not reached Redis
        text = str(cause)
        if isinstance(cause, NoPermissionError):
            return text
        if isinstance(cause, ResponseError) and any(phrase in text for phrase in _SCRIPT_LACKS_A_RIGHT):
            return text
    return None


def right_text(settings: RedisSettings, right: str) -> str:
    """Explain which right the Redis user lacks, and how to grant all rights needed."""
    parts = settings.parts
    user = parts.username or "default"
    of_clusters = f" {CLUSTER_RIGHTS}" if parts.scheme.endswith("+cluster") else ""
    return (
        f"Redis at {settings.redacted_url}: user {user!r} lacks a right (NOPERM): {right.rstrip('.')}; required, "
        f"with your app_id instead of APP_ID: ACL SETUSER {user} ~{{APP_ID/* {RIGHTS}{of_clusters}"
    )


def redis_fault_text(error: BaseException, settings: RedisSettings | None = None) -> str:
    """Describe why Redis did not execute a command."""
    name = "Redis" if settings is None else f"Redis at {settings.redacted_url}"
    return f"{name} {fault_in_reply(error) or f'does not answer: {str(error) or type(error).__name__}'}"


def fault_in_reply(error: BaseException) -> str | None:
    """Describe an error that Redis returned, to follow "Redis", such as "is read-only: …"; None if Redis did not answer."""
    for cause in causes(error):
        if is_no_primary(cause):
            return f"is read-only: {error}"
        if isinstance(cause, BusyLoadingError):
            return f"is reading its data after a start: {error}"
    if _is_full_of_clients(error):
        return f"accepts no more clients: {error}"
    if missing_right(error) is not None or isinstance(error, AuthenticationError):
        return f"does not let its user do it: {error}"
    is_reply = isinstance(error, ResponseError) or not isinstance(error, REDIS_ERRORS)
    return f"rejects the request: {error}" if is_reply else None


async def require_redis_rights(redis: Redis, key: str, *, writes: bool = True) -> None:
    """Check the rights of the user by a read, a script and a write on an unused key. A full or read-only Redis is no error.

    Args:
        key: An unused key with the prefix of the application; it is deleted if ``writes``.

    Raises:
        ResponseError: The user lacks a right.
    """
    requests: list[tuple[str, ...]] = [("EXISTS", key), ("EVALSHA", "0" * 40, "1", key)]
    if writes:
        requests.append(("DEL", key))
    for request in requests:
        try:
            await redis.execute_command(*request)  # type: ignore[no-untyped-call]  # redis-py gives it no types
        except ResponseError as error:
            if missing_right(error) is not None:
                raise


async def require_access(settings: RedisSettings, key: str, *, writes: bool = True) -> StreamsAppError | None:
    """Check before the start of a process that Redis accepts its credentials, and its rights by :func:`require_redis_rights`.

    Returns:
        The error that explains why Redis cannot be reached; None if it can.

    Raises:
        ConfigurationError: The settings are wrong, or the user lacks a right.
    """
    redis = connect_briefly(settings)
    try:
        await require_redis_rights(redis, key, writes=writes)
    except REDIS_ERRORS as error:
        fault = await why_unreachable(settings, error)
        if isinstance(fault, ConfigurationError):
            raise fault from error
        return fault
    finally:
        await redis.aclose()
    return None


async def drop_idle_connections(redis: Redis) -> None:
    """Close idle connections, so that the server name is resolved again. No effect on the connections of a cluster client."""
    pool: Any = getattr(redis, "connection_pool", None)
    if pool is not None:
        await pool.disconnect(inuse_connections=False)


async def _tls_fault(settings: RedisSettings, error: BaseException) -> str | None:
    parts = settings.parts
    if parts.scheme.startswith("rediss"):
        fault = tls_fault(error)
        if fault is None or fault == NO_TLS:
            return fault and f"{fault}: redis.url begins with {parts.scheme}://"
        return f"{fault}: {trust_text('redis.ssl_cafile', settings.ssl_cafile)}"
    is_sentinel_tried = not settings.has_sentinels or any(isinstance(cause, SentinelError) for cause in causes(error))
    for host, port in settings.nodes if is_sentinel_tried else ():  # Sentinels that named a primary do not speak TLS
        if await speaks_tls(host, port):
            return f"the server speaks TLS there: redis.url begins with {parts.scheme}://"
    return None


WriteRejection = Literal["memory", "read-only", "other"]
WRITE_REJECTIONS: Final[tuple[WriteRejection, ...]] = ("memory", "read-only", "other")
"""Reasons for which Redis rejects writes: it is full; it is read-only, as a replica is; or any other, such as a failed snapshot."""

_SCRIPT: Final = (files("streams_app.delivery") / "lua" / "takes_writes.lua").read_text("utf-8")


async def write_rejection(redis: Redis) -> WriteRejection | None:
    """Return why Redis rejects writes; None if it accepts them. In a cluster, every primary is checked."""
    client: Any = redis
    target = {"target_nodes": RedisCluster.PRIMARIES} if isinstance(client, RedisCluster) else {}
    try:
        await client.execute_command("EVAL", _SCRIPT, 0, **target)
    except OutOfMemoryError:
        return "memory"
    except ReadOnlyError:
        return "read-only"
    except ResponseError:
        return "other"
    return None
