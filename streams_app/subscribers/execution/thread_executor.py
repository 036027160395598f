"""Executor slots for functions that are not ``async``: the slots of each subscriber are its own threads."""

from __future__ import annotations

import inspect
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from typing import Any

from streams_app.subscribers.execution.executor import SWEEP_SECONDS, Attempt, AttemptOutcome, Executor


class ThreadExecutor(Executor):
    """Executor whose slots are threads. A running function cannot be stopped: an overdue one occupies its slot until it returns."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._occupied: dict[int, Attempt] = {}
        self._queue: queue.SimpleQueue[Attempt | None] = queue.SimpleQueue()
        self._queued: dict[Attempt, None] = {}
        self._threads = [threading.Thread(target=self._serve, name=f"slot-{number}", daemon=True) for number in range(self._slots)]
        for thread in self._threads:
            thread.start()
        self._sweeping = self._home.call_later(SWEEP_SECONDS, self._sweep)

    @property
    def hanging(self) -> int:
        return max(0, len(self._occupied) - len(self.running))

    def put(self, attempts: Iterable[Attempt]) -> None:
        for attempt in attempts:
            if attempt.is_dropped:
                # It was cancelled while it was being recorded as begun.
                self._end(attempt, AttemptOutcome.CANCELLED, self._clock.monotonic_ms())
                continue
            self._queued[attempt] = None
            self._queue.put(attempt)

    def cancel(self, attempts: Iterable[Attempt]) -> None:
        taken = list(attempts)
        self.recall(taken)
        for attempt in taken:
            self._give_up(attempt, AttemptOutcome.CANCELLED)

    def recall(self, attempts: Iterable[Attempt]) -> None:
        """A cancelled attempt has its outcome at once, because threads that hang would never take it from the queue."""
        for attempt in attempts:
            attempt.is_dropped = True
            if self._is_next(attempt):
                self._end(attempt, AttemptOutcome.CANCELLED, self._clock.monotonic_ms())

    async def stop(self) -> None:
        """A busy thread ends when its function has returned, at the latest with the process."""
        self._sweeping.cancel()
        for _ in self._threads:
            self._queue.put(None)

    def _sweep(self) -> None:
        for attempt in self._overdue():
            self._give_up(attempt, AttemptOutcome.TIMEOUT)
        self._check_hung(dict(self._occupied), stack_of)
        self._sweeping = self._home.call_later(SWEEP_SECONDS, self._sweep)

    def _is_next(self, attempt: Attempt) -> bool:
        """Remove an attempt from the queued ones; return False if another thread has already started or cancelled it."""
        return self._queued.pop(attempt, self) is not self

    def _give_up(self, attempt: Attempt, outcome: AttemptOutcome) -> None:
        if self._took_outcome(attempt):
            self._end(attempt, outcome, self._clock.monotonic_ms())

    def _serve(self) -> None:
        slot = threading.get_ident()
        while (attempt := self._queue.get()) is not None:
            if not self._is_next(attempt):
                continue
            self._begin(attempt, True, self._clock.monotonic_ms())
            self._occupied[slot] = attempt
            error: BaseException | None = None
            try:
                call_inline(self._function, attempt.event)
            except BaseException as raised:  # noqa: BLE001  # whatever a user's function raises is the outcome of this event alone
                error = raised
            del self._occupied[slot]
            if self._took_outcome(attempt):
                self._end(
                    attempt, AttemptOutcome.ERROR if error is not None else AttemptOutcome.DONE, self._clock.monotonic_ms(), error
                )
            else:
                self._end_late(attempt, error)


def stack_of(slot: int) -> str:
    """Return the formatted stack of the thread whose identifier is ``slot``; "" if the thread has ended."""
    frame = sys._current_frames().get(slot)
    return "" if frame is None else "".join(traceback.format_stack(frame))


def call_inline(function: Callable[[Any], Any], event: Any) -> None:
    """Call a function that is not ``async``; raise a TypeError if it returned an awaitable."""
    returned = function(event)
    if not inspect.isawaitable(returned):
        return
    if inspect.iscoroutine(returned):
        returned.close()
    raise TypeError("the function is not async but returned an awaitable, which is never awaited")
