"""What a sample of groups says about the window (pure): gaps between events, split folds, how long events waited.

To know the gap between two folds of a group, or that a group was opened again, one has to remember groups that are closed. There
may be any number of those, so a fixed number is remembered: the groups whose hash is below a limit, the same in every worker. When
they become too many the limit is halved, and from then on each that is left counts for twice as many: sums estimate those of all
groups, and are exact as long as no group had to be left out.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from zlib import crc32

import msgspec

from streams_app.folding.core.chunks import PAUSE_MS, Chunk, GroupRun
from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.record import Sealed

MOST_GROUPS: Final = 1_024
"""Groups remembered for one fold, 0.7 MB with keys of 20 bytes and 1.2 MB with the longest.

Of a chunk the runs of so many groups are looked at, at most. A record that is emitted costs 2 to 8 us if its group is among them
(the longer its fold was open, the more buckets its events are spread over), else less than 1 us.
"""

LEFT_OF_FULL: Final = 0.75
"""So much of a full sample is kept at most, so that room is seldom made."""

ALL: Final = 2**32
"""Above every hash."""

NEVER: Final = -1
"""Score and offset of a group of which only a record was found."""


class SampledGroup(msgspec.Struct, gc=False):
    """A group of the sample.

    Attributes:
        last_offset: Offset of its last event that was counted.
        last_score: Score of that event.
        records: How many records it would have had if only silence closed groups.
        closed_ms: When its last record was closed; None: it has none, or the fold after it is judged.
        closed_offset: Last offset of that record.
        is_open_again: Whether events behind that record were counted before the record was found.
    """

    last_offset: int = NEVER
    last_score: int = NEVER
    records: int = 0
    closed_ms: int | None = None
    closed_offset: int = NEVER
    is_open_again: bool = False


@dataclass(slots=True)
class GroupSample:
    """The groups of one fold that are watched, in all partitions of a worker.

    Attributes:
        bounds: Of the fold.
        bounds_ms: Upper bounds of the buckets, inclusive; the first is :data:`.PAUSE_MS`, as shorter gaps are not told apart.
        most_groups: Groups remembered at most.
        weight: For how many groups each that is watched stands.
    """

    bounds: Bounds
    bounds_ms: Sequence[int]
    most_groups: int = MOST_GROUPS
    weight: int = 1
    _groups: dict[int, dict[bytes, SampledGroup]] = field(default_factory=dict)
    _fences: dict[int, int] = field(default_factory=dict)
    _clocks: dict[int, int] = field(default_factory=dict)
    _records: float = 0.0
    _squares: float = 0.0

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    @property
    def share(self) -> float:
        """The share of all groups that is watched."""
        return 1 / self.weight

    @property
    def error(self) -> float:
        """Relative standard error of the number of records that silence alone would make; 0 while all groups are watched.

        As of any sum over groups that are chosen with one probability (Horvitz and Thompson), by what the chosen ones had.
        """
        return math.sqrt(self._squares * (1 - self.share)) / self._records if self._records else 0.0

    # ---- events

    def folded(self, partition: int, chunk: Chunk) -> ObservedGroups:
        """Takes note of a chunk that has been folded.

        Where offsets were folded by somebody else since the last chunk, the groups of the partition are forgotten: the gaps that
        lie across are unknown. What is folded again, as Redis has lost it, is not counted again; of a chunk that was counted in
        part nothing is, and its partition begins anew behind it.
        """
        found = ObservedGroups.nothing(len(self.bounds_ms))
        fence = self._fences.get(partition, chunk.above)
        groups = self._groups.setdefault(partition, {})
        if chunk.to <= fence:
            return found
        self._fences[partition], self._clocks[partition] = chunk.to, chunk.clock_ms
        if chunk.above != fence:
            groups.clear()
        if chunk.above < fence:
            return found
        for member in self._watched(groups, chunk):
            group = groups.get(member)
            if group is None:  # forgotten to make room, as it had been silent for long
                group = groups[member] = SampledGroup()
            self._add(found, group, chunk.groups[member])
        self._add_pauses(found, groups, chunk)
        return found

    def _watched(self, groups: dict[bytes, SampledGroup], chunk: Chunk) -> Iterable[bytes]:
        """The groups of a chunk that are in the sample; those that are new come in first, so that each counts for as many."""
        weight = self.weight
        watched = self._chosen(chunk.groups)
        self._admit(groups, [member for member in watched if member not in groups])
        return watched if self.weight == weight else self._chosen(watched)

    def _chosen(self, members: Collection[bytes]) -> Collection[bytes]:
        limit = ALL // self.weight
        return members if limit == ALL else [member for member in members if crc32(member) < limit]

    def _add(self, found: ObservedGroups, group: SampledGroup, runs: Sequence[GroupRun]) -> None:
        counts, weight, bounds_ms, quiet_ms = found.gaps.counts, self.weight, self.bounds_ms, self.bounds.quiet_ms
        begin, events, records = group.last_score, 0, 0
        if begin == NEVER:
            found.begun += weight
            begin = runs[0].first_score
            events, records = -1, 1  # there is no gap before its first event
        if group.closed_ms is not None and not group.is_open_again:
            self._opened(found, group, runs)
        last = begin
        for run in runs:
            events += run.events
            gap = run.first_score - last
            if gap > PAUSE_MS:
                events -= 1
                counts[bisect_left(bounds_ms, gap)] += weight
                records += gap > quiet_ms
            last = run.last_score
        counts[0] += events * weight
        if records:
            self._count_records(group, records)
        group.last_offset, group.last_score = runs[-1].last_offset, last
        found.gaps.total_ms += max(0, last - begin) * weight  # Redis may have gone back, and its clocks with it

    def _add_pauses(self, found: ObservedGroups, groups: dict[bytes, SampledGroup], chunk: Chunk) -> None:
        """The gaps within runs were counted as short ones; those that are not go where they belong."""
        pauses, paused = chunk.pauses, chunk.paused
        if self.weight > 1:
            both = [(pause, member) for pause, member in zip(pauses, paused, strict=True) if member in groups]
            pauses, paused = [pause for pause, _ in both], [member for _, member in both]
        # All at once: one by one that takes several times as long.
        for bucket, count in Tally(map(partial(bisect_left, self.bounds_ms), pauses)).items():
            found.gaps.counts[bucket] += count * self.weight
        found.gaps.counts[0] -= len(pauses) * self.weight
        if pauses and max(pauses) > self.bounds.quiet_ms:
            quiet_ms = self.bounds.quiet_ms
            longer = Tally(member for pause, member in zip(pauses, paused, strict=True) if pause > quiet_ms)
            for member, count in longer.items():
                self._count_records(groups[member], count)

    def _count_records(self, group: SampledGroup, more: int) -> None:
        self._squares += (2 * group.records + more) * more
        self._records += more
        group.records += more

    # ---- records

    def emitted(self, partition: int, records: Sequence[Sealed], now_ms: int) -> ObservedGroups:
        """Takes note of records that the broker has acknowledged."""
        found = ObservedGroups.nothing(len(self.bounds_ms))
        groups = self._groups.setdefault(partition, {})
        if self.weight > 1:
            limit = ALL // self.weight
            records = [record for record in records if crc32(record.member) < limit]
        self._admit(groups, list(dict.fromkeys(record.member for record in records if record.member not in groups)))
        for record in records:
            group = groups.get(record.member)
            if group is None:
                continue  # it had to make room
            found.waits.add_record(record, now_ms, self.bounds_ms, self.weight)
            if record.last_offset <= group.closed_offset:
                continue  # made again, as Redis has lost the first one, or its acknowledgement came late
            if group.closed_ms is not None and record.first_offset > group.closed_offset:
                self._judge(found, group, record.first_event_ms)
            group.closed_ms, group.closed_offset = _closed_ms(record, self.bounds), record.last_offset
            group.is_open_again = group.last_offset > record.last_offset
        return found

    def _opened(self, found: ObservedGroups, group: SampledGroup, runs: Sequence[GroupRun]) -> None:
        """Judges a fold that follows the last record when its first event is found, not only with its own record."""
        for run in runs:
            if run.first_offset > group.closed_offset:
                self._judge(found, group, run.low_ms)
                return
            if run.last_offset > group.closed_offset:
                group.is_open_again = True  # a bound falls inside a run: the next record tells when its fold began
                return

    def _judge(self, found: ObservedGroups, group: SampledGroup, opened_ms: int) -> None:
        assert group.closed_ms is not None  # asked by the caller
        if opened_ms - group.closed_ms <= self.bounds.quiet_ms:
            found.split += self.weight
        group.closed_ms = None

    # ---- size

    def keep(self, partitions: Collection[int]) -> None:
        """Forgets the groups of all other partitions: somebody else folds them.

        How far such a partition was counted is kept: what is folded again should it come back is not counted again.
        """
        for gone in self._groups.keys() - set(partitions):
            del self._groups[gone]

    def _admit(self, groups: dict[bytes, SampledGroup], members: Collection[bytes]) -> None:
        """Takes groups into the sample; where they are too many, only those that are below a lower limit."""
        if not members or len(self) + len(members) <= self.most_groups:
            groups.update((member, SampledGroup()) for member in members)
            return
        self._forget_silent()
        # Room for more than these, so that it is seldom made.
        most = LEFT_OF_FULL * self.most_groups
        while len(self) + len(members) > most:
            self.weight *= 2
            self._records, self._squares = self._records / 2, self._squares / 2
            members = self._chosen(members)
            for watched in self._groups.values():
                _retain(watched, self._chosen(watched))
        groups.update((member, SampledGroup()) for member in members)

    def _forget_silent(self) -> None:
        """Forgets groups that have been silent for longer than the last bucket says: should they come back they count as begun.

        A longer window than that is not asked for, and for any shorter one a gap and a group that begins are both one more record.
        """
        for partition, watched in self._groups.items():
            oldest = self._clocks.get(partition, 0) - self.bounds_ms[-1]
            _retain(watched, [member for member, group in watched.items() if group.last_score >= oldest])


def _retain(groups: dict[bytes, SampledGroup], members: Iterable[bytes]) -> None:
    kept = {member: groups[member] for member in members}
    groups.clear()
    groups |= kept


def _closed_ms(record: Sealed, bounds: Bounds) -> int:
    """When a record was closed, in the time of its events; where that was on request, in the time of its partition."""
    if record.reason == "quiet":
        return record.last_event_ms + bounds.quiet_ms
    if record.reason == "max_hold":
        return record.first_event_ms + bounds.hold_ms
    return record.due_ms if record.reason == "flush" else record.last_event_ms


@dataclass(slots=True)
class Buckets:
    """Observations as a histogram takes them.

    Attributes:
        counts: For each bucket, those that are above its predecessor's bound; one more for all that are above the last bound.
        total_ms: Their sum.
    """

    counts: list[int]
    total_ms: int = 0

    def add_record(self, record: Sealed, now_ms: int, bounds_ms: Sequence[int], weight: int) -> None:
        """Adds, for each event of a record, the time from the event until now.

        Of the events of a record the first and the last time are known; those between are taken to be evenly spread.

        Args:
            record: The record, emitted now.
            now_ms: The present time.
            bounds_ms: Upper bounds of the buckets, inclusive.
            weight: For how many groups the group of the record stands.
        """
        events = record.events
        last = max(0, now_ms - record.last_event_ms)
        first = max(last, now_ms - record.first_event_ms)
        counted = 0
        end = bisect_left(bounds_ms, first)
        for bucket in range(bisect_left(bounds_ms, last), end):
            upto = max(1, min(events - 1, round(events * (bounds_ms[bucket] - last) / (first - last))))
            self.counts[bucket] += (upto - counted) * weight
            counted = upto
        self.counts[end] += (events - counted) * weight
        self.total_ms += events * (first + last) // 2 * weight


@dataclass(slots=True)
class ObservedGroups:
    """What is to be added to the figures; everything estimates what all groups would have said.

    Attributes:
        gaps: Gaps between the scores of neighbouring events of a group.
        waits: For each event of a record, the time from the event to the record.
        begun: Groups of which an event was seen for the first time.
        split: Folds that were opened within the quiet period after the fold before them was closed.
    """

    gaps: Buckets
    waits: Buckets
    begun: int = 0
    split: int = 0

    @classmethod
    def nothing(cls, bounds: int) -> ObservedGroups:
        """What is seen before anything is looked at; of a histogram with so many bounds."""
        empty = [0] * (bounds + 1)
        return cls(Buckets(empty), Buckets(empty.copy()))
