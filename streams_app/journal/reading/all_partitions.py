"""Reads the events of some keys in all partitions of a journal: finds the start, tracks positions, and yields the next entries."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from streams_app.errors import CursorError, JournalGoneError
from streams_app.journal.core.cursor import Start, check_start, cursor_text
from streams_app.journal.core.entry import Row
from streams_app.journal.reading.entries import Entry, Gap
from streams_app.journal.reading.shard_position import ENTRY_BYTES, MissingOffsets, ShardPosition, content_bytes, last_offset
from streams_app.journal.reading.shards import SharedShards
from streams_app.journal.store.segment import Segment

POLL_SECONDS: Final = 0.2
"""How often a follower polls for new entries."""


@dataclass(slots=True)
class JournalPage:
    """A limited number of entries and gaps that a :class:`Reading` returned, and the cursor after them.

    Attributes:
        items: Entries and gaps, in the order in which they were read.
        next: Cursor after the items, which advances even if there are none. Empty as long as the next page also starts like
            ``earliest``, at the floor of each partition.
        floors: First stored offset of each partition that has a state.
        fences: Highest appended offset of each partition that has a state.
        unread: Partitions that no worker has read yet, or whose state Redis has lost.
        is_caught_up: Whether everything up to the end of the journal was read.
    """

    items: list[Entry | Gap] = field(default_factory=list)
    next: str = ""
    floors: dict[int, int] = field(default_factory=dict)
    fences: dict[int, int] = field(default_factory=dict)
    unread: tuple[int, ...] = ()
    is_caught_up: bool = False

    @property
    def older_removed(self) -> bool:
        """Whether a partition begins after its first offset: events of the key before its floor are removed, if there were any."""
        return any(floor > 0 for floor in self.floors.values())


class Reading:
    """Reads the events of some keys of a journal, from a requested start on; the keys are as the journal stores them.

    A reading keeps its position in each partition, so that each call continues where the one before has ended. With ``from_floor``,
    it yields a gap and continues at the first stored event if the journal has removed the next events.
    """

    def __init__(self, shards: SharedShards, keys: tuple[bytes, ...], start: Start, *, from_floor: bool) -> None:
        """Create a reading, without a request to Redis.

        Raises:
            CursorError: The start is a cursor of another journal, or a time in the future.
        """
        check_start(start, shards.journal, shards.clock.now_ms())
        self._shards = shards
        self._keys = keys
        self._start = start
        self._from_floor = from_floor
        # A reader of the latest events must not receive old ones that are appended again after a loss of Redis.
        self._since_ms = {"moment": start.since_ms, "latest": shards.clock.now_ms()}.get(start.kind)
        self._positions: dict[int, ShardPosition] = {}
        self._is_begun = False

    async def items(self) -> AsyncGenerator[Entry | Gap, None]:
        """Yield all unread entries and gaps up to the current end of the journal, partition by partition.

        Raises:
            JournalGoneError: The journal has removed the next events of a partition. If this is known at the beginning, it is
                raised before entries of other partitions are yielded, so that busy partitions do not delay it.
            CursorError: The start has a partition that does not exist.
        """
        await self._begin()
        async with aclosing(self._in_order(0)) as items:
            async for found in items:
                yield found

    async def limited(self, limit: int, max_bytes: int) -> AsyncGenerator[Entry | Gap, None]:
        """Yield the next entries and gaps within limits; begin with a random partition, so that a busy one starves no other.

        No further entry is yielded after ``max_bytes``. If the journal has removed the next events, JournalGoneError is raised only
        if nothing was yielded.
        """
        await self._begin()
        count, size = 0, 0
        try:
            async with aclosing(self._in_order(random.randrange(len(self._positions)))) as items:
                async for found in items:
                    count += 1
                    if isinstance(found, Entry):
                        size += ENTRY_BYTES + content_bytes(found.value, found.headers)
                    yield found
                    if count >= limit or size >= max_bytes:
                        return
        except JournalGoneError:
            if not count:  # otherwise events were removed while they were read; the next page raises first
                raise

    def page(self, items: list[Entry | Gap]) -> JournalPage:
        """Return a page with entries and gaps that :meth:`limited` has yielded, and the cursor after them."""
        page = JournalPage(items)
        page.fences = {number: one.fence for number, one in self._sorted() if one.fence is not None}
        page.floors = self.floors
        page.unread = tuple(self.unread)
        page.is_caught_up = all(position.is_caught_up for position in self._positions.values())
        page.next = self._cursor({number: one.offset for number, one in self._sorted() if one.is_followed})
        return page

    @property
    def unread(self) -> list[int]:
        return [number for number, position in self._sorted() if position.fence is None]

    @property
    def floors(self) -> dict[int, int]:
        return {number: one.floor for number, one in self._sorted() if one.floor is not None}

    async def wait(self) -> None:
        """Wait, without a time limit, until events of any key were appended to a partition, or the source has new partitions."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            # Before Python 3.12 `asyncio.wait_for`, which the client of Redis calls, may swallow the cancellation.
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise asyncio.CancelledError
            if await self._shards.partitions() > len(self._positions):
                return
            fences = await self._shards.fences(self._positions)
            if any(one.fence != fences[number] or one.has_more for number, one in self._sorted()):
                return

    # ---- the start

    async def _begin(self) -> None:
        """Add positions for new partitions, read the fences and floors from Redis, and find the start if it is a time."""
        named = self._start.positions
        known = await self._shards.partitions()
        if known and named and max(named) >= known:
            raise CursorError(f"partition {max(named)} of the cursor does not exist: the source has partitions 0 to {known - 1}")
        added = {0, *range(known), *named} - self._positions.keys()
        self._positions |= {number: self._begun(number) for number in added}
        for number, (fence, floor) in (await self._shards.ranges(self._positions)).items():
            self._positions[number].observe(fence, floor)
            if number in added and fence is not None and self._start.kind == "latest" and not self._is_begun:
                self._positions[number].begin(fence)
        # While the first partition has no state, the number of partitions is unknown. Reading begins when it becomes known, so
        # the partitions that are found then start as requested.
        self._is_begun = self._is_begun or known > 0
        for number, position in self._sorted():
            if position.since_ms is not None and position.fence is not None:
                await self._seek(number, position, position.since_ms)

    def _begun(self, partition: int) -> ShardPosition:
        """A partition that is added after reading has begun is read from its floor, or from the requested time."""
        start = self._start
        if partition in start.positions:
            return ShardPosition(start.positions[partition], is_followed=True, is_named=True)
        return ShardPosition(since_ms=None if start.kind == "latest" and self._is_begun else self._since_ms)

    async def _seek(self, partition: int, position: ShardPosition, since_ms: int) -> None:
        """Move a position right before the first entry of the keys at or after a time, or before the gap that precedes this entry.

        If there is no such entry, move to the fence once the clock of the shard has reached the time; entries that are appended
        later are then returned even if they are older. Before that, the position does not move.
        """
        status = await self._shards.status(partition)
        if status is None:
            return
        # Entries that follow the first one may be older; they are returned, too.
        first = _first_since(status.segments, since_ms)
        if first is None:
            if status.clock_ms >= since_ms:
                position.begin(status.fence)
            return
        scan, begin = ShardPosition(first - 1), None
        while not scan.is_caught_up:
            async with aclosing(self._shards.scan(partition, self._keys, scan)) as items:
                async for item in items:
                    if isinstance(item, Row) and item.time_ms >= since_ms:
                        position.begin(item.offset - 1 if begin is None else begin)
                        return
                    # A gap may cover the time, unless an older entry follows it. Events that were removed meanwhile were older.
                    if isinstance(item, Row) or item.why == "removed":
                        begin = None
                    elif begin is None:
                        begin = item.first - 1
            if scan.fence is None:
                return
        position.begin(scan.offset if begin is None else begin)

    # ---- the next entries

    def _in_order(self, first: int) -> AsyncGenerator[Entry | Gap, None]:
        """Yield the entries and gaps of all partitions, one after the other, in rotation from the index ``first`` on.

        Partitions where the journal has probably removed events come first, so that busy partitions do not delay the report.
        """
        numbers = [number for number, _ in self._sorted()]
        turned = [*numbers[first:], *numbers[:first]]
        return self._of(sorted(turned, key=lambda number: not self._positions[number].is_overtaken))

    async def _of(self, partitions: Sequence[int]) -> AsyncGenerator[Entry | Gap, None]:
        for partition in partitions:
            position = self._positions[partition]
            # End at the first fence, in case the partition grows as fast as it is read.
            end = position.fence
            while end is not None and position.has_more and position.offset < end:
                async with aclosing(self._shards.scan(partition, self._keys, position)) as items:
                    async for item in items:
                        yield self._handed_out(partition, position, item)

    def _handed_out(self, partition: int, position: ShardPosition, item: Row | MissingOffsets) -> Entry | Gap:
        cursor = self._cursor({partition: last_offset(item)})
        if isinstance(item, MissingOffsets) and item.why == "removed" and not self._from_floor:
            raise JournalGoneError(partition, (item.first, item.last), cursor)
        position.had(item)
        if isinstance(item, MissingOffsets):
            return Gap(*item, partition, cursor)
        return Entry.of(item, partition, cursor, self._shards.is_by_record_key, older_removed=bool(position.floor))

    def _cursor(self, moved: Mapping[int, int]) -> str:
        """Return the cursor of the reading; offsets in ``moved`` replace those of the positions.

        It contains the start time as long as a partition has not reached that time, or the number of partitions is unknown.
        """
        named = {number: position.offset for number, position in self._positions.items() if position.is_named}
        is_open = not self._is_begun or any(position.since_ms is not None for position in self._positions.values())
        return cursor_text({**named, **moved}, self._since_ms if is_open else None, self._shards.journal)

    def _sorted(self) -> list[tuple[int, ShardPosition]]:
        return sorted(self._positions.items())


def _first_since(segments: Sequence[Segment], since_ms: int) -> int | None:
    """Return the offset from which to search for the first entry since a time; None if all stored segments are older.

    Gaps right before that segment are searched, too, because events of that time may be among the missing ones.
    """
    found = next((index for index, one in enumerate(segments) if one.form != "gap" and one.newest_ms >= since_ms), None)
    if found is None:
        return None
    while found > 0 and segments[found - 1].form == "gap":
        found -= 1
    return segments[found].first
