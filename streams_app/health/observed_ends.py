"""The age of the oldest record of a partition that a read store or a subscriber has not processed (pure).

The age of a fetched record follows from its timestamp. If records of a partition are not fetched, as when a store is unavailable
at the claim of the partition, their timestamps are unknown. Their age is then derived from the end offset of the log: a record has
existed at least since the end offset was first observed to be beyond the offset of the record.
"""

from __future__ import annotations

from typing import Final

MAX_SEEN: Final = 128
"""Maximum number of observed end offsets of a partition. If there are more, every second one is dropped, which makes the age
slightly too low."""


class ObservedEnds:
    """Observed end offsets of the log of one partition, each with the time at which it was first observed."""

    def __init__(self) -> None:
        self._observed: list[tuple[int, int]] = []

    def observe(self, end: int, now_ms: int) -> None:
        """Record the current end offset of the log.

        If it is below the previous end offset, the log was replaced, so the earlier end offsets are dropped.
        """
        if self._observed and end < self._observed[-1][0]:
            self._observed.clear()
        if not self._observed or end > self._observed[-1][0]:
            self._observed.append((end, now_ms))
        if len(self._observed) > MAX_SEEN:
            del self._observed[1::2]

    def since(self, position: int) -> int | None:
        """Return the time, in ms, when a record at or beyond a position was first observed, or None if there is no such record.

        Drops the end offsets up to the position. If the position of a later call is lower, the returned time may be too late.
        """
        while self._observed and self._observed[0][0] <= position:
            del self._observed[0]
        return self._observed[0][1] if self._observed else None


def age_ms(since: list[int | None], now_ms: int) -> int:
    """Return the age of the earliest of several times, in ms; 0 if all of them are None or in the future."""
    return max([0, *(now_ms - one for one in since if one is not None)])
