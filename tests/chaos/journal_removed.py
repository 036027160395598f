"""What workers say in their logs that a journal has removed, and whether it was to go: judged by the topic and the settings."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from streams_app.settings import JournalSettings
from tests.chaos.journal_judge import Event, Topic
from tests.chaos.journal_load import TOPIC

MAX_OVERHEAD: Final = 250
"""Bytes that Redis takes for an event beside what it has, at most: of a block of its own, with the row in it."""

_REMOVED: Final = re.compile(rf"removed a segment journal=\S+ source={TOPIC}-(\d+) offsets=(\d+)-(\d+) day=\S+ cause=(\w+)$", re.M)
_CLAIMED: Final = re.compile(rf"claimed journal=\S+ source={TOPIC}-(\d+) floor=(\d+) fence=-?\d+ state=(\w+)$", re.M)


class Removed:
    """The ranges that were removed, of each partition.

    Attributes:
        ends: Partition → last offsets of the ranges; one that begins anew ends what is before its begin.
        causes: Cause → how many segments, ``unsaid`` of workers that died before they said so.
        wrong: What was not to go, or did not come back.
    """

    def __init__(self, log: str, topic: Topic, journal: JournalSettings, now_ms: int, *, may_be_full: bool) -> None:
        self.ends: dict[int, set[int]] = {partition: set() for partition in topic}
        self.causes: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._topic = topic
        self._share = journal.share(len(topic))
        self._oldest_ms = now_ms - journal.keep_ms
        for text, first, last, cause in _REMOVED.findall(log):
            partition = int(text)
            self.causes[cause] += 1
            self._check(partition, int(first), int(last), cause, may_be_full=may_be_full)
            self.ends[partition].add(int(last))
        for text, floor, state in sorted(_CLAIMED.findall(log), key=lambda one: (one[2] == "kept", int(one[1]))):
            self._claimed(int(text), int(floor), is_new=state == "new")

    def begins(self, partition: int, floor: int) -> bool:
        """Whether a journal may begin at this offset by what was said."""
        return floor == 0 or floor - 1 in self.ends[partition]

    def _claimed(self, partition: int, floor: int, *, is_new: bool) -> None:
        if is_new:
            kept = (offset for offset, event in self._topic[partition].items() if event.time_ms >= self._oldest_ms)
            if floor > min(kept, default=0):
                self.wrong.append(f"partition {partition} began anew at {floor}, and is to keep events before that")
        elif not self.begins(partition, floor):
            # A worker may die, or lose the partition, when it has removed a segment and not said so.
            before = max((last for last in self.ends[partition] if last < floor), default=-1)
            self.causes["unsaid"] += 1
            self._check(partition, before + 1, floor - 1, "size", may_be_full=False)
        self.ends[partition].add(floor - 1)

    def _check(self, partition: int, first: int, last: int, cause: str, *, may_be_full: bool) -> None:
        events = self._topic[partition]
        where = f"offsets {first} to {last} of partition {partition} were removed ({cause})"
        if cause == "age" and any(event.time_ms > self._oldest_ms for offset, event in events.items() if first <= offset <= last):
            self.wrong.append(f"{where}, and hold younger events than the journal keeps")
        elif cause == "memory" and not may_be_full:
            self.wrong.append(f"{where}, and Redis was never full")
        elif cause == "size":
            most = sum(_max_bytes(event) for offset, event in events.items() if offset >= first)
            if most <= self._share:
                self.wrong.append(f"{where}, and all that followed takes {most} bytes at most of {self._share}")


def _max_bytes(event: Event) -> int:
    headers = sum(len(name) + len(content or b"") for name, content in event.headers)
    return 2 * len(event.key) + len(event.value or b"") + headers + MAX_OVERHEAD
