"""Compares the wall clock with Redis ``TIME``, and reports when they differ by more than 5 s."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from streams_app.delivery.clocks import SKEW_MS, TrustedClock
from streams_app.delivery.dependency_errors import DEPENDENCY_ERRORS
from streams_app.errors import text_of
from streams_app.health.status import Status
from streams_app.reported_backoff import ReportedBackoff

logger = logging.getLogger(__name__)

SKEW_EVERY_SECONDS: Final = 5.0
"""Interval between two comparisons of the clocks."""


class SkewWatch:
    """Reports when the wall clock and Redis ``TIME`` differ too much; until they agree, partition clocks do not advance."""

    def __init__(self, clock: TrustedClock, status: Status, ask: Callable[[], Awaitable[tuple[int, int]]]) -> None:
        """Trust the clock until the first comparison; ``ask`` returns Redis ``TIME``: seconds and microseconds."""
        self.clock = clock
        self._status = status
        self._ask = ask
        self._is_skewed = False
        # The caller's loop paces the comparisons, so the delays are not used.
        self._backoff = ReportedBackoff(first_seconds=0.0, longest_seconds=0.0, clock=clock)

    async def check_once(self) -> None:
        """Compare the wall clock with that of Redis once, and update the status.

        The worker calls this method before its first claim, because a wall clock that is ahead would advance the partition clocks,
        and so close every group. Partition clocks are stored, so the next owner would close every group, too.
        """
        asked = self.clock.read()
        seconds, micros = await self._ask()
        self.clock.compare(asked, seconds * 1000 + micros // 1000)
        skew = self.clock.skew_ms
        if (abs(skew) > SKEW_MS) == self._is_skewed:
            return
        self._is_skewed = not self._is_skewed
        if self._is_skewed:
            self._status.set_not_ready("clock-skew", f"wall clock and Redis TIME are {skew} ms apart")
            logger.error("wall clock differs from Redis TIME, partition clocks stand still skew_ms=%d", skew)
        else:
            self._status.clear("clock-skew")
            logger.info("wall clock agrees with Redis TIME again")

    async def try_once(self) -> None:
        """Compare the clocks once. If Redis does not answer, log this at first and every ten minutes, and raise no error."""
        try:
            await self.check_once()
        except DEPENDENCY_ERRORS as error:
            if self._backoff.should_report:
                logger.info("cannot compare clocks with Redis error=%s", text_of(error))
            self._backoff.failed()
        else:
            if self._backoff.succeeded():
                logger.info("clocks are compared with Redis again")
