"""Slots for functions that are ``async``: tasks on one event loop of all users' functions, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from streams_app.subscribers.runner import SWEEP_SECONDS, Call, Outcome, Runner

TURN_MS: Final = 5
"""So long a slot may go from call to call, where none of them waits for anything, before other tasks have their turn."""

BLOCKED_MS: Final = 500
"""What holds a sweep up for longer is a function that blocks the loop, or a stopped process: no other call can help it."""

_DONE: Final = Outcome.DONE


class UserLoop:
    """The event loop of all users' functions, in a thread of its own."""

    def __init__(self) -> None:
        """Starts the thread."""
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="users-loop", daemon=True)
        self._thread.start()

    @property
    def thread_id(self) -> int:
        """Of its thread."""
        return self._thread.ident or 0

    def stop(self, seconds: float) -> None:
        """Ends the loop; a function that blocks it for longer than ``seconds`` is left behind."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(seconds)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        if left:
            self.loop.run_until_complete(asyncio.wait(left, timeout=1.0))
        self.loop.close()


class AsyncRunner(Runner):
    """Slots that are tasks on the loop of the users."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *given: Any) -> None:
        """Takes the loop of the users and what every runner takes."""
        super().__init__(*given)
        self._loop = loop
        self._queue: deque[Call] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._tasks: list[asyncio.Task[None]] = []
        loop.call_soon_threadsafe(self._start)

    def put(self, calls: Iterable[Call]) -> None:
        """See :meth:`Runner.put`."""
        self._queue.extend(calls)
        self._loop.call_soon_threadsafe(self._wake)

    def cancel(self, calls: Iterable[Call]) -> None:
        """See :meth:`Runner.cancel`."""
        taken = list(calls)
        for call in taken:
            call.is_dropped = True
        self._loop.call_soon_threadsafe(self._stop_all, taken, Outcome.CANCELLED)
        self._loop.call_soon_threadsafe(self._wake)

    def has(self, task: asyncio.Task[Any]) -> bool:
        """Whether a task is one of the slots; called from any thread."""
        return task in self._tasks

    async def stop(self) -> None:
        """See :meth:`Runner.stop`."""
        ended = self._home.create_future()
        self._loop.call_soon_threadsafe(self._finish, ended)
        await ended

    def _start(self) -> None:
        self._tasks = [self._loop.create_task(self._serve(), name=f"slot {number}") for number in range(self._slots)]
        self._swept_ms = self._clock.monotonic_ms()
        self._sweeping = self._loop.call_later(SWEEP_SECONDS, self._sweep)

    def _finish(self, ended: asyncio.Future[None]) -> None:
        self._sweeping.cancel()
        for task in self._tasks:
            task.cancel()
        self._home.call_soon_threadsafe(ended.set_result, None)

    def _wake(self) -> None:
        for _ in range(min(len(self._queue), len(self._idle))):
            idle = self._idle.popleft()
            if not idle.done():
                idle.set_result(None)

    def _sweep(self) -> None:
        now_ms = self._clock.monotonic_ms()
        late_ms = now_ms - self._swept_ms - round(SWEEP_SECONDS * 1000)
        self._swept_ms = now_ms
        if late_ms >= BLOCKED_MS:
            for call in list(self.running):
                call.excused_ms += min(late_ms, now_ms - call.begun_ms)
        self._stop_all(self._overdue(), Outcome.TIMEOUT)
        self._sweeping = self._loop.call_later(SWEEP_SECONDS, self._sweep)

    def _stop_all(self, calls: Iterable[Call], outcome: Outcome) -> None:
        for call in calls:
            task = self.running.get(call)
            if task is not None and self._took_outcome(call):
                self._end(call, outcome, self._clock.monotonic_ms())
                task.cancel()

    async def _serve(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        while True:
            await self._has_calls()
            since_ms = now_ms = self._clock.monotonic_ms()
            while self._queue and now_ms - since_ms < TURN_MS:
                call = self._queue.popleft()
                if call.is_dropped:
                    self._end(call, Outcome.CANCELLED, now_ms)
                    continue
                # In one function: a call of another one would cost as much as all that is done here.
                self._begin(call, task, now_ms)
                error: BaseException | None = None
                try:
                    await self._function(call.event)
                except asyncio.CancelledError as cancelled:
                    if call in self.running and task.cancelling():
                        # The slot itself is ended.
                        raise
                    error = cancelled
                except BaseException as raised:  # noqa: BLE001  # whatever a user's function raises is the outcome of this event alone
                    error = raised
                # The end of a call is the begin of the next one.
                now_ms = self._clock.monotonic_ms()
                if self._took_outcome(call):
                    self._end(call, _DONE if error is None else Outcome.ERROR, now_ms, error)
                else:
                    while task.cancelling():
                        task.uncancel()

    async def _has_calls(self) -> None:
        """Returns when there are some; a slot whose calls were all short lets others have their turn in any case."""
        if self._queue:
            await asyncio.sleep(0)
        while not self._queue:
            idle = self._loop.create_future()
            self._idle.append(idle)
            await idle
