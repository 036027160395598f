"""The number of events that were folded or appended to a journal, from the fences in Redis.

Reading them costs the measured worker nothing. A page of its metrics costs it some milliseconds, ten times a second.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from redis.asyncio import Redis

_PID: Final = re.compile(r" pid (\d+)$")


class Fences:
    """The fences of a topic whose offsets begin at 0 and have no gaps, so that they count events."""

    def __init__(self, client: Redis, metas: Sequence[str]) -> None:
        self._client = client
        self._metas = metas

    async def by_process(self) -> dict[int, int]:
        """Return, by id of the process that owns a partition, or 0, the number of events up to the fences of its partitions."""
        async with self._client.pipeline(transaction=False) as pipeline:
            for meta in self._metas:
                pipeline.hmget(meta, "fence", "owner")
            found: dict[int, int] = {}
            for fence, owner in await pipeline.execute():
                if fence is not None:
                    match = _PID.search((owner or b"").decode())
                    pid = int(match[1]) if match else 0
                    found[pid] = found.get(pid, 0) + int(fence) + 1
            return found

    async def count(self) -> int:
        """Return the number of events up to the fences of all partitions."""
        return sum((await self.by_process()).values())

    async def sizes(self, keys: Sequence[str]) -> int:
        """Return the number of members of these sorted sets together."""
        async with self._client.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.zcard(key)
            return sum(await pipeline.execute())


@asynccontextmanager
async def fences(redis_url: str, metas: Sequence[str]) -> AsyncIterator[Fences]:
    """Yield the fences of these Redis keys."""
    async with Redis.from_url(redis_url) as client:
        yield Fences(client, metas)
