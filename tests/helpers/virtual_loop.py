"""An event loop whose time stands still while anything can run, and jumps to the next timer when nothing can.

Schedules do not wait in real time: hours of timeouts, retries and quiet periods take milliseconds, and the same seed gives the same
order of events.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

EPOCH_MS = 1_700_000_000_000


class _Jumping(selectors.DefaultSelector):
    """A selector that never waits: it advances the time of the loop by the requested timeout."""

    jumped_seconds = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("nothing will ever happen again")
        self.jumped_seconds += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop for :class:`asyncio.Runner`."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Return the virtual seconds since the creation of the loop."""
        return self._jumping.jumped_seconds


class LoopClock:
    """Both clocks of the product, with the time of the loop."""

    def now_ms(self) -> int:
        """Return the wall clock."""
        return EPOCH_MS + self.monotonic_ms()

    def monotonic_ms(self) -> int:
        """Return the time since the creation of the loop."""
        return round(asyncio.get_running_loop().time() * 1000)


def in_no_time(schedule: Coroutine[Any, Any, T]) -> T:
    """Run a schedule on a new loop."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(schedule)
