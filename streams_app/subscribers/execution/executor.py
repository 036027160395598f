"""Calls the functions of users, away from the loop that keeps the worker in its consumer groups.

Slots take attempts from a queue, and one periodic sweep finds the overdue ones: an event costs no task and no timer. ``async``
functions run in :mod:`.async_executor`, the others in :mod:`.thread_executor`.
"""

from __future__ import annotations

import asyncio
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

SWEEP_SECONDS: Final = 0.1

BLOCKED_MS: Final = 500
"""What holds a sweep up for longer is a function that blocks the loop, or a stopped process: no other call can help it."""

HUNG_MS: Final = 60_000
"""Slots whose functions are all overdue for so long will not come back."""


class AttemptOutcome(Enum):
    """How a call ended."""

    DONE = "done"
    ERROR = "error"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    """It was taken back before it ended, or before it began."""
    DUPLICATE = "duplicate"
    """It did not begin: its id is that of another event, which began before."""


class Attempt(msgspec.Struct, eq=False):
    """One attempt: a struct of msgspec, which is made faster than a dataclass.

    Attributes:
        event: What the function is called with.
        whose: Who asked for it.
        begun_ms: When the function was called, by the monotonic clock; 0: it was not.
        ended_ms: When the outcome was known.
        outcome: How it ended; None: it has not.
        error: What it raised.
        excused_ms: For how long it could not go on because another function blocked the loop, or the process was stopped.
        is_dropped: Whether it is not to begin any more.
        is_unnoted: Whether it may not begin yet, see :meth:`streams_app.subscribers.execution.dispatcher.Dispatcher.noted`.
        on_late: Called where the function returns well after its time-out; None: nobody wants to know.
    """

    event: Any
    whose: Any
    begun_ms: int = 0
    ended_ms: int = 0
    outcome: AttemptOutcome | None = None
    error: BaseException | None = None
    excused_ms: int = 0
    is_dropped: bool = False
    is_unnoted: bool = False
    on_late: Callable[[], None] | None = None


class Executor(ABC):
    """The slots of one subscriber.

    Methods are called on the loop of the worker. ``running`` may be looked at from there: what was taken out of it has an outcome,
    and whoever takes a call out is the one who says which.
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
        """Starts nothing yet; made on the loop of the worker.

        Args:
            function: Of the user.
            slots: So many calls at the same time.
            timeout_ms: How long one may take.
            clock: Its monotonic clock times the calls.
            on_ended: Called on the loop of the worker with the calls that have an outcome, each once; with none where a slot is
                free again that an overdue one held.
            on_hung: Called there once with the stacks of all slots when every one of them is overdue by :data:`HUNG_MS`.
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
        self._is_told = self._is_freed = False

    @abstractmethod
    def put(self, calls: Iterable[Attempt]) -> None:
        """Queues calls."""

    @abstractmethod
    def cancel(self, calls: Iterable[Attempt]) -> None:
        """Takes calls back: each has an outcome soon, also where its function cannot be stopped."""

    def recall(self, calls: Iterable[Attempt]) -> None:
        """Takes calls back that have not begun: each is :attr:`AttemptOutcome.CANCELLED` soon. One that has begun goes on."""
        for call in calls:
            call.is_dropped = True

    @abstractmethod
    async def stop(self) -> None:
        """Ends the slots; what cannot be stopped goes on without them."""

    @property
    def hanging(self) -> int:
        """Slots that overdue attempts still hold."""
        return 0

    def _overdue(self) -> list[Attempt]:
        """Calls that have taken too long, as a sweep finds them; what has held up the sweep itself counts for none of them."""
        now_ms = self._clock.monotonic_ms()
        late_ms = now_ms - self._swept_ms - round(SWEEP_SECONDS * 1000)
        self._swept_ms = now_ms
        if late_ms >= BLOCKED_MS:
            for call in list(self.running):
                call.excused_ms += min(late_ms, now_ms - call.begun_ms)
        # Anew each time: the wall clock may have been set.
        self._until_ms = self._wall_ahead_ms() + self._timeout_ms
        return [call for call in list(self.running) if now_ms - call.begun_ms - call.excused_ms >= self._timeout_ms]

    def _look_hung(self, held: Mapping[Any, Attempt], stack_of: Callable[[Any], str]) -> None:
        """Tells once when every slot is held by what is overdue for long.

        Args:
            held: Slot → the call that holds it.
            stack_of: Slot → where its function stands.
        """
        # One look a sweep at what is usually not even full; the first that is not overdue ends it. Since when it is counts from its
        # outcome: what another function has blocked, or was stopped with its process, began long ago and is not late.
        since_ms = self._clock.monotonic_ms() - HUNG_MS
        if self._is_hung or len(held) < self._slots or not all(0 < call.ended_ms <= since_ms for call in held.values()):
            return
        self._is_hung = True
        stacks = Counter(map(stack_of, held)).most_common()
        told = "\n".join(f"{slots} slots:\n{stack}" for stack, slots in stacks)
        self._home.call_soon_threadsafe(self._on_hung, told)

    def _wall_ahead_ms(self) -> int:
        return self._clock.now_ms() - self._clock.monotonic_ms()

    def _begin(self, call: Attempt, slot: Any, now_ms: int) -> None:
        call.begun_ms = now_ms
        if type(call.event) is Received:
            # It may have waited for its slot for long.
            force_setattr(call.event, "deadline_ms", now_ms + self._until_ms)
        self.running[call] = slot

    def _took_outcome(self, call: Attempt) -> bool:
        """Whether the outcome of a call is the caller's to say: the first one who asks."""
        return self.running.pop(call, self) is not self

    def _end(self, call: Attempt, outcome: AttemptOutcome, now_ms: int, error: BaseException | None = None) -> None:
        call.ended_ms = now_ms
        call.outcome = outcome
        call.error = error
        self._ended.append(call)
        if not self._is_told:
            self._is_told = True
            self._tell_soon()

    def _tell_soon(self) -> None:
        try:
            self._home.call_soon_threadsafe(self._tell)
        except RuntimeError:
            # A thread that nobody could stop may outlive the loop of its worker: there is nobody to be told any more.
            if not self._home.is_closed():
                raise

    def _end_late(self, call: Attempt, error: BaseException | None) -> None:
        """The function has ended, and its call had another outcome already."""
        if error is None:
            self._late.append(call)
        self._tell_freed()

    def _tell_freed(self) -> None:
        self._is_freed = True
        self._tell_soon()

    def _tell(self) -> None:
        # First: what ends from now on tells again.
        self._is_told, is_freed, self._is_freed = False, self._is_freed, False
        ended = [self._ended.popleft() for _ in range(len(self._ended))]
        if ended or is_freed:
            self._on_ended(ended)
        # Only now: whoever wants to know of a late end says so when it is told of the time-out.
        while self._late:
            if (on_late := self._late.popleft().on_late) is not None:
                on_late()


class AttemptsWaiter:
    """Waits for calls to end. The time they have may become less meanwhile, as where a worker is to stop amidst a rebalance."""

    def __init__(self, running: Collection[Attempt]) -> None:
        """Waits for nothing yet.

        Args:
            running: Calls that have not ended, as they are at any time; those that may not begin are not waited for.
        """
        self._running = running
        self._changed = asyncio.Event()
        self._is_up = False
        self._timers: list[asyncio.TimerHandle] = []

    def told(self) -> None:
        """A call has ended."""
        self._changed.set()

    def shorten_deadline(self, seconds: float) -> None:
        """What runs has no more than ``seconds`` from now on; no more than it had, in any case."""
        self._timers.append(asyncio.get_running_loop().call_later(seconds, self._time_is_up))

    def _time_is_up(self) -> None:
        self._is_up = True
        self._changed.set()

    async def within(self, seconds: float) -> bool:
        """Whether all have ended within ``seconds``, or what :meth:`shorten_deadline` has left of them."""
        self.shorten_deadline(seconds)
        try:
            while not (self._is_up or self._have_ended()):
                await self._next()
        finally:
            for timer in self._timers:
                timer.cancel()
        return self._have_ended()

    async def though_cancelled(self, seconds: float) -> None:
        """Waits for what was cancelled, which nobody hurries."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._have_ended():
                    await self._next()

    def _have_ended(self) -> bool:
        return all(call.is_unnoted for call in self._running)

    async def _next(self) -> None:
        self._changed.clear()
        await self._changed.wait()
