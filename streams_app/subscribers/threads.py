"""Slots for functions that are not ``async``: threads of their subscriber alone."""

from __future__ import annotations

import inspect
import queue
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

from streams_app.subscribers.runner import SWEEP_SECONDS, Call, Outcome, Runner

HUNG_MS: Final = 60_000
"""Slots whose functions are all overdue for so long will not come back."""


class ThreadRunner(Runner):
    """Slots that are threads. A function in a thread cannot be stopped: an overdue one holds its slot until it returns."""

    def __init__(self, *given: Any, on_hung: Callable[[str], None] = lambda stacks: None) -> None:
        """Takes what every runner takes.

        Args:
            given: See :class:`Runner`.
            on_hung: Called once with the stacks of all slots when every one of them is overdue by :data:`HUNG_MS`.
        """
        super().__init__(*given)
        self._on_hung = on_hung
        self._is_hung = False
        self._held: dict[int, Call] = {}
        self._queue: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._serve, name=f"slot-{number}", daemon=True) for number in range(self._slots)]
        for thread in self._threads:
            thread.start()
        self._sweeping = self._home.call_later(SWEEP_SECONDS, self._sweep)

    @property
    def hanging(self) -> int:
        """See :attr:`Runner.hanging`."""
        return max(0, len(self._held) - len(self.running))

    def put(self, calls: Iterable[Call]) -> None:
        """See :meth:`Runner.put`."""
        for call in calls:
            self._queue.put(call)

    def cancel(self, calls: Iterable[Call]) -> None:
        """See :meth:`Runner.cancel`."""
        for call in calls:
            call.is_dropped = True
            self._give_up(call, Outcome.CANCELLED)

    async def stop(self) -> None:
        """See :meth:`Runner.stop`."""
        self._sweeping.cancel()
        for _ in self._threads:
            self._queue.put(None)

    def _sweep(self) -> None:
        for call in self._overdue():
            self._give_up(call, Outcome.TIMEOUT)
        self._look_hung()
        self._sweeping = self._home.call_later(SWEEP_SECONDS, self._sweep)

    def _look_hung(self) -> None:
        # One look a sweep at what is usually not even full; the first that is not overdue ends it.
        held = dict(self._held)
        late_ms = self._timeout_ms + HUNG_MS
        now_ms = self._clock.monotonic_ms()
        if self._is_hung or len(held) < self._slots or not all(now_ms - call.begun_ms >= late_ms for call in held.values()):
            return
        self._is_hung = True
        frames = sys._current_frames()
        stacks = Counter("".join(traceback.format_stack(frames[slot])) for slot in held if slot in frames)
        self._on_hung("\n".join(f"{slots} slots:\n{stack}" for stack, slots in stacks.most_common()))

    def _give_up(self, call: Call, outcome: Outcome) -> None:
        if self._took_outcome(call):
            self._end(call, outcome, self._clock.monotonic_ms())

    def _serve(self) -> None:
        slot = threading.get_ident()
        while (call := self._queue.get()) is not None:
            if call.is_dropped:
                self._end(call, Outcome.CANCELLED, self._clock.monotonic_ms())
                continue
            self._begin(call, True, self._clock.monotonic_ms())
            self._held[slot] = call
            error: BaseException | None = None
            try:
                call_inline(self._function, call.event)
            except BaseException as raised:  # noqa: BLE001  # whatever a user's function raises is the outcome of this event alone
                error = raised
            del self._held[slot]
            if self._took_outcome(call):
                self._end(call, Outcome.ERROR if error is not None else Outcome.DONE, self._clock.monotonic_ms(), error)


def call_inline(function: Callable[[Any], Any], event: Any) -> None:
    """Calls a function that is not ``async``.

    Raises:
        TypeError: It returned what nobody awaits.
    """
    returned = function(event)
    if not inspect.isawaitable(returned):
        return
    if inspect.iscoroutine(returned):
        returned.close()
    raise TypeError("the function is not async and returned an awaitable: nothing of it has run")
