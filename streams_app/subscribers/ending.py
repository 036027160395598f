"""How what runs of a partition is waited for where the partition is let go."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress

from streams_app.subscribers.executor import Attempt


class AttemptsWaiter:
    """Waits for calls to end. The time they have may become less meanwhile, as where a worker is to stop amidst a rebalance."""

    def __init__(self, running: Collection[Attempt]) -> None:
        """Waits for nothing yet.

        Args:
            running: Calls that have not ended, as they are at any time; those that may not begin are not waited for.
        """
        self._running = running
        self._changed = asyncio.Event()
        self._is_up = False
        self._timers: list[asyncio.TimerHandle] = []

    def told(self) -> None:
        """A call has ended."""
        self._changed.set()

    def shorten_deadline(self, seconds: float) -> None:
        """What runs has no more than ``seconds`` from now on; no more than it had, in any case."""
        self._timers.append(asyncio.get_running_loop().call_later(seconds, self._time_is_up))

    def _time_is_up(self) -> None:
        self._is_up = True
        self._changed.set()

    async def within(self, seconds: float) -> bool:
        """Whether all have ended within ``seconds``, or what :meth:`shorten_deadline` has left of them."""
        self.shorten_deadline(seconds)
        try:
            while not (self._is_up or self._have_ended()):
                await self._next()
        finally:
            for timer in self._timers:
                timer.cancel()
        return self._have_ended()

    async def though_cancelled(self, seconds: float) -> None:
        """Waits for what was cancelled, which nobody hurries."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._have_ended():
                    await self._next()

    def _have_ended(self) -> bool:
        return all(call.is_unnoted for call in self._running)

    async def _next(self) -> None:
        self._changed.clear()
        await self._changed.wait()
