"""Chooses which event of which partition a subscriber runs next in one process."""

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
from streams_app.subscribers.execution.failure_reporter import FailureReporter, error_of
from streams_app.subscribers.execution.rate_limiter import RateLimiter
from streams_app.subscribers.execution.retry_decision import concerns_event_alone
from streams_app.subscribers.execution.status import PartitionStatus

logger = logging.getLogger(__name__)

FEWEST_AHEAD: Final = 256
"""At least this many attempts may be queued for the executor slots, so that a free slot need not wait for this event loop."""

AT_ONCE: Final = 32
"""Maximum number of events that are taken from one partition before those of the next partition."""

_DONE: Final = AttemptOutcome.DONE

SOON_MS: Final = 20
"""Period in ms for which :class:`RecentEnds` estimates how many attempts end."""

SOON_ROUNDS: Final = 4
"""Maximum number of attempts for each slot that may be queued with :attr:`QueueLimit.SOON`."""


class QueueLimit(Enum):
    """Limit on the number of attempts that may be queued for an executor slot, in addition to the running ones."""

    MANY = "many"
    SOON = "soon"
    """About as many attempts as end within :data:`SOON_MS`, at most :data:`SOON_ROUNDS` for each slot. They are recorded as begun
    while others run, so after a crash they count as interrupted, although their function was not called. The limit keeps their
    number small when long attempts follow short ones."""
    NONE = "none"
    """No attempts are queued, so every event that is recorded as begun is really running."""


class RecentEnds:
    """Measures how many attempts end per :data:`SOON_MS`."""

    def __init__(self) -> None:
        self._ended = self._count = self._since_ms = 0

    def add(self, attempts: int, now_ms: int) -> None:
        self._count += attempts
        if (passed_ms := now_ms - self._since_ms) >= SOON_MS:
            self._ended = self._count * SOON_MS // passed_ms
            self._count, self._since_ms = 0, now_ms

    def ended(self, now_ms: int) -> int:
        """Estimate how many attempts will end within the next :data:`SOON_MS`; 0 if none has ended recently."""
        return self._ended if now_ms - self._since_ms < 2 * SOON_MS else 0


class PartitionQueue(Protocol):
    """The waiting events of a partition, from which the dispatcher takes; ``now_ms`` is the wall clock."""

    @property
    def in_flight(self) -> int:
        """If the reader of the partition is paused, the number of unfinished events that pause it; otherwise 0."""

    def take(self, most: int, now_ms: int, *, is_fresh: bool | None = None) -> list[Attempt]:
        """Take the next events of the partition, and return their attempts: fewer than ``most`` only if no more may start now.

        Args:
            is_fresh: See :attr:`.StartRequest.is_fresh`.

        Returns:
            The attempts. The dispatcher starts them, except those with ``is_unrecorded``, which start later: when the queue passes
            them to :meth:`Dispatcher.start`.
        """

    def ready(self, now_ms: int) -> int:
        """Estimate how many events could be taken now."""

    def retry_now(self, now_ms: int) -> int:
        """Make all events that wait for a retry due now; return the number of those that were not."""

    def ended(self, attempts: Sequence[Attempt], uncounted: Collection[Attempt]) -> None:
        """Finish, retry or dead-letter the events of attempts that have ended.

        Args:
            uncounted: Attempts that do not count towards the retries of their events, because of an outage.
        """

    def status(self) -> PartitionStatus:
        """Return the status of the partition; its ``waits_for`` covers the time since the previous call."""


class Dispatcher:
    """Passes the events of all partitions of a subscriber to its executor slots."""

    def __init__(
        self,
        name: str,
        concurrency: int,
        patience_ms: int,
        retries: Retries,
        clock: Clock,
        make_executor: Callable[..., Executor],
        count: Callable[[list[Attempt]], None] = lambda attempts: None,
        *,
        ahead: QueueLimit = QueueLimit.MANY,
        rate_limiter: RateLimiter | None = None,
        on_fatal: Callable[[BaseException], None] | None = None,
    ) -> None:
        """Create a dispatcher without partitions.

        Args:
            name: Name of the subscriber, for the log.
            concurrency: Number of slots.
            patience_ms: Time in ms from the start of a suspension during which failures do not count as attempts of their events.
            retries: Retry rule of the subscriber.
            clock: Its wall clock shows which retries are due, and its monotonic clock measures attempts.
            make_executor: Creates the executor. It is called with the function to which the executor passes attempts that have
                ended.
            count: Counts attempts that have ended; called before their events are finished or retried.
            ahead: How many attempts may be queued for a slot. With a rate limiter, none are queued.
            rate_limiter: Limits how many attempts may start; None: no limit.
            on_fatal: Called with an unexpected error; None: the error is raised.
        """
        self.circuit_breaker = CircuitBreaker(patience_ms)
        self._name = name
        self._retries = retries
        self._clock = clock
        self._ahead = QueueLimit.NONE if rate_limiter is not None else ahead
        self._most = max(2 * concurrency, FEWEST_AHEAD) if self._ahead is QueueLimit.MANY else concurrency
        self._recent_ends = RecentEnds()
        self._rate_limiter = rate_limiter
        self._on_fatal = on_fatal
        self._queues: deque[PartitionQueue] = deque()
        self._attempts: dict[Attempt, PartitionQueue] = {}
        self._count_all = count
        self._failures = FailureReporter(name, retries)
        self.executor = make_executor(self._on_ended)

    def join(self, queue: PartitionQueue) -> None:
        """Add a partition, from which events are taken from now on."""
        self._queues.append(queue)
        if self._rate_limiter is not None:
            self._rate_limiter.start(self._wanted, self.kick)

    def remove_queue(self, queue: PartitionQueue) -> None:
        """Stop taking events from a partition; attempts that were taken continue."""
        if queue in self._queues:
            self._queues.remove(queue)
        if not self._queues:
            self._failures.report_suppressed(self._clock.monotonic_ms(), is_last=True)
            if self._rate_limiter is not None:
                self._rate_limiter.stop()

    @property
    def running(self) -> int:
        return len(self.executor.running)

    def is_full(self) -> bool:
        """Return whether the reader of any partition is paused; may be called from any thread."""
        return any(queue.in_flight for queue in list(self._queues))

    def statuses(self) -> list[PartitionStatus]:
        """Return the status of each partition that supplies events.

        If no attempt may start because the rate limiter waits for Redis, ``waits_for`` of each partition also contains ``redis``.
        """
        statuses = [queue.status() for queue in self._queues]
        if self._rate_limiter is not None and self._rate_limiter.waits_for_redis:
            return [status._replace(waits_for=status.waits_for | {"redis"}) for status in statuses]
        return statuses

    def oldest_queued_ms(self) -> int | None:
        """Return the timestamp of the oldest record whose attempt is queued for a slot; None if the queue is empty."""
        return min((attempt.in_flight_event.record.timestamp for attempt in self._attempts if not attempt.begun_ms), default=None)

    def retry_now(self) -> int:
        """Retry at once what waits for a retry, and probe at once if the circuit breaker is open; return the number of events.

        A failure counts, or does not, as at any other time.
        """
        self.circuit_breaker.probe_now()
        now_ms = self._clock.now_ms()
        events = sum([queue.retry_now(now_ms) for queue in self._queues])
        logger.info("retries on request events=%d subscriber=%s", events, self._name)
        self.kick()
        return events

    def kick(self) -> None:
        """Pass the events that may start now to the executor slots."""
        now_ms = self._clock.now_ms()
        room = self._most if self._ahead is QueueLimit.MANY else self._most - self.executor.hanging
        most = room if self._rate_limiter is None else min(room, len(self._attempts) + self._rate_limiter.left)
        if self._ahead is QueueLimit.SOON:
            most += min(self._recent_ends.ended(self._clock.monotonic_ms()), SOON_ROUNDS * self._most)
        attempts = self._probe(now_ms, most) if self.circuit_breaker.is_suspended else self._take(now_ms, most)
        if self._rate_limiter is not None:
            self._rate_limiter.use(len(attempts))
            if len(self._attempts) < room and not self._rate_limiter.left:
                self._rate_limiter.want_more()
        self.start([attempt for attempt in attempts if not attempt.is_unrecorded])
        self._failures.report_suppressed(self._clock.monotonic_ms())

    def start(self, attempts: Sequence[Attempt]) -> None:
        """Pass attempts to the executor slots. If their guarantee requires it, they must have been recorded as begun."""
        if attempts:
            self.executor.put(attempts)

    def withdrawn(self, attempts: list[Attempt]) -> None:
        """Finish the events of duplicates, and requeue those of attempts that were cancelled before they started."""
        if attempts:
            self._on_ended(attempts)

    def _wanted(self, used: int) -> int:
        """Return how many leases of the rate limit can be used soon, given the number used since the last request.

        Each event that may start can use one lease. The result is at most the number of free slots or twice ``used``, whichever is
        higher, because a slot may run several attempts between two requests. It is 0 if no slot is free. While the circuit breaker
        is open, it is at most 1.
        """
        now_ms, room = self._clock.now_ms(), self._most - self.executor.hanging - len(self._attempts)
        ready = sum(queue.ready(now_ms) for queue in self._queues)
        if self.circuit_breaker.is_suspended:
            return min(ready, int(self.circuit_breaker.may_begin(self._clock.monotonic_ms(), len(self._attempts))))
        return min(ready, max(room, 2 * used)) if room > 0 else 0

    def _probe(self, now_ms: int, most: int) -> list[Attempt]:
        """Take one event of any partition as a probe, alternating between fresh events and due retries."""
        if most <= len(self._attempts) or not self.circuit_breaker.may_begin(self._clock.monotonic_ms(), len(self._attempts)):
            return []
        wants_fresh = self.circuit_breaker.takes_fresh()
        if wants_fresh:
            # Rotated only at every other probe: otherwise, of two partitions, one would always supply the fresh events, and the
            # other one the retries.
            self._turn()
        for queue in [*self._queues]:
            if attempts := queue.take(1, now_ms, is_fresh=wants_fresh):
                self._attempts.update(dict.fromkeys(attempts, queue))
                return attempts
        return []

    def _take(self, now_ms: int, most: int) -> list[Attempt]:
        taken: list[Attempt] = []
        empty = 0
        while (room := most - len(self._attempts)) > 0 and empty < len(self._queues):
            queue = self._turn()
            attempts = queue.take(min(AT_ONCE, room), now_ms)
            self._attempts.update(dict.fromkeys(attempts, queue))
            taken += attempts
            empty = 0 if attempts else empty + 1
        return taken

    def _turn(self) -> PartitionQueue:
        self._queues.rotate(-1)
        return self._queues[-1]

    def _on_ended(self, attempts: list[Attempt]) -> None:
        try:
            self._end(attempts)
        except Exception as error:
            if self._on_fatal is None:
                raise
            # asyncio would log the error and continue, and the events would never end.
            for attempt in attempts:
                self._attempts.pop(attempt, None)
            self._on_fatal(error)

    def _end(self, attempts: list[Attempt]) -> None:
        self._count_all(attempts)
        self._recent_ends.add(len(attempts), self._clock.monotonic_ms())
        uncounted = self._uncounted(attempts)
        # Grouped without sorting, because attempts that were taken together from one partition usually end together.
        for queue, some in groupby(attempts, key=self._attempts.pop):
            queue.ended(list(some), uncounted)
        self._failures.report(self._clock.now_ms(), self._clock.monotonic_ms())  # now it is known when each is retried
        self.kick()

    def _uncounted(self, attempts: Sequence[Attempt]) -> set[Attempt]:
        """Report the outcomes of attempts to the circuit breaker; return those that do not count, because of an outage."""
        uncounted: set[Attempt] = set()
        has_failures = self.circuit_breaker.has_failures
        for attempt in attempts:
            if attempt.outcome is _DONE:
                if has_failures and self.circuit_breaker.succeeded():
                    logger.info("subscriber resumes, an attempt has succeeded subscriber=%s", self._name)
                continue
            has_failures = True
            # Checked before the failure is reported, because the attempt that starts a suspension counts.
            if not self.circuit_breaker.counts(self._clock.monotonic_ms()):
                uncounted.add(attempt)
            if attempt.outcome is AttemptOutcome.TIMEOUT or (
                attempt.error is not None and not concerns_event_alone(attempt.error, self._retries)
            ):
                self._failed(attempt)
        return uncounted

    def _failed(self, attempt: Attempt) -> None:
        self._failures.count(attempt)
        if self.circuit_breaker.failed(attempt.in_flight_event, attempt.begun_ms, attempt.ended_ms):
            error = error_of(attempt)
            logger.warning("subscriber is suspended, its last attempts have all failed subscriber=%s error=%s", self._name, error)
            # Queued attempts would fail, too. From now on, one attempt runs at a time.
            self.executor.recall(self._attempts)
