"""The Python API for reading the events of a key from a journal: :class:`JournalReader`.

Reading needs only Redis, neither a worker nor Kafka. It covers all partitions, because producers may use any partitioner. A reader
receives the same events after a compression, a change of the owner or a rebuild. If the journal has removed events that the reader
has not received, the reader receives a gap or an error instead of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Any

from streams_app.clock import Clock, SystemClock
from streams_app.errors import ConfigurationError
from streams_app.journal.core.cursor import Start, cursor_text, parse_start
from streams_app.journal.core.entry import Row
from streams_app.journal.reading.all_partitions import POLL_SECONDS, JournalPage, Reading
from streams_app.journal.reading.decoding import EntryDecoder
from streams_app.journal.reading.entries import Entry, Gap, key_fault, key_of
from streams_app.journal.reading.shard_position import MissingOffsets, ShardPosition
from streams_app.journal.reading.shards import SharedShards
from streams_app.redis_access.client import ANSWER_SECONDS, REDIS_ERRORS, connect, why_unreachable
from streams_app.reported_backoff import ReportedBackoff
from streams_app.settings import Settings

logger = logging.getLogger(__name__)


class JournalReader:
    """Reads the events of keys from one journal. Several keys may be read concurrently, but on one event loop.

    Attributes:
        journal: Settings of the journal.
        shards: Reads the partitions of the journal from Redis.

    ::

        async with JournalReader(settings, "accounts") as reader:
            async for found in reader.read("account_7", after="3-1041", follow=True):
                ...  # an Entry, or a Gap
    """

    def __init__(self, settings: Settings, journal: str | None = None, *, clock: Clock | None = None) -> None:
        """Create a reader, without connecting.

        Args:
            settings: Settings of the application.
            journal: Name of the journal; optional if there is only one.
            clock: Clock of this machine; None: the system clock.

        Raises:
            ConfigurationError: There is no such journal, the package of its format is not installed, or it needs a schema registry
                that is not configured.
        """
        self.journal = settings.journal(journal)
        self._settings = settings
        self._clock = clock or SystemClock()
        # A single retry: a caller waits for the result, and followers retry by themselves.
        self._redis = connect(settings.redis, retries=1, socket_connect_timeout=ANSWER_SECONDS, socket_timeout=ANSWER_SECONDS)
        self._decoder = EntryDecoder(settings, self.journal, self._clock)
        self.shards = SharedShards(self._redis, settings, self.journal, self._clock)

    async def __aenter__(self) -> JournalReader:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections to Redis."""
        await self._redis.aclose()

    async def read(
        self,
        key: Any,
        after: str = "earliest",
        *,
        follow: bool = False,
        from_floor: bool = False,
    ) -> AsyncGenerator[Entry | Gap, None]:
        """Yield every event of a key once, in the order of offsets within a partition, and gaps where events may be missing.

        Args:
            key: A string, number or boolean as in the events, or a tuple of them if the key has several fields. With ``@key``,
                bytes or a string. None stands for events without a usable key.
            after: Where to start: the ``cursor`` of the last entry that was read, ``earliest``, ``latest``, how long ago
                (``-24h``), or a day (``2026-08-20``).
            follow: Continue with new events, and wait while Redis is down; otherwise, end at the current end of the journal.
            from_floor: If the journal has removed the next events, yield a gap and continue at the first stored event, instead of
                raising JournalGoneError.

        Raises:
            JournalGoneError: The journal has removed the next events.
            CursorError: ``after`` is invalid.
            ConfigurationError: No event can have this key, or the settings of the Redis connection are wrong.
            TryAgainError: Redis does not answer, and ``follow`` is not set.
        """
        keys = (key_of(self.journal, key),)
        if fault := key_fault(self.journal, self._settings.limits, keys):
            logger.warning("a reader of a journal asks for a key beyond the limit journal=%s error=%s", self.journal.name, fault)
        reading = self.reading(keys, parse_start(after, self._clock.now_ms()), from_floor=from_floor)
        async with aclosing(self.read_on(reading, follow=follow)) as items:
            async for found in items:
                yield found

    async def read_on(self, reading: Reading, *, follow: bool) -> AsyncGenerator[Entry | Gap, None]:
        """Yield the next entries and gaps of a reading that :meth:`reading` created.

        Args:
            reading: The reading; it keeps its position, so that a later call continues.
            follow: Whether to continue with new events, as in :meth:`read`, which also describes the errors.
        """
        backoff = ReportedBackoff(POLL_SECONDS, 5.0)
        while True:
            try:
                async with aclosing(reading.items()) as items:
                    async for found in items:
                        yield await self._decoder.decoded(found) if isinstance(found, Entry) else found
                if not follow:
                    return
                await reading.wait()
                if backoff.succeeded():
                    logger.info("a reader of a journal continues journal=%s", self.journal.name)
            except REDIS_ERRORS as error:
                fault = await why_unreachable(self._settings.redis, error)
                if not follow or isinstance(fault, ConfigurationError):
                    raise fault from error
                if backoff.should_report:
                    logger.warning("a reader of a journal waits for redis journal=%s error=%s", self.journal.name, fault)
                await asyncio.sleep(backoff.failed())

    async def page(
        self, keys: tuple[bytes, ...], start: Start, *, limit: int, max_bytes: int, wait_ms: int = 0, from_floor: bool = False
    ) -> JournalPage:
        """Return a limited number of entries and gaps, and the cursor after them.

        Args:
            keys: Keys as the journal stores them.
            start: Where to start.
            limit: Maximum number of entries and gaps.
            max_bytes: No further entry is returned after this many bytes.
            wait_ms: How long to wait for an entry or a gap if there is none yet.
            from_floor: See :meth:`read`.

        Raises:
            JournalGoneError: The journal has removed the next events.
            CursorError: The cursor has a partition that does not exist.
            RedisError, OSError: Redis does not answer.
        """
        reading = self.reading(keys, start, from_floor=from_floor)
        async with aclosing(self.limited(reading, limit=limit, max_bytes=max_bytes, wait_ms=wait_ms)) as items:
            return reading.page([found async for found in items])

    async def limited(self, reading: Reading, *, limit: int, max_bytes: int, wait_ms: int = 0) -> AsyncGenerator[Entry | Gap, None]:
        """Yield the items of a :meth:`page`, one after the other, so that only few of them are in memory.

        Args:
            reading: The reading, from :meth:`reading`. Its :meth:`.Reading.page` returns the cursor after the items.
            limit: See :meth:`page`, which also describes the errors.
            max_bytes: See :meth:`page`.
            wait_ms: See :meth:`page`.
        """
        deadline_ms = self._clock.monotonic_ms() + wait_ms
        is_empty = True
        while True:
            async with aclosing(reading.limited(limit, max_bytes)) as items:
                async for found in items:
                    is_empty = False
                    yield await self._decoder.decoded(found) if isinstance(found, Entry) else found
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if not is_empty or left_ms <= 0:
                return
            try:
                async with asyncio.timeout(left_ms / 1000):
                    await reading.wait()
            except TimeoutError:
                return

    async def floors(self) -> dict[int, int]:
        """Return the first stored offset of each partition that has a state; events before it are removed, if there were any.

        Raises:
            TryAgainError: Redis does not answer.
            ConfigurationError: The settings of the Redis connection are wrong.
        """
        try:
            ranges = await self.shards.ranges(range(max(1, await self.shards.partitions())))
        except REDIS_ERRORS as error:
            raise await why_unreachable(self._settings.redis, error) from error
        return {number: floor for number, (_, floor) in ranges.items() if floor is not None}

    def reading(self, keys: tuple[bytes, ...], start: Start, *, from_floor: bool = False) -> Reading:
        """Create a reading of keys for :meth:`read_on`, without a request to Redis.

        Args:
            keys: Keys as the journal stores them.
            start: Where to start.
            from_floor: See :meth:`read`.
        """
        return Reading(self.shards, keys, start, from_floor=from_floor)

    async def between(self, partition: int, keys: tuple[bytes, ...], first: int, last: int) -> AsyncGenerator[Entry | Gap, None]:
        """Yield the entries of one partition in a range of offsets, and gaps for offsets that the journal does not have.

        Args:
            partition: Partition of the source.
            keys: Keys as the journal stores them.
            first: First offset of the range.
            last: Last offset of the range.

        Raises:
            TryAgainError: Redis does not answer.
            ConfigurationError: The partition does not exist, or the settings of the Redis connection are wrong.
        """
        position, partitions = ShardPosition(first - 1, is_followed=True), 0
        while position.offset < last:
            try:
                partitions = partitions or await self.shards.partitions()
                if 0 < partitions <= partition:
                    raise ConfigurationError(
                        [f"partition {partition} does not exist: the source has partitions 0 to {partitions - 1}"]
                    )
                async with aclosing(self.shards.scan(partition, keys, position)) as items:
                    async for item in items:
                        if isinstance(item, Row) and item.offset <= last:
                            cursor = self._cursor_in(partition, item.offset)
                            entry = Entry.of(
                                item, partition, cursor, self.journal.is_by_record_key, older_removed=bool(position.floor)
                            )
                            yield await self._decoder.decoded(entry)
                        elif isinstance(item, MissingOffsets) and item.first <= last:
                            yield self._gap(partition, item.first, min(item.last, last), item.why)
            except REDIS_ERRORS as error:
                raise await why_unreachable(self._settings.redis, error) from error
            if not position.has_more:
                break
        if position.offset < last:
            yield self._gap(partition, position.offset + 1, last, "unread")

    def _gap(self, partition: int, first: int, last: int, why: str) -> Gap:
        return Gap(first, last, why, partition, self._cursor_in(partition, last))

    def _cursor_in(self, partition: int, offset: int) -> str:
        return cursor_text({partition: offset}, journal=self.journal.name)
