"""Removals of a journal that workers have logged, judged by the topic and the settings."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from streams_app.settings import JournalSettings
from tests.chaos.journal.judge import Event, Topic
from tests.chaos.journal.load import TOPIC

MAX_OVERHEAD: Final = 250
"""Maximum number of bytes that Redis needs for an event beside its contents: those of a separate block and its row."""

_REMOVED: Final = re.compile(rf"removed a segment journal=\S+ source={TOPIC}-(\d+) offsets=(\d+)-(\d+) day=\S+ cause=(\w+)$", re.M)
_CLAIMED: Final = re.compile(rf"claimed journal=\S+ source={TOPIC}-(\d+) floor=(\d+) fence=-?\d+ state=(\w+)$", re.M)


class Removals:
    """The removed ranges of each partition.

    Attributes:
        ends: Partition → last offsets of the ranges; a journal that is created again counts as the removal of all earlier offsets.
        causes: Cause → number of segments; ``unreported``: the worker died before it logged the removal.
        wrong: Removals that were not permitted.
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
        """Whether a journal may begin at this offset after the reported removals."""
        return floor == 0 or floor - 1 in self.ends[partition]

    def _claimed(self, partition: int, floor: int, *, is_new: bool) -> None:
        if is_new:
            kept = (offset for offset, event in self._topic[partition].items() if event.time_ms >= self._oldest_ms)
            if floor > min(kept, default=0):
                self.wrong.append(f"partition {partition} was created again at {floor}, but must keep earlier events")
        elif not self.begins(partition, floor):
            # A worker may die, or lose the partition, after it has removed a segment and before it logs that.
            before = max((last for last in self.ends[partition] if last < floor), default=-1)
            self.causes["unreported"] += 1
            self._check(partition, before + 1, floor - 1, "size", may_be_full=False)
        self.ends[partition].add(floor - 1)

    def _check(self, partition: int, first: int, last: int, cause: str, *, may_be_full: bool) -> None:
        events = self._topic[partition]
        where = f"offsets {first} to {last} of partition {partition} were removed ({cause})"
        if cause == "age" and any(event.time_ms > self._oldest_ms for offset, event in events.items() if first <= offset <= last):
            self.wrong.append(f"{where}, with events that the journal must keep")
        elif cause == "memory" and not may_be_full:
            self.wrong.append(f"{where}, but Redis was never full")
        elif cause == "size":
            most = sum(_max_bytes(event) for offset, event in events.items() if offset >= first)
            if most <= self._share:
                self.wrong.append(f"{where}, but all later events take at most {most} bytes of {self._share}")


def _max_bytes(event: Event) -> int:
    headers = sum(len(name) + len(content or b"") for name, content in event.headers)
    return 2 * len(event.key) + len(event.value or b"") + headers + MAX_OVERHEAD
