"""A range of records as parts that one script each applies (pure).

Of what a part does to one item only what it comes to is kept: whether the item is removed first, and the put of the newest time
after that. So it does not matter where a range is cut.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from streams_app.delivery.rejected_event import RejectedEvent
from streams_app.errors import BadEventError
from streams_app.live.core.decide import Put, Removal, ViewRecord, ViewRule
from streams_app.live.core.state import Item

MAX_EVENTS: Final = 1_000
MAX_PAGES: Final = 500
"""What one part has, at most: some milliseconds of Redis."""


class Change(NamedTuple):
    """What a part of the log does to one page: removals first.

    Attributes:
        page: Its name.
        removed: Items that leave.
        puts: Items that come, or are moved.
    """

    page: str
    removed: Sequence[str]
    puts: Sequence[Item]


@dataclass(slots=True)
class PageChange:
    """What a part does to one page, while it is read.

    Attributes:
        removed: Items that leave, in the order of the log.
        puts: Item → its put, of those that come after their last removal.
    """

    removed: dict[str, None] = field(default_factory=dict)
    puts: dict[str, Item] = field(default_factory=dict)

    def put(self, item: Item) -> None:
        """Of puts of one item the newest one counts, of those of one time the last."""
        present = self.puts.get(item.item)
        if present is None or present.time_ms <= item.time_ms:
            self.puts[item.item] = item

    def remove(self, item: str) -> None:
        """Takes back what was put before, in this part and in those before it."""
        self.puts.pop(item, None)
        self.removed[item] = None


@dataclass(slots=True)
class ViewBatch:
    """A part of a range.

    Attributes:
        to: Its last offset.
        pages: Page → what happens to it.
        refused: Records that become dead letters.
        counts: ``put``, ``removed``, ``other`` and ``refused`` → records.
        events: Records.
        last: The last of them.
    """

    to: int
    pages: dict[str, PageChange] = field(default_factory=dict)
    refused: list[RejectedEvent] = field(default_factory=list)
    counts: Tally[str] = field(default_factory=Tally)
    events: int = 0
    last: ViewRecord | None = None

    @property
    def changes(self) -> list[Change]:
        """As the script takes them."""
        return [Change(page, list(change.removed), list(change.puts.values())) for page, change in self.pages.items()]

    def add(self, decider: ViewRule, partition: int, record: ViewRecord, now_ms: int) -> None:
        """Takes the next record."""
        self.to, self.last = record.offset, record
        self.events += 1
        try:
            meaning = decider.decide(partition, record, now_ms)
        except BadEventError as error:
            self.refused.append(RejectedEvent(record, error.reason, error.detail))
            self.counts["refused"] += 1
            return
        if isinstance(meaning, Put):
            self.pages.setdefault(meaning.page, PageChange()).put(meaning.item)
            self.counts["put"] += 1
        elif isinstance(meaning, Removal):
            self.pages.setdefault(meaning.page, PageChange()).remove(meaning.item)
            self.counts["removed"] += 1
        else:
            self.counts["other"] += 1


def view_batches(decider: ViewRule, partition: int, records: Sequence[ViewRecord], end: int, now_ms: int) -> Iterator[ViewBatch]:
    """The parts of a range, in order; the last one ends at the end of the range, also where there is no record.

    Args:
        decider: Of the view.
        partition: Of the records.
        records: In offset order.
        end: The offset after the range.
        now_ms: Wall clock.
    """
    part = ViewBatch(end - 1)
    for record in records:
        if part.events >= MAX_EVENTS or len(part.pages) >= MAX_PAGES:
            yield part
            part = ViewBatch(end - 1)
        part.add(decider, partition, record, now_ms)
    part.to = end - 1
    yield part
