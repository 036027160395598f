"""One reading of some keys of a journal: where it begins in each partition, how far it is, and what comes next."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from streams_app.errors import CursorError, JournalGoneError
from streams_app.journal.core.cursor import Start, cursor_text
from streams_app.journal.core.entry import Row
from streams_app.journal.reading.entries import Entry, Gap
from streams_app.journal.reading.position import ENTRY_BYTES, Lost, ShardPosition, content_bytes, last_offset
from streams_app.journal.reading.shards import SharedShards
from streams_app.journal.store.journal_store import Segment

POLL_SECONDS: Final = 0.2
"""How often a follower asks whether there is something new."""


@dataclass(slots=True)
class JournalPage:
    """Some entries of a key, and where to go on.

    Attributes:
        items: Entries and gaps, in the order in which they were read.
        next: Cursor behind them; it moves also where nothing was found. Empty while there is nothing of which it could say more
            than ``earliest``.
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


class Reading:
    """One reading of some keys: how far it is in each partition."""

    def __init__(self, shards: SharedShards, keys: tuple[bytes, ...], start: Start, *, from_floor: bool) -> None:
        """Asks nothing yet.

        Args:
            shards: Of the journal.
            keys: As the journal files them.
            start: Where to begin.
            from_floor: Goes on at the floor, with a gap, where the journal has removed what follows.
        """
        self._shards = shards
        self._keys = keys
        self._start = start
        self._from_floor = from_floor
        # Whoever wants the latest does not want the past that is read once more after a loss of Redis.
        self._since_ms = {"moment": start.since_ms, "latest": shards.now_ms()}.get(start.kind)
        self._positions: dict[int, ShardPosition] = {}
        self._is_begun = False

    async def items(self) -> AsyncGenerator[Entry | Gap, None]:
        """Everything up to where the journal ends now, partition by partition.

        Raises:
            JournalGoneError: The journal has removed what follows. It comes before anything of the other partitions, which stay
                where they are: none of them can hide it.
        """
        await self._begin()
        async with aclosing(self._in_order(0)) as items:
            async for found in items:
                yield found

    async def page(self, limit: int, most_bytes: int) -> JournalPage:
        """The same, bounded; any partition may come first, so that a busy one never keeps the others out of all pages."""
        await self._begin()
        page, size = JournalPage(), 0
        try:
            async with aclosing(self._in_order(random.randrange(len(self._positions)))) as items:
                async for found in items:
                    page.items.append(found)
                    if isinstance(found, Entry):
                        size += ENTRY_BYTES + content_bytes(found.value, found.headers)
                    if len(page.items) >= limit or size >= most_bytes:
                        break
        except JournalGoneError:
            if not page.items:  # else it was removed while the page was read: the next one says so before anything else
                raise
        page.fences = {number: one.fence for number, one in self._sorted() if one.fence is not None}
        page.floors = {number: one.floor for number, one in self._sorted() if one.floor is not None}
        page.unread = tuple(self.unread)
        page.is_caught_up = all(position.is_caught_up for position in self._positions.values())
        page.next = self._cursor({number: one.offset for number, one in self._sorted() if one.is_followed})
        return page

    @property
    def unread(self) -> list[int]:
        """Partitions that no worker has read yet, or that Redis has lost."""
        return [number for number, position in self._sorted() if position.fence is None]

    async def wait(self) -> None:
        """Waits until a partition has something new, or another partition is there."""
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

    # ---- where it begins

    async def _begin(self) -> None:
        """Takes over which partitions there are, and between which offsets they have something."""
        named = self._start.positions
        known = await self._shards.partitions()
        if known and named and max(named) >= known:
            raise CursorError(f"partition {max(named)} of the cursor is not there: the source has partitions 0 to {known - 1}")
        added = {0, *range(known), *named} - self._positions.keys()
        self._positions |= {number: self._begun(number) for number in added}
        for number, (fence, floor) in (await self._shards.ranges(self._positions)).items():
            self._positions[number].observe(fence, floor)
            if number in added and fence is not None and self._start.kind == "latest" and not self._is_begun:
                self._positions[number].begin(fence)
        # Without a state of the first partition the others are not known: they begin as asked once they are.
        self._is_begun = self._is_begun or known > 0
        for number, position in self._sorted():
            if position.since_ms is not None and position.fence is not None:
                await self._seek(number, position, position.since_ms)

    def _begun(self, partition: int) -> ShardPosition:
        """Where the reading begins in a partition; in one that was added meanwhile at its beginning, or at the moment."""
        start = self._start
        if partition in start.positions:
            return ShardPosition(start.positions[partition], is_followed=True, is_named=True)
        return ShardPosition(since_ms=None if start.kind == "latest" and self._is_begun else self._since_ms)

    async def _seek(self, partition: int, position: ShardPosition, since_ms: int) -> None:
        """Moves a position to right before the first entry that is not older than a moment, and offsets not kept that may be.

        If there is none, it is the fence once the clock of the shard has come to the moment: what is filed later is late, and is
        handed out. Until then nothing is moved.
        """
        status = await self._shards.status(partition)
        if status is None:
            return
        # Later segments may hold older entries, and those are handed out: the first one that is not older begins.
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
                    # Offsets that are lost may be of the moment if nothing older follows them; what is removed meanwhile was older.
                    if isinstance(item, Row) or item.why == "removed":
                        begin = None
                    elif begin is None:
                        begin = item.first - 1
            if scan.fence is None:
                return
        position.begin(scan.offset if begin is None else begin)

    # ---- what comes next

    def _in_order(self, first: int) -> AsyncGenerator[Entry | Gap, None]:
        """What the partitions have, one after the other; those first of which something seems to be removed.

        Args:
            first: Which of the others comes first.
        """
        numbers = [number for number, _ in self._sorted()]
        turned = [*numbers[first:], *numbers[:first]]
        return self._of(sorted(turned, key=lambda number: not self._positions[number].is_overtaken))

    async def _of(self, partitions: Sequence[int]) -> AsyncGenerator[Entry | Gap, None]:
        for partition in partitions:
            position = self._positions[partition]
            # A partition that grows as fast as it is read comes to an end, too: at its first fence.
            end = position.fence
            while end is not None and position.has_more and position.offset < end:
                async with aclosing(self._shards.scan(partition, self._keys, position)) as items:
                    async for item in items:
                        yield self._handed_out(partition, position, item)

    def _handed_out(self, partition: int, position: ShardPosition, item: Row | Lost) -> Entry | Gap:
        cursor = self._cursor({partition: last_offset(item)})
        if isinstance(item, Lost) and item.why == "removed" and not self._from_floor:
            raise JournalGoneError(partition, (item.first, item.last), cursor)
        position.had(item)
        return Entry.of(item, partition, cursor) if isinstance(item, Row) else Gap(*item, partition, cursor)

    def _cursor(self, moved: Mapping[int, int]) -> str:
        """Where to go on, which begins at the moment in partitions that have not come to it, or are not known yet."""
        named = {number: position.offset for number, position in self._positions.items() if position.is_named}
        is_open = not self._is_begun or any(position.since_ms is not None for position in self._positions.values())
        return cursor_text({**named, **moved}, self._since_ms if is_open else None)

    def _sorted(self) -> list[tuple[int, ShardPosition]]:
        return sorted(self._positions.items())


def _first_since(segments: Sequence[Segment], since_ms: int) -> int | None:
    """First offset of the segment in which the first entry may be that is not older, or of a gap before it; None: there is none."""
    found = next((place for place, one in enumerate(segments) if one.form != "gap" and one.newest_ms >= since_ms), None)
    if found is None:
        return None
    while found > 0 and segments[found - 1].form == "gap":
        found -= 1
    return segments[found].first
