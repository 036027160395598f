"""Limits journals to a small share of a worker's time while the folds of that worker have a backlog.

The throttle limits time, not memory: if Redis is full, ``processor.py`` removes the oldest segments.

It is a module of its own, because all journals of a worker share it, and because no other part of journals depends on the folds of
a worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from streams_app.delivery.clocks import TrustedClock

BACKLOG_RECORDS: Final = 20_000
"""Folds have a backlog if more records than this are not applied yet: as many as arrive in a second at 20 000 events/s."""

PAUSE_FACTOR: Final = 40
"""While folds have a backlog, the pause after an append is 40 times as long as the append, so that journals use little time."""

PAUSE_SECONDS: Final = 1.0
"""Maximum pause after an append. During a pause, the processor neither closes a segment after its day nor checks its claim."""

LIMIT_MS: Final = 15 * 60_000
"""Maximum time for which one backlog of the folds limits journals.

Events that are not appended yet are missing for readers, and retention may remove them.
"""

POLL_SECONDS: Final = 0.05


class FilingThrottle:
    """Delays appends to journals while folds have a backlog; shared by all journals of a worker.

    ``fold_backlog`` returns how many records the folds of this worker have not applied yet; 0 without folds.
    """

    def __init__(self, fold_backlog: Callable[[], int], clock: TrustedClock) -> None:
        self._fold_backlog = fold_backlog
        self._clock = clock
        self._lock = asyncio.Lock()
        self._since_ms: int | None = None

    @property
    def is_limiting(self) -> bool:
        """Whether appends are limited now: the folds have a backlog, which has lasted for less than :data:`LIMIT_MS`."""
        now_ms = self._clock.monotonic_ms()
        if self._fold_backlog() <= BACKLOG_RECORDS:
            self._since_ms = None
            return False
        if self._since_ms is None:
            self._since_ms = now_ms
        return now_ms - self._since_ms < LIMIT_MS

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Return the context in which one chunk is appended.

        While appends are limited, one partition at a time can enter it, and it ends with a pause, see :data:`PAUSE_FACTOR`.
        """
        if not self.is_limiting:
            yield
            return
        async with self._lock:
            began_ms = self._clock.monotonic_ms()
            yield
            pause_ms = PAUSE_FACTOR * max(1, self._clock.monotonic_ms() - began_ms)
            left = min(pause_ms / 1000, PAUSE_SECONDS)
            while left > 0 and self.is_limiting:
                await asyncio.sleep(min(left, POLL_SECONDS))
                left -= POLL_SECONDS
