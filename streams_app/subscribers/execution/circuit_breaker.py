"""Circuit breaker of a subscriber: suspends attempts while all of them fail, and probes for the end of the outage (pure)."""

from __future__ import annotations

from collections import deque
from typing import Final, TypeVar

from streams_app.backoff import Backoff

T = TypeVar("T")

LAST_ATTEMPTS: Final = 20
"""This many failed attempts in a row suspend a subscriber."""

FEWEST_EVENTS: Final = 3
"""The failed attempts must belong to at least this many events, because retries of one faulty event do not indicate an outage."""

FIRST_PROBE_SECONDS: Final = 1.0
LONGEST_PROBE_SECONDS: Final = 60.0
"""Maximum delay between the probes of a suspended subscriber. The first delay is :data:`FIRST_PROBE_SECONDS`."""

GOLDEN: Final = 0.618034


class HalfOpenProbes:
    """Chooses the event for the next probe of a suspended subscriber, among its fresh events, which have not failed yet.

    Events that cannot succeed are usually next to each other, so the probes are spread: every other probe takes the newest event,
    and the others take positions given by the golden ratio, which are far from each other. If one n-th of the events can succeed,
    about n probes find one of them, wherever they are. A success ends the suspension. The first probe of the next suspension takes
    the event at the same relative position in the queue as the probe that succeeded.
    """

    def __init__(self) -> None:
        self._in_vain = self._suspension = 0

    def take_of(self, events: deque[T], suspension: int) -> T:
        """Remove and return the event for the next probe from the fresh events, of which there is at least one.

        ``suspension`` is :attr:`.CircuitBreaker.number`.
        """
        self._in_vain += suspension == self._suspension
        self._suspension = suspension
        at = -1 if self._in_vain % 2 == 0 else int(len(events) * (self._in_vain * GOLDEN % 1))
        event = events[at]
        del events[at]
        return event


class CircuitBreaker:
    """Detects an outage of a service that a function calls, and lets one attempt at a time run until the outage is over.

    The caller does not report failures that concern their own event only: a rejection, an event that cannot be decoded, or an
    exception that ``Retries.never`` lists.

    All times are monotonic.

    Attributes:
        is_suspended: Whether the breaker is open: the subscriber waits for the end of an outage.
        number: Number of suspensions so far.
    """

    def __init__(self, patience_ms: int) -> None:
        """Failures in the first ``patience_ms`` of a suspension do not count as attempts of their events."""
        self.is_suspended = False
        self.number = 0
        self._patience_ms = patience_ms
        self._failed: deque[object] = deque(maxlen=LAST_ATTEMPTS)
        self._since_ms = self._next_ms = 0
        self._probes = Backoff(FIRST_PROBE_SECONDS, LONGEST_PROBE_SECONDS)
        self._was_fresh = False

    def may_begin(self, now_ms: int, running: int) -> bool:
        """Return whether an attempt may start now, given the number of attempts that are running or queued.

        While the breaker is open, one may start only if no other is running and the next probe is due.
        """
        return not self.is_suspended or (running == 0 and now_ms >= self._next_ms)

    def takes_fresh(self) -> bool:
        """Return whether the next probe takes an event that has not failed yet (True), or a due retry (False).

        The answer alternates with each call.
        """
        self._was_fresh = not self._was_fresh
        return self._was_fresh

    def counts(self, now_ms: int) -> bool:
        """Return whether a failure counts as an attempt of its event: not in the first ``patience_ms`` of a suspension."""
        return not self.is_suspended or now_ms - self._since_ms >= self._patience_ms

    def next_ms(self) -> int | None:
        """Return the monotonic time, in ms, from which the next probe may start; None while the breaker is closed."""
        return self._next_ms if self.is_suspended else None

    def probe_now(self) -> None:
        """Let the next probe of an open breaker start at once; if it fails, the delays begin with the shortest one."""
        if self.is_suspended:
            self._next_ms = 0
            self._probes.succeeded()

    @property
    def has_failures(self) -> bool:
        """Whether attempts have failed since the last success."""
        return bool(self._failed)

    def succeeded(self) -> bool:
        """Record that an attempt has succeeded; return whether this has ended a suspension."""
        if not self.has_failures:
            return False  # not suspended either, because a suspension retains its failures until it ends
        ended = self.is_suspended
        self.is_suspended = False
        self._failed.clear()
        self._probes.succeeded()
        return ended

    def failed(self, event: object, begun_ms: int, now_ms: int) -> bool:
        """Record that an attempt has failed; return whether this has started a suspension.

        An attempt that started before the suspension does not delay the next probe. ``event`` may be any hashable value that
        identifies the event.
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
