"""The time a partition lives by: what a fetch reply says of its end, and when the wall clock may be asked (pure).

A reader that lags sees events whose time has long passed. So what is decided by time goes by the newest record time that has been
read while the reader is behind the end of its partition, and by the wall clock of its last fetch once it has caught up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from streams_app.clock import Clock

FRESH_MS: Final = 5_000
"""A fetch reply older than this says nothing about where the partition ends now."""

SKEW_MS: Final = 5_000
"""A wall clock further than this from Redis ``TIME`` does not move any partition clock."""


@dataclass(frozen=True, slots=True)
class ReaderView:
    """What the last fetch reply of a partition said.

    Attributes:
        stable_offset: Last stable offset (end of what may be read); None before the first reply.
        fetched_at_ms: When that reply was asked for, by the wall clock; None before the first reply.
        high_watermark: End of all that was acknowledged; beyond the last stable offset an open transaction hides it.
    """

    stable_offset: int | None
    fetched_at_ms: int | None
    high_watermark: int | None = None


class AcknowledgedUntil:
    """Until when everything that was acknowledged is applied, also while open transactions hide some of it.

    One high watermark at a time is waited for: where transactions come and go, the answer is two of them old at most, and where one
    stays open it stands still.
    """

    def __init__(self) -> None:
        self._waited: tuple[int, int] | None = None
        self._known_ms = 0

    def at(self, fence: int, view: ReaderView, known_ms: int) -> int:
        """The moment, which never goes back.

        Args:
            fence: Highest offset applied.
            view: What the last fetch said.
            known_ms: Until then everything that can be read is applied.
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
    """True if nothing readable lies beyond the fence and that is known from a recent fetch.

    Args:
        fence: Highest offset applied.
        view: What the last fetch said; read *after* ``now_ms``, so that a reply cannot be younger than the clock it vouches for.
        now_ms: Wall clock.
    """
    if view.stable_offset is None or view.fetched_at_ms is None:
        return False
    return fence + 1 >= view.stable_offset and is_close(view.fetched_at_ms, now_ms)


def is_close(fetched_ms: int, at_ms: int) -> bool:
    """Whether a fetch reply is of about that moment. A reply that seems to come later was noted by a clock that was wrong then."""
    return abs(fetched_ms - at_ms) <= FRESH_MS


def advanced(clock_ms: int, now_ms: int, *, caught_up: bool) -> int:
    """The partition clock after a look at the wall clock; it never goes back.

    Args:
        clock_ms: Partition clock so far.
        now_ms: Wall clock at the moment until which everything that had arrived is known.
        caught_up: Whether the reader is at the end of the partition; if not, the wall clock says nothing about it.
    """
    return max(clock_ms, now_ms) if caught_up else clock_ms


class ClockReading(NamedTuple):
    """Both clocks of this process at one moment, in ms."""

    wall_ms: int
    monotonic_ms: int

    @property
    def drift_ms(self) -> int:
        """Wall clock minus monotonic clock: it changes when the wall clock is set, and when the machine was asleep."""
        return self.wall_ms - self.monotonic_ms


class TrustedClock:
    """A :class:`Clock` that is never further from Redis than :data:`SKEW_MS`, as far as was last compared."""

    def __init__(self, clock: Clock) -> None:
        """Trusts ``clock`` as it is now until it is compared for the first time."""
        self._clock = clock
        self._drift_ms = self._redis_drift_ms = self.read().drift_ms
        self.skew_ms = 0

    def read(self) -> ClockReading:
        """Both clocks as they are, trusted or not."""
        return ClockReading(self._clock.now_ms(), self._clock.monotonic_ms())

    def compare(self, asked: ClockReading, redis_ms: int) -> None:
        """Notes what Redis ``TIME`` said; to be called as soon as it has.

        Args:
            asked: Read before Redis was asked.
            redis_ms: Its answer.
        """
        answered = self.read()
        self.skew_ms = asked.wall_ms - redis_ms if redis_ms < asked.wall_ms else min(0, answered.wall_ms - redis_ms)
        self._drift_ms = asked.drift_ms
        # As if the answer had taken no time: rather a little behind Redis than ahead of it.
        self._redis_drift_ms = redis_ms - answered.monotonic_ms

    def is_trusted(self) -> bool:
        """False while the wall clock is too far from that of Redis, or has jumped since they were compared."""
        return self._agrees(self.read())

    def _agrees(self, now: ClockReading) -> bool:
        return abs(self.skew_ms) <= SKEW_MS and abs(now.drift_ms - self._drift_ms) <= SKEW_MS

    def now_ms(self) -> int:
        """The wall clock; while it is not trusted, the time of Redis as it went on since it was last asked."""
        now = self.read()
        return now.wall_ms if self._agrees(now) else now.monotonic_ms + self._redis_drift_ms

    def monotonic_ms(self) -> int:
        """Milliseconds of the monotonic clock."""
        return self._clock.monotonic_ms()
