"""When an attempt that failed is made again, and when everything waits because all attempts fail (pure)."""

from __future__ import annotations

from collections import deque
from typing import Final, TypeVar

from streams_app.backoff import Backoff

T = TypeVar("T")

LAST_ATTEMPTS: Final = 20
"""So many attempts in a row that failed suspend a subscriber."""

FEWEST_EVENTS: Final = 3
"""Of so many events they must be: one poisonous event, however often it is retried, is no outage."""

FIRST_PROBE_SECONDS: Final = 1.0
LONGEST_PROBE_SECONDS: Final = 60.0
"""The attempts of a suspended subscriber are so far apart."""

GOLDEN: Final = 0.618034


class HalfOpenProbes:
    """Which of the fresh events of a partition a suspended subscriber tries next: one that is unlike those that have failed.

    Those that cannot succeed stand together, as a rule. So it is the newest one, and in turn one of anywhere: places by the golden
    ratio are nowhere near to one another, so that a part of the events, wherever it is, is met after about as many attempts as it
    goes into the whole. A success ends the suspension; the next one begins with the place that has led to it.
    """

    def __init__(self) -> None:
        """None was tried."""
        self._in_vain = self._suspension = 0

    def take_of(self, events: deque[T], suspension: int) -> T:
        """Takes the next one out of some, in the suspension of a number."""
        self._in_vain += suspension == self._suspension
        self._suspension = suspension
        at = -1 if self._in_vain % 2 == 0 else int(len(events) * (self._in_vain * GOLDEN % 1))
        event = events[at]
        del events[at]
        return event


class CircuitBreaker:
    """Notices an outage of what a function calls, and makes one attempt at a time until it is over.

    An attempt whose failure says something about its own event only (rejected, an exception named in ``never``) is not told here.

    Attributes:
        is_suspended: Whether everything waits for the outage to end.
        number: How many times it has begun to.
    """

    def __init__(self, patience_ms: int) -> None:
        """No attempt was made yet.

        Args:
            patience_ms: For so long failures during an outage do not count against an event.
        """
        self.is_suspended = False
        self.number = 0
        self._patience_ms = patience_ms
        self._failed: deque[object] = deque(maxlen=LAST_ATTEMPTS)
        self._since_ms = self._next_ms = 0
        self._probes = Backoff(FIRST_PROBE_SECONDS, LONGEST_PROBE_SECONDS)
        self._was_fresh = False

    def may_begin(self, now_ms: int, running: int) -> bool:
        """Whether an attempt may begin now, while ``running`` others are under way."""
        return not self.is_suspended or (running == 0 and now_ms >= self._next_ms)

    def takes_fresh(self) -> bool:
        """Whether the one attempt of a suspended subscriber is to be of a fresh event; otherwise of one that waits. In turn."""
        self._was_fresh = not self._was_fresh
        return self._was_fresh

    def counts(self, now_ms: int) -> bool:
        """Whether a failure that ends now counts against its event."""
        return not self.is_suspended or now_ms - self._since_ms >= self._patience_ms

    def next_ms(self) -> int | None:
        """When the next attempt may begin; None while everything may."""
        return self._next_ms if self.is_suspended else None

    @property
    def has_failures(self) -> bool:
        """Whether attempts have failed since the last one that succeeded."""
        return bool(self._failed)

    def succeeded(self) -> bool:
        """Notes an attempt that succeeded; returns whether it has ended a suspension."""
        if not self.has_failures:
            return False  # nor is it suspended: the failures that began a suspension are kept until it ends
        ended = self.is_suspended
        self.is_suspended = False
        self._failed.clear()
        self._probes.succeeded()
        return ended

    def failed(self, event: object, begun_ms: int, now_ms: int) -> bool:
        """Notes an attempt that failed; returns whether it has begun a suspension.

        Args:
            event: What tells the event from others.
            begun_ms: When it began: one that was under way already when the suspension began tells nothing new.
            now_ms: When it ended.
        """
        if self.is_suspended:
            if begun_ms > self._since_ms:
                self._next_ms = self._probe_after(now_ms)
            return False
        self._failed.append(event)
        if len(self._failed) < LAST_ATTEMPTS or len(set(self._failed)) < FEWEST_EVENTS:
            return False
        self.is_suspended, self._was_fresh = True, False
        self.number += 1
        self._since_ms, self._next_ms = now_ms, self._probe_after(now_ms)
        return True

    def _probe_after(self, now_ms: int) -> int:
        return now_ms + round(1000 * self._probes.failed())
