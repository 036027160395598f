"""Monitors the event loop on which all ``async`` functions run, from a separate thread.

A function that blocks instead of awaiting delays all others. The function and its current line can be found only while it blocks,
and only by a thread that does not depend on that loop.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections import defaultdict, deque
from typing import Final

from streams_app.clock import Clock
from streams_app.subscribers.execution.async_executor import AsyncExecutor, UserLoop

logger = logging.getLogger(__name__)

ASK_EVERY_SECONDS: Final = 0.25
CHECK_SECONDS: Final = 0.02
"""If the loop has not responded within this time, the lag is recorded for the subscriber whose function is running."""

BLOCKED_MS: Final = 1_000
"""A block of at least this duration is logged once."""

KEPT_MS: Final = 60_000
"""The metric shows the longest lag within this period, because a scrape would miss short lags."""

MAX_FRAMES: Final = 20


class LoopMonitor:
    """Measures how long functions block the event loop, by subscriber."""

    def __init__(self, users: UserLoop, clock: Clock, blocked_ms: int = BLOCKED_MS) -> None:
        self._users = users
        self._clock = clock
        self._blocked_ms = blocked_ms
        self._executors: dict[str, AsyncExecutor] = {}
        self._lags: dict[str, deque[tuple[int, int]]] = defaultdict(lambda: deque(maxlen=round(KEPT_MS / 1000 / ASK_EVERY_SECONDS)))
        self._is_stopped = threading.Event()
        threading.Thread(target=self._watch, name="users-loop-watch", daemon=True).start()

    def add(self, subscriber: str, executor: AsyncExecutor) -> None:
        self._executors[subscriber] = executor

    def lag_ms(self, subscriber: str) -> int:
        """Return the longest time for which a function of a subscriber has blocked the loop in the last minute.

        A block by another task, such as one that a function has created, counts for every subscriber.
        """
        since_ms = self._clock.monotonic_ms() - KEPT_MS
        return max((lag_ms for at_ms, lag_ms in list(self._lags[subscriber]) if at_ms >= since_ms), default=0)

    def stop(self) -> None:
        self._is_stopped.set()

    def _watch(self) -> None:
        while not self._is_stopped.wait(ASK_EVERY_SECONDS):
            try:
                self._ask()
            except RuntimeError:
                # The loop is closed because the worker is ending.
                return

    def _ask(self) -> None:
        asked_ms, answered = self._clock.monotonic_ms(), threading.Event()
        self._users.loop.call_soon_threadsafe(answered.set)
        if answered.wait(CHECK_SECONDS):
            return
        whose, is_reported = self._whose(), False
        while not answered.wait(CHECK_SECONDS):
            late_ms = self._clock.monotonic_ms() - asked_ms
            if self._is_stopped.is_set():
                return
            if late_ms >= self._blocked_ms and not is_reported:
                is_reported, whose = True, self._whose()
                logger.warning(
                    "the event loop of async functions is blocked subscriber=%s seconds=%.1f stack:\n%s",
                    ",".join(whose), late_ms / 1000, self._stack(),
                )  # fmt: skip
            # Recorded while the block lasts, so that one that never ends is visible, too.
            self._record(whose, late_ms)
        late_ms = self._clock.monotonic_ms() - asked_ms
        self._record(whose, late_ms)
        if is_reported:
            logger.warning("the event loop of async functions continues after %.1f s", late_ms / 1000)

    def _record(self, whose: list[str], lag_ms: int) -> None:
        now_ms = self._clock.monotonic_ms()
        for name in whose:
            lags = self._lags[name]
            if lags and lags[-1][1] <= lag_ms and now_ms - lags[-1][0] <= lag_ms:
                lags.pop()  # an earlier reading of the same block
            lags.append((now_ms, lag_ms))

    def _whose(self) -> list[str]:
        """Return the subscriber whose function occupies the loop; all of them if another task does, such as one of a function."""
        task = asyncio.current_task(self._users.loop)
        executors = dict(self._executors)
        return [name for name, executor in executors.items() if task is not None and executor.has(task)] or list(executors)

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._users.thread_id)
        return "".join(traceback.format_stack(frame)[-MAX_FRAMES:]) if frame is not None else "it has ended"
