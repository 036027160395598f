"""Reads the events of a key from a journal, in Python: :class:`JournalReader`.

Only Redis is asked, no worker and no Kafka. All partitions are read: no partitioner is trusted. What is compressed, removed, moved
to another worker or read once more meanwhile changes nothing of what a reader gets, or the reader learns it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final

from streams_app.backoff import Backoff
from streams_app.clock import Clock, SystemClock
from streams_app.errors import ConfigurationError, CursorError, JournalGoneError
from streams_app.journal.core.cursor import Start, cursor_text, parse_start
from streams_app.journal.core.entry import Row
from streams_app.journal.reading.entries import Entry, Gap, key_of
from streams_app.journal.reading.position import Lost, ShardPosition, last_offset
from streams_app.journal.store.journal_store import JournalShardReader, ScriptSet
from streams_app.journal.store.keys import JournalKeys, journal_keys
from streams_app.redis_client import ANSWER_SECONDS, REDIS_ERRORS, connect, why_unreachable
from streams_app.settings import Settings

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.2
"""How often a follower asks whether there is something new."""

SHARED_MS: Final = 100
"""All followers of a reader share an answer that is so old at most."""

PARTITIONS_MS: Final = 5_000
"""How often it is asked whether partitions were added."""

ENTRY_BYTES: Final = 200
"""What an entry counts for beside its value, where the bytes of a page are bounded."""


@dataclass(slots=True)
class JournalPage:
    """Some entries of a key, and where to go on.

    Attributes:
        items: Entries and gaps, in the order in which they were read.
        next: Cursor behind them; it moves also where nothing was found.
        floors: Partition → first offset that is kept.
        fences: Partition → highest offset that is kept.
        unread: Partitions that no worker has read yet, or that Redis has lost.
        is_caught_up: Whether there was nothing more.
    """

    items: list[Entry | Gap] = field(default_factory=list)
    next: str = ""
    floors: dict[int, int] = field(default_factory=dict)
    fences: dict[int, int] = field(default_factory=dict)
    unread: tuple[int, ...] = ()
    is_caught_up: bool = False


class JournalReader:
    """Reads one journal, as many keys at a time as wanted; used on one event loop.

    ::

        async with JournalReader(settings, "accounts") as reader:
            async for found in reader.read("account_7", after="3-1041", follow=True):
                ...  # an Entry, or a Gap
    """

    def __init__(self, settings: Settings, journal: str | None = None, *, clock: Clock | None = None) -> None:
        """Connects nothing yet.

        Args:
            settings: Settings of the application.
            journal: Name of the journal; may be left out where there is only one.
            clock: Of this machine.

        Raises:
            ConfigurationError: There is no such journal.
        """
        self.journal = settings.journal(journal)
        self._settings = settings
        self._clock = clock or SystemClock()
        # Somebody waits for it; and whoever follows tries as long as it takes.
        self._redis = connect(settings.redis, retries=1, socket_connect_timeout=ANSWER_SECONDS, socket_timeout=ANSWER_SECONDS)
        self._shards = JournalShardReader(self._redis, ScriptSet(self._redis))
        self._partitions, self._counted_ms = 0, 0
        self._fences: dict[int, int | None] = {}
        self._fences_ms = 0
        self._asking = asyncio.Lock()

    async def __aenter__(self) -> JournalReader:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections to Redis."""
        await self._redis.aclose()

    async def read(
        self,
        key: Any,
        after: str = "earliest",
        *,
        follow: bool = False,
        from_floor: bool = False,
    ) -> AsyncGenerator[Entry | Gap, None]:
        """Every event of a key, those of a partition in the order of their offsets, each once.

        Args:
            key: A string, number or boolean as in the events; a tuple for several fields; with ``@key`` bytes or a string; None:
                events without a key.
            after: Where to begin: the ``cursor`` of the last entry that was had, ``earliest``, ``latest``, how long ago (``-24h``),
                or a day (``2026-08-20``).
            follow: Goes on with what is still to come, and waits for a Redis that is away; otherwise it ends where the journal
                ends now.
            from_floor: Goes on at the floor, with a gap, where the journal has removed what follows.

        Raises:
            JournalGoneError: The journal has removed what follows.
            CursorError: ``after`` cannot be read.
            ConfigurationError: No event can have this key, or Redis refuses the connection by the settings.
            TryAgainError: Redis does not answer.
        """
        keys = (key_of(self.journal, key),)
        reading = Reading(self, keys, parse_start(after, self._clock.now_ms()), from_floor=from_floor)
        async with aclosing(self.read_on(reading, follow=follow)) as items:
            async for found in items:
                yield found

    async def read_on(self, reading: Reading, *, follow: bool) -> AsyncGenerator[Entry | Gap, None]:
        """Goes on with a reading; see :meth:`read`."""
        backoff = Backoff(POLL_SECONDS, 5.0)
        while True:
            try:
                async with aclosing(reading.items()) as items:
                    async for found in items:
                        yield found
                if not follow:
                    return
                await reading.wait()
                if backoff.succeeded():
                    logger.info("a reader of a journal goes on journal=%s", self.journal.name)
            except REDIS_ERRORS as error:
                fault = await why_unreachable(self._settings.redis, error)
                if not follow or isinstance(fault, ConfigurationError):
                    raise fault from error
                if not backoff.failures:
                    logger.warning("a reader of a journal waits for redis journal=%s error=%s", self.journal.name, fault)
                await asyncio.sleep(backoff.failed())

    async def page(
        self, keys: tuple[bytes, ...], start: Start, *, limit: int, most_bytes: int, wait_ms: int = 0, from_floor: bool = False
    ) -> JournalPage:
        """Some entries, and where to go on.

        Args:
            keys: As the journal files them.
            start: Where to begin.
            limit: Entries and gaps at most.
            most_bytes: No further entry is returned once there are so many bytes of them.
            wait_ms: How long to wait where there is nothing.
            from_floor: See :meth:`read`.

        Raises:
            JournalGoneError: The journal has removed what follows.
            CursorError: The cursor names a partition that there is not.
            RedisError, OSError: Redis does not answer.
        """
        reading = Reading(self, keys, start, from_floor=from_floor)
        deadline_ms = self._clock.monotonic_ms() + wait_ms
        while True:
            page = await reading.page(limit, most_bytes)
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if page.items or left_ms <= 0:
                return page
            try:
                async with asyncio.timeout(left_ms / 1000):
                    await reading.wait()
            except TimeoutError:
                return page

    # What its readings share

    def now_ms(self) -> int:
        """Wall clock of this machine."""
        return self._clock.now_ms()

    def keys_of(self, partition: int) -> JournalKeys:
        """The keys of a partition in Redis."""
        return journal_keys(self._settings.app_id, self.journal.name, self.journal.source, partition)

    async def between(self, partition: int, keys: tuple[bytes, ...], first: int, last: int) -> AsyncGenerator[Entry | Gap, None]:
        """What one partition has of a range of offsets; where the journal has removed a part of it, a gap.

        Args:
            partition: Of the source.
            keys: As the journal files them.
            first: First offset of the range.
            last: Last offset of the range.

        Raises:
            TryAgainError: Redis does not answer.
        """
        position = ShardPosition(first - 1, is_followed=True)
        while position.offset < last:
            try:
                replies = [await self._shards.read(self.keys_of(partition), key, position.offset) for key in keys]
            except REDIS_ERRORS as error:
                raise await why_unreachable(self._settings.redis, error) from error
            taken = position.take(keys, replies)
            for item in taken.items:
                if isinstance(item, Row):
                    if item.offset <= last:
                        yield Entry.of(item, partition, cursor_text({partition: item.offset}))
                elif item.first <= last:
                    yield Gap(item.first, min(item.last, last), item.why, partition, cursor_text({partition: min(item.last, last)}))
            position.settle(taken.up_to)
            if position.is_caught_up or position.fence is None:
                return

    @property
    def shards(self) -> JournalShardReader:
        """Calls the scripts."""
        return self._shards

    async def partitions(self) -> int:
        """How many partitions the source has, as its first one says; 0 where that has no state."""
        async with self._asking:
            if not self._partitions or self._clock.monotonic_ms() - self._counted_ms >= PARTITIONS_MS:
                status = await self._shards.status(self.keys_of(0))
                self._partitions = 0 if status is None else max(1, status.partitions)
                self._counted_ms = self._clock.monotonic_ms()
            return self._partitions

    async def fences(self, partitions: int) -> dict[int, int | None]:
        """Partition → highest offset that is kept; None where it has no state."""
        async with self._asking:
            if len(self._fences) < partitions or self._clock.monotonic_ms() - self._fences_ms >= SHARED_MS:
                pipeline = self._redis.pipeline(transaction=False)
                for number in range(partitions):
                    pipeline.hget(self.keys_of(number).meta, "fence")
                found = await pipeline.execute()
                self._fences = {number: None if fence is None else int(fence) for number, fence in enumerate(found)}
                self._fences_ms = self._clock.monotonic_ms()
            return self._fences


class Reading:
    """One reading of some keys: how far it is in each partition."""

    def __init__(self, reader: JournalReader, keys: tuple[bytes, ...], start: Start, *, from_floor: bool) -> None:
        """Asks nothing yet; see :meth:`JournalReader.page`."""
        self._reader = reader
        self._keys = keys
        self._start = start
        self._from_floor = from_floor
        self._positions: list[ShardPosition] = []
        self._is_begun = False

    async def items(self) -> AsyncGenerator[Entry | Gap, None]:
        """Everything up to where the journal ends now, partition by partition."""
        await self._begin()
        for partition, position in enumerate(self._positions):
            end: int | None = None
            while True:
                async with aclosing(self._read_once(partition, position)) as found:
                    async for one in found:
                        yield one
                # A partition that grows as fast as it is read comes to an end, too: at its first fence.
                end = position.fence if end is None else end
                if position.fence is None or position.is_caught_up or (end is not None and position.offset >= end):
                    break

    async def page(self, limit: int, most_bytes: int) -> JournalPage:
        """The same, bounded."""
        page, size = JournalPage(), 0
        try:
            async with aclosing(self.items()) as items:
                async for found in items:
                    page.items.append(found)
                    if isinstance(found, Entry):
                        size += ENTRY_BYTES + len(found.value or b"") + sum(len(content or b"") for _, content in found.headers)
                    if len(page.items) >= limit or size >= most_bytes:
                        break
        except JournalGoneError:
            if not page.items:  # where it goes on is behind what was found before: the next page says what is removed
                raise
        # Also of partitions that were not come to.
        fences = await self._reader.fences(len(self._positions))
        for number, position in enumerate(self._positions):
            fence = position.fence if position.is_asked else fences[number]
            if fence is not None:
                page.fences[number] = fence
            if position.floor is not None:
                page.floors[number] = position.floor
        page.unread = tuple(number for number in range(len(self._positions)) if number not in page.fences)
        page.is_caught_up = all(position.is_caught_up for position in self._positions)
        begun = {number: one.offset for number, one in enumerate(self._positions) if one.is_followed or one.is_named}
        page.next = cursor_text(begun)
        return page

    @property
    def unread(self) -> list[int]:
        """Partitions that no worker has read yet, or that Redis has lost."""
        return [number for number, position in enumerate(self._positions) if position.fence is None]

    async def wait(self) -> None:
        """Waits until a partition has something new, or another partition is there."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            if await self._reader.partitions() > len(self._positions):
                return
            fences = await self._reader.fences(len(self._positions))
            if any(one.fence != fences[number] or one.has_more for number, one in enumerate(self._positions)):
                return

    async def _begin(self) -> None:
        """Takes over which partitions there are."""
        named = self._start.positions
        known = await self._reader.partitions()
        if known and named and max(named) >= known:
            raise CursorError(f"partition {max(named)} of the cursor is not there: the source has partitions 0 to {known - 1}")
        for number in range(len(self._positions), max(1, known, *(number + 1 for number in named))):
            self._positions.append(await self._begun(number))
        # Without a state of the first partition the others are not known: they begin as asked once they are.
        self._is_begun = self._is_begun or known > 0

    async def _begun(self, partition: int) -> ShardPosition:
        """Where the reading begins in a partition; in one that was added meanwhile at its beginning."""
        start = self._start
        if start.kind == "cursor" and partition in start.positions:
            return ShardPosition(start.positions[partition], is_followed=True, is_named=True)
        if start.kind in ("cursor", "earliest") or self._is_begun:
            return ShardPosition()
        status = await self._reader.shards.status(self._reader.keys_of(partition))
        if status is None:
            # Whoever wants the latest does not want the past that is read once more after a loss of Redis.
            return ShardPosition(since_ms=start.since_ms if start.kind == "moment" else self._reader.now_ms())
        if start.kind == "latest":
            return ShardPosition(status.fence, is_followed=True, is_named=True)
        # Later segments may hold older entries, and those are handed out: the first one that is not older begins.
        begins = (one.first for one in status.segments if one.newest_ms >= start.since_ms and one.form != "gap")
        first = next(begins, status.fence + 1)
        return ShardPosition(first - 1, is_named=True, since_ms=start.since_ms)

    async def _read_once(self, partition: int, position: ShardPosition) -> AsyncGenerator[Entry | Gap, None]:
        keys = self._reader.keys_of(partition)
        replies = [await self._reader.shards.read(keys, key, position.offset) for key in self._keys]
        taken = position.take(self._keys, replies)
        for item in taken.items:
            if isinstance(item, Lost) and item.why == "removed" and not self._from_floor:
                going_on = self._cursor({partition: item.last})
                raise JournalGoneError(partition, (item.first, item.last), going_on)
            position.had(item)
            yield self._handed_out(partition, item)
        position.settle(taken.up_to)

    def _handed_out(self, partition: int, item: Row | Lost) -> Entry | Gap:
        cursor = self._cursor({partition: last_offset(item)})
        return Entry.of(item, partition, cursor) if isinstance(item, Row) else Gap(*item, partition, cursor)

    def _cursor(self, moved: Mapping[int, int]) -> str:
        named = {number: position.offset for number, position in enumerate(self._positions) if position.is_named}
        return cursor_text({**named, **moved})
