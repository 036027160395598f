"""The ranges of a partition that wait to be folded."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from operator import attrgetter

from streams_app.delivery.batch import Batch

_OFFSET = attrgetter("offset")


class BatchQueue:
    """Delivered ranges in their order; the first one stays until it is folded."""

    def __init__(self) -> None:
        """None was delivered yet."""
        self._batches: deque[Batch] = deque()
        self._begun: Batch | None = None
        self._arrived = asyncio.Event()

    def add(self, batch: Batch) -> None:
        """Takes the next range."""
        self._batches.append(batch)
        self._arrived.set()

    def clear(self) -> None:
        """Drops all ranges."""
        self._batches.clear()

    def records_above(self, fence: int) -> int:
        """Records of these ranges above a fence within the first one; safe to call from any thread."""
        batches = tuple(self._batches)  # ranges come and go meanwhile on the main loop
        if not batches:
            return 0
        folded = bisect_right(batches[0].records, fence, key=_OFFSET)
        return sum(len(batch.records) for batch in batches) - folded

    async def first(self, is_part: Callable[[int], bool]) -> Batch | None:
        """The first range, as soon as there is one, with what was records_above back before it.

        Args:
            is_part: Whether a range that ends at this offset is less than another owner has begun. Such a range is folded as it
                was begun, or its events would get other scores, and groups that are done would be left out of another one.

        Returns:
            None where the range is records_above back until the next one follows.
        """
        while not self._batches:
            self._arrived.clear()
            await self._arrived.wait()
        batch = self._batches[0] if self._begun is None else self._begun.followed_by(self._batches[0])
        self._begun = batch if is_part(batch.end - 1) else None
        return None if self._begun is not None else batch

    def done(self) -> None:
        """The first range is folded, or records_above back."""
        if self._batches:
            self._batches.popleft()
