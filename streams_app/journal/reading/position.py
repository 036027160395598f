"""How far a reader of some keys is in one partition, and what a reply of Redis is to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from streams_app.journal.core.block import DamagedBlockError, decode, last_of
from streams_app.journal.core.entry import Row
from streams_app.journal.store.journal_store import Found, GapReply, Gone, NoState, Nothing, Reply


class Lost(NamedTuple):
    """Offsets that are not kept."""

    first: int
    last: int
    why: str


class Taken(NamedTuple):
    """What replies of Redis say.

    Attributes:
        items: In the order of offsets.
        up_to: Where the reader stands once it has had them.
    """

    items: list[Row | Lost]
    up_to: int


@dataclass(slots=True)
class ShardPosition:
    """How far a reader is in one partition.

    Attributes:
        offset: Last offset that was had, of any key; -1: none.
        is_followed: Whether the reader has been here: what is removed behind the offset is a loss. A reader that has only just
            begun at the floor moves with it.
        is_named: Whether cursors name the partition, because an entry was had there, or it was not begun at its floor.
        since_ms: Entries before the first one that is not older are passed over; None: none are.
        is_asked: Whether there was a reply.
        fence: Highest offset of the partition by the last reply; None: it has no state.
        floor: First offset that is kept, by the last reply; None: not known.
    """

    offset: int = -1
    is_followed: bool = False
    is_named: bool = False
    since_ms: int | None = None
    is_asked: bool = False
    fence: int | None = None
    floor: int | None = None

    @property
    def is_caught_up(self) -> bool:
        """Whether everything up to the fence was had."""
        return self.fence is not None and self.offset >= self.fence

    @property
    def has_more(self) -> bool:
        """Whether there is something up to the fence that was not had."""
        return self.fence is not None and self.offset < self.fence

    def take(self, keys: Sequence[bytes], replies: Sequence[Reply]) -> Taken:
        """Takes over what was read behind the offset, of each key one reply.

        The offset stays: :meth:`had` moves it, entry by entry, and :meth:`settle` at the end.
        """
        self.is_asked = True
        if any(isinstance(reply, NoState) for reply in replies):
            self.fence = self.floor = None
            return Taken([], self.offset)
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
            return Taken([Lost(self.offset + 1, last, gaps[0].why)], last)
        found = [
            item
            for key, reply in zip(keys, known, strict=True)
            if isinstance(reply, Found)
            for item in rows_in(reply.blocks, key, self.offset, up_to)
        ]
        found.sort(key=last_offset)
        return Taken(self._since(found), up_to)

    def _gone(self, floor: int) -> Taken:
        removed = [Lost(self.offset + 1, floor - 1, "removed")] if self.is_followed else []
        return Taken([*removed], floor - 1)

    def _since(self, found: list[Row | Lost]) -> list[Row | Lost]:
        """What is not passed over for its time."""
        kept = []
        for item in found:
            if self.since_ms is not None and isinstance(item, Row):
                if item.time_ms < self.since_ms:
                    continue
                self.since_ms = None
            kept.append(item)
        return kept

    def had(self, item: Row | Lost) -> None:
        """Goes on behind what was handed out."""
        self.offset = max(self.offset, last_offset(item))
        self.is_named = True

    def settle(self, up_to: int) -> None:
        """Goes on behind an offset up to which everything was handed out."""
        self.offset = max(self.offset, up_to)


def rows_in(blocks: Iterable[bytes], key: bytes, after: int, up_to: int) -> list[Row | Lost]:
    """The rows of one key in blocks, each once, and what cannot be decoded.

    Args:
        blocks: In their order; they may begin at or below ``after``, overlap, and hold other keys.
        key: Of the rows.
        after: Last offset that was had.
        up_to: There is no other row of the key up to this offset.
    """
    found: list[Row | Lost] = []
    is_damaged = False
    for block in blocks:
        try:
            rows = decode(block)
        except DamagedBlockError:
            last = _last_offset_in(block, key)
            if last is not None and after < last <= up_to:
                found.append(Lost(after + 1, last, "damaged"))
                after = last
            else:  # of several keys: it is not known which of its offsets are of this one
                is_damaged = True
            continue
        for row in rows:
            if row.key != key or not after < row.offset <= up_to:
                continue
            if is_damaged and row.offset > after + 1:
                found.append(Lost(after + 1, row.offset - 1, "damaged"))
            is_damaged = False
            found.append(row)
            after = row.offset
    if is_damaged and up_to > after:
        found.append(Lost(after + 1, up_to, "damaged"))
    return found


def last_offset(item: Row | Lost) -> int:
    """Where a reader stands behind this."""
    return item.offset if isinstance(item, Row) else item.last


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
