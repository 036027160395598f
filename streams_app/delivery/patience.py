"""How long a claim is tried, and what is said meanwhile."""

from __future__ import annotations

import logging
from typing import Final, Protocol

from aiokafka.errors import KafkaError

from streams_app.delivery.batch import TP
from streams_app.delivery.commits import NotOwnerError
from streams_app.errors import TryAgainError, text_of
from streams_app.redis_client import REDIS_ERRORS

logger = logging.getLogger(__name__)

BACKOFF_SECONDS: Final = (0.05, 0.2, 0.5, 1.0, 2.0)
DEPENDENCY_ERRORS: Final = (KafkaError, *REDIS_ERRORS, TimeoutError)


class MonotonicClock(Protocol):
    """What is needed of a clock here."""

    def monotonic_ms(self) -> int:
        """Milliseconds of the monotonic clock."""


MANY: Final = len(BACKOFF_SECONDS)
"""So often a partition is claimed again without getting any further before that is told."""

LONG_AGO_MS: Final = 60_000


class Stumbling:
    """How often partitions are claimed again before they get any further."""

    def __init__(self, clock: MonotonicClock) -> None:
        """None was yet."""
        self._clock = clock
        self._last: dict[TP, tuple[int, int, int]] = {}

    def again(self, tp: TP, at: int) -> tuple[float, int]:
        """Notes that a partition is claimed again.

        Args:
            tp: Which.
            at: How far it has got.

        Returns:
            Seconds until then, and how often in a row it has not got any further.
        """
        now_ms = self._clock.monotonic_ms()
        stood_at, times, before_ms = self._last.get(tp, (-1, -1, -LONG_AGO_MS))
        times = times + 1 if at == stood_at and now_ms - before_ms < LONG_AGO_MS else 0
        self._last[tp] = at, times, now_ms
        return BACKOFF_SECONDS[min(times, len(BACKOFF_SECONDS) - 1)], times


class Patience:
    """How long one claim is tried, and what is said about it."""

    def __init__(self, clock: MonotonicClock, session_ms: int) -> None:
        self._clock = clock
        self._give_up_ms = 3 * session_ms + 10_000
        self._failures = 0
        self._kind: type[Exception] | None = None
        self._since_ms = 0

    def failed(self, tp: TP, error: Exception) -> float:
        """Notes a failure.

        Returns:
            Seconds until the next try.

        Raises:
            TryAgainError: Kafka has refused us for three session time-outs and no rebalance followed.
        """
        now_ms = self._clock.monotonic_ms()
        if type(error) is not self._kind:
            self._kind, self._since_ms = type(error), now_ms
            level = logging.WARNING if isinstance(error, DEPENDENCY_ERRORS) else logging.INFO
            logger.log(level, "cannot claim yet, trying again source=%s-%d error=%s", tp.topic, tp.partition, text_of(error))
        waited_ms = now_ms - self._since_ms
        if isinstance(error, NotOwnerError) and waited_ms > self._give_up_ms:
            message = f"Kafka refuses our commits for {tp.topic}-{tp.partition} and no rebalance follows: not the owner"
            raise TryAgainError(message) from error
        wait_seconds = BACKOFF_SECONDS[min(self._failures, len(BACKOFF_SECONDS) - 1)]
        self._failures += 1
        return wait_seconds
