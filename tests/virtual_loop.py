"""An event loop whose time stands still while anything can run, and jumps to the next timer when nothing can.

No schedule waits for real: hours of time-outs, retries and quiet periods pass in milliseconds, and the same seed gives the same
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
    """Never waits: the loop's own time moves by what it was asked to wait."""

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
        """Seconds since the loop was made, virtual."""
        return self._jumping.jumped_seconds


class LoopClock:
    """Both clocks of the product, by the loop."""

    def now_ms(self) -> int:
        """As a wall clock."""
        return EPOCH_MS + self.monotonic_ms()

    def monotonic_ms(self) -> int:
        """Since the loop was made."""
        return round(asyncio.get_running_loop().time() * 1000)


def in_no_time(schedule: Coroutine[Any, Any, T]) -> T:
    """Run a schedule on a loop of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(schedule)
