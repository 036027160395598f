"""Which clock a shard may live by: that of this process while it agrees with Redis ``TIME``, and else that of Redis (pure).

What a partition clock has once said stays with the state, whoever owns it next. A clock that is wrong must not get there, neither
as "now" nor as the limit of record timestamps, which a producer on the same host may write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from streams_app.delivery.partition_clock import SKEW_MS

if TYPE_CHECKING:
    from streams_app.clock import Clock


class Reading(NamedTuple):
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

    def read(self) -> Reading:
        """Both clocks as they are, trusted or not."""
        return Reading(self._clock.now_ms(), self._clock.monotonic_ms())

    def compare(self, asked: Reading, redis_ms: int) -> None:
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

    def _agrees(self, now: Reading) -> bool:
        return abs(self.skew_ms) <= SKEW_MS and abs(now.drift_ms - self._drift_ms) <= SKEW_MS

    def now_ms(self) -> int:
        """The wall clock; while it is not trusted, the time of Redis as it went on since it was last asked."""
        now = self.read()
        return now.wall_ms if self._agrees(now) else now.monotonic_ms + self._redis_drift_ms

    def monotonic_ms(self) -> int:
        """Milliseconds of the monotonic clock."""
        return self._clock.monotonic_ms()
