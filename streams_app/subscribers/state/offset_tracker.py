"""Which offsets of a partition are finished, begun or neither: the window of one claim (pure).

The window reaches from the low watermark, the lowest offset that is not finished, to the position of the reader. The watermark is
what is committed; what is finished above it travels in the note of that commit, see :mod:`.offset_metadata`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from streams_app.subscribers.state.intervals import Interval, IntervalSet, merged


@dataclass(frozen=True, slots=True)
class Above:
    """What is known of the offsets from a low watermark on; what is not named is unfinished.

    Attributes:
        finished: Runs of finished offsets, ascending, none touching the next, none at the watermark itself.
        begun: Offsets that were begun and are not finished, ascending: a crash leaves open whether they happened.
    """

    finished: tuple[Interval, ...] = ()
    begun: tuple[int, ...] = ()


NOTHING: Final = Above()


class OffsetTracker:
    """The offsets of one partition under one claim.

    Attributes:
        claim: Number of the claim. A result of another claim changes nothing: the record is this claim's to finish.
        end: Position of the reader. Of what is there and beyond only the note of the last commit says something.
    """

    def __init__(self, claim: int, low: int, before: Above = NOTHING) -> None:
        """Begins where the claim found the partition.

        Args:
            claim: Number of the claim.
            low: The committed offset. It is unfinished, whatever else is.
            before: What the note of that commit says.
        """
        self.claim = claim
        self.end = low
        self._noted = IntervalSet(before.finished)
        # Ascending, as ranges arrive in order: the first key is the lowest unfinished offset of all that were read.
        self._unfinished: dict[int, None] = {}
        self._begun = set(before.begun)
        # What was begun and is finished, as far as anybody knows: a note that left it out would have it begun again.
        self._ran = IntervalSet(before.finished)

    @property
    def low(self) -> int:
        """The low watermark: everything below it is finished."""
        # Without anything unfinished the reader may stand within what the note calls finished.
        return next(iter(self._unfinished), self._noted.after(self.end))

    @property
    def unfinished(self) -> int:
        """How many of the offsets that were read are not finished."""
        return len(self._unfinished)

    @property
    def begun(self) -> Collection[int]:
        """Offsets that were begun and are not finished, those of former claims, too."""
        return self._begun

    def cover(self, begin: int, end: int, offsets: Iterable[int]) -> list[int]:
        """Takes a range that was read.

        What the log skips within it is finished: a removed record or the marker of a transaction is nobody's to wait for.

        Args:
            begin: First offset of the range: at or below :attr:`end`.
            end: Offset after its last one.
            offsets: Offsets of its records, ascending.

        Returns:
            Offsets that are to be done, ascending; what is finished, or was taken before, is left out.

        Raises:
            ValueError: The range leaves out what lies between :attr:`end` and its begin.
        """
        if begin > self.end:
            raise ValueError(f"a range from {begin} on does not follow {self.end}")
        known, noted = self.end, self._noted
        new = list(offsets)
        if new and new[0] < known:
            new = [offset for offset in new if offset >= known]
        if noted.reaches(known):
            new = [offset for offset in new if offset not in noted]
        self._unfinished.update(dict.fromkeys(new))
        self.end = max(known, end)
        # A begun one whose record the log has lost is finished, too: nobody can make a letter of it.
        self._begun -= {offset for offset in self._begun if known <= offset < self.end and offset not in self._unfinished}
        return new

    def also_finished(self, runs: Iterable[Interval]) -> None:
        """Notes what another witness than the commit knows to be finished; before anything is covered."""
        known = merged([*self._noted.all(), *runs])
        self._noted, self._ran = IntervalSet(known), IntervalSet(known)

    def is_finished(self, offset: int) -> bool:
        """Whether an offset is known to be finished."""
        return offset < self.low or offset in self._noted or (offset < self.end and offset not in self._unfinished)

    def is_open(self, claim: int, offset: int) -> bool:
        """Whether an offset waits for a result of this claim."""
        return claim == self.claim and offset in self._unfinished

    def begin(self, claim: int, offset: int) -> bool:
        """Notes that an offset is begun from now on; returns whether it may be, see :meth:`is_open`."""
        return self.begin_all(claim, (offset,)) == [offset]

    def begin_all(self, claim: int, offsets: Iterable[int]) -> list[int]:
        """Notes that offsets are begun from now on; returns those that may be."""
        if claim != self.claim:
            return []
        begun = [offset for offset in offsets if offset in self._unfinished]
        self._begun.update(begun)
        return begun

    def put_off(self, claim: int, offset: int) -> bool:
        """Notes that nothing was done for an offset after all, so that it can be begun again; returns whether it is open."""
        is_open = self.is_open(claim, offset)
        if is_open:
            self._begun.discard(offset)
        return is_open

    def finish(self, claim: int, offset: int) -> bool:
        """Notes that an offset is finished; returns False where it is not this claim's to finish, or is finished already."""
        return self.finish_all(claim, (offset,)) == [offset]

    def finish_all(self, claim: int, offsets: Iterable[int]) -> list[int]:
        """Notes that offsets are finished; returns those that were this claim's to finish, and were not finished already."""
        if claim != self.claim:
            return []
        unfinished = self._unfinished
        # Each has None as its value there: what is not there gives the claim.
        finished = [offset for offset in offsets if unfinished.pop(offset, claim) is None]
        if self._begun:
            for offset in self._begun.intersection(finished):
                self._begun.remove(offset)
                self._ran.add(offset)
        return finished

    def above(self) -> Above:
        """All that is known from the low watermark on."""
        low = before = self.low
        # Most of the time nothing is missing between the first and the last.
        unfinished = [] if self.end - low == len(self._unfinished) else list(self._unfinished)
        finished = [Interval(offset + 1, after) for offset, after in pairwise(unfinished) if after > offset + 1]
        if self._unfinished:
            before = next(reversed(self._unfinished)) + 1
        tail = self._noted.after(max(before, self.end))
        if tail > max(before, low):
            finished.append(Interval(before, tail))
        finished += [run for run in self._noted.all() if run.begin > tail]
        return Above(tuple(finished), tuple(sorted(self._begun)))

    def must_be_noted(self) -> Above:
        """The part of :meth:`above` without which something would be begun twice.

        Its note never grows by what ends: each offset that was begun has a place in it already. What was finished without having
        been begun (a gap, a duplicate, an event of another type) is finished again by whoever reads it again.
        """
        self._ran.drop_below(self.low)
        return Above(self._ran.all(), tuple(sorted(self._begun)))
