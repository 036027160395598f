"""What all readings of a journal share: the connection, and answers that may be some milliseconds old."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from typing import Final

from redis.asyncio import Redis

from streams_app.clock import Clock
from streams_app.journal.core.entry import Row
from streams_app.journal.reading.position import Lost, ShardPosition
from streams_app.journal.store.journal_store import JournalShardReader, ScriptSet, ShardStatus
from streams_app.journal.store.keys import JournalKeys, journal_keys
from streams_app.settings import JournalSettings, Settings

SHARED_MS: Final = 100
"""All followers of a reader share an answer that is so old at most."""

PARTITIONS_MS: Final = 5_000
"""How often it is asked whether partitions were added."""


class SharedShards:
    """The partitions of one journal in Redis, for all readings on one event loop."""

    def __init__(self, redis: Redis, settings: Settings, journal: JournalSettings, clock: Clock) -> None:
        """Asks nothing yet.

        Args:
            redis: Connection of the reader.
            settings: Of the application.
            journal: The journal.
            clock: Of this machine.
        """
        self._redis = redis
        self._scripts = JournalShardReader(redis, ScriptSet(redis))
        self._app_id = settings.app_id
        self._journal = journal
        self._clock = clock
        self._partitions, self._counted_ms = 0, 0
        self._fences: dict[int, int | None] = {}
        self._fences_ms = 0
        self._asking = asyncio.Lock()

    def now_ms(self) -> int:
        """Wall clock of this machine."""
        return self._clock.now_ms()

    async def scan(self, partition: int, keys: Sequence[bytes], position: ShardPosition) -> AsyncGenerator[Row | Lost, None]:
        """What comes next of some keys, as far as one reply of Redis says; the position goes on behind it once all was taken."""
        of_partition = self._keys_of(partition)
        taken = position.take(keys, [await self._scripts.read(of_partition, key, position.offset) for key in keys])
        async with aclosing(taken.decoded()) as items:
            async for item in items:
                yield item
        position.settle(taken.up_to)

    async def status(self, partition: int) -> ShardStatus | None:
        """What a partition has; None: it has no state."""
        return await self._scripts.status(self._keys_of(partition))

    async def partitions(self) -> int:
        """How many partitions the source has, as its first one says; 0 where that has no state."""
        async with self._asking:
            if not self._partitions or self._clock.monotonic_ms() - self._counted_ms >= PARTITIONS_MS:
                status = await self.status(0)
                self._partitions = 0 if status is None else max(1, status.partitions)
                self._counted_ms = self._clock.monotonic_ms()
            return self._partitions

    async def ranges(self, partitions: Collection[int]) -> dict[int, tuple[int | None, int | None]]:
        """Partition → fence and floor as they are now; None, None: it has no state.

        They are not asked for together: the floor may be that of a later moment.
        """
        pipeline = self._redis.pipeline(transaction=False)
        for number in partitions:
            keys = self._keys_of(number)
            pipeline.hget(keys.meta, "fence")
            pipeline.zrange(keys.segments, 0, 0)
        found = await pipeline.execute()
        ranges: dict[int, tuple[int | None, int | None]] = {}
        for number, fence, oldest in zip(partitions, found[0::2], found[1::2], strict=True):
            known = None if fence is None else int(fence)
            ranges[number] = (known, None if known is None else int(oldest[0]) if oldest else known + 1)
        return ranges

    async def fences(self, partitions: Collection[int]) -> dict[int, int | None]:
        """Partition → highest offset that is kept, of :data:`SHARED_MS` ago at most; None where it has no state."""
        async with self._asking:
            if not self._fences.keys() >= set(partitions) or self._clock.monotonic_ms() - self._fences_ms >= SHARED_MS:
                pipeline = self._redis.pipeline(transaction=False)
                for number in partitions:
                    pipeline.hget(self._keys_of(number).meta, "fence")
                found = await pipeline.execute()
                self._fences = {
                    number: None if fence is None else int(fence) for number, fence in zip(partitions, found, strict=True)
                }
                self._fences_ms = self._clock.monotonic_ms()
            return self._fences

    def _keys_of(self, partition: int) -> JournalKeys:
        return journal_keys(self._app_id, self._journal.name, self._journal.source, partition)
