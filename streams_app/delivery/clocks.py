"""The clock of a partition: what a fetch reply tells about its end, and when the wall clock may be used (pure).

A reader that lags reads events whose time has long passed. So the clock follows the newest record time while the reader is behind
the end of its partition, and the wall clock of the last fetch once it has caught up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from streams_app.clock import Clock

FRESH_MS: Final = 5_000
"""Maximum age of a fetch reply that tells the current end of the partition."""

SKEW_MS: Final = 5_000
"""Maximum difference between the wall clock and Redis ``TIME``; beyond it, the wall clock moves no partition clock."""


@dataclass(frozen=True, slots=True)
class ReaderView:
    """The last fetch reply of a partition.

    Attributes:
        stable_offset: Last stable offset, the end of readable records; None before the first reply.
        fetched_at_ms: When the request was sent, by the wall clock; None before the first reply.
        high_watermark: End of acknowledged records; an open transaction hides those from the last stable offset on.
    """

    stable_offset: int | None
    fetched_at_ms: int | None
    high_watermark: int | None = None


class AcknowledgedUntil:
    """The time until which all acknowledged records are applied, even while open transactions hide some.

    It waits for one high watermark at a time: while transactions come and go, the answer lags by at most two of them, and while one
    stays open it does not move.
    """

    def __init__(self) -> None:
        self._waited: tuple[int, int] | None = None
        self._known_ms = 0

    def at(self, fence: int, view: ReaderView, known_ms: int) -> int:
        """Return that time, which never goes back.

        Args:
            fence: Highest applied offset.
            view: The last fetch reply.
            known_ms: Time until which all readable records are applied.
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
    """Return whether no readable record lies beyond the fence, by a recent fetch.

    Args:
        fence: Highest applied offset.
        view: The last fetch reply; read *after* ``now_ms``, so that the reply is never newer than the clock.
        now_ms: Wall clock.
    """
    if view.stable_offset is None or view.fetched_at_ms is None:
        return False
    return fence + 1 >= view.stable_offset and is_close(view.fetched_at_ms, now_ms)


def is_close(fetched_ms: int, at_ms: int) -> bool:
    """Return whether a fetch reply is of about that time. A reply from the future was recorded by a wrong clock."""
    return abs(fetched_ms - at_ms) <= FRESH_MS


def advanced(clock_ms: int, now_ms: int, *, caught_up: bool) -> int:
    """Return the partition clock after reading the wall clock; it never goes back.

    Args:
        clock_ms: Partition clock so far.
        now_ms: Wall clock at the time until which all arrived records are known.
        caught_up: Whether the reader is at the end of the partition; if not, the wall clock does not apply.
    """
    return max(clock_ms, now_ms) if caught_up else clock_ms


class ClockReading(NamedTuple):
    """Wall and monotonic clock of this process at one moment, in ms."""

    wall_ms: int
    monotonic_ms: int

    @property
    def drift_ms(self) -> int:
        """Wall clock minus monotonic clock: changes if the wall clock is set, or the machine was asleep."""
        return self.wall_ms - self.monotonic_ms


class TrustedClock:
    """A :class:`Clock` that differs from Redis by at most :data:`SKEW_MS`, as of the last comparison."""

    def __init__(self, clock: Clock) -> None:
        """Trust ``clock`` until the first comparison."""
        self._clock = clock
        self._drift_ms = self._redis_drift_ms = self.read().drift_ms
        self.skew_ms = 0

    def read(self) -> ClockReading:
        """Read both clocks, trusted or not."""
        return ClockReading(self._clock.now_ms(), self._clock.monotonic_ms())

    def compare(self, asked: ClockReading, redis_ms: int) -> None:
        """Compare with the reply to Redis ``TIME``; to be called as soon as it arrives.

        Args:
            asked: The clocks before the request.
            redis_ms: The reply.
        """
        answered = self.read()
        self.skew_ms = asked.wall_ms - redis_ms if redis_ms < asked.wall_ms else min(0, answered.wall_ms - redis_ms)
        self._drift_ms = asked.drift_ms
        # As if the reply had taken no time: better a little behind Redis than ahead of it.
        self._redis_drift_ms = redis_ms - answered.monotonic_ms

    def is_trusted(self) -> bool:
        """Return False while the wall clock differs too much from that of Redis, or has jumped since the last comparison."""
        return self._agrees(self.read())

    def _agrees(self, now: ClockReading) -> bool:
        return abs(self.skew_ms) <= SKEW_MS and abs(now.drift_ms - self._drift_ms) <= SKEW_MS

    def now_ms(self) -> int:
        """Return the wall clock; while it is not trusted, the time of Redis, extrapolated from the last comparison."""
        now = self.read()
        return now.wall_ms if self._agrees(now) else now.monotonic_ms + self._redis_drift_ms

    def monotonic_ms(self) -> int:
        """Return the monotonic clock in milliseconds."""
        return self._clock.monotonic_ms()
