"""Reads the partitions of a journal from Redis, for all readings of one reader, which share its connection and cached fences."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from typing import Final

from redis.asyncio import Redis

from streams_app.clock import Clock
from streams_app.journal.core.entry import Row
from streams_app.journal.reading.shard_position import MissingOffsets, ShardPosition
from streams_app.journal.store.journal_store import JournalScripts, JournalShardReader, ShardStatus
from streams_app.journal.store.keys import JournalKeys, journal_keys
from streams_app.settings import JournalSettings, Settings

SHARED_MS: Final = 100
"""Maximum age of cached fences in ms. All followers share them, so that Redis gets few requests."""

PARTITIONS_MS: Final = 5_000
"""Maximum age of the cached number of partitions in ms."""


class SharedShards:
    """Reads the partitions of one journal from Redis, for all readings on one event loop."""

    def __init__(self, redis: Redis, settings: Settings, journal: JournalSettings, clock: Clock) -> None:
        self._redis = redis
        self._scripts = JournalShardReader(JournalScripts(redis))
        self._app_id = settings.app_id
        self._journal = journal
        self.clock = clock
        self._partitions, self._counted_ms = 0, 0
        self._fences: dict[int, int | None] = {}
        self._fences_ms = 0
        self._asking = asyncio.Lock()

    @property
    def journal(self) -> str:
        return self._journal.name

    @property
    def is_by_record_key(self) -> bool:
        return self._journal.is_by_record_key

    async def scan(
        self, partition: int, keys: Sequence[bytes], position: ShardPosition
    ) -> AsyncGenerator[Row | MissingOffsets, None]:
        """Yield the next rows and gaps of keys in a partition, after one request per key.

        The position moves once all rows and gaps were received; a caller that may stop earlier calls :meth:`.ShardPosition.had`.
        """
        of_partition = self._keys_of(partition)
        taken = position.take(keys, [await self._scripts.read(of_partition, key, position.offset) for key in keys])
        async with aclosing(taken.decoded()) as items:
            async for item in items:
                yield item
        position.settle(taken.up_to)

    async def status(self, partition: int) -> ShardStatus | None:
        return await self._scripts.status(self._keys_of(partition))

    async def partitions(self) -> int:
        """Return the number of partitions of the source, at most :data:`PARTITIONS_MS` old; 0 if partition 0 has no state."""
        async with self._asking:
            if not self._partitions or self.clock.monotonic_ms() - self._counted_ms >= PARTITIONS_MS:
                status = await self.status(0)
                self._partitions = 0 if status is None else max(1, status.partitions)
                self._counted_ms = self.clock.monotonic_ms()
            return self._partitions

    async def ranges(self, partitions: Collection[int]) -> dict[int, tuple[int | None, int | None]]:
        """Read the fence and the floor of each partition from Redis; both are None for a partition without state.

        They are not read atomically: the floor may be newer than the fence.
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
        """Return the fence of each partition, at most :data:`SHARED_MS` old; None for a partition without state."""
        async with self._asking:
            if not self._fences.keys() >= set(partitions) or self.clock.monotonic_ms() - self._fences_ms >= SHARED_MS:
                pipeline = self._redis.pipeline(transaction=False)
                for number in partitions:
                    pipeline.hget(self._keys_of(number).meta, "fence")
                found = await pipeline.execute()
                self._fences = {
                    number: None if fence is None else int(fence) for number, fence in zip(partitions, found, strict=True)
                }
                self._fences_ms = self.clock.monotonic_ms()
            return self._fences

    def _keys_of(self, partition: int) -> JournalKeys:
        return journal_keys(self._app_id, self._journal.name, self._journal.source, partition)
