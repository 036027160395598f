"""The clock of a partition, which follows record times in a backlog and the wall clock at the end of the log (pure).

A lagging reader reads events whose time has long passed. So the partition clock follows the newest record time of the events that
were processed while the reader is behind the end of its partition, and the wall clock of the last fetch once the reader has
caught up. Records that are skipped or rejected do not move the clock of a fold. The record times of folds are followed in
:mod:`streams_app.folding.core.shard_clock`, those of live views and journals in their processors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from streams_app.clock import Clock

FRESH_MS: Final = 5_000
"""Maximum age of a fetch reply, in ms; the end offsets in an older reply do not count as current."""

SKEW_MS: Final = 5_000
"""Maximum difference, in ms, between the wall clock and Redis ``TIME``. If it is larger, partition clocks do not advance."""


@dataclass(frozen=True, slots=True)
class ReaderView:
    """End offsets in the last fetch reply of a partition, and the wall-clock time of that request; None before the first reply.

    Attributes:
        stable_offset: The end of readable records.
        high_watermark: The offset after the last acknowledged record. While a transaction is open, the records from the last stable
            offset on are acknowledged but cannot be read.
    """

    stable_offset: int | None
    fetched_at_ms: int | None
    high_watermark: int | None = None


class AcknowledgedUntil:
    """Tracks the time until which all acknowledged records are applied, including those that open transactions hide.

    While transactions hide records, this class stores the current high watermark and time. Once all records below the stored high
    watermark are applied, the result becomes the stored time, and the next high watermark and time are stored. So while
    transactions open and close, the result lags by at most two such steps; while one transaction stays open, it does not advance.
    """

    def __init__(self) -> None:
        self._waited: tuple[int, int] | None = None
        self._known_ms = 0

    def at(self, fence: int, view: ReaderView, known_ms: int) -> int:
        """Return the time until which all records that the broker has acknowledged are applied.

        These include the records that an open transaction still hides, so the result may be earlier than ``known_ms``, the time
        until which all readable records are applied. It decreases only if ``known_ms`` does.
        """
        end = view.high_watermark
        if end is None or end <= fence + 1:
            self._waited, self._known_ms = None, known_ms
        elif self._waited is None:
            self._waited = end, known_ms
        elif self._waited[0] <= fence + 1:
            self._known_ms, self._waited = self._waited[1], (end, known_ms)
        return self._known_ms


def is_caught_up(fence: int, view: ReaderView, now_ms: int) -> bool:
    """Return whether a recent fetch reply shows that no readable record is above the fence, the highest applied offset."""
    if view.stable_offset is None or view.fetched_at_ms is None:
        return False
    return fence + 1 >= view.stable_offset and is_close(view.fetched_at_ms, now_ms)


def is_close(fetched_ms: int, at_ms: int) -> bool:
    """Return whether a fetch was sent at most :data:`FRESH_MS` before or after a time; long *after* it, a clock was wrong."""
    return abs(fetched_ms - at_ms) <= FRESH_MS


def advanced(clock_ms: int, now_ms: int, *, caught_up: bool) -> int:
    """Return the partition clock, advanced to the wall clock if the reader has caught up; it never decreases.

    Args:
        now_ms: Wall-clock time; if the reader has caught up, it has read all records that had arrived by then.
    """
    return max(clock_ms, now_ms) if caught_up else clock_ms


class ClockReading(NamedTuple):
    """Wall and monotonic clock of this process at one moment, in ms."""

    wall_ms: int
    monotonic_ms: int

    @property
    def drift_ms(self) -> int:
        """Wall clock minus monotonic clock; it changes if the wall clock is set or the machine sleeps."""
        return self.wall_ms - self.monotonic_ms


class TrustedClock:
    """Wall clock that is replaced by an estimate of Redis ``TIME`` while the two differ by more than :data:`SKEW_MS`.

    Attributes:
        skew_ms: Wall clock minus Redis ``TIME`` at the last comparison. It is 0 before the first comparison, and if the time of
            Redis lay between the sending of the request and the arrival of the reply.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._drift_ms = self._redis_drift_ms = self.read().drift_ms
        self.skew_ms = 0

    def read(self) -> ClockReading:
        """Read the clocks of this process, even while the wall clock is not trusted."""
        return ClockReading(self._clock.now_ms(), self._clock.monotonic_ms())

    def compare(self, asked: ClockReading, redis_ms: int) -> None:
        """Update :attr:`skew_ms` and the estimate by a reply to Redis ``TIME``. Call this method as soon as the reply arrives.

        ``asked`` is the reading of the clocks before the request.
        """
        answered = self.read()
        self.skew_ms = asked.wall_ms - redis_ms if redis_ms < asked.wall_ms else min(0, answered.wall_ms - redis_ms)
        self._drift_ms = asked.drift_ms
        # The transfer of the reply counts as zero, so that the estimate is slightly behind Redis and never ahead.
        self._redis_drift_ms = redis_ms - answered.monotonic_ms

    def is_trusted(self) -> bool:
        """Return whether the wall clock agreed with Redis ``TIME`` at the last comparison, and has not jumped since."""
        return self._agrees(self.read())

    def _agrees(self, now: ClockReading) -> bool:
        return abs(self.skew_ms) <= SKEW_MS and abs(now.drift_ms - self._drift_ms) <= SKEW_MS

    def now_ms(self) -> int:
        """Return the time in Unix ms: that of the wall clock or, while it is not trusted, an estimate of Redis ``TIME``."""
        now = self.read()
        return now.wall_ms if self._agrees(now) else now.monotonic_ms + self._redis_drift_ms

    def monotonic_ms(self) -> int:
        return self._clock.monotonic_ms()
