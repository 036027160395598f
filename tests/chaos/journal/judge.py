"""Judges what readers received in a chaos run of journals, by the topic alone."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from streams_app.journal.reading.entries import Entry, Gap


class Event(NamedTuple):
    """A record of the topic; ``key`` is empty if it has none."""

    key: bytes
    time_ms: int
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


Topic = Mapping[int, Mapping[int, Event]]
"""Partition → offset → event."""


@dataclass(slots=True)
class Reading:
    """What a reader received.

    Attributes:
        key: Key of its events.
        after: Partition → cursor at which it began.
        items: Entries and gaps, in the order of receipt.
        up_to: Partition → offset up to which it has received everything, as reported beyond the last item.
        floors: Partition → first stored offset shortly before it began, for partitions without a cursor: until the first item, it
            rises with removals.
        since_ms: In these partitions, the reading began with the first entry that is not older.
        fences: Partition → its fence shortly before the reading began. If the key had no entry that is not older by then, the
            first one may be older, but only if it was stored later, beyond this offset.
    """

    key: bytes
    after: dict[int, int]
    items: list[Entry | Gap] = field(default_factory=list)
    up_to: dict[int, int] = field(default_factory=dict)
    floors: dict[int, int] = field(default_factory=dict)
    since_ms: int | None = None
    fences: dict[int, int] = field(default_factory=dict)

    def position(self, partition: int) -> int:
        """Return the offset that it has reached in a partition; -1 if unknown."""
        passed = (one.offset if isinstance(one, Entry) else one.last for one in self.items if one.partition == partition)
        return max(self.after.get(partition, -1), self.up_to.get(partition, -1), *passed)


@dataclass
class Judge:
    """Compares what readers received with the topic.

    Attributes:
        topic: All events.
        removed: Partition → last offsets of the ranges that the journal reported as removed; no gap ends anywhere else.
        floors: Partition → first stored offset at the end, before which all removals end; None: Redis has lost data, and the
            journal may have removed more before.
        wrong: Violations.
        entries: Number of entries that were compared byte for byte.
        readings: Number of readings.
        gaps: Number of removed ranges that readers received.
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
        """Return the offset of the last event that a reading must receive; -1 if there is none."""
        had = any(isinstance(one, Entry) and one.partition == partition for one in reading.items)
        after = reading.after.get(partition, reading.floors.get(partition, 0) - 1)
        expected = self._expected(reading.key, partition, after, None if had or partition in reading.after else reading.since_ms)
        return expected[-1] if expected else -1

    def require(self, readings: int, entries: int) -> None:
        """Report a violation if too little was judged."""
        if self.readings < readings or self.entries < entries:
            self.wrong.append(
                f"only {self.readings} readings and {self.entries} entries were judged, "
                f"at least {readings} and {entries} are required"
            )

    def judge(self, reading: Reading) -> None:
        """Judge one reading: it must have each event of its key in (cursor, position] once and in order, or a gap."""
        self.readings += 1
        for partition in self.topic:
            items = [one for one in reading.items if one.partition == partition]
            self._judge(reading, partition, items)
        if unknown := {one.partition for one in reading.items} - self.topic.keys():
            self.wrong.append(f"{reading.key!r} has events of partitions {sorted(unknown)}, which the topic does not have")

    def _judge(self, reading: Reading, partition: int, items: Sequence[Entry | Gap]) -> None:
        at = reading.after.get(partition)
        since_ms = reading.since_ms if at is None else None
        for item in items:
            first = item.offset if isinstance(item, Entry) else item.first
            where = f"{_begin(reading)} at {partition}-{first}, after {partition}-{at}"
            if at is not None and first <= at:
                self.wrong.append(f"{where}: received twice, or out of order")
            if isinstance(item, Entry):
                self._compare(reading.key, item, where)
                if since_ms is not None and item.at_ms < since_ms and not self._may_be_older(reading, item):
                    self.wrong.append(f"{where}: the first entry is older than requested")
            else:
                self._check_gap(item, where)
            self._missing(reading, partition, at, first - 1, since_ms)
            if since_ms is not None and (isinstance(item, Entry) or self._has_begun(reading.key, item, at, since_ms)):
                since_ms = None
            at = max(-1 if at is None else at, item.offset if isinstance(item, Entry) else item.last)
        if (up_to := reading.up_to.get(partition)) is not None:
            self._missing(reading, partition, at, up_to, since_ms)

    def _has_begun(self, key: bytes, gap: Gap, after: int | None, since_ms: int) -> bool:
        """Whether a gap contains an event of the key at or after the requested time. The next entry may then be a late event."""
        events = self.topic[gap.partition].items()
        first = -1 if after is None else after
        return any(event.key == key and event.time_ms >= since_ms for offset, event in events if first < offset <= gap.last)

    def _may_be_older(self, reading: Reading, first: Entry) -> bool:
        """Whether the first entry may be older than requested. After a loss of data in Redis, entries are stored again."""
        return self.floors is None or first.offset > reading.fences.get(first.partition, -1)

    def _compare(self, key: bytes, item: Entry, where: str) -> None:
        self.entries += 1
        event = self.topic[item.partition].get(item.offset)
        if event is None or event.key != key:
            self.wrong.append(f"{where}: the topic has no such event of the key there")
        elif (event.time_ms, event.value, event.headers) != (item.at_ms, item.value, item.headers):
            self.wrong.append(f"{where}: its bytes differ from those in the topic")

    def _check_gap(self, gap: Gap, where: str) -> None:
        self.gaps += 1
        if gap.why != "removed":
            self.wrong.append(f"{where}: offsets up to {gap.last} are reported as lost ({gap.why}), but the topic has them")
        elif gap.last not in self.removed.get(gap.partition, ()):
            self.wrong.append(f"{where}: offsets up to {gap.last} are reported as removed, but no removed range ends there")
        elif self.floors is not None and gap.last >= (floor := self.floors.get(gap.partition, gap.last + 1)):
            self.wrong.append(f"{where}: offsets up to {gap.last} are reported as removed, but the journal begins at {floor}")

    def _missing(self, reading: Reading, partition: int, after: int | None, up_to: int, since_ms: int | None) -> None:
        """Report events of the key in (after, up_to] as missing; ``after`` None: from the floor on."""
        if after is None and partition not in reading.floors:
            return
        after = self._risen(partition, reading.floors[partition], up_to) - 1 if after is None else after
        expected = self._expected(reading.key, partition, after, since_ms)
        if missing := expected[: bisect_right(expected, up_to)]:
            self.wrong.append(
                f"{_begin(reading)} lacks {len(missing)} events in ({after}, {up_to}] of partition {partition}, "
                f"without a reported gap: {missing[:10]}"
            )

    def _risen(self, partition: int, floor: int, up_to: int) -> int:
        """Return the highest possible floor at the time when an offset is read."""
        removed = self._removed.get(partition, [])
        count = bisect_right(removed, up_to)
        return max(floor, removed[count - 1] + 1) if count else floor

    def _expected(self, key: bytes, partition: int, after: int, since_ms: int | None) -> Sequence[int]:
        """Return the offsets of the events of a key after an offset, from the first one on that is not older."""
        offsets, events = self._offsets.get((partition, key), []), self.topic[partition]
        begin = bisect_right(offsets, after)
        if since_ms is not None:
            begin = next((at for at in range(begin, len(offsets)) if events[offsets[at]].time_ms >= since_ms), len(offsets))
        return offsets[begin:]


def _begin(reading: Reading) -> str:
    since = "" if reading.since_ms is None else f" since {reading.since_ms}"
    return f"{reading.key!r}, which began at {reading.after}, floors {reading.floors}{since},"
