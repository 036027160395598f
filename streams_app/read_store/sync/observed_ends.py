"""The age of the oldest record that is not synced (pure).

The age of a fetched record follows from its timestamp. If the store was unavailable when a partition was claimed, its records are
not fetched; such a record has existed at least since the end of the log was first observed beyond it.
"""

from __future__ import annotations

from typing import Final

MAX_SEEN: Final = 128
"""Maximum number of observed ends of a partition. Above it, every second one is dropped: the age is then slightly too low."""


class ObservedEnds:
    """Observed ends of the log of one partition, each with the time at which it was first observed."""

    def __init__(self) -> None:
        self._observed: list[tuple[int, int]] = []

    def observe(self, end: int, now_ms: int) -> None:
        """Record the current end of the log; an end below the previous one belongs to another log."""
        if self._observed and end < self._observed[-1][0]:
            self._observed.clear()
        if not self._observed or end > self._observed[-1][0]:
            self._observed.append((end, now_ms))
        if len(self._observed) > MAX_SEEN:
            del self._observed[1::2]

    def since(self, position: int) -> int | None:
        """Return the time in milliseconds when a record at or beyond a position was first observed, or None if there is none.

        Args:
            position: First offset that is not synced. If it decreases while the log does not, the age is that of a later record.
        """
        while self._observed and self._observed[0][0] <= position:
            del self._observed[0]
        return self._observed[0][1] if self._observed else None


def age_ms(since: list[int | None], now_ms: int) -> int:
    """Return the milliseconds since the earliest of several times; 0 if there is none, or if it is in the future."""
    return max([0, *(now_ms - one for one in since if one is not None)])
