"""The chain rule: which range may be delivered to which processor, and when the reader is at a wrong position (pure)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from streams_app.delivery.batch import Batch
from streams_app.delivery.processor import Processor

HOLE, RESET, IDLE = "hole", "reset", "idle"
CAUSES: Final = {
    HOLE: "a fetched batch does not continue the previous one",
    RESET: "the client has reset its position to another offset",
    IDLE: "the reader is ahead of the fence and nothing arrives",
}
"""Why a partition is claimed again by this rule, for people."""

IDLE_MS: Final = 10_000
"""So long a reader may stand ahead of a processor although nothing is on its way: a fetch takes a fraction of it."""
STUCK_MS: Final = 1_000
"""A partition in which nothing is applied for so long is stuck; one step of a processor takes a fraction of it."""


@dataclass(slots=True)
class Served:
    """One processor of a partition.

    Attributes:
        processor: The processor.
        next: First offset that has not been delivered to it.
    """

    processor: Processor
    next: int = 0


@dataclass(slots=True)
class Ranges:
    """The ranges of one partition that were delivered; times are of the monotonic clock.

    Attributes:
        served: The partition's processors by their names.
        seek_number: Number of the last seek; batches with another one were fetched before it.
        position: Offset at which the next range begins.
        applied: Offset below which everything is applied.
        progress_ms: When something was last delivered or applied.
    """

    served: dict[str, Served] = field(default_factory=dict)
    seek_number: int = -1
    position: int = 0
    applied: int = 0
    progress_ms: int = 0

    def begin(self, position: int, seek_number: int, monotonic_ms: int) -> None:
        """Set the position of the reader after a claim: the first range begins there."""
        self.position = self.applied = position
        self.seek_number = seek_number
        self.progress_ms = monotonic_ms

    @property
    def in_flight(self) -> int:
        """Number of records that were delivered and are not yet applied; processors share them."""
        return max(served.processor.in_flight for served in self.served.values())

    @property
    def done(self) -> int:
        """Approximate offset up to which all processors are done; it advances with every applied record."""
        return min(served.next for served in self.served.values()) - self.in_flight

    def is_stuck(self, monotonic_ms: int) -> bool:
        """Return whether nothing is being applied; then no other partition waits for this one."""
        return monotonic_ms - self.progress_ms > STUCK_MS

    def deliver(self, batch: Batch, monotonic_ms: int) -> str | None:
        """Deliver a range to the processors that do not have it; a range fetched before the last seek is dropped silently.

        Returns:
            Why the partition has to be claimed again; then nothing was delivered.
        """
        if batch.seek_number != self.seek_number:
            return None
        if batch.begin < self.position:
            # The client reset its position by itself: what it read from was removed, or the topic was created again.
            return RESET
        if any(batch.begin > served.next for served in self.served.values()):
            # An earlier range was dropped with the buffers of a rebalance; with this one it would be lost for good.
            return HOLE
        self.position = batch.end
        self.progress_ms = monotonic_ms
        for served in self.served.values():
            if served.next < batch.end:
                served.processor.deliver(batch.since(served.next))
                served.next = batch.end
        return None

    def check(self, position: int | None, monotonic_ms: int) -> str | None:
        """Check the position of the reader, because no range arrives that would show a gap.

        Returns:
            Why the partition has to be claimed again.
        """
        if position is None:
            return None
        if position < self.position:
            return RESET
        is_ahead = any(position > served.next for served in self.served.values())
        if is_ahead and not self.in_flight and monotonic_ms - self.progress_ms > IDLE_MS:
            # The last range before a silence was dropped: no later one will show the hole.
            return IDLE
        return None

    def record_applied(self, monotonic_ms: int) -> None:
        """Record that some of the delivered records are applied."""
        self.progress_ms = monotonic_ms
        if not self.in_flight:
            self.applied = self.position
