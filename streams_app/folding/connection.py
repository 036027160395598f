"""How the worker and the commands reach Redis.

Owns the connection options; every caller closes what it opened.
"""

from __future__ import annotations

from typing import Any, Final, cast

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.exceptions import RedisClusterException, RedisError

from streams_app.settings import RedisSettings

REDIS_ERRORS: Final = (RedisError, RedisClusterException, OSError)
"""What a Redis that is away raises: the cluster client has a tree of its own."""


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
