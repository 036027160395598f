"""How far a reader of some keys is in one partition, and what a reply of Redis is to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from typing import Final, NamedTuple

from streams_app.journal.core.block import DamagedBlockError, last_of, raw_length, rows_of_key
from streams_app.journal.core.entry import Row
from streams_app.journal.store.journal_store import Found, GapReply, Gone, NoState, Nothing, Reply

ENTRY_BYTES: Final = 200
"""What an entry counts for beside its value and headers, where bytes are bounded."""

STEP_BYTES: Final = 250_000
"""So many bytes of entries are decoded at a time: who stops early decodes no more, and none holds the event loop for long."""

INLINE_BYTES: Final = 50_000
"""Blocks that hold more are decoded in a thread; these take less than a millisecond."""


class Lost(NamedTuple):
    """Offsets that are not kept."""

    first: int
    last: int
    why: str


class Taken(NamedTuple):
    """What replies of Redis say.

    Attributes:
        items: In the order of offsets; each block is decoded when it is come to.
        up_to: Where the reader stands once it has had them.
        raw_bytes: What their blocks hold.
    """

    items: Iterator[Row | Lost]
    up_to: int
    raw_bytes: int = 0

    async def decoded(self) -> AsyncGenerator[Row | Lost, None]:
        """The items; many are decoded in a thread, some at a time."""
        while True:
            is_large = self.raw_bytes > INLINE_BYTES
            step = await asyncio.to_thread(_step, self.items) if is_large else _step(self.items)
            for item in step:
                yield item
            if not step:
                return


@dataclass(slots=True)
class ShardPosition:
    """How far a reader is in one partition.

    Attributes:
        offset: Last offset that was had, of any key; -1: none.
        is_followed: Whether the reader has been here: what is removed behind the offset is a loss. A reader that has only just
            begun at the floor moves with it.
        is_named: Whether cursors name the partition, because an entry was had there, or it was not begun at its floor.
        since_ms: The reading of the partition is to begin at this moment, which it has not come to; None: it has begun.
        fence: Highest offset of the partition by the last reply; None: it has no state.
        floor: First offset that is kept, by the last reply; None: not known.
    """

    offset: int = -1
    is_followed: bool = False
    is_named: bool = False
    since_ms: int | None = None
    fence: int | None = None
    floor: int | None = None

    @property
    def is_caught_up(self) -> bool:
        """Whether everything up to the fence was had."""
        return self.fence is not None and (self.since_ms is not None or self.offset >= self.fence)

    @property
    def has_more(self) -> bool:
        """Whether there is something up to the fence that was not had."""
        return self.fence is not None and not self.is_caught_up

    @property
    def is_overtaken(self) -> bool:
        """Whether something behind the offset seems to be removed; only the reply to a read tells for certain."""
        return self.has_more and self.is_followed and self.floor is not None and self.offset + 1 < self.floor

    def observe(self, fence: int | None, floor: int | None) -> None:
        """Takes over between which offsets the partition has something."""
        self.fence, self.floor = fence, floor
        if self.since_ms is None and fence is not None and floor is not None and floor - 1 <= self.offset >= fence:
            self.is_followed = True

    def begin(self, offset: int) -> None:
        """Begins behind an offset that is not the floor's."""
        self.offset, self.since_ms, self.is_followed, self.is_named = offset, None, True, True

    def take(self, keys: Sequence[bytes], replies: Sequence[Reply]) -> Taken:
        """Takes over what was read behind the offset, of each key one reply.

        The offset stays: :meth:`had` moves it, entry by entry, and :meth:`settle` at the end.
        """
        if any(isinstance(reply, NoState) for reply in replies):
            self.fence = self.floor = None
            return Taken(iter(()), self.offset)
        known = [reply for reply in replies if not isinstance(reply, NoState)]
        self.fence = min(reply.fence for reply in known)
        self.floor = max(reply.floor for reply in known)
        gone = [reply for reply in known if isinstance(reply, Gone)]
        if gone:
            return self._gone(max(reply.floor for reply in gone))
        self.is_followed = True
        up_to = min(_up_to(reply, self.offset) for reply in known)
        gaps = [reply for reply in known if isinstance(reply, GapReply)]
        if up_to == self.offset and len(gaps) == len(known):
            last = min(gap.last for gap in gaps)
            return Taken(iter([Lost(self.offset + 1, last, gaps[0].why)]), last)
        found = [(key, reply.blocks) for key, reply in zip(keys, known, strict=True) if isinstance(reply, Found)]
        rows = (rows_in(blocks, key, self.offset, up_to) for key, blocks in found)
        size = sum(raw_length(block) for _, blocks in found for block in blocks)
        return Taken(merge(*rows, key=last_offset), up_to, size)

    def _gone(self, floor: int) -> Taken:
        removed = [Lost(self.offset + 1, floor - 1, "removed")] if self.is_followed else []
        return Taken(iter(removed), floor - 1)

    def had(self, item: Row | Lost) -> None:
        """Goes on behind what was handed out."""
        self.offset = max(self.offset, last_offset(item))
        self.is_named = True

    def settle(self, up_to: int) -> None:
        """Goes on behind an offset up to which everything was handed out."""
        self.offset = max(self.offset, up_to)


def rows_in(blocks: Iterable[bytes], key: bytes, after: int, up_to: int) -> Iterator[Row | Lost]:
    """The rows of one key in blocks, each once, and what cannot be decoded; a block is decoded when it is come to.

    Args:
        blocks: In their order; they may begin at or below ``after``, overlap, and hold other keys.
        key: Of the rows.
        after: Last offset that was had.
        up_to: There is no other row of the key up to this offset.
    """
    is_damaged = False
    for block in blocks:
        try:
            rows = rows_of_key(block, key)
        except DamagedBlockError:
            last = _last_offset_in(block, key)
            if last is not None and after < last <= up_to:
                yield Lost(after + 1, last, "damaged")
                after = last
            else:  # of several keys: it is not known which of its offsets are of this one
                is_damaged = True
            continue
        for row in rows:
            if not after < row.offset <= up_to:
                continue
            if is_damaged and row.offset > after + 1:
                yield Lost(after + 1, row.offset - 1, "damaged")
            is_damaged = False
            yield row
            after = row.offset
    if is_damaged and up_to > after:
        yield Lost(after + 1, up_to, "damaged")


def last_offset(item: Row | Lost) -> int:
    """Where a reader stands behind this."""
    return item.offset if isinstance(item, Row) else item.last


def content_bytes(value: bytes | None, headers: Iterable[tuple[str, bytes | None]]) -> int:
    """Bytes of what was produced, without the key."""
    return len(value or b"") + sum(len(content or b"") for _, content in headers)


def _step(items: Iterator[Row | Lost]) -> list[Row | Lost]:
    """The next items, about :data:`STEP_BYTES`."""
    found: list[Row | Lost] = []
    size = 0
    for item in items:
        found.append(item)
        size += ENTRY_BYTES + (content_bytes(item.value, item.headers) if isinstance(item, Row) else 0)
        if size >= STEP_BYTES:
            break
    return found


def _up_to(reply: Gone | GapReply | Found | Nothing, offset: int) -> int:
    """Offset up to which a reply says everything."""
    if isinstance(reply, GapReply):
        return max(offset, reply.first - 1)
    return max(offset, reply.up_to) if isinstance(reply, Found | Nothing) else offset


def _last_offset_in(block: bytes, key: bytes) -> int | None:
    """Last offset of a block of this key that cannot be decoded; None: it is of another one, or that is damaged, too."""
    try:
        found, offset = last_of(block)
    except DamagedBlockError:
        return None
    return offset if found == key else None
