"""Which event of which partition a subscriber is called with next, in one process."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from enum import Enum
from itertools import groupby
from typing import Final, Protocol

from streams_app.clock import Clock
from streams_app.subscribers.declaration.retries import Retries
from streams_app.subscribers.execution.circuit_breaker import CircuitBreaker
from streams_app.subscribers.execution.executor import Attempt, AttemptOutcome, Executor
from streams_app.subscribers.execution.failure_reporter import Failing, error_of
from streams_app.subscribers.execution.in_flight_event import says_something_of_its_event_alone
from streams_app.subscribers.execution.rate_limiter import RateLimiter
from streams_app.subscribers.execution.status import PartitionStatus

logger = logging.getLogger(__name__)

FEWEST_AHEAD: Final = 256
"""So many calls may wait in the queue of the slots, so that slots with little to do need not wait for this loop."""

AT_ONCE: Final = 32
"""So many events are taken of one partition before the next one has its turn."""

_DONE: Final = AttemptOutcome.DONE

SOON_MS: Final = 20
SOON_ROUNDS: Final = 4


class Ahead(Enum):
    """How many calls may wait for a slot, beside those that run."""

    MANY = "many"
    SOON = "soon"
    """As many as have ended in the last :data:`SOON_MS`, at most :data:`SOON_ROUNDS` for each slot: that they begin is noted while
    the others run. After a crash they are taken for interrupted, although nobody was called with them: the second bound keeps them
    few where long calls follow short ones."""
    NONE = "none"
    """All that was noted as begun really runs."""


class Lately:
    """How many calls have ended lately."""

    def __init__(self) -> None:
        """None has."""
        self._ended = self._count = self._since_ms = 0

    def note(self, calls: int, now_ms: int) -> None:
        """Calls have ended."""
        self._count += calls
        if (passed_ms := now_ms - self._since_ms) >= SOON_MS:
            self._ended = self._count * SOON_MS // passed_ms
            self._count, self._since_ms = 0, now_ms

    def ended(self, now_ms: int) -> int:
        """How many have, in a stretch of :data:`SOON_MS`; none where the last ones are longer ago."""
        return self._ended if now_ms - self._since_ms < 2 * SOON_MS else 0


class EventSource(Protocol):
    """A partition from which events are taken."""

    @property
    def in_flight(self) -> int:
        """Unfinished events once they are too many for the reader to go on, else 0."""

    def take(self, most: int, now_ms: int, *, is_fresh: bool | None = None) -> list[Attempt]:
        """The next events as calls, which may begin at once or once their source says so; fewer than wanted: there are no more now.

        Args:
            most: So many at most.
            now_ms: Wall clock.
            is_fresh: Whether a fresh event is wanted before one that waits; None: as they come.
        """

    def ready(self, now_ms: int) -> int:
        """About how many events could be taken now."""

    def ended(self, calls: Sequence[Attempt], uncounted: Collection[Attempt]) -> None:
        """Calls that were taken here have an outcome.

        Args:
            calls: With their outcomes.
            uncounted: Of these a failure does not count against the event.
        """

    def look(self) -> PartitionStatus:
        """What the partition says of itself."""


class Dispatcher:
    """Brings the events of all partitions of a subscriber to its slots.

    Attributes:
        suspension: Whether everything waits for an outage to end.
    """

    def __init__(
        self,
        name: str,
        concurrency: int,
        patience_ms: int,
        retries: Retries,
        clock: Clock,
        make_runner: Callable[..., Executor],
        count: Callable[[list[Attempt]], None] = lambda calls: None,
        *,
        ahead: Ahead = Ahead.MANY,
        leases: RateLimiter | None = None,
        on_fatal: Callable[[BaseException], None] | None = None,
    ) -> None:
        """Has no partition yet.

        Args:
            name: Of the subscriber, for people.
            concurrency: Number of slots.
            patience_ms: See :class:`streams_app.subscribers.execution.circuit_breaker.CircuitBreaker`.
            retries: Of the subscriber.
            clock: Wall clock of waits, monotonic one of calls.
            make_runner: Takes what is called with calls that ended.
            count: Called with calls that ended before anybody acts on them.
            ahead: How many calls may wait for a slot.
            leases: How many may begin, where the subscriber has a rate; None: any number. What is taken begins at once then.
            on_fatal: Called with an error that nobody expects; None: it is raised.
        """
        self.suspension = CircuitBreaker(patience_ms)
        self._name = name
        self._retries = retries
        self._clock = clock
        self._ahead = Ahead.NONE if leases is not None else ahead
        self._most = max(2 * concurrency, FEWEST_AHEAD) if self._ahead is Ahead.MANY else concurrency
        self._lately = Lately()
        self._rate_limiter = leases
        self._on_fatal = on_fatal
        self._sources: deque[EventSource] = deque()
        self._calls: dict[Attempt, EventSource] = {}
        self._count_all = count
        self._failing = Failing(name)
        self.runner = make_runner(self._on_ended)

    def join(self, source: EventSource) -> None:
        """Takes events of a partition from now on."""
        self._sources.append(source)
        if self._rate_limiter is not None:
            self._rate_limiter.start(self._wanted, self.kick)

    def leave(self, source: EventSource) -> None:
        """Takes no more events of a partition; what was taken goes on."""
        if source in self._sources:
            self._sources.remove(source)
        if not self._sources:
            self._failing.tell_held(self._clock.monotonic_ms(), is_last=True)
            if self._rate_limiter is not None:
                self._rate_limiter.stop()

    @property
    def running(self) -> int:
        """Attempts under way."""
        return len(self.runner.running)

    def is_full(self) -> bool:
        """Whether the reader of a partition is paused; called from any thread."""
        return any(source.in_flight for source in list(self._sources))

    def looks(self) -> list[PartitionStatus]:
        """What each partition says of itself."""
        looks = [source.look() for source in self._sources]
        if self._rate_limiter is not None and self._rate_limiter.waits_for_redis:
            return [look._replace(waits_for=look.waits_for | {"redis"}) for look in looks]
        return looks

    def oldest_queued_ms(self) -> int | None:
        """Time of the oldest record whose call waits for a slot; None: none does."""
        return min((call.whose.record.timestamp for call in self._calls if not call.begun_ms), default=None)

    def kick(self) -> None:
        """Gives the slots what may begin now."""
        now_ms = self._clock.now_ms()
        room = self._most if self._ahead is Ahead.MANY else self._most - self.runner.hanging
        most = room if self._rate_limiter is None else min(room, len(self._calls) + self._rate_limiter.left)
        if self._ahead is Ahead.SOON:
            most += min(self._lately.ended(self._clock.monotonic_ms()), SOON_ROUNDS * self._most)
        calls = self._probe(now_ms, most) if self.suspension.is_suspended else self._take(now_ms, most)
        if self._rate_limiter is not None:
            self._rate_limiter.use(len(calls))
            if len(self._calls) < room and not self._rate_limiter.left:
                self._rate_limiter.want_more()
        self.noted([call for call in calls if not call.is_unnoted])
        self._failing.tell_held(self._clock.monotonic_ms())

    def noted(self, calls: Sequence[Attempt]) -> None:
        """Calls of a source that may begin now, as that they begin is noted where it outlives this process."""
        if calls:
            self.runner.put(calls)

    def withdrawn(self, calls: list[Attempt]) -> None:
        """Calls of a source that do not begin; it has given each an outcome."""
        if calls:
            self._on_ended(calls)

    def _wanted(self, used: int) -> int:
        """How many leases can be used soon.

        Twice as many as were used since the last question, where the slots do more than one attempt each between two of them.
        """
        now_ms, room = self._clock.now_ms(), self._most - self.runner.hanging - len(self._calls)
        ready = sum(source.ready(now_ms) for source in self._sources)
        if self.suspension.is_suspended:
            return min(ready, int(self.suspension.may_begin(self._clock.monotonic_ms(), len(self._calls))))
        return min(ready, max(room, 2 * used)) if room > 0 else 0

    def _probe(self, now_ms: int, most: int) -> list[Attempt]:
        """One event of any partition, a fresh one and one that waits in turn."""
        if most <= len(self._calls) or not self.suspension.may_begin(self._clock.monotonic_ms(), len(self._calls)):
            return []
        wants_fresh = self.suspension.takes_fresh()
        if wants_fresh:
            # One of each kind of a partition, then of the next one: of two each would have its turn for one kind alone.
            self._turn()
        for source in [*self._sources]:
            if calls := source.take(1, now_ms, is_fresh=wants_fresh):
                self._calls.update(dict.fromkeys(calls, source))
                return calls
        return []

    def _take(self, now_ms: int, most: int) -> list[Attempt]:
        taken: list[Attempt] = []
        empty = 0
        while (room := most - len(self._calls)) > 0 and empty < len(self._sources):
            source = self._turn()
            calls = source.take(min(AT_ONCE, room), now_ms)
            self._calls.update(dict.fromkeys(calls, source))
            taken += calls
            empty = 0 if calls else empty + 1
        return taken

    def _turn(self) -> EventSource:
        self._sources.rotate(-1)
        return self._sources[-1]

    def _on_ended(self, calls: list[Attempt]) -> None:
        try:
            self._end(calls)
        except Exception as error:
            if self._on_fatal is None:
                raise
            # The loop would log it and go on, with events that nobody ends.
            for call in calls:
                self._calls.pop(call, None)
            self._on_fatal(error)

    def _end(self, calls: list[Attempt]) -> None:
        self._count_all(calls)
        self._lately.note(len(calls), self._clock.monotonic_ms())
        uncounted = self._uncounted(calls)
        # What was taken of one partition at once ends nearly at once, too.
        for source, some in groupby(calls, key=self._calls.pop):
            source.ended(list(some), uncounted)
        self.kick()

    def _uncounted(self, calls: Sequence[Attempt]) -> set[Attempt]:
        """Looks for signs of an outage in calls that ended; returns those that have failed during one."""
        uncounted: set[Attempt] = set()
        has_failures = self.suspension.has_failures
        for call in calls:
            if call.outcome is _DONE:
                if has_failures and self.suspension.succeeded():
                    logger.info("subscriber goes on, an attempt has succeeded subscriber=%s", self._name)
                continue
            has_failures = True
            # Asked before the call is counted: the attempt that shows an outage is one of those that count.
            if not self.suspension.counts(self._clock.monotonic_ms()):
                uncounted.add(call)
            if call.outcome is AttemptOutcome.TIMEOUT or (
                call.error is not None and not says_something_of_its_event_alone(call.error, self._retries)
            ):
                self._failed(call)
        return uncounted

    def _failed(self, call: Attempt) -> None:
        self._failing.tell(call)
        if self.suspension.failed(call.whose, call.begun_ms, call.ended_ms):
            error = error_of(call)
            logger.warning("subscriber is suspended, its last attempts have all failed subscriber=%s error=%s", self._name, error)
            # What waits for a slot would fail, too: one attempt at a time is made from now on.
            self.runner.recall(self._calls)
