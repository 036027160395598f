"""Watches the loop on which all users' ``async`` functions run, from a thread of its own.

One of them that blocks instead of awaiting holds up all others. Which one it is, and where it stands, can be seen while it blocks
and not afterwards: so somebody who does not depend on that loop looks.
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
FIRST_LOOK_SECONDS: Final = 0.02
"""A loop that has not answered by then is looked at: who runs on it now?"""

BLOCKED_MS: Final = 1_000
"""A loop that is blocked for so long is told in the log, once a block."""

KEPT_MS: Final = 60_000
"""The longest lag of so long is what the metric shows: a look once in a while would miss it."""

MOST_FRAMES: Final = 20


class LoopMonitor:
    """Measures by how much the loop is late, and for whom."""

    def __init__(self, users: UserLoop, clock: Clock, blocked_ms: int = BLOCKED_MS) -> None:
        """Starts to watch; ``blocked_ms``: see :data:`BLOCKED_MS`."""
        self._users = users
        self._clock = clock
        self._blocked_ms = blocked_ms
        self._runners: dict[str, AsyncExecutor] = {}
        self._lags: dict[str, deque[tuple[int, int]]] = defaultdict(lambda: deque(maxlen=round(KEPT_MS / 1000 / ASK_EVERY_SECONDS)))
        self._is_stopped = threading.Event()
        threading.Thread(target=self._watch, name="users-loop-watch", daemon=True).start()

    def add(self, subscriber: str, runner: AsyncExecutor) -> None:
        """Adds slots to those by which a lag is known for its subscriber."""
        self._runners[subscriber] = runner

    def lag_ms(self, subscriber: str) -> int:
        """For how long, at most in the last minute, a function of a subscriber has kept the loop."""
        since_ms = self._clock.monotonic_ms() - KEPT_MS
        return max((lag_ms for at_ms, lag_ms in list(self._lags[subscriber]) if at_ms >= since_ms), default=0)

    def stop(self) -> None:
        """Ends; the thread follows by itself."""
        self._is_stopped.set()

    def _watch(self) -> None:
        while not self._is_stopped.wait(ASK_EVERY_SECONDS):
            try:
                self._ask()
            except RuntimeError:
                # The loop is closed: the worker ends.
                return

    def _ask(self) -> None:
        asked_ms, answered = self._clock.monotonic_ms(), threading.Event()
        self._users.loop.call_soon_threadsafe(answered.set)
        if answered.wait(FIRST_LOOK_SECONDS):
            return
        whose, is_told = self._whose(), False
        while not answered.wait(FIRST_LOOK_SECONDS):
            late_ms = self._clock.monotonic_ms() - asked_ms
            if self._is_stopped.is_set():
                return
            if late_ms >= self._blocked_ms and not is_told:
                is_told, whose = True, self._whose()
                logger.warning(
                    "the loop of all async functions is blocked subscriber=%s seconds=%.1f stack:\n%s",
                    ",".join(whose), late_ms / 1000, self._stack(),
                )  # fmt: skip
            # Told while it lasts: one that never ends is seen, too.
            self._note(whose, late_ms)
        late_ms = self._clock.monotonic_ms() - asked_ms
        self._note(whose, late_ms)
        if is_told:
            logger.warning("the loop of all async functions goes on after %.1f s", late_ms / 1000)

    def _note(self, whose: list[str], lag_ms: int) -> None:
        now_ms = self._clock.monotonic_ms()
        for name in whose:
            lags = self._lags[name]
            if lags and lags[-1][1] <= lag_ms and now_ms - lags[-1][0] <= lag_ms:
                lags.pop()  # the same lag, which has grown
            lags.append((now_ms, lag_ms))

    def _whose(self) -> list[str]:
        """The subscriber whose slot the loop runs; all where it runs none, as a task that a function has made may be anybody's."""
        task = asyncio.current_task(self._users.loop)
        runners = dict(self._runners)
        return [name for name, runner in runners.items() if task is not None and runner.has(task)] or list(runners)

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._users.thread_id)
        return "".join(traceback.format_stack(frame)[-MOST_FRAMES:]) if frame is not None else "it has ended"
