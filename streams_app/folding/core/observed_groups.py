"""What a sample of groups adds to the figures of the window (pure)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from streams_app.folding.core.record import Sealed


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
