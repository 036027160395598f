"""How many attempts of a subscriber with a rate may begin in this process: leased from Redis, which counts for all of them.

One task a subscriber and process asks for what can begin now, and each second whether or not it wants any, so that Redis knows how
many workers share the rate. While Redis does not answer, each goes on with its equal share of the rate, as it was last.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from streams_app.clock import Clock
from streams_app.delivery.retry import DEPENDENCY_ERRORS
from streams_app.errors import text_of
from streams_app.subscribers.declaration.subscriber import Rate
from streams_app.subscribers.state.store import RateStore
from streams_app.subscribers.state.token_bucket import Leased, leased, pace_of

logger = logging.getLogger(__name__)

GAP_MS: Final = 100
"""A worker that got less than it wanted asks again so much later, at the earliest."""

BEAT_MS: Final = 1_000
"""So often a worker asks that wants nothing, and so often one asks that was not answered."""

ANSWER_SECONDS: Final = 0.5
"""Redis that has not answered by then is away."""

LEASE_MS: Final = 200
"""A lease that was not used by then is lost: many that were saved up would begin at once."""


class RateLimiter:
    """What one process may begin of one subscriber."""

    def __init__(self, name: str, rate: Rate, store: RateStore, clock: Clock, on_fatal: Callable[[BaseException], None]) -> None:
        """May begin nothing yet.

        Args:
            name: Of the subscriber, for people.
            rate: Of the whole application.
            store: Of this process.
            clock: Its monotonic clock times what is done without Redis.
            on_fatal: Called with an error that nobody expects.
        """
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
        """So many attempts may begin now."""
        return self._left if self._clock.monotonic_ms() < self._until_ms else 0

    @property
    def waits_for_redis(self) -> bool:
        """Whether nothing begins because Redis has not answered since the start: this process knows of no share it could have."""
        return self._is_away and not self._workers

    def use(self, count: int) -> None:
        """So many attempts begin."""
        self._left -= count
        self._used += count

    def want_more(self) -> None:
        """Has more asked for, if more can begin."""
        self._is_short.set()

    def start(self, wanted: Callable[[int], int], kick: Callable[[], None]) -> None:
        """Begins to ask; does nothing where it does already.

        Args:
            wanted: How many may be used soon, given how many were since the last question.
            kick: Called when there are leases.
        """
        if self._task is None:
            self._task = asyncio.create_task(self._forever(wanted, kick), name=f"leases {self._name}")
            self._task.add_done_callback(self._ended)

    def stop(self) -> None:
        """Asks no more, and forgets what was leased."""
        self._left = 0
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    async def _forever(self, wanted: Callable[[int], int], kick: Callable[[], None]) -> None:
        # Not only until it is cancelled: asyncio.timeout and redis-py may drop that, see streams_app.delivery.tasks.ended.
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
        """Asks if there is a reason to; returns after how many ms it asks again, as it got less than it wanted; else 0.

        Args:
            wanted: So many are to be there.
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

    async def _ask(self, wanted: int, now_ms: int) -> Leased:
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
            return Leased(0, BEAT_MS * 1_000, 0)
        now_us = self._clock.monotonic_ms() * 1_000
        got = leased(pace_of(self._rate, self._workers), self._empty_us, wanted, now_us)
        self._empty_us = got.empty_us
        return got

    def _failed(self, error: BaseException, now_ms: int) -> None:
        self._failed_ms = now_ms
        if not self._is_away:
            self._is_away = True
            # What could have been saved up until now was leased from Redis.
            self._empty_us = now_ms * 1_000
            share = f"1/{self._workers} of its rate" if self._workers else "nothing: it knows of no share"
            logger.warning(
                "subscriber leases no attempts from redis, it begins %s subscriber=%s error=%s", share, self._name, text_of(error)
            )

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_fatal(error)
