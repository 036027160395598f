"""Estimates from a sample of groups how well a fold's window suits them (pure).

It measures the gaps between events, the time from each event to the acknowledgement of its record, and how often a group reopens
soon after it has closed.
For the latter, a worker must remember groups that have closed. The number of such groups has no limit, so only a sample is
remembered: the groups whose hash is below a limit. The hash of a group is the same in every worker. If the sample becomes too
large, the limit is halved, and each remaining group stands for twice as many groups. Sums are estimates for all groups; they are
exact until the limit is halved for the first time.
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
from streams_app.folding.core.closing import LEADING, Bounds
from streams_app.folding.core.record import SealedGroup

MAX_GROUPS: Final = 1_024
"""Maximum number of groups remembered for one fold: 0.7 MB with keys of 20 bytes, 1.2 MB with the longest keys.

In each chunk, the runs of at most this many groups are evaluated. An emitted record costs 2 to 8 us if its group is in the sample,
otherwise less than 1 us. The cost grows with the time the group was open, because its events are spread over more buckets.
"""

LEFT_OF_FULL: Final = 0.75
"""A full sample is reduced to at most this fraction of its maximum size, so that this is rarely necessary."""

ALL: Final = 2**32
"""Limit that is above every hash, so that all groups are sampled."""

NEVER: Final = -1
"""Last score and last offset of a group of which records were seen, but no event."""


class SampledGroup(msgspec.Struct, gc=False):
    """State of one sampled group.

    After the group closes, it is checked once whether it reopens within the quiet period: ``closed_ms`` is compared with the time
    of its next event.

    Attributes:
        records: Number of records that the group would have had if only silence closed groups.
        closed_ms: Time at which the group last closed, in ms. None if no check is due: since the last check, no record of the
            group was acknowledged.
        closed_offset: Last offset of its last acknowledged record.
        is_reopened: Whether the group has events after its last acknowledged record, but the time of the first of them is unknown.
            Either they were counted before that record was acknowledged, or they are in one run with earlier events. The check
            then waits for the next record, which contains this time.
    """

    last_offset: int = NEVER
    last_score: int = NEVER
    records: int = 0
    closed_ms: int | None = None
    closed_offset: int = NEVER
    is_reopened: bool = False


@dataclass(slots=True)
class GroupSample:
    """The sampled groups of one fold, in all partitions of a worker.

    Attributes:
        bounds_ms: Upper bounds of the histogram buckets in ms, inclusive. The first is :data:`.PAUSE_MS`, because shorter gaps are
            not distinguished.
        weight: Number of groups that each group of the sample stands for.
    """

    bounds: Bounds
    bounds_ms: Sequence[int]
    max_groups: int = MAX_GROUPS
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
        return 1 / self.weight

    @property
    def error(self) -> float:
        """Return the relative standard error of the estimated sum of :attr:`SampledGroup.records` (Horvitz and Thompson)."""
        return math.sqrt(self._squares * (1 - self.share)) / self._records if self._records else 0.0

    # ---- events

    def folded(self, partition: int, chunk: Chunk) -> ObservedGroups:
        """Count the events of a folded chunk; return the observations that the chunk adds.

        If other workers have folded offsets since the last chunk, the groups of the partition are dropped, because the gaps in
        between are unknown. Offsets that are folded again, because Redis lost them, are not counted again. If part of a chunk was
        counted before, the chunk is not counted, and the groups of the partition are dropped.
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
            if group is None:  # dropped to make room, after a long silence
                group = groups[member] = SampledGroup()
            self._add(found, group, chunk.groups[member])
        self._add_pauses(found, groups, chunk)
        return found

    def _watched(self, groups: dict[bytes, SampledGroup], chunk: Chunk) -> Iterable[bytes]:
        """Return the sampled groups of a chunk. New groups are added to the sample first, because that may change the weight."""
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
        if group.closed_ms is not None and not group.is_reopened:
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
        found.gaps.total_ms += max(0, last - begin) * weight  # Redis may have been rolled back, and its clocks with it

    def _add_pauses(self, found: ObservedGroups, groups: dict[bytes, SampledGroup], chunk: Chunk) -> None:
        """Move the long gaps within runs, which were counted in the first bucket, to the buckets of their lengths.

        A gap that is longer than the quiet period also adds a record to its group.
        """
        pauses, paused = chunk.pauses, chunk.paused
        if self.weight > 1:
            both = [(pause, member) for pause, member in zip(pauses, paused, strict=True) if member in groups]
            pauses, paused = [pause for pause, _ in both], [member for _, member in both]
        # One call per gap would take several times as long.
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

    def emitted(self, partition: int, records: Sequence[SealedGroup], now_ms: int) -> ObservedGroups:
        """Count acknowledged records of a partition; return the observations that they add."""
        found = ObservedGroups.nothing(len(self.bounds_ms))
        groups = self._groups.setdefault(partition, {})
        if self.weight > 1:
            limit = ALL // self.weight
            records = [record for record in records if crc32(record.member) < limit]
        self._admit(groups, list(dict.fromkeys(record.member for record in records if record.member not in groups)))
        for record in records:
            group = groups.get(record.member)
            if group is None:
                continue  # dropped to make room
            found.waits.add_record(record, now_ms, self.bounds_ms, self.weight)
            if record.reason == LEADING:
                continue  # its group stays open
            if record.last_offset <= group.closed_offset:
                continue  # a duplicate: Redis lost the first one, or the acknowledgement came late
            if group.closed_ms is not None and record.first_offset > group.closed_offset:
                self._judge(found, group, record.first_event_ms)
            group.closed_ms, group.closed_offset = _closed_ms(record, self.bounds), record.last_offset
            group.is_reopened = group.last_offset > record.last_offset
        return found

    def _opened(self, found: ObservedGroups, group: SampledGroup, runs: Sequence[GroupRun]) -> None:
        for run in runs:
            if run.first_offset > group.closed_offset:
                self._judge(found, group, run.low_ms)
                return
            if run.last_offset > group.closed_offset:
                group.is_reopened = True  # closed in the middle of a run: the next record shows when it reopened
                return

    def _judge(self, found: ObservedGroups, group: SampledGroup, opened_ms: int) -> None:
        assert group.closed_ms is not None  # checked by the caller
        if opened_ms - group.closed_ms <= self.bounds.quiet_ms:
            found.split += self.weight
        group.closed_ms = None

    # ---- size

    def keep(self, partitions: Collection[int]) -> None:
        """Drop the sampled groups of all partitions except these, because other workers fold the others now.

        The offset up to which a dropped partition was counted is kept, so that nothing is counted twice if the partition returns.
        """
        for gone in self._groups.keys() - set(partitions):
            del self._groups[gone]

    def _admit(self, groups: dict[bytes, SampledGroup], members: Collection[bytes]) -> None:
        """Add groups to the sample; make room by dropping silent groups, then by halving the share."""
        if not members or len(self) + len(members) <= self.max_groups:
            groups.update((member, SampledGroup()) for member in members)
            return
        self._forget_silent()
        # Make room for more groups than these, so that this happens rarely.
        most = LEFT_OF_FULL * self.max_groups
        while len(self) + len(members) > most:
            self.weight *= 2
            self._records, self._squares = self._records / 2, self._squares / 2
            members = self._chosen(members)
            for watched in self._groups.values():
                _retain(watched, self._chosen(watched))
        groups.update((member, SampledGroup()) for member in members)

    def _forget_silent(self) -> None:
        """Drop groups that were silent for longer than the last bucket bound; a group that returns counts as new.

        This does not change the estimates. They are made only for windows up to that bound, and for these, a gap beyond the bound
        and a new group both add one record.
        """
        for partition, watched in self._groups.items():
            oldest = self._clocks.get(partition, 0) - self.bounds_ms[-1]
            _retain(watched, [member for member, group in watched.items() if group.last_score >= oldest])


def _retain(groups: dict[bytes, SampledGroup], members: Iterable[bytes]) -> None:
    kept = {member: groups[member] for member in members}
    groups.clear()
    groups |= kept


def _closed_ms(record: SealedGroup, bounds: Bounds) -> int:
    """Return when the group of a record closed, by the timestamps of its events; for ``flush``, by the partition clock."""
    if record.reason == "quiet":
        return record.last_event_ms + bounds.quiet_ms
    if record.reason == "max_hold":
        return record.first_event_ms + bounds.hold_ms
    return record.due_ms if record.reason == "flush" else record.last_event_ms


@dataclass(slots=True)
class Buckets:
    """Observations of a duration in ms, by bucket of a histogram; the last bucket is for observations above the last bound."""

    counts: list[int]
    total_ms: int = 0

    def add_record(self, record: SealedGroup, now_ms: int, bounds_ms: Sequence[int], weight: int) -> None:
        """Add, for each event of a record, the time from its timestamp to ``now_ms``.

        Only the times of the first and the last event are known; the others are assumed to be evenly spread between them.
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
    """The observations that a chunk or a batch of records adds to the metrics; all are estimates for all groups.

    Attributes:
        waits: For each event of a record, the time from the event until the record was acknowledged.
        split: Number of times that a group reopened within the quiet period after it had closed.
    """

    gaps: Buckets
    waits: Buckets
    begun: int = 0
    split: int = 0

    @classmethod
    def nothing(cls, bounds: int) -> ObservedGroups:
        empty = [0] * (bounds + 1)
        return cls(Buckets(empty), Buckets(empty.copy()))
