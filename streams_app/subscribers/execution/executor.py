"""Runs the functions of users outside the event loop that keeps the worker in its consumer groups.

Slots take attempts from a queue, and one periodic sweep finds the overdue ones, so that no event needs a task or a timer.
``async`` functions run in :mod:`.async_executor`, the others in :mod:`.thread_executor`.
"""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from enum import Enum
from typing import Any, Final

import msgspec
from msgspec.structs import force_setattr

from streams_app.clock import Clock
from streams_app.subscribers.declaration.received import Received
from streams_app.subscribers.declaration.subscriber import Subscriber

SWEEP_SECONDS: Final = 0.1

BLOCKED_MS: Final = 500
"""If the periodic sweep for overdue attempts is later than this, a function has blocked the event loop, or the process was stopped.
That delay does not count towards the time-out of attempts."""

HUNG_MS: Final = 60_000
"""If the attempts in all slots have been overdue for this long, the slots are considered hanging."""


class AttemptOutcome(Enum):
    """How an attempt ended."""

    DONE = "done"
    ERROR = "error"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    """Cancelled before it started or while it ran."""
    DUPLICATE = "duplicate"
    """Not started, because an earlier event with the same id had begun."""


class Attempt(msgspec.Struct, eq=False):
    """One call of the function for one event; a msgspec struct, because that is created faster than a dataclass.

    Attributes:
        event: Argument of the function.
        in_flight_event: The :class:`.InFlightEvent` to which the attempt belongs.
        begun_ms: Monotonic time at which the function was called; 0: it has not been called.
        ended_ms: Monotonic time at which the outcome was set; 0: it has not been set by an executor.
        excused_ms: Delay in ms that does not count towards the time-out, because another function blocked the event loop or the
            process was stopped.
        is_dropped: Whether the attempt was cancelled, so that it must not start if it has not started yet.
        is_unrecorded: Whether the attempt must not start yet, because it is not recorded as begun, see
            :meth:`.Guarantee.before_start`.
        on_late: Called if the function succeeds although the attempt has timed out or was cancelled; None: nothing is called.
    """

    event: Any
    in_flight_event: Any
    begun_ms: int = 0
    ended_ms: int = 0
    outcome: AttemptOutcome | None = None
    error: BaseException | None = None
    excused_ms: int = 0
    is_dropped: bool = False
    is_unrecorded: bool = False
    on_late: Callable[[], None] | None = None


class Executor(ABC):
    """Executor slots of one subscriber.

    Methods are called on the event loop of the worker. A running attempt gets exactly one outcome, because only the code that has
    removed the attempt from :attr:`running` may set it.

    Attributes:
        running: The running attempts, as the keys of a dict; may be read on the event loop of the worker.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        slots: int,
        timeout_ms: int,
        clock: Clock,
        on_ended: Callable[[list[Attempt]], None],
        *,
        on_hung: Callable[[str], None] = lambda stacks: None,
    ) -> None:
        """Create the slots; called on the event loop of the worker.

        Args:
            on_ended: Called on the event loop of the worker with attempts that have an outcome; each attempt is passed once. It is
                called with an empty list when the function of an overdue or cancelled attempt has freed its slot.
            on_hung: Called once on the same loop, with the stacks of all slots as text, when the attempts in all slots have been
                overdue for :data:`HUNG_MS`.
        """
        self.running: dict[Attempt, Any] = {}
        self._function = function
        self._slots = slots
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._until_ms = self._wall_ahead_ms() + timeout_ms
        self._swept_ms = clock.monotonic_ms()
        self._on_ended = on_ended
        self._on_hung = on_hung
        self._is_hung = False
        self._home = asyncio.get_running_loop()
        self._ended: deque[Attempt] = deque()
        self._late: deque[Attempt] = deque()
        self._is_scheduled = self._is_freed = False

    @abstractmethod
    def put(self, attempts: Iterable[Attempt]) -> None:
        """Queue attempts for the next free slots."""

    @abstractmethod
    def cancel(self, attempts: Iterable[Attempt]) -> None:
        """Cancel attempts.

        A running attempt soon has an outcome, even if its function cannot be stopped. An attempt that has not started is cancelled
        as by :meth:`recall`.
        """

    def recall(self, attempts: Iterable[Attempt]) -> None:
        """Cancel those of the attempts that have not started; attempts that are running continue.

        A cancelled attempt has the outcome ``CANCELLED`` at the latest when a slot takes it from the queue.
        """
        for attempt in attempts:
            attempt.is_dropped = True

    @abstractmethod
    async def stop(self) -> None:
        """End the slots; functions that cannot be stopped keep running."""

    @property
    def hanging(self) -> int:
        """Number of slots that overdue or cancelled attempts still occupy."""
        return 0

    def _overdue(self) -> list[Attempt]:
        """Return the attempts that have timed out.

        If a call is late by :data:`BLOCKED_MS` or more, the delay does not count towards the time-out.
        """
        now_ms = self._clock.monotonic_ms()
        late_ms = now_ms - self._swept_ms - round(SWEEP_SECONDS * 1000)
        self._swept_ms = now_ms
        if late_ms >= BLOCKED_MS:
            for attempt in list(self.running):
                attempt.excused_ms += min(late_ms, now_ms - attempt.begun_ms)
        # Computed in each sweep, because the wall clock may have been set.
        self._until_ms = self._wall_ahead_ms() + self._timeout_ms
        return [attempt for attempt in list(self.running) if now_ms - attempt.begun_ms - attempt.excused_ms >= self._timeout_ms]

    def _check_hung(self, occupied: Mapping[Any, Attempt], stack_of: Callable[[Any], str]) -> None:
        """Call ``on_hung`` once, when every slot is occupied by an attempt that has been overdue for :data:`HUNG_MS`."""
        # The time counts from the outcome: an attempt that was delayed by another function, or by a stopped process, may have
        # started long ago without being overdue. This is cheap, because usually some slots are free.
        since_ms = self._clock.monotonic_ms() - HUNG_MS
        if (
            self._is_hung
            or len(occupied) < self._slots
            or not all(0 < attempt.ended_ms <= since_ms for attempt in occupied.values())
        ):
            return
        self._is_hung = True
        stacks = Counter(map(stack_of, occupied)).most_common()
        text = "\n".join(f"{slots} slots:\n{stack}" for stack, slots in stacks)
        self._home.call_soon_threadsafe(self._on_hung, text)

    def _wall_ahead_ms(self) -> int:
        return self._clock.now_ms() - self._clock.monotonic_ms()

    def _begin(self, attempt: Attempt, slot: Any, now_ms: int) -> None:
        attempt.begun_ms = now_ms
        if type(attempt.event) is Received:
            # Set only now, because the attempt may have waited in the queue for long.
            force_setattr(attempt.event, "deadline_ms", now_ms + self._until_ms)
        self.running[attempt] = slot

    def _took_outcome(self, attempt: Attempt) -> bool:
        """Remove an attempt from ``running``; return whether this call has removed it, so that the caller must set its outcome."""
        return self.running.pop(attempt, self) is not self

    def _end(self, attempt: Attempt, outcome: AttemptOutcome, now_ms: int, error: BaseException | None = None) -> None:
        attempt.ended_ms = now_ms
        attempt.outcome = outcome
        attempt.error = error
        self._ended.append(attempt)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._schedule_delivery()

    def _schedule_delivery(self) -> None:
        try:
            self._home.call_soon_threadsafe(self._wake_home)
        except RuntimeError:
            # A thread that could not be stopped may run longer than the event loop of its worker.
            if not self._home.is_closed():
                raise

    def _end_late(self, attempt: Attempt, error: BaseException | None) -> None:
        """Report that a function has returned whose attempt already had an outcome, such as a time-out: its slot is free."""
        if error is None:
            self._late.append(attempt)
        self._report_freed()

    def _report_freed(self) -> None:
        self._is_freed = True
        self._schedule_delivery()

    def _wake_home(self) -> None:
        # Reset first, so that attempts that end from now on schedule another call.
        self._is_scheduled, is_freed, self._is_freed = False, self._is_freed, False
        ended = [self._ended.popleft() for _ in range(len(self._ended))]
        if ended or is_freed:
            self._on_ended(ended)
        # After on_ended, because ``on_late`` is set when the time-out is handled.
        while self._late:
            if (on_late := self._late.popleft().on_late) is not None:
                on_late()


class AttemptsWaiter:
    """At the release of a partition, waits until its attempts have ended. The deadline can be shortened during the wait."""

    def __init__(self, running: Collection[Attempt]) -> None:
        """Prepare to wait for ``running``, which the caller updates; attempts with ``is_unrecorded`` are ignored."""
        self._running = running
        self._changed = asyncio.Event()
        self._is_up = False
        self._timers: list[asyncio.TimerHandle] = []

    def attempt_ended(self) -> None:
        self._changed.set()

    def shorten_deadline(self, seconds: float) -> None:
        """Set a deadline for :meth:`within`, ``seconds`` from now; an earlier deadline stays in force."""
        self._timers.append(asyncio.get_running_loop().call_later(seconds, self._time_is_up))

    def _time_is_up(self) -> None:
        self._is_up = True
        self._changed.set()

    async def within(self, seconds: float) -> bool:
        """Wait until all attempts have ended, for at most ``seconds``; return whether they have ended."""
        self.shorten_deadline(seconds)
        try:
            while not (self._is_up or self._have_ended()):
                await self._next()
        finally:
            for timer in self._timers:
                timer.cancel()
        return self._have_ended()

    async def cancelled_within(self, seconds: float) -> None:
        """Wait until cancelled attempts have ended, for at most ``seconds``; no other deadline limits this wait."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._have_ended():
                    await self._next()

    def _have_ended(self) -> bool:
        return all(attempt.is_unrecorded for attempt in self._running)

    async def _next(self) -> None:
        self._changed.clear()
        await self._changed.wait()


async def call_forget(declared: Subscriber[Any, Any, Any], key: str) -> None:
    """Call the function ``forget`` of a subscriber, if it has one, with a key; in a thread unless it is ``async``."""
    function = declared.forget
    if function is not None:
        result = function(key) if inspect.iscoroutinefunction(function) else await asyncio.to_thread(function, key)
        if result is not None:
            await result
