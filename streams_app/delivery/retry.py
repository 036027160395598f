"""How long a claim is tried, how often it is made again, and what is said meanwhile."""

from __future__ import annotations

import logging
from typing import Final

from aiokafka.errors import KafkaError

from streams_app.backoff import Backoff
from streams_app.clock import Clock
from streams_app.delivery.batch import TP
from streams_app.delivery.group_consumer import NotOwnerError
from streams_app.errors import TryAgainError, text_of
from streams_app.redis_access.client import REDIS_ERRORS

logger = logging.getLogger(__name__)

DEPENDENCY_ERRORS: Final = (KafkaError, *REDIS_ERRORS, TimeoutError)


MANY: Final = 5
"""How often in a row a partition is claimed again without getting any further before the worker says so."""

LONG_AGO_MS: Final = 60_000
"""After so long the row begins anew: a refusal of the hour before says nothing about this one."""


class ReclaimBackoff:
    """Counts how often in a row each partition is claimed again without having got any further."""

    def __init__(self, clock: Clock) -> None:
        """No partition was claimed again yet."""
        self._clock = clock
        self._last: dict[TP, tuple[int, int, Backoff]] = {}

    def again(self, tp: TP, at: int) -> tuple[float, int]:
        """Notes that a partition is claimed again.

        Args:
            tp: The partition.
            at: Offset up to which it has got.

        Returns:
            Seconds to wait before the claim, and how often in a row the partition has been claimed again without getting further.
        """
        now_ms = self._clock.monotonic_ms()
        stood_at, before_ms, backoff = self._last.get(tp, (at, now_ms, _backoff()))
        if at != stood_at or now_ms - before_ms >= LONG_AGO_MS:
            backoff.succeeded()
        self._last[tp] = at, now_ms, backoff
        times = backoff.failures
        return backoff.failed(), times


class ClaimRetry:
    """The tries of one claim: when the next one follows, what is said meanwhile, and when there is none any more."""

    def __init__(self, clock: Clock, session_ms: int) -> None:
        self._clock = clock
        self._give_up_ms = 3 * session_ms + 10_000
        self._backoff = _backoff()
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
            logger.log(level, "cannot claim yet, trying again source=%s error=%s", tp, text_of(error))
        waited_ms = now_ms - self._since_ms
        if isinstance(error, NotOwnerError) and waited_ms > self._give_up_ms:
            message = f"Kafka refuses our commits for {tp} and no rebalance follows: not the owner"
            raise TryAgainError(message) from error
        return self._backoff.failed()


def _backoff() -> Backoff:
    """The first wait is short: another owner that is just letting go is the ordinary case."""
    return Backoff(first_seconds=0.05, longest_seconds=2.0)
