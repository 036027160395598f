"""Intervals of offsets, and a set of offsets that is stored as intervals (pure)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple


class Interval(NamedTuple):
    """The offsets from ``begin`` up to, but not including, ``end``."""

    begin: int
    end: int


def merged(runs: Iterable[Interval]) -> list[Interval]:
    """Return the union of intervals as ascending intervals that do not touch each other."""
    found: list[Interval] = []
    for run in sorted(runs):
        if found and run.begin <= found[-1].end:
            found[-1] = Interval(found[-1].begin, max(found[-1].end, run.end))
        elif run.begin < run.end:
            found.append(run)
    return found


class IntervalSet:
    """A set of offsets, stored as intervals, so that millions of consecutive offsets need as little memory as one."""

    def __init__(self, runs: Iterable[Interval] = ()) -> None:
        """Create a set from ascending intervals that do not touch each other."""
        self._begins: list[int] = []
        self._ends: list[int] = []
        for run in runs:
            self._begins.append(run.begin)
            self._ends.append(run.end)

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._begins, offset)
        return at > 0 and offset < self._ends[at - 1]

    def reaches(self, offset: int) -> bool:
        """Return whether the set contains this offset or a higher one."""
        return bool(self._ends) and self._ends[-1] > offset

    def add(self, offset: int) -> None:
        """Add an offset that is not in the set."""
        at = bisect_right(self._begins, offset)
        follows = at > 0 and self._ends[at - 1] == offset
        leads = at < len(self._begins) and self._begins[at] == offset + 1
        if follows and leads:
            del self._begins[at]
            del self._ends[at - 1]
        elif follows:
            self._ends[at - 1] = offset + 1
        elif leads:
            self._begins[at] = offset
        else:
            self._begins.insert(at, offset)
            self._ends.insert(at, offset + 1)

    def drop_below(self, offset: int) -> None:
        gone = bisect_right(self._ends, offset)
        del self._begins[:gone]
        del self._ends[:gone]
        if self._begins and self._begins[0] < offset:
            self._begins[0] = offset

    def after(self, offset: int) -> int:
        """Return the end of the interval that contains an offset; the offset itself if it is not in the set."""
        at = bisect_right(self._begins, offset)
        return max(offset, self._ends[at - 1]) if at else offset

    def all(self) -> tuple[Interval, ...]:
        return tuple(map(Interval, self._begins, self._ends))
