"""Executor slots for ``async`` functions: tasks on an event loop that all functions share, in a separate thread."""

from __future__ import annotations

import asyncio
import logging
import threading
import traceback
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import uvloop

from streams_app.errors import text_of
from streams_app.subscribers.execution.executor import SWEEP_SECONDS, Attempt, AttemptOutcome, Executor

logger = logging.getLogger(__name__)

TURN_MS: Final = 5
"""A slot that runs attempts without awaiting anything yields to other tasks after this time."""

_DONE: Final = AttemptOutcome.DONE


class UserLoop:
    """Event loop in a separate thread, on which all ``async`` functions of users run.

    It is a uvloop, because the loop of asyncio rounds each wait up to the next millisecond, and releases the GIL whenever another
    thread wakes it.
    """

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="users-loop", daemon=True)
        self._thread.start()

    @property
    def thread_id(self) -> int:
        """As in ``sys._current_frames``."""
        return self._thread.ident or 0

    def stop(self, seconds: float) -> None:
        """Stop the loop; if a function blocks it for longer than ``seconds``, return while its thread is still running."""
        self._is_stopped = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(seconds)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._is_stopped:
            # SystemExit or KeyboardInterrupt in a task that a function has started ends run_forever, and any function can stop the
            # loop. It continues for the other functions.
            try:
                self.loop.run_forever()
            except BaseException as error:  # noqa: BLE001  # no user's function ends the loop of all of them
                logger.critical("a task of a function would have ended the event loop of async functions error=%s", text_of(error))
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        if left:
            self.loop.run_until_complete(asyncio.wait(left, timeout=1.0))
        self.loop.close()


class AsyncExecutor(Executor):
    """Executor whose slots are tasks on the event loop of users' functions.

    A function that does not end when it is cancelled occupies its slot until it ends.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *given: Any, **options: Any) -> None:
        """Start the slots on the event loop of users' functions; the other arguments are those of :class:`.Executor`."""
        super().__init__(*given, **options)
        self._loop = loop
        self._is_finished = False
        self._left: dict[Any, Attempt] = {}
        self._queue: deque[Attempt] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._begun_last: Attempt | None = None
        self._tasks: list[asyncio.Task[None]] = []
        loop.call_soon_threadsafe(self._start)

    @property
    def hanging(self) -> int:
        return len(self._left)

    def put(self, attempts: Iterable[Attempt]) -> None:
        self._queue.extend(attempts)
        if self._idle:
            self._loop.call_soon_threadsafe(self._wake)

    def cancel(self, attempts: Iterable[Attempt]) -> None:
        taken = list(attempts)
        for attempt in taken:
            attempt.is_dropped = True
        self._loop.call_soon_threadsafe(self._stop_all, taken, AttemptOutcome.CANCELLED)
        self._loop.call_soon_threadsafe(self._wake)

    def has(self, task: asyncio.Task[Any]) -> bool:
        """Return whether a task runs the attempts of a slot; may be called from any thread."""
        return task in self._tasks

    async def stop(self) -> None:
        """Do not wait until the tasks of the slots have ended."""
        ended = self._home.create_future()
        self._loop.call_soon_threadsafe(self._finish, ended)
        await ended

    def _start(self) -> None:
        self._tasks = [self._loop.create_task(self._serve(), name=f"slot {number}") for number in range(self._slots)]
        self._sweeping = self._loop.call_later(SWEEP_SECONDS, self._sweep)

    def _revive(self, task: asyncio.Task[None]) -> None:
        """Replace the task of a slot that has ended.

        If the task was running an attempt, the attempt has failed, because its function has cancelled the task.
        """
        for attempt in [attempt for attempt, slot in self.running.items() if slot is task]:
            if self._took_outcome(attempt):
                self._end(attempt, AttemptOutcome.ERROR, self._clock.monotonic_ms(), asyncio.CancelledError("cancelled by itself"))
        self._replace(task)

    def _replace(self, task: asyncio.Task[None]) -> None:
        if self._left.pop(task, None) is not None:
            self._report_freed()
        if not self._is_finished:
            self._tasks[self._tasks.index(task)] = self._loop.create_task(self._serve(), name=task.get_name())

    def _finish(self, ended: asyncio.Future[None]) -> None:
        self._is_finished = True
        self._sweeping.cancel()
        for task in self._tasks:
            task.cancel()
        self._home.call_soon_threadsafe(ended.set_result, None)

    def _wake(self) -> None:
        wanted = len(self._queue)
        while wanted and self._idle:
            idle = self._idle.popleft()
            if not idle.done():
                idle.set_result(None)
                wanted -= 1

    def _sweep(self) -> None:
        self._stop_all(self._overdue(), AttemptOutcome.TIMEOUT)
        for task in [task for task in self._tasks if task.done()]:
            self._revive(task)
        self._check_hung(self._left, stack_of)
        self._sweeping = self._loop.call_later(SWEEP_SECONDS, self._sweep)

    def _stop_all(self, attempts: Iterable[Attempt], outcome: AttemptOutcome) -> None:
        for attempt in attempts:
            task = self.running.get(attempt)
            if task is not None and self._took_outcome(attempt):
                self._end(attempt, outcome, self._clock.monotonic_ms())
                self._left[task] = attempt
                task.cancel()

    async def _serve(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        # All in one function, with local names: one call of another function would cost as much as the whole body.
        queue, running, function, monotonic_ms = self._queue, self.running, self._function, self._clock.monotonic_ms
        while True:
            await self._has_calls()
            since_ms = now_ms = monotonic_ms()
            while queue and now_ms - since_ms < TURN_MS:
                attempt = queue.popleft()
                if attempt.is_dropped:
                    self._end(attempt, AttemptOutcome.CANCELLED, now_ms)
                    continue
                self._begin(attempt, task, now_ms)
                self._begun_last = attempt
                error: BaseException | None = None
                try:
                    await function(attempt.event)
                except (asyncio.CancelledError, GeneratorExit) as cancelled:
                    if isinstance(cancelled, GeneratorExit) or (attempt in running and task.cancelling()):
                        # The slot itself is cancelled, or discarded with its loop. If a function has cancelled it, the next sweep
                        # replaces it.
                        raise
                    error = cancelled
                except BaseException as raised:  # noqa: BLE001  # whatever a user's function raises is the outcome of this event alone
                    error = raised
                # Read once: the end of an attempt is also the start of the next one.
                now_ms = monotonic_ms()
                if self._begun_last is not attempt:
                    # The attempt has awaited something, so other tasks have run in between.
                    since_ms = now_ms
                if running.pop(attempt, None) is not None:
                    self._end(attempt, _DONE if error is None else AttemptOutcome.ERROR, now_ms, error)
                else:
                    self._left.pop(task, None)
                    self._end_late(attempt, error)
                if task.cancelling():
                    # A pending cancellation would hit the next attempt, so another task takes over this slot.
                    self._replace(task)
                    return

    async def _has_calls(self) -> None:
        """Wait until attempts are queued; if some are queued already, yield to other tasks once."""
        if self._queue:
            await asyncio.sleep(0)
        while not self._queue:
            idle = self._loop.create_future()
            # Added before the queue is checked once more, so that an attempt that arrives in between is not missed.
            self._idle.append(idle)
            if self._queue:
                idle.cancel()
                return
            await idle


def stack_of(task: asyncio.Task[Any]) -> str:
    """Return all frames of a waiting task as formatted text; ``Task.get_stack`` returns only the outermost one."""
    frames = []
    waits: Any = task.get_coro()
    while (frame := getattr(waits, "cr_frame", None)) is not None:
        frames.append((frame, frame.f_lineno))
        waits = waits.cr_await
    return "".join(traceback.StackSummary.extract(iter(frames)).format())
