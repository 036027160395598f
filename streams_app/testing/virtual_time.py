"""Event loops under one virtual clock.

The code that steps the loops advances the clock. A loop that never waits advances the clock itself, so that time-outs still occur.

Each simulated process of the kit has its own loop, and all loops run in one thread. A killed process is a loop that is no longer
stepped; a frozen process is a loop that is stepped later.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import Context
from typing import Any, Final, TypeVarTuple

from streams_app.local.member import CALLED_BY_TIMER

Ts = TypeVarTuple("Ts")

START_SECONDS: Final = 1.0
"""Initial time of the monotonic clock. It is not 0, because some code uses 0 for a time that is not set."""

SHORT_SECONDS: Final = 1e-6
REAL_SECONDS: Final = 0.01
"""Real time that a step waits for data on the connections of a running function, before the virtual clock advances."""


SPINS: Final = 2_000
SPIN_SECONDS: Final = 0.1
"""Time by which the virtual clock advances after each :data:`SPINS` iterations of a loop that does not wait.

Otherwise a function that only yields to the loop, such as with ``asyncio.sleep(0)``, would never time out.
"""


class VirtualTime:
    """Virtual clock of all event loops of a kit: a wall clock and a monotonic clock that advance together.

    Attributes:
        seconds: Time of the monotonic clock.
    """

    def __init__(self, start_ms: int) -> None:
        self.seconds = START_SECONDS
        self._wall_ms = start_ms - self.monotonic_ms()

    def now_ms(self) -> int:
        return self._wall_ms + self.monotonic_ms()

    def monotonic_ms(self) -> int:
        return round(self.seconds * 1000)

    def seconds_at(self, wall_ms: int) -> float:
        """Convert a wall-clock time, in ms since 1970, to a time of the monotonic clock, in seconds."""
        return (wall_ms - self._wall_ms) / 1000


class _Selector(selectors.DefaultSelector):
    """Selector that really waits only for threads and network connections; otherwise, it stops its loop instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.on_idle: Callable[[float | None], None] = lambda seconds: None
        self.in_threads = 0
        self.is_busy: Callable[[], bool] = lambda: False
        self.on_spin: Callable[[], None] = lambda: None
        self._turns = 0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= SHORT_SECONDS):
            self._turns += 1
            if self._turns % SPINS == 0:
                self.on_spin()
            return ready
        self._turns = 0
        if self.in_threads:
            # Threads run by the real clock, so the virtual clock stops until they have ended.
            return super().select(None)
        if len(self.get_map()) > 1 and self.is_busy():
            # Besides the loop's own pipe there is a connection, and a running function may be waiting for it.
            ready = super().select(REAL_SECONDS)
        if not ready:
            self.on_idle(timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Event loop that runs all callbacks that are due at the current virtual time, then stops.

    ``is_busy`` returns whether a function is running that may wait for a connection.
    """

    def __init__(self, time: VirtualTime, is_busy: Callable[[], bool] = lambda: False) -> None:
        self._selector_of_ours = _Selector()
        self._time_of_all = time
        self._next_seconds: float | None = None
        self._timers: list[asyncio.TimerHandle] = []
        super().__init__(self._selector_of_ours)
        self._selector_of_ours.on_idle = self._idle
        self._selector_of_ours.is_busy = is_busy
        self._selector_of_ours.on_spin = self._spin
        self._is_woken = False

    def time(self) -> float:
        return self._time_of_all.seconds

    @property
    def next_seconds(self) -> float | None:
        """Time at which the loop must run next, on the monotonic clock: now if a callback is ready, None if nothing is due."""
        return self._time_of_all.seconds if self._is_woken else self._next_seconds

    def next_of_users(self) -> float | None:
        """Return the time of the next timer of users' code, as :attr:`next_seconds` does.

        Timers of executors and of members of consumer groups are left out: while every event is finished, they do nothing.
        """
        self._timers = [timer for timer in self._timers if not timer.cancelled() and timer.when() > self.time()]
        if self._is_woken:
            return self._time_of_all.seconds
        return min((timer.when() for timer in self._timers), default=None)

    def run_ready(self) -> bool:
        """Run all callbacks that are due at the current time; return whether there were any."""
        due = self.next_seconds
        if due is None or due > self._time_of_all.seconds + SHORT_SECONDS:
            return False
        self._is_woken = False
        self.run_forever()
        return True

    def _spin(self) -> None:
        self._time_of_all.seconds += SPIN_SECONDS

    def _idle(self, wait_seconds: float | None) -> None:
        self._next_seconds = None if wait_seconds is None else self._time_of_all.seconds + wait_seconds
        self._is_woken = False
        self.stop()

    def call_soon(self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None) -> asyncio.Handle:
        self._is_woken = True
        return super().call_soon(callback, *args, context=context)

    def call_soon_threadsafe(self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None) -> asyncio.Handle:
        self._is_woken = True
        return super().call_soon_threadsafe(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        self._is_woken = True
        timer = super().call_at(when, callback, *args, context=context)
        if not CALLED_BY_TIMER.get():
            self._timers.append(timer)
        return timer

    def run_in_executor(self, executor: Executor | None, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]  # its stub has type variables that nobody else needs
        """The virtual clock stops until the function has ended."""
        future = super().run_in_executor(executor, func, *args)
        self._selector_of_ours.in_threads += 1
        future.add_done_callback(self._left_thread)
        return future

    def _left_thread(self, _: Any) -> None:
        self._selector_of_ours.in_threads -= 1

    def end(self) -> None:
        for _ in range(3):
            left = asyncio.all_tasks(self)
            for task in left:
                task.cancel()
            self._is_woken = True
            self.run_ready()
        self.close()
