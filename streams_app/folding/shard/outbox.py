"""The owner's copy of the outbox of a shard: sealed records that are not acknowledged yet. The original is in Redis."""

from __future__ import annotations

import asyncio
import contextlib
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from operator import attrgetter

from streams_app.folding.core.record import SealedGroup
from streams_app.folding.store.replies import OutboxEntry

_FIRST_OFFSET = attrgetter("first_offset")
_ID = attrgetter("first_offset", "last_offset")


class Block:
    """Records that leave Redis together: usually those of one entry, which are the records that one script has sealed.

    Attributes:
        records: Those that are not acknowledged yet, in the order in which they are sent.
        first_offsets: Scores of the entries in Redis. That of an entry is the lowest first offset that it had when it was added.
    """

    __slots__ = ("first_offsets", "records")

    def __init__(self, records: list[SealedGroup], first_offsets: list[int]) -> None:
        self.records = records
        self.first_offsets = first_offsets


class Outbox:
    """Queue of the sealed groups that are to be sent; its length is their number.

    They are in the order of sealing. Those that were read from Redis come first, in the order of their first offsets.

    Attributes:
        is_exact: Whether Redis contains exactly the entries of these groups. False while a script that may change the outbox runs.
            If the reply of the script is lost, it remains False until the outbox is read from Redis again.
        entries: Number of entries in Redis.
    """

    def __init__(self) -> None:
        self.is_exact = True
        self.entries = 0
        self._blocks: deque[Block] = deque()
        self._records = 0
        self._left = asyncio.Event()

    def __len__(self) -> int:
        return self._records

    def __iter__(self) -> Iterator[SealedGroup]:
        return chain.from_iterable(block.records for block in self._blocks)

    def add(self, entry: OutboxEntry) -> None:
        """Add the records that a script has sealed; an entry without records does not exist in Redis."""
        if entry.records:
            self._blocks.append(Block(entry.records, [entry.first_offset]))
            self.entries += 1
            self._records += len(entry.records)

    def load(self, entries: Sequence[OutboxEntry]) -> None:
        """Replace everything by the entries that were read from Redis, in the order of their first offsets."""
        self._replace(_blocks_of(entries))
        self.is_exact = True

    def first(self, most: int) -> list[SealedGroup]:
        """Return at most ``most`` of the first records; a block is split only if it has more."""
        found: list[SealedGroup] = []
        for block in self._blocks:
            if found and len(found) + len(block.records) > most:
                break
            found += block.records
        return found[:most]

    def finished(self, sent: Sequence[SealedGroup]) -> list[Block]:
        """Return the blocks of which no record is left once these, which are usually the first ones, are removed."""
        number, at = self._sent_whole(sent)
        found = list(islice(self._blocks, number))
        if at < len(sent):
            gone = set(map(_ID, sent[at:]))
            found += [block for block in islice(self._blocks, number, None) if gone.issuperset(map(_ID, block.records))]
        return found

    def ranges(self, finished: Sequence[Block]) -> list[tuple[int, int, int]]:
        """Combine their entries as :func:`ranges_of` does; each is a range of its own if :attr:`is_exact` is False."""
        offsets = [offset for block in finished for offset in block.first_offsets]
        if not self.is_exact:
            return [(offset, offset, number) for offset, number in Counter(offsets).items()]
        return ranges_of(offsets, (offset for block in self._blocks for offset in block.first_offsets))

    def remove(self, sent: Sequence[SealedGroup]) -> None:
        """Remove these records after Redis has removed the entries that are :meth:`finished` by them."""
        number, at = self._sent_whole(sent)
        for _ in range(number):
            block = self._blocks.popleft()
            self._records -= len(block.records)
            self.entries -= len(block.first_offsets)
        if at < len(sent):
            gone = set(map(_ID, sent[at:]))
            for block in self._blocks:
                block.records = [record for record in block.records if _ID(record) not in gone]
            self._replace([block for block in self._blocks if block.records])
        self._left.set()

    async def room(self, seconds: float) -> None:
        """Wait until :meth:`remove` is called, or until ``seconds`` have passed."""
        self._left.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._left.wait()

    def _sent_whole(self, sent: Sequence[SealedGroup]) -> tuple[int, int]:
        """Return how many of the first blocks were sent as a whole, one after the other, and the number of their records."""
        number = at = 0
        for block in self._blocks:
            end = at + len(block.records)
            if sent[at:end] != block.records:
                break
            number, at = number + 1, end
        return number, at

    def _replace(self, blocks: Iterable[Block]) -> None:
        self._blocks = deque(blocks)
        self._records = sum(len(block.records) for block in self._blocks)
        self.entries = sum(len(block.first_offsets) for block in self._blocks)


def _blocks_of(entries: Sequence[OutboxEntry]) -> list[Block]:
    """Return a block for each entry; a single one for all if they cannot be sent and removed one after the other.

    The records of one group are sent in the order of their events. Entries with the same first offset, which scripts that failed
    half-way may leave, are removed together.
    """
    blocks = [Block(sorted(entry.records, key=_FIRST_OFFSET), [entry.first_offset]) for entry in entries]
    newest: dict[bytes, int] = {}
    is_ordered = len({entry.first_offset for entry in entries}) == len(entries)
    for record in chain.from_iterable(block.records for block in blocks):
        is_ordered = is_ordered and newest.get(record.member, -1) <= record.first_offset
        newest[record.member] = record.first_offset
    if is_ordered:
        return blocks
    records = sorted(chain.from_iterable(block.records for block in blocks), key=_FIRST_OFFSET)
    return [Block(records, [entry.first_offset for entry in entries])]


def ranges_of(sent: Iterable[int], pending: Iterable[int]) -> list[tuple[int, int, int]]:
    """Combine the first offsets of finished entries to as few ranges as possible, none of which contains another pending entry.

    Returns:
        For each range the lowest and the highest first offset, both inclusive, and the number of finished entries.
    """
    gone = sorted(sent)
    others = sorted(set(pending).difference(gone))
    ranges: list[tuple[int, int, int]] = []
    begin = 0
    while begin < len(gone):
        at = bisect_right(others, gone[begin])
        end = bisect_left(gone, others[at]) if at < len(others) else len(gone)
        ranges.append((gone[begin], gone[end - 1], end - begin))
        begin = end
    return ranges
