"""Queues in which the events of one partition wait for their next attempt (pure)."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Generic, NamedTuple, TypeVar

from streams_app.subscribers.execution.circuit_breaker import HalfOpenProbes
from streams_app.subscribers.execution.in_flight_event import InFlightEvent

T = TypeVar("T")


class KeyQueue(Generic[T]):
    """Runs the events of one key one after another, in log order.

    The first unfinished event of a key blocks the others until it is finished, also while it waits for a retry. Events without a
    key neither wait nor block.
    """

    def __init__(self) -> None:
        self._behind: dict[bytes, deque[T]] = {}

    def next_behind(self) -> Iterator[T]:
        """Yield the first blocked event of each key that has one."""
        return (behind[0] for behind in self._behind.values() if behind)

    def arrived(self, key: bytes | None, event: T) -> bool:
        """Add the next event of the log; return whether it may start now. If not, :meth:`finished` returns it later."""
        if key is None:
            return True
        behind = self._behind.get(key)
        if behind is None:
            self._behind[key] = deque()
            return True
        behind.append(event)
        return False

    def finished(self, key: bytes | None) -> T | None:
        """Return the next event of a key, now that the first one has succeeded or become a dead letter; None if there is none."""
        if key is None:
            return None
        behind = self._behind[key]
        if behind:
            return behind.popleft()
        del self._behind[key]
        return None


class RetryQueue(Generic[T]):
    """Events that wait for their next attempt, ordered by due time."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, T]] = []
        # Breaks ties in order of arrival, so that events are never compared.
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, event: T, due_ms: int) -> None:
        heapq.heappush(self._heap, (due_ms, next(self._numbers), event))

    def due(self, now_ms: int) -> int:
        return sum(due_ms <= now_ms for due_ms, _, _ in self._heap)

    def pop_due(self, now_ms: int) -> T | None:
        if self._heap and self._heap[0][0] <= now_ms:
            return heapq.heappop(self._heap)[2]
        return None

    def make_due(self, now_ms: int) -> int:
        """Make all events due now; return the number of those that were not."""
        early = len(self) - self.due(now_ms)
        self._heap = [(min(due_ms, now_ms), number, event) for due_ms, number, event in self._heap]
        heapq.heapify(self._heap)
        return early


class StartRequest(NamedTuple):
    """Request of the dispatcher for events to start.

    Attributes:
        now_ms: Wall clock.
        is_fresh: For a probe of the circuit breaker, True requests a fresh event, and False requests a due retry; if there is none,
            the other kind is taken. None requests due retries, followed by fresh events.
        suspension: Number of the current suspension, see :attr:`.CircuitBreaker.number`.
    """

    most: int
    now_ms: int
    is_fresh: bool | None
    suspension: int


class StartQueue:
    """Queue of the events of one partition that may start: fresh ones in order, and retries that are due.

    Fresh events have no failed attempt under this claim, or were moved there when their retry was due.
    """

    def __init__(self) -> None:
        self.fresh: deque[InFlightEvent] = deque()
        self.retries: RetryQueue[InFlightEvent] = RetryQueue()
        self._probes = HalfOpenProbes()

    def ready(self, now_ms: int) -> int:
        return len(self.fresh) + self.retries.due(now_ms)

    def take(self, request: StartRequest) -> list[InFlightEvent]:
        """Remove and return the next events, at most ``request.most``; see :attr:`StartRequest.is_fresh` for their order."""
        fresh, most = self.fresh, request.most
        events: list[InFlightEvent] = []
        while not (request.is_fresh and fresh) and len(events) < most:
            if (event := self.retries.pop_due(request.now_ms)) is None:
                break
            events.append(event)
        if request.is_fresh is not None and fresh and not events:
            events.append(self._probes.take_of(fresh, request.suspension))
        events += [fresh.popleft() for _ in range(min(most - len(events), len(fresh)))]
        return events

    def take_offset(self, offset: int, now_ms: int) -> list[InFlightEvent]:
        """Remove and return the event at an offset, as a list: empty if it is not in the queue, or its retry is not due.

        If it is not the next fresh event, all retries that are due become fresh events first.
        """
        fresh = self.fresh
        if not (fresh and fresh[0].offset == offset):
            while (due := self.retries.pop_due(now_ms)) is not None:
                fresh.appendleft(due)
        # Fresh events are not always in order: an event whose key has been unblocked is queued behind later ones.
        found = next((event for event in fresh if event.offset == offset), None)
        if found is None:
            return []
        fresh.remove(found)
        return [found]

    def put_front(self, events: Sequence[InFlightEvent]) -> None:
        """Requeue events that were taken but do not start now. They keep their order, and precede all other fresh events."""
        self.fresh.extendleft(reversed(events))

    def requeue(self, event: InFlightEvent) -> None:
        """Requeue an event whose attempt was cancelled before it started."""
        if event.first_failed_ms:
            self.retries.push(event, event.due_ms)
        else:
            self.fresh.appendleft(event)
