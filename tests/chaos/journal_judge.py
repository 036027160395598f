"""What readers may have been given in a chaos run of journals, from the topic alone."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
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
        after: Partition → cursor at which it began; where it names none, nothing is missed before the first item.
        items: In the order in which they came.
        up_to: Partition → offset up to which it was told that it has had everything, beyond the last item.
    """

    key: bytes
    after: dict[int, int]
    items: list[Entry | Gap] = field(default_factory=list)
    up_to: dict[int, int] = field(default_factory=dict)

    def position(self, partition: int) -> int:
        """Up to which offset of a partition it is."""
        passed = (one.offset if isinstance(one, Entry) else one.last for one in self.items if one.partition == partition)
        return max(self.after.get(partition, -1), self.up_to.get(partition, -1), *passed)


@dataclass
class Judge:
    """Compares what readers were given with the topic.

    Attributes:
        topic: Everything that it holds.
        floors: Partition → what was removed at the end ends before this offset; None: Redis has lost data, nobody knows how far
            the journal had removed before.
        wrong: What breaks a promise.
        entries: How many were compared byte for byte.
        readings: How many of them.
        gaps: How many ranges readers were told are gone.
    """

    topic: Topic
    floors: Mapping[int, int] | None = None
    wrong: list[str] = field(default_factory=list)
    entries: int = 0
    readings: int = 0
    gaps: int = 0

    def __post_init__(self) -> None:
        self._offsets: dict[tuple[int, bytes], list[int]] = {}
        for partition, events in self.topic.items():
            for offset in sorted(events):
                self._offsets.setdefault((partition, events[offset].key), []).append(offset)

    @property
    def keys(self) -> set[bytes]:
        """All keys of the topic."""
        return {key for _, key in self._offsets}

    def last(self, partition: int, key: bytes) -> int:
        """Offset of the last event of a key in a partition; -1: it has none."""
        return self._offsets.get((partition, key), [-1])[-1]

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
        for item in items:
            first = item.offset if isinstance(item, Entry) else item.first
            where = f"{reading.key!r} at {partition}-{first}, which began at {reading.after} and had {partition}-{at} before"
            if at is not None and first <= at:
                self.wrong.append(f"{where}: it came twice, or out of order")
            if isinstance(item, Entry):
                self._compare(reading.key, item, where)
            else:
                self._check_gap(item, where)
            if at is not None:
                self._missing(reading, partition, at, first - 1)
            at = max(-1 if at is None else at, item.offset if isinstance(item, Entry) else item.last)
        up_to = reading.up_to.get(partition)
        if at is not None and up_to is not None:
            self._missing(reading, partition, at, up_to)

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
        elif self.floors is not None and gap.last >= self.floors[gap.partition]:
            floor = self.floors[gap.partition]
            self.wrong.append(f"{where}: offsets up to {gap.last} are said to be removed, the journal begins at {floor}")

    def _missing(self, reading: Reading, partition: int, after: int, up_to: int) -> None:
        """Finds events of the key in (after, up_to], of which there must be none."""
        offsets = self._offsets.get((partition, reading.key), [])
        missing = offsets[bisect_right(offsets, after) : bisect_left(offsets, up_to + 1)]
        if missing:
            self.wrong.append(
                f"{reading.key!r} of partition {partition} lacks {len(missing)} events in ({after}, {up_to}], of which nobody said "
                f"that they are gone: {missing[:10]}; it began at {reading.after}"
            )
