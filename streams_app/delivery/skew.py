"""Compares the wall clock with that of Redis, and says when they disagree."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from streams_app.delivery.partition_clock import SKEW_MS
from streams_app.delivery.trusted_clock import TrustedClock
from streams_app.status import Status

logger = logging.getLogger(__name__)


class SkewWatch:
    """Too far apart, no partition clock follows the wall clock."""

    def __init__(self, clock: TrustedClock, status: Status, ask: Callable[[], Awaitable[tuple[int, int]]]) -> None:
        """``ask``: Redis ``TIME``, seconds and microseconds."""
        self._clock = clock
        self._status = status
        self._ask = ask
        self._is_skewed = False

    async def check_once(self) -> None:
        """Compares them; for the first time before anything is claimed.

        A clock that is ahead would close every group, and be left to the next owner.

        Raises:
            RedisError, OSError: It does not answer.
        """
        asked = self._clock.read()
        seconds, micros = await self._ask()
        self._clock.compare(asked, seconds * 1000 + micros // 1000)
        skew = self._clock.skew_ms
        if (abs(skew) > SKEW_MS) == self._is_skewed:
            return
        self._is_skewed = not self._is_skewed
        if self._is_skewed:
            self._status.set_not_ready("clock-skew", f"wall clock and Redis TIME are {skew} ms apart")
            logger.error("wall clock differs from Redis TIME, partition clocks stand still skew_ms=%d", skew)
        else:
            self._status.clear("clock-skew")
            logger.info("wall clock agrees with Redis TIME again")
