"""Scheduler of a test kit: runs the event loops and folds of the kit, and scheduled calls, by one virtual clock."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import count
from math import floor
from typing import Final

from streams_app.testing.folds import FoldTester
from streams_app.testing.processes import Process
from streams_app.testing.virtual_time import SHORT_SECONDS, VirtualLoop, VirtualTime

TICK_SECONDS: Final = 1.0
"""Interval of virtual time at which event loops run while no function runs: a worker checks for due retries only in its ticks.

If every event is finished, the timers of the worker are ignored: the clock advances directly to the next timer of users' code, due
group of a fold or scheduled call."""


class Stage:
    """Runs the event loops and folds of a test kit, and the calls that :meth:`at` has scheduled, by one virtual clock.

    It begins with ``loops``, which belong to no process; ``is_quiet`` returns whether every event is finished.
    """

    def __init__(self, time: VirtualTime, loops: Sequence[VirtualLoop], is_quiet: Callable[[], bool]) -> None:
        self.is_running = False
        self._time = time
        self._loops = list(loops)
        self._is_quiet = is_quiet
        self._processes: list[Process] = []
        self._folds: list[FoldTester] = []
        self._arranged: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def add_process(self, process: Process) -> None:
        self._processes.append(process)

    def add_fold(self, fold: FoldTester) -> None:
        self._folds.append(fold)

    def at(self, seconds: float, act: Callable[[], None]) -> None:
        """Schedule one call of ``act`` at a time of the monotonic virtual clock, in seconds."""
        heapq.heappush(self._arranged, (seconds, next(self._numbers), act))

    def settle(self) -> None:
        """Run all callbacks that can run without advancing the clock; do nothing if one of these callbacks calls this method."""
        if self.is_running:
            return
        self.is_running = True
        try:
            while self._step():
                continue
        finally:
            self.is_running = False

    def run_until(self, until_seconds: float, is_done: Callable[[], bool] = lambda: False) -> None:
        """Advance the clock; run all callbacks, scheduled calls and ticks of folds that become due, until a time or ``is_done``."""
        self.settle()
        while not is_done():
            self._time.seconds = max(self._time.seconds, min(self._next(), until_seconds))
            self._act()
            self.settle()
            if self._time.seconds >= until_seconds:
                return

    def _step(self) -> bool:
        # A list, not a generator, so that the loops after the first one with callbacks run, too.
        return any([loop.run_ready() for loop in self._stepped()])

    def _stepped(self) -> list[VirtualLoop]:
        return [*self._loops, *(process.loop for process in self._processes if process.can_run)]

    def _next(self) -> float:
        """Return the time to which the clock advances next; infinity if nothing is scheduled."""
        loops, now = self._stepped(), self._time.seconds
        is_busy = any(process.is_busy for process in self._processes if process.can_run)
        is_quiet = not is_busy and self._is_quiet()
        dues = [loop.next_of_users() if is_quiet else loop.next_seconds for loop in loops]
        due = min((seconds for seconds in dues if seconds is not None), default=float("inf"))
        if not is_busy:
            due = max(due, floor(now / TICK_SECONDS + SHORT_SECONDS) + TICK_SECONDS)
        folds = (self._time.seconds_at(due_ms) for fold in self._folds if (due_ms := fold.next_due_ms()) is not None)
        return min([due, *(seconds for seconds, _, _ in self._arranged[:1]), *folds])

    def _act(self) -> None:
        for fold in self._folds:
            fold.advance_to(self._time.now_ms())
        while self._arranged and self._arranged[0][0] <= self._time.seconds:
            heapq.heappop(self._arranged)[2]()
