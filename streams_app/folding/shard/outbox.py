"""The owner's copy of the outbox of a shard: sealed records that are not acknowledged yet. The original is in Redis."""

from __future__ import annotations

import asyncio
import contextlib
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter

from streams_app.folding.core.record import SealedGroup

_FIRST_OFFSET = attrgetter("first_offset")


class Outbox:
    """Queue of the sealed groups that are to be sent.

    They are in the order of sealing. Those that were read from Redis come first, in the order of their first offsets.

    Attributes:
        is_exact: Whether Redis contains exactly these entries. False while a script that may change the outbox runs. If the reply
            of the script is lost, it remains False until the outbox is read from Redis again.
    """

    def __init__(self) -> None:
        self.is_exact = True
        self._entries: deque[SealedGroup] = deque()
        self._left = asyncio.Event()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[SealedGroup]:
        return iter(self._entries)

    def extend(self, sealed: Iterable[SealedGroup]) -> None:
        self._entries.extend(sealed)

    def clear(self) -> None:
        self._entries.clear()

    def first(self, most: int) -> list[SealedGroup]:
        return list(islice(self._entries, most))

    def ranges(self, sent: Sequence[SealedGroup]) -> list[tuple[int, int, int]]:
        """Combine sent entries as :func:`ranges_of` does; each is a range of its own if :attr:`is_exact` is False."""
        if not self.is_exact:
            return [(entry.first_offset, entry.first_offset, 1) for entry in sent]
        return ranges_of(sent, self._entries)

    def remove(self, sent: Sequence[SealedGroup]) -> None:
        """Remove these entries, which are usually the first ones, after Redis has removed them."""
        entries = self._entries
        for entry in sent:
            if not entries or entries[0] is not entry:
                gone = {entry.first_offset for entry in sent}
                self._entries = deque(entry for entry in entries if entry.first_offset not in gone)
                break
            entries.popleft()
        self._left.set()

    async def room(self, seconds: float) -> None:
        """Wait until :meth:`remove` is called, or until ``seconds`` have passed."""
        self._left.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._left.wait()


def ranges_of(sent: Sequence[SealedGroup], pending: Iterable[SealedGroup]) -> list[tuple[int, int, int]]:
    """Combine sent entries to as few ranges of first offsets as possible, none of which contains another pending entry.

    Returns:
        For each range the lowest and the highest first offset, both inclusive, and the number of sent entries.
    """
    gone = sorted(map(_FIRST_OFFSET, sent))
    others = sorted(set(map(_FIRST_OFFSET, pending)).difference(gone))
    ranges: list[tuple[int, int, int]] = []
    begin = 0
    while begin < len(gone):
        at = bisect_right(others, gone[begin])
        end = bisect_left(gone, others[at]) if at < len(others) else len(gone)
        ranges.append((gone[begin], gone[end - 1], end - begin))
        begin = end
    return ranges
