"""How long the oldest record has been waiting for a read store (pure).

Of a record that a processor holds its timestamp says when it was produced. Of one that nobody has fetched yet, because the store
was away when its partition was claimed, only the end of the log tells: it has been there since the end was first seen beyond it.
"""

from __future__ import annotations

from typing import Final

MOST_SEEN: Final = 128
"""Ends remembered of a partition. Beyond that every second one is forgotten: the age is then a little too low, never too high."""


class ObservedEnds:
    """The ends of one partition as they were seen, each with the time of the first look."""

    def __init__(self) -> None:
        """Nothing was looked at yet."""
        self._observed: list[tuple[int, int]] = []

    def observe(self, end: int, now_ms: int) -> None:
        """Notes the end of the log as it is now; a lower one than before is that of another log."""
        if self._observed and end < self._observed[-1][0]:
            self._observed.clear()
        if not self._observed or end > self._observed[-1][0]:
            self._observed.append((end, now_ms))
        if len(self._observed) > MOST_SEEN:
            del self._observed[1::2]

    def since(self, position: int) -> int | None:
        """When something was first seen at or beyond a position, in milliseconds; None: nothing is there.

        Args:
            position: First offset that has not been synced; it falls only with the log, or the age is that of a higher one.
        """
        while self._observed and self._observed[0][0] <= position:
            del self._observed[0]
        return self._observed[0][1] if self._observed else None


def age_ms(since: list[int | None], now_ms: int) -> int:
    """Age of the oldest of several; 0: nothing is waiting, or it comes from the future."""
    return max([0, *(now_ms - one for one in since if one is not None)])
