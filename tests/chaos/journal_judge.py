"""What readers may have been given in a chaos run of journals, from the topic alone."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from streams_app.journal.reading.entries import Entry, Gap


class Event(NamedTuple):
    """A record as the topic has it; ``key`` is empty where it has none."""

    key: bytes
    time_ms: int
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


Topic = Mapping[int, Mapping[int, Event]]
"""Partition → offset → event."""


@dataclass(slots=True)
class Reading:
    """What a reader was given.

    Attributes:
        key: Of its events.
        after: Partition → cursor at which it began.
        items: In the order in which they came.
        up_to: Partition → offset up to which it was told that it has had everything, beyond the last item.
        floors: Partition → first offset that was kept shortly before it began there, for those of which it named no cursor: until
            its first item it moves with what is removed.
        since_ms: Of those it began with the first entry that is not older.
        fences: Partition → its fence shortly before the reading began. If the key had no entry that is not older by then, the
            first one may be older, but only if it was filed later: beyond this offset.
    """

    key: bytes
    after: dict[int, int]
    items: list[Entry | Gap] = field(default_factory=list)
    up_to: dict[int, int] = field(default_factory=dict)
    floors: dict[int, int] = field(default_factory=dict)
    since_ms: int | None = None
    fences: dict[int, int] = field(default_factory=dict)

    def position(self, partition: int) -> int:
        """Up to which offset of a partition it is; -1 where nothing says so."""
        passed = (one.offset if isinstance(one, Entry) else one.last for one in self.items if one.partition == partition)
        return max(self.after.get(partition, -1), self.up_to.get(partition, -1), *passed)


@dataclass
class Judge:
    """Compares what readers were given with the topic.

    Attributes:
        topic: Everything that it holds.
        removed: Partition → last offsets of the ranges that the journal says it has removed; no gap ends anywhere else.
        floors: Partition → what was removed at the end ends before this offset; None: Redis has lost data, and the journal may
            have removed more before.
        wrong: What breaks a promise.
        entries: How many were compared byte for byte.
        readings: How many of them.
        gaps: How many ranges readers were told are gone.
    """

    topic: Topic
    removed: Mapping[int, Collection[int]]
    floors: Mapping[int, int] | None = None
    wrong: list[str] = field(default_factory=list)
    entries: int = 0
    readings: int = 0
    gaps: int = 0

    def __post_init__(self) -> None:
        self._removed = {partition: sorted(ends) for partition, ends in self.removed.items()}
        self._offsets: dict[tuple[int, bytes], list[int]] = {}
        for partition, events in self.topic.items():
            for offset in sorted(events):
                self._offsets.setdefault((partition, events[offset].key), []).append(offset)

    @property
    def keys(self) -> set[bytes]:
        """All keys of the topic."""
        return {key for _, key in self._offsets}

    def last(self, reading: Reading, partition: int) -> int:
        """Offset of the last event that a reading is to be given; -1: there is none."""
        had = any(isinstance(one, Entry) and one.partition == partition for one in reading.items)
        after = reading.after.get(partition, reading.floors.get(partition, 0) - 1)
        expected = self._expected(reading.key, partition, after, None if had or partition in reading.after else reading.since_ms)
        return expected[-1] if expected else -1

    def require(self, readings: int, entries: int) -> None:
        """Finds a run wrong that has judged next to nothing."""
        if self.readings < readings or self.entries < entries:
            self.wrong.append(
                f"only {self.readings} readings and {self.entries} entries were judged, {readings} and {entries} are the least"
            )

    def judge(self, reading: Reading) -> None:
        """One reading: each event of its key in (cursor, position], once, in order, minus what it was told is gone."""
        self.readings += 1
        for partition in self.topic:
            items = [one for one in reading.items if one.partition == partition]
            self._judge(reading, partition, items)
        if strange := {one.partition for one in reading.items} - self.topic.keys():
            self.wrong.append(f"{reading.key!r} has events of partitions {sorted(strange)}, which the topic does not have")

    def _judge(self, reading: Reading, partition: int, items: Sequence[Entry | Gap]) -> None:
        at = reading.after.get(partition)
        since_ms = reading.since_ms if at is None else None
        for item in items:
            first = item.offset if isinstance(item, Entry) else item.first
            where = f"{_begin(reading)} at {partition}-{first}, and had {partition}-{at} before"
            if at is not None and first <= at:
                self.wrong.append(f"{where}: it came twice, or out of order")
            if isinstance(item, Entry):
                self._compare(reading.key, item, where)
                if since_ms is not None and item.at_ms < since_ms and not self._may_be_older(reading, item):
                    self.wrong.append(f"{where}: the first is older than what was asked for")
            else:
                self._check_gap(item, where)
            self._missing(reading, partition, at, first - 1, since_ms)
            since_ms = None if isinstance(item, Entry) else since_ms
            at = max(-1 if at is None else at, item.offset if isinstance(item, Entry) else item.last)
        if (up_to := reading.up_to.get(partition)) is not None:
            self._missing(reading, partition, at, up_to, since_ms)

    def _may_be_older(self, reading: Reading, first: Entry) -> bool:
        """Return whether the first entry may be older than the moment. Redis that has lost data files entries again."""
        return self.floors is None or first.offset > reading.fences.get(first.partition, -1)

    def _compare(self, key: bytes, item: Entry, where: str) -> None:
        self.entries += 1
        event = self.topic[item.partition].get(item.offset)
        if event is None or event.key != key:
            self.wrong.append(f"{where}: the topic has no such event of the key there")
        elif (event.time_ms, event.value, event.headers) != (item.at_ms, item.value, item.headers):
            self.wrong.append(f"{where}: it has other bytes than in the topic")

    def _check_gap(self, gap: Gap, where: str) -> None:
        self.gaps += 1
        if gap.why != "removed":
            self.wrong.append(f"{where}: offsets up to {gap.last} are said to be gone ({gap.why}), the topic has them")
        elif gap.last not in self.removed.get(gap.partition, ()):
            self.wrong.append(f"{where}: offsets up to {gap.last} are said to be removed, and no range that was removed ends there")
        elif self.floors is not None and gap.last >= self.floors[gap.partition]:
            floor = self.floors[gap.partition]
            self.wrong.append(f"{where}: offsets up to {gap.last} are said to be removed, the journal begins at {floor}")

    def _missing(self, reading: Reading, partition: int, after: int | None, up_to: int, since_ms: int | None) -> None:
        """Finds events of the key in (after, up_to], of which there must be none; None: from the floor on."""
        if after is None and partition not in reading.floors:
            return
        after = self._risen(partition, reading.floors[partition], up_to) - 1 if after is None else after
        expected = self._expected(reading.key, partition, after, since_ms)
        if missing := expected[: bisect_right(expected, up_to)]:
            self.wrong.append(
                f"{_begin(reading)} lacks {len(missing)} events in ({after}, {up_to}] of partition {partition}, of which "
                f"nobody said that they are gone: {missing[:10]}"
            )

    def _risen(self, partition: int, floor: int, up_to: int) -> int:
        """Where a floor may be by the time that something is read up to an offset."""
        removed = self._removed.get(partition, [])
        count = bisect_right(removed, up_to)
        return max(floor, removed[count - 1] + 1) if count else floor

    def _expected(self, key: bytes, partition: int, after: int, since_ms: int | None) -> Sequence[int]:
        """Offsets of the events of a key behind an offset, from the first one on that is not older."""
        offsets, events = self._offsets.get((partition, key), []), self.topic[partition]
        begin = bisect_right(offsets, after)
        if since_ms is not None:
            begin = next((at for at in range(begin, len(offsets)) if events[offsets[at]].time_ms >= since_ms), len(offsets))
        return offsets[begin:]


def _begin(reading: Reading) -> str:
    since = "" if reading.since_ms is None else f" since {reading.since_ms}"
    return f"{reading.key!r}, which began at {reading.after}, floors {reading.floors}{since},"
