"""Delays between claims of a partition: after a failed attempt, and after a resync.

Other modules retry Redis calls of folds (:mod:`streams_app.folding.agents.processor`) and commits (:mod:`.commits`).
"""

from __future__ import annotations

import logging
from typing import Final

from streams_app.backoff import Backoff
from streams_app.clock import Clock
from streams_app.delivery.batch import TP
from streams_app.delivery.dependency_errors import DEPENDENCY_ERRORS
from streams_app.delivery.group_consumer import NotOwnerError
from streams_app.errors import NewerFormatError, TryAgainError, text_of
from streams_app.reported_backoff import ReportedBackoff

logger = logging.getLogger(__name__)

MANY: Final = 5
"""If a partition is claimed this many times in a row without progress, the worker is reported as not ready."""

FIRST_SECONDS: Final = 0.05
"""First delay before a claim is repeated. It is short, because usually another owner is just releasing the partition."""

LONGEST_SECONDS: Final = 2.0
"""Maximum delay before a claim is repeated."""

LONG_AGO_MS: Final = 60_000
"""Two claims that are at least this many milliseconds apart do not count as consecutive."""


class ReclaimBackoff:
    """Computes the delay before a partition is claimed again; it grows while the partition makes no progress."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: dict[TP, tuple[int, int, Backoff]] = {}

    def reclaimed(self, tp: TP, at: int) -> tuple[float, int]:
        """Record that a partition is claimed again; return the seconds to wait, and the number of earlier claims without progress.

        ``at`` is the offset below which records are applied. If it has changed since the last claim, there was progress.
        """
        now_ms = self._clock.monotonic_ms()
        stood_at, before_ms, backoff = self._last.get(tp, (at, now_ms, Backoff(FIRST_SECONDS, LONGEST_SECONDS)))
        if at != stood_at or now_ms - before_ms >= LONG_AGO_MS:
            backoff.succeeded()
        self._last[tp] = at, now_ms, backoff
        times = backoff.failures
        return backoff.failed(), times


class ClaimRetry:
    """Backoff and time limit for the attempts of one claim."""

    def __init__(self, clock: Clock, session_ms: int) -> None:
        self._clock = clock
        self._give_up_ms = 3 * session_ms + 10_000
        self._backoff = ReportedBackoff(FIRST_SECONDS, LONGEST_SECONDS, clock=clock)
        self._kind: type[Exception] | None = None
        self._since_ms = 0

    def failed(self, tp: TP, error: Exception) -> float:
        """Record a failed attempt, and return the seconds until the next one.

        It is logged if the kind of error differs from the previous one, and every ten minutes.

        Raises:
            TryAgainError: Kafka has rejected the commits of this member for three session timeouts plus 10 s, and no rebalance has
                begun.
        """
        now_ms = self._clock.monotonic_ms()
        is_other = type(error) is not self._kind
        if is_other:
            self._kind, self._since_ms = type(error), now_ms
        if is_other or self._backoff.should_report:
            if isinstance(error, NewerFormatError) and not error.is_reset:
                logger.warning("leaving a partition to workers of a newer version source=%s error=%s", tp, text_of(error))
            else:
                level = logging.WARNING if isinstance(error, DEPENDENCY_ERRORS) else logging.INFO
                logger.log(level, "cannot claim yet, trying again source=%s error=%s", tp, text_of(error))
        waited_ms = now_ms - self._since_ms
        if isinstance(error, NotOwnerError) and waited_ms > self._give_up_ms:
            message = f"Kafka rejects the commits of this worker for {tp}, and no rebalance follows"
            raise TryAgainError(message) from error
        return self._backoff.failed()
