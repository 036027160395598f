"""The chain rule: a processor gets a range only if no offset is skipped. Also detects a reader at a wrong position (pure)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from streams_app.delivery.batch import Batch
from streams_app.delivery.processor import Processor

HOLE, RESET, IDLE = "hole", "reset", "idle"
RESYNC_CAUSES: Final = {
    HOLE: "a fetched batch does not continue the previous one",
    RESET: "the client has reset its position to another offset",
    IDLE: "the reader is ahead of the fence, but no records arrive",
}
"""Explanation of each cause of a resync that this module detects, for logs."""

IDLE_MS: Final = 10_000
"""Time without progress, in ms, after which a reader that is ahead of its processors is considered to be at a wrong position.

While a fetch is delivered, the reader is ahead for a fraction of this time. If it is ahead for longer and no processor has work, a
fetched batch was lost.
"""

SLOW_MS: Final = 1_000
"""Time without progress, in ms, after which a partition counts as slow. A processor that works normally needs less per step."""


@dataclass(slots=True)
class ServedProcessor:
    """A processor of a partition, and the first offset that has not been delivered to it."""

    processor: Processor
    next: int = 0


@dataclass(slots=True)
class Ranges:
    """Delivers the ranges of one partition to its processors by the chain rule; times are in ms of the monotonic clock.

    Attributes:
        seek_number: Number of the last seek; batches with another number were fetched before that seek.
        position: Offset at which the next range should begin: the end of the last one, or the offset of the last seek.
        applied: Offset below which all records are applied.
        progress_ms: When records were last delivered or applied.
    """

    served: dict[str, ServedProcessor] = field(default_factory=dict)
    seek_number: int = -1
    position: int = 0
    applied: int = 0
    progress_ms: int = 0

    def begin(self, position: int, seek_number: int, monotonic_ms: int) -> None:
        self.position = self.applied = position
        self.seek_number = seek_number
        self.progress_ms = monotonic_ms

    @property
    def in_flight(self) -> int:
        """Number of delivered records that the slowest processor has not applied."""
        return max(served.processor.in_flight for served in self.served.values())

    @property
    def done(self) -> int:
        """Approximate offset up to which all processors have applied records; it advances with each applied record."""
        return min(served.next for served in self.served.values()) - self.in_flight

    def is_slow(self, monotonic_ms: int) -> bool:
        """Return whether no record was delivered or applied for :data:`SLOW_MS`; also True for an idle partition."""
        return monotonic_ms - self.progress_ms > SLOW_MS

    def deliver(self, batch: Batch, monotonic_ms: int) -> str | None:
        """Deliver a range to each processor that has not received it. Drop a range that was fetched before the last seek.

        Return the cause of a resync (a key of :data:`RESYNC_CAUSES`), in which case nothing was delivered; else None.
        """
        if batch.seek_number != self.seek_number:
            return None
        if batch.begin < self.position:
            # The client reset its position by itself: the records there were removed, or the topic was created again.
            return RESET
        if any(batch.begin > served.next for served in self.served.values()):
            # An earlier range was dropped with the buffers of a rebalance. Delivering this one would skip it for good.
            return HOLE
        self.position = batch.end
        self.progress_ms = monotonic_ms
        for served in self.served.values():
            if served.next < batch.end:
                served.processor.deliver(batch.since(served.next))
                served.next = batch.end
        return None

    def check(self, position: int | None, monotonic_ms: int) -> str | None:
        """Check the position of the reader, None if unknown. This detects a gap even if no further range arrives.

        Return the cause of a resync (a key of :data:`RESYNC_CAUSES`); None if the position is right or unknown.
        """
        if position is None:
            return None
        if position < self.position:
            return RESET
        is_ahead = any(position > served.next for served in self.served.values())
        if is_ahead and not self.in_flight and monotonic_ms - self.progress_ms > IDLE_MS:
            # The last range before a time without records was dropped: no later range shows the gap.
            return IDLE
        return None

    def record_applied(self, monotonic_ms: int) -> None:
        self.progress_ms = monotonic_ms
        if not self.in_flight:
            self.applied = self.position
