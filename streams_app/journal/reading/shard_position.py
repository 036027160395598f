"""Tracks the position of a reader in one partition, and turns the replies of Redis into its next entries and gaps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from typing import Final, NamedTuple

from streams_app.journal.core.block import DamagedBlockError, last_of, raw_length, rows_of_key
from streams_app.journal.core.entry import Row
from streams_app.journal.store.journal_store import BlocksReply, GapReply, NoEventsReply, NoStateReply, RemovedReply, Reply

ENTRY_BYTES: Final = 200
"""Bytes that an entry counts besides its value and the values of its headers, when entries are compared with a size limit."""

STEP_BYTES: Final = 250_000
"""Size in bytes of the entries that are decoded in one step.

Steps are small because a reader may stop early, and a step must not block the event loop for long.
"""

INLINE_BYTES: Final = 50_000
"""Blocks of a reply with more bytes than this are decoded in a thread; smaller ones take less than a millisecond."""


class MissingOffsets(NamedTuple):
    """Offsets, ``last`` included, which the journal does not have; the cause ``why`` is a key of :data:`.entries.REASONS`."""

    first: int
    last: int
    why: str


class MergedReplies(NamedTuple):
    """The rows and gaps in replies of Redis, merged for all keys of a reader.

    Attributes:
        items: Rows and gaps in the order of offsets; their blocks are decoded while this is iterated over.
        up_to: Last offset that the replies cover: once the reader has received all items, its position is here.
        raw_bytes: Size of the blocks after decompression.
    """

    items: Iterator[Row | MissingOffsets]
    up_to: int
    raw_bytes: int = 0

    async def decoded(self) -> AsyncGenerator[Row | MissingOffsets, None]:
        """Yield the rows and gaps. The blocks are decoded a few at a time, and in a thread if they are large."""
        while True:
            is_large = self.raw_bytes > INLINE_BYTES
            step = await asyncio.to_thread(_step, self.items) if is_large else _step(self.items)
            for item in step:
                yield item
            if not step:
                return


@dataclass(slots=True)
class ShardPosition:
    """How far a reader has read one partition.

    Attributes:
        offset: Offset up to which events of all keys were read or skipped; -1: none.
        is_followed: Whether the reader gets a gap if events after the offset are removed. A reader that has just started at the
            floor gets none, because it starts at the new floor.
        is_named: Whether cursors contain the partition, because an entry was read there, or reading did not start at its floor.
        since_ms: Time at which reading will start, while the clock of the partition has not reached it; None once reading has
            started.
        fence: As in the last reply; None if the partition has no state.
        floor: First stored offset in the last reply; None if unknown.
    """

    offset: int = -1
    is_followed: bool = False
    is_named: bool = False
    since_ms: int | None = None
    fence: int | None = None
    floor: int | None = None

    @property
    def is_caught_up(self) -> bool:
        """Whether everything up to the fence was read; also true while the requested start time is not reached."""
        return self.fence is not None and (self.since_ms is not None or self.offset >= self.fence)

    @property
    def has_more(self) -> bool:
        return self.fence is not None and not self.is_caught_up

    @property
    def is_overtaken(self) -> bool:
        """Whether the journal has probably removed events that were not read yet; only the reply to a read is conclusive."""
        return self.has_more and self.is_followed and self.floor is not None and self.offset + 1 < self.floor

    def observe(self, fence: int | None, floor: int | None) -> None:
        """Store the fence and the floor of the partition; both are None if it has no state."""
        self.fence, self.floor = fence, floor
        if self.since_ms is None and fence is not None and floor is not None and floor - 1 <= self.offset >= fence:
            self.is_followed = True

    def begin(self, offset: int) -> None:
        """Continue reading after ``offset``; cursors contain the partition from now on."""
        self.offset, self.since_ms, self.is_followed, self.is_named = offset, None, True, True

    def take(self, keys: Sequence[bytes], replies: Sequence[Reply]) -> MergedReplies:
        """Merge the replies for all keys of a reader, in the order of ``keys``, into rows and gaps in the order of offsets.

        The offset moves by :meth:`had` for each received item if the reader may stop early, and by :meth:`settle` at the end.
        """
        if any(isinstance(reply, NoStateReply) for reply in replies):
            self.fence = self.floor = None
            return MergedReplies(iter(()), self.offset)
        known = [reply for reply in replies if not isinstance(reply, NoStateReply)]
        self.fence = min(reply.fence for reply in known)
        self.floor = max(reply.floor for reply in known)
        gone = [reply for reply in known if isinstance(reply, RemovedReply)]
        if gone:
            return self._gone(max(reply.floor for reply in gone))
        self.is_followed = True
        up_to = min(_up_to(reply, self.offset) for reply in known)
        gaps = [reply for reply in known if isinstance(reply, GapReply)]
        if up_to == self.offset and len(gaps) == len(known):
            last = min(gap.last for gap in gaps)
            return MergedReplies(iter([MissingOffsets(self.offset + 1, last, gaps[0].why)]), last)
        found = [(key, reply.blocks) for key, reply in zip(keys, known, strict=True) if isinstance(reply, BlocksReply)]
        rows = (rows_in(blocks, key, self.offset, up_to) for key, blocks in found)
        size = sum(raw_length(block) for _, blocks in found for block in blocks)
        return MergedReplies(merge(*rows, key=last_offset), up_to, size)

    def _gone(self, floor: int) -> MergedReplies:
        removed = [MissingOffsets(self.offset + 1, floor - 1, "removed")] if self.is_followed else []
        return MergedReplies(iter(removed), floor - 1)

    def had(self, item: Row | MissingOffsets) -> None:
        """Record that the caller has received a row or a gap, so that reading goes on after it."""
        self.offset = max(self.offset, last_offset(item))
        self.is_named = True

    def settle(self, up_to: int) -> None:
        """Move the offset, after the caller has received all rows and gaps."""
        self.offset = max(self.offset, up_to)


def rows_in(blocks: Iterable[bytes], key: bytes, after: int, up_to: int) -> Iterator[Row | MissingOffsets]:
    """Decode blocks while they are iterated over; yield the rows of one key without duplicates, and a gap for each damaged range.

    Args:
        blocks: Blocks in the order in which Redis returned them. They may contain rows of other keys, and rows at or below
            ``after``. Two blocks may contain the same row.
        after: Last offset that was read.
        up_to: Offset up to which the blocks contain all rows of the key.
    """
    is_damaged = False
    for block in blocks:
        try:
            rows = rows_of_key(block, key)
        except DamagedBlockError:
            last = _last_offset_in(block, key)
            if last is not None and after < last <= up_to:
                yield MissingOffsets(after + 1, last, "damaged")
                after = last
            else:  # a block of several keys: which of its offsets belong to this key is unknown
                is_damaged = True
            continue
        for row in rows:
            if not after < row.offset <= up_to:
                continue
            if is_damaged and row.offset > after + 1:
                yield MissingOffsets(after + 1, row.offset - 1, "damaged")
            is_damaged = False
            yield row
            after = row.offset
    if is_damaged and up_to > after:
        yield MissingOffsets(after + 1, up_to, "damaged")


def last_offset(item: Row | MissingOffsets) -> int:
    """Return the offset of a row, or the last offset of a gap."""
    return item.offset if isinstance(item, Row) else item.last


def content_bytes(value: bytes | None, headers: Iterable[tuple[str, bytes | None]]) -> int:
    """Return the size of a value and of the values of headers, in bytes."""
    return len(value or b"") + sum(len(content or b"") for _, content in headers)


def _step(items: Iterator[Row | MissingOffsets]) -> list[Row | MissingOffsets]:
    """Return the next rows and gaps, with about :data:`STEP_BYTES` of content; an empty list at the end."""
    found: list[Row | MissingOffsets] = []
    size = 0
    for item in items:
        found.append(item)
        size += ENTRY_BYTES + (content_bytes(item.value, item.headers) if isinstance(item, Row) else 0)
        if size >= STEP_BYTES:
            break
    return found


def _up_to(reply: RemovedReply | GapReply | BlocksReply | NoEventsReply, offset: int) -> int:
    """Return the offset up to which the rows of a key are known after a reply; at least ``offset``."""
    if isinstance(reply, GapReply):
        return max(offset, reply.first - 1)
    return max(offset, reply.up_to) if isinstance(reply, BlocksReply | NoEventsReply) else offset


def _last_offset_in(block: bytes, key: bytes) -> int | None:
    """Return the last offset of a damaged block, from the bytes before its rows; None if they have another key, or are damaged."""
    try:
        found, offset = last_of(block)
    except DamagedBlockError:
        return None
    return offset if found == key else None
