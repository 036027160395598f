"""Limits how many attempts of a subscriber may start in this process. Each start uses a lease, and Redis grants the leases.

One task per subscriber and process requests leases for the attempts that can start now. It sends a request at least once a second,
so that Redis can count the workers that share the rate. While Redis does not answer, each worker continues with an equal share of
the rate, by the last known number of workers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from streams_app.clock import Clock
from streams_app.delivery.dependency_errors import DEPENDENCY_ERRORS
from streams_app.errors import text_of
from streams_app.subscribers.declaration.subscriber import Rate
from streams_app.subscribers.state.store import RateStore
from streams_app.subscribers.state.token_bucket import LeaseGrant, bucket_of, leased

logger = logging.getLogger(__name__)

GAP_MS: Final = 100
"""Minimum delay before the next request of a worker that got fewer leases than it requested."""

BEAT_MS: Final = 1_000
"""Interval of requests while no leases are needed, and of requests while Redis does not answer."""

ANSWER_SECONDS: Final = 0.5
"""Redis is considered unavailable if it has not answered within this time."""

LEASE_MS: Final = 200
"""Leases expire after this time; otherwise many unused leases could accumulate and let many attempts start at once."""


class RateLimiter:
    """Limits how many attempts of one subscriber may start in this process."""

    def __init__(self, name: str, rate: Rate, store: RateStore, clock: Clock, on_fatal: Callable[[BaseException], None]) -> None:
        self._name = name
        self._rate = rate
        self._store = store
        self._clock = clock
        self._on_fatal = on_fatal
        self._left = self._until_ms = self._used = 0
        self._asked_ms = self._failed_ms = -BEAT_MS
        self._is_away = False
        self._workers = 0
        self._empty_us: float = 0
        self._is_short = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def left(self) -> int:
        """Number of attempts that may start now."""
        return self._left if self._clock.monotonic_ms() < self._until_ms else 0

    @property
    def waits_for_redis(self) -> bool:
        """Whether Redis does not answer and never has, so that the share of this process is unknown and no attempt may start."""
        return self._is_away and not self._workers

    def use(self, count: int) -> None:
        self._left -= count
        self._used += count

    def want_more(self) -> None:
        self._is_short.set()

    def start(self, wanted: Callable[[int], int], kick: Callable[[], None]) -> None:
        """Start the task that requests leases, unless it runs already.

        Args:
            wanted: Returns the number of leases that can be used soon, given the number used since the last request.
            kick: Called after a request if the process has unused leases.
        """
        if self._task is None:
            self._task = asyncio.create_task(self._forever(wanted, kick), name=f"leases {self._name}")
            self._task.add_done_callback(self._ended)

    def stop(self) -> None:
        """Stop requesting leases, and drop those that are unused."""
        self._left = 0
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    async def _forever(self, wanted: Callable[[int], int], kick: Callable[[], None]) -> None:
        # A cancellation alone is not enough: asyncio.timeout and redis-py may drop it, see streams_app.delivery.tasks.cancel_all.
        while self._task is asyncio.current_task():
            self._is_short.clear()
            pause_ms = await self.once(wanted(self._used))
            if self.left:
                kick()
            if pause_ms:
                await asyncio.sleep(pause_ms / 1000)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(BEAT_MS / 1000):
                    await self._is_short.wait()

    async def once(self, wanted: int) -> int:
        """Request leases from Redis if some are needed, or if the last request is at least a second old.

        Args:
            wanted: Number of leases that can be used, including unused ones from earlier requests.

        Returns:
            Delay in ms before the next request if fewer leases than wanted were granted, otherwise 0.
        """
        now_ms = self._clock.monotonic_ms()
        wanted = max(0, wanted - self.left)
        if not wanted and now_ms - self._asked_ms < BEAT_MS:
            return 0
        self._asked_ms = now_ms
        got = await self._ask(wanted, now_ms)
        self._used = 0
        if got.granted:
            self._left, self._until_ms = self.left + got.granted, self._clock.monotonic_ms() + LEASE_MS
        return 0 if got.granted >= wanted else min(max(GAP_MS, got.wait_us // 1_000 + 1), BEAT_MS)

    async def _ask(self, wanted: int, now_ms: int) -> LeaseGrant:
        if not self._is_away or now_ms - self._failed_ms >= BEAT_MS:
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    got, self._workers = await self._store.lease(wanted)
            except DEPENDENCY_ERRORS as error:
                self._failed(error, now_ms)
            else:
                self._is_away = False
                return got
        if not self._workers:
            return LeaseGrant(0, BEAT_MS * 1_000, 0)
        now_us = self._clock.monotonic_ms() * 1_000
        got = leased(bucket_of(self._rate, self._workers), self._empty_us, wanted, now_us)
        self._empty_us = got.empty_us
        return got

    def _failed(self, error: BaseException, now_ms: int) -> None:
        self._failed_ms = now_ms
        if not self._is_away:
            self._is_away = True
            # All leases until now came from Redis, so the local bucket begins empty.
            self._empty_us = now_ms * 1_000
            share = f"1/{self._workers} of its rate" if self._workers else "nothing: it knows of no share"
            logger.warning(
                "cannot lease attempts from redis, the subscriber begins %s subscriber=%s error=%s",
                share,
                self._name,
                text_of(error),
            )

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_fatal(error)
