"""Splits a range of records into batches, each of which one script call applies (pure).

A batch contains the combined effect of its records on each item: whether the item is removed, and the newest put after the last
removal. The resulting state does not depend on where a range is split, unless a page exceeds ``max_items``
and items of it are removed.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from streams_app.delivery.batch import SourceRecordWithHeaders
from streams_app.delivery.rejected_event import RejectedEvent
from streams_app.errors import BadEventError
from streams_app.live.core.record_effects import Put, Removal, ViewRule
from streams_app.live.core.state import Item

MAX_EVENTS: Final = 1_000
MAX_PAGES: Final = 500
"""Maximum number of pages in a batch. With :data:`MAX_EVENTS`, it ensures that a script blocks Redis for some milliseconds only."""


class Change(NamedTuple):
    """The effect of a batch on one page. Removals are applied before puts."""

    page: str
    removed: Sequence[str]
    puts: Sequence[Item]


@dataclass(slots=True)
class PageChange:
    """Collects the effect of a batch on one page: the removed items in log order, and the puts after the last removal of each."""

    removed: dict[str, None] = field(default_factory=dict)
    puts: dict[str, Item] = field(default_factory=dict)

    def put(self, item: Item) -> None:
        """Add a put. Of several puts of an item, the one with the newest time counts; if times are equal, the last one."""
        present = self.puts.get(item.item)
        if present is None or present.time_ms <= item.time_ms:
            self.puts[item.item] = item

    def remove(self, item: str) -> None:
        """Add a removal, which also cancels an earlier put of the item in this batch."""
        self.puts.pop(item, None)
        self.removed[item] = None


@dataclass(slots=True)
class ViewBatch:
    """The combined effect of consecutive records of a partition, which one call of the script *apply* writes.

    Attributes:
        to: Last offset of the batch.
        rejected: Records that become dead letters.
        counts: Number of records by effect: ``put``, ``removed``, ``refused`` for dead letters, and ``other`` for ignored records.
    """

    to: int
    pages: dict[str, PageChange] = field(default_factory=dict)
    rejected: list[RejectedEvent] = field(default_factory=list)
    counts: Tally[str] = field(default_factory=Tally)
    events: int = 0
    last: SourceRecordWithHeaders | None = None

    @property
    def changes(self) -> list[Change]:
        return [Change(page, list(change.removed), list(change.puts.values())) for page, change in self.pages.items()]

    def add(self, rule: ViewRule, partition: int, record: SourceRecordWithHeaders, now_ms: int) -> None:
        """Evaluate the next record, and add its effect to the batch; if it becomes a dead letter, add it to :attr:`rejected`."""
        self.to, self.last = record.offset, record
        self.events += 1
        try:
            effect = rule.effect_of(partition, record, now_ms)
        except BadEventError as error:
            self.rejected.append(RejectedEvent(record, error.reason, error.detail))
            self.counts["refused"] += 1
            return
        if isinstance(effect, Put):
            self.pages.setdefault(effect.page, PageChange()).put(effect.item)
            self.counts["put"] += 1
        elif isinstance(effect, Removal):
            self.pages.setdefault(effect.page, PageChange()).remove(effect.item)
            self.counts["removed"] += 1
        else:
            self.counts["other"] += 1


def view_batches(
    rule: ViewRule, partition: int, records: Sequence[SourceRecordWithHeaders], end: int, now_ms: int
) -> Iterator[ViewBatch]:
    """Yield the batches of a range, in order. The last batch extends to the end of the range, even if the range has no records."""
    part = ViewBatch(end - 1)
    for record in records:
        if part.events >= MAX_EVENTS or len(part.pages) >= MAX_PAGES:
            yield part
            part = ViewBatch(end - 1)
        part.add(rule, partition, record, now_ms)
    part.to = end - 1
    yield part
