"""The fences of all shards, whoever owns them, and whether Redis takes writes; asked on a connection that never waits long."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import ReadOnlyError

from streams_app.delivery.batch import TP
from streams_app.folding.agents.lag import ShardKey
from streams_app.folding.store.keys import shard_keys
from streams_app.redis_access.client import WriteRefusal, connect, write_refusal
from streams_app.settings import Settings

SOCKET_SECONDS: Final = 2.0


class StoredFences:
    """The fences of the declared folds.

    Attributes:
        fences: The last answer, which is kept while Redis is away.
        refusal: Why Redis refused writes when it answered last; None: it takes them.
    """

    def __init__(self, settings: Settings) -> None:
        self.fences: dict[ShardKey, int] = {}
        self.refusal: WriteRefusal | None = None
        self._settings = settings
        self._redis: Redis | None = None

    async def ask_once(self, tps: Collection[TP]) -> None:
        """Asks Redis for the fences of these partitions; nothing is changed by it.

        Raises:
            RedisError, OSError: Redis does not answer, or is a replica.
        """
        if self._redis is None:
            # No retry: whoever asks every second wants to know that this one was not answered.
            options = {"socket_timeout": SOCKET_SECONDS, "socket_connect_timeout": SOCKET_SECONDS, "health_check_interval": 0}
            self._redis = connect(self._settings.redis, retries=0, **options)
        self.refusal = await write_refusal(self._redis)
        if self.refusal == "read-only":
            raise ReadOnlyError("it is a replica")
        wanted = [(fold.name, tp) for fold in self._settings.folds for tp in tps if tp.topic == fold.source]
        if not wanted:
            return
        async with self._redis.pipeline(transaction=False) as pipe:
            for name, tp in wanted:
                pipe.hget(shard_keys(self._settings.app_id, name, tp.topic, tp.partition).meta, "fence")
            found = await pipe.execute()
        self.fences = {key: int(fence) for key, fence in zip(wanted, found, strict=True) if fence is not None}

    async def close(self) -> None:
        """Closes the connection."""
        redis, self._redis = self._redis, None
        if redis is not None:
            await redis.aclose()
