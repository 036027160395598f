"""How the worker and the commands reach Redis.

Owns the connection options; every caller closes what it opened.
"""

from __future__ import annotations

from typing import Any, Final, cast
from urllib.parse import urlsplit

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.exceptions import AuthenticationError, RedisClusterException, RedisError
from redis.exceptions import TimeoutError as SilentError

from streams_app.errors import ConfigurationError, StreamsAppError, TryAgainError
from streams_app.settings import RedisSettings
from streams_app.tls import NO_TLS, causes, speaks_tls, tls_fault, trust_text

REDIS_ERRORS: Final = (RedisError, RedisClusterException, OSError)
"""What a Redis that is away raises: the cluster client has a tree of its own."""

ANSWER_SECONDS: Final = 5.0
"""A command gives up on a Redis that has said nothing for so long."""

DEFAULT_PORT: Final = 6379
WANTS_PASSWORD: Final = ("NOAUTH", "HELLO must be called", "Authentication required")
"""Parts of what Redis says to a client that has given none; the second is what it says to a client that speaks RESP3."""


def connect(settings: RedisSettings, **overrides: Any) -> Redis:
    """A client that retries a dropped connection twice; replies are bytes.

    A script may have run although its first reply was lost (redis-py sends it again by itself): every script tells
    "already done by me" from "done by another" by its token and fence.

    Args:
        settings: The ``[redis]`` section.
        overrides: Further arguments of ``redis.asyncio.Redis``.
    """
    options: dict[str, Any] = {
        "socket_connect_timeout": 5.0,
        "socket_timeout": 15.0,
        "health_check_interval": 15,
        "retry": Retry(ExponentialBackoff(cap=0.5, base=0.05), 2),
        "client_name": "streams_app",
    }
    if settings.password:
        options["password"] = settings.password
    if settings.ssl_cafile:
        options["ssl_ca_certs"] = str(settings.ssl_cafile)
    options.update(overrides)
    scheme, _, rest = settings.url.partition("://")
    if scheme.endswith("+cluster"):
        options.pop("client_name")  # not an option of the cluster client
        # Another class with the same commands; each of ours touches the keys of one hash tag.
        return cast("Redis", RedisCluster.from_url(f"{scheme.removesuffix('+cluster')}://{rest}", **options))
    return Redis.from_url(settings.url, **options)


def connect_briefly(settings: RedisSettings) -> Redis:
    """A client for a command that somebody waits for: it does not try again, and gives up on a silent server after 5 s."""
    return connect(
        settings,
        socket_connect_timeout=ANSWER_SECONDS,
        socket_timeout=ANSWER_SECONDS,
        health_check_interval=0,
        retry=Retry(NoBackoff(), 0),
    )


async def servers_of(redis: Redis) -> dict[str, dict[str, Any]]:
    """What each server says of itself (``INFO``), by its address; of one that is no cluster under an empty name."""
    client: Any = redis  # for a cluster another class, see connect()
    if isinstance(client, RedisCluster):
        found: dict[str, dict[str, Any]] = await client.info(target_nodes=RedisCluster.PRIMARIES)
        return found
    return {"": await client.info()}


async def why_unreachable(settings: RedisSettings, error: BaseException) -> StreamsAppError:
    """What to tell whoever could not use Redis: passwords, TLS and reachability told apart, with the setting to look at.

    Args:
        settings: Settings with which it was tried.
        error: Error of the client.

    Returns:
        A :class:`~streams_app.errors.ConfigurationError` where the settings are certainly wrong, else a
        :class:`~streams_app.errors.TryAgainError`.
    """
    where = f"cannot reach Redis at {settings.redacted_url}"
    if any(isinstance(cause, SilentError) for cause in causes(error)):
        return TryAgainError(f"{where}: it does not answer")  # a server that speaks TLS would have said so
    fault = _password_fault(settings, error) or await _tls_fault(settings, error)
    if fault is not None:
        return ConfigurationError([f"{where}: {fault}"])
    return TryAgainError(f"{where}: {str(error).rstrip('.') or type(error).__name__}")


def _password_fault(settings: RedisSettings, error: BaseException) -> str | None:
    text = " ".join(str(cause) for cause in causes(error))
    if any(mark in text for mark in WANTS_PASSWORD):
        return "a password is wanted: redis.password_file"
    if "without any password configured" in text:
        return "it has no password, and one is given: redis.password_file, or the one in redis.url"
    if any(isinstance(cause, AuthenticationError) for cause in causes(error)) or "WRONGPASS" in text:
        given = f"redis.password_file = {settings.password_file}" if settings.password_file else "the one in redis.url"
        return f"the password is refused: {given}"
    return None


async def _tls_fault(settings: RedisSettings, error: BaseException) -> str | None:
    parts = urlsplit(settings.url)
    if parts.scheme.startswith("rediss"):
        fault = tls_fault(error)
        if fault is None or fault == NO_TLS:
            return fault and f"{fault}: redis.url begins with {parts.scheme}://"
        return f"{fault}: {trust_text('redis.ssl_cafile', settings.ssl_cafile)}"
    if parts.scheme.startswith("redis") and await speaks_tls(parts.hostname or "localhost", parts.port or DEFAULT_PORT):
        return f"the server speaks TLS there: redis.url begins with {parts.scheme}://"
    return None
