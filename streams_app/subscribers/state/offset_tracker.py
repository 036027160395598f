"""Tracks which offsets of a partition are finished, begun or neither, under one claim (pure).

The tracker covers the offsets from the low watermark, the lowest unfinished offset, to the position of the reader. The low
watermark is committed, and the metadata of that commit lists the finished offsets above it, see :mod:`.offset_metadata`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from streams_app.subscribers.state.intervals import Interval, IntervalSet, merged


@dataclass(frozen=True, slots=True)
class OffsetsAbove:
    """Finished and begun offsets at or above a low watermark; all other offsets there are unfinished.

    Attributes:
        finished: Intervals of finished offsets: ascending, not touching each other, and not containing the watermark.
        begun: Begun but unfinished offsets, ascending. After a crash, it is unknown whether their attempts had an effect.
    """

    finished: tuple[Interval, ...] = ()
    begun: tuple[int, ...] = ()


NOTHING: Final = OffsetsAbove()


class OffsetTracker:
    """Tracks the offsets of one partition under one claim.

    Each claim has its own tracker, which is reached only through the processor of that claim. So the result of an attempt under an
    earlier claim never changes it.

    Attributes:
        end: Position of the reader. The state of offsets from here on is known only from the last commit.
    """

    def __init__(self, low: int, before: OffsetsAbove = NOTHING) -> None:
        """Create a tracker from the last commit, whose offset ``low`` is always unfinished."""
        self.end = low
        self._recorded = IntervalSet(before.finished)
        # Ascending, because ranges arrive in order: the first key is the lowest unfinished offset that was read.
        self._unfinished: dict[int, None] = {}
        self._begun = set(before.begun)
        # Finished offsets whose attempts may have begun. If the metadata omitted them, the next owner would begin them once more.
        self._ran = IntervalSet(before.finished)

    @property
    def low(self) -> int:
        """The low watermark: all offsets below it are finished."""
        # If all offsets that were read are finished, the reader may be inside an interval that the last commit lists as finished.
        return next(iter(self._unfinished), self._recorded.after(self.end))

    @property
    def unfinished(self) -> int:
        """Number of unfinished offsets that were read."""
        return len(self._unfinished)

    @property
    def begun(self) -> Collection[int]:
        """Begun but unfinished offsets, including those of earlier claims."""
        return self._begun

    def cover(self, begin: int, end: int, offsets: Iterable[int]) -> list[int]:
        """Add a range that was read, with the ascending ``offsets`` of its records; it must not begin above :attr:`end`.

        Offsets without a record, such as those of removed records and of transaction markers, are finished.

        Returns:
            The offsets that have to be processed, ascending: without those that are finished or were added earlier.
        """
        if begin > self.end:
            raise ValueError(f"a range from {begin} on does not follow {self.end}")
        known_end, recorded = self.end, self._recorded
        new = list(offsets)
        if new and new[0] < known_end:
            new = [offset for offset in new if offset >= known_end]
        if recorded.reaches(known_end):
            new = [offset for offset in new if offset not in recorded]
        self._unfinished.update(dict.fromkeys(new))
        self.end = max(known_end, end)
        # A begun offset whose record is no longer in the log counts as finished, because its event can no longer be dead-lettered.
        self._begun -= {offset for offset in self._begun if known_end <= offset < self.end and offset not in self._unfinished}
        return new

    def also_finished(self, runs: Iterable[Interval]) -> None:
        """Add intervals that are finished according to Redis; call it before the first range is added."""
        known = merged([*self._recorded.all(), *runs])
        self._recorded, self._ran = IntervalSet(known), IntervalSet(known)

    def also_ended(self, runs: Iterable[Interval]) -> None:
        """Finish begun offsets that are finished according to Redis, and no others; call it before the first range is added."""
        finished = IntervalSet(merged(runs))
        ended = [offset for offset in self._begun if offset in finished]
        self._begun.difference_update(ended)
        self.also_finished([Interval(offset, offset + 1) for offset in ended])

    def is_finished(self, offset: int) -> bool:
        """Return whether an offset is finished; False also if its state is unknown."""
        return offset < self.low or offset in self._recorded or (offset < self.end and offset not in self._unfinished)

    def begin(self, offsets: Iterable[int]) -> list[int]:
        """Mark offsets as begun, and return those that were marked. Offsets that were not read or were finished are ignored."""
        begun = [offset for offset in offsets if offset in self._unfinished]
        self._begun.update(begun)
        return begun

    def put_off(self, offset: int) -> None:
        """Mark an offset as not begun, after an attempt that had no effect."""
        if offset in self._unfinished:
            self._begun.discard(offset)

    def finish(self, offsets: Iterable[int]) -> list[int]:
        """Mark offsets as finished, and return those that were marked. Offsets that were not read or were finished are ignored."""
        unfinished = self._unfinished
        # All values are None: a missing offset returns the default, which is not None.
        finished = [offset for offset in offsets if unfinished.pop(offset, False) is None]
        if self._begun:
            for offset in self._begun.intersection(finished):
                self._begun.remove(offset)
                self._ran.add(offset)
        return finished

    def above(self) -> OffsetsAbove:
        low = before = self.low
        # Usually the unfinished offsets have no gaps, so they need not be searched.
        unfinished = [] if self.end - low == len(self._unfinished) else list(self._unfinished)
        finished = [Interval(offset + 1, after) for offset, after in pairwise(unfinished) if after > offset + 1]
        if self._unfinished:
            before = next(reversed(self._unfinished)) + 1
        tail = self._recorded.after(max(before, self.end))
        if tail > max(before, low):
            finished.append(Interval(before, tail))
        finished += [run for run in self._recorded.all() if run.begin > tail]
        return OffsetsAbove(tuple(finished), tuple(sorted(self._begun)))

    def required(self) -> OffsetsAbove:
        """Return the part of :meth:`above` without which an event could begin twice.

        The result omits offsets that were finished without an attempt (gaps, duplicates, events of other types): the next owner
        reads and finishes them once more. The encoding of the result never grows when an event ends, because the offset of the
        event was in the result already, as begun.
        """
        self._ran.drop_below(self.low)
        return OffsetsAbove(self._ran.all(), tuple(sorted(self._begun)))
