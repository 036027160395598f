"""Metrics of one subscriber in one process: attempts, finished events, dead letters, and durations.

For each event a few plain numbers are incremented; they are added to the Prometheus metrics once a second.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Final, Literal

from prometheus_client import Histogram

from streams_app.clock import Clock
from streams_app.health.metrics import Metrics, observe_counts
from streams_app.reasons import OF_SUBSCRIBERS
from streams_app.subscribers.declaration.received import Retry
from streams_app.subscribers.execution.executor import Attempt, AttemptOutcome
from streams_app.subscribers.execution.in_flight_event import InFlightEvent

Attempted = Literal["done", "retry", "error", "timeout", "interrupted", "crash"]
Finished = Literal["done", "dead-letter", "duplicate", "skipped", "lost"]

ATTEMPTED: Final[tuple[Attempted, ...]] = ("done", "retry", "error", "timeout", "interrupted", "crash")
FINISHED: Final[tuple[Finished, ...]] = ("done", "dead-letter", "duplicate", "skipped", "lost")

_DONE: Final = AttemptOutcome.DONE
_LATE: Final = "finished-late"
"""Reason of an additional dead letter, which reports that a function succeeded too late. It does not finish the event, because the
dead letter for the time-out or the interruption does."""


def attempted(attempt: Attempt) -> Attempted | None:
    """Return the metric label for the outcome of an attempt; None if it was cancelled before it started."""
    if not attempt.begun_ms:
        return None
    if attempt.outcome is _DONE:
        return "done"
    if attempt.outcome is AttemptOutcome.TIMEOUT:
        return "timeout"
    if attempt.outcome is AttemptOutcome.CANCELLED:
        return "interrupted"
    return "retry" if isinstance(attempt.error, Retry) else "error"


class HistogramBuffer:
    """Buffers whole numbers for a histogram. It stores how often each number occurs, because most of them are equal."""

    def __init__(self, histogram: Histogram, scale: int = 1) -> None:
        """Create an empty buffer; ``scale`` divides the numbers: 1000 for ms in a histogram of seconds."""
        self._histogram = histogram
        self._scale = scale
        self._counted: Counter[int] = Counter()

    def add_all(self, numbers: Sequence[int]) -> None:
        # Usually all numbers are equal; counting them in this way takes a quarter of the time.
        if numbers and numbers.count(numbers[0]) == len(numbers):
            self._counted[numbers[0]] += len(numbers)
        else:
            self._counted.update(numbers)

    def export(self) -> None:
        bounds = self._histogram._upper_bounds
        counts, total = [0] * len(bounds), 0
        for number, times in self._counted.items():
            counts[bisect_left(bounds, number / self._scale)] += times
            total += number * times
        self._counted.clear()
        observe_counts(self._histogram, counts, total / self._scale)


class SubscriberMetrics:
    """Metrics of one subscriber; all methods are called on the event loop of the worker.

    Attributes:
        done: For each result, the number of events that were finished before the last :meth:`export`.
    """

    def __init__(self, metrics: Metrics, name: str, event: str, clock: Clock) -> None:
        """Create all time series of the subscriber, because ``rate`` and ``increase`` ignore the first value of a series."""
        self._clock = clock
        self._attempts: Counter[Attempted] = Counter()
        self._finished: Counter[Finished] = Counter()
        self._dead_letters: Counter[str] = Counter()
        self._unreported: Counter[str] = Counter()
        self._finished_by = {one: metrics.subscriber_finished.labels(name, event, one) for one in FINISHED}
        self._attempts_by = {one: metrics.subscriber_attempts.labels(name, event, one) for one in ATTEMPTED}
        self._dead_letters_by_reason = metrics.subscriber_dead_letters
        for reason in OF_SUBSCRIBERS:
            self._dead_letters_by_reason.labels(name, reason)
        self._resyncs_by = metrics.subscriber_resyncs
        self._name = name
        self._seconds = {one: HistogramBuffer(metrics.subscriber_handler_seconds.labels(name, one), 1000) for one in ATTEMPTED}
        self._wait = HistogramBuffer(metrics.subscriber_wait_seconds.labels(name), 1000)
        self._attempts_per_event = HistogramBuffer(metrics.subscriber_attempts_per_event.labels(name))
        self.done = Counter[str]()
        self._has_failures = False

    def ended(self, attempts: Sequence[Attempt]) -> None:
        """Count attempts that have an outcome. If an attempt has succeeded, also count its event as finished."""
        # Several passes over all attempts take a quarter of the time of one loop with all steps for each attempt.
        done = [attempt for attempt in attempts if attempt.outcome is _DONE]
        self._finished["done"] += len(done)
        self._attempts_per_event.add_all(self._count("done", done))
        if len(done) < len(attempts):
            by_outcome: dict[Attempted, list[Attempt]] = {}
            for attempt in attempts:
                if attempt.outcome is not _DONE and (outcome := attempted(attempt)) is not None:
                    by_outcome.setdefault(outcome, []).append(attempt)
            for outcome, some in by_outcome.items():
                self._count(outcome, some)

    def _count(self, outcome: Attempted, attempts: Sequence[Attempt]) -> list[int]:
        """Count attempts with the same outcome, with their durations and waiting times; return the attempt number of each."""
        ahead_ms = self._clock.now_ms() - self._clock.monotonic_ms()
        self._attempts[outcome] += len(attempts)
        self._seconds[outcome].add_all([attempt.ended_ms - attempt.begun_ms for attempt in attempts])
        numbers = [attempt.in_flight_event.attempts for attempt in attempts]
        if self._has_failures or max(numbers, default=0) > 1:
            # Only first attempts count for the waiting time. The number alone does not identify them, because it does not increase
            # during an outage.
            attempts = [
                attempt
                for attempt in attempts
                if attempt.in_flight_event.attempts <= 1 and not attempt.in_flight_event.first_failed_ms
            ]
        self._has_failures = self._has_failures or outcome != "done"
        first = [ahead_ms + attempt.begun_ms - attempt.in_flight_event.record.timestamp for attempt in attempts]
        # The clock of a producer may be ahead, so negative waiting times count as 0.
        self._wait.add_all(first if min(first, default=0) >= 0 else [max(0, wait_ms) for wait_ms in first])
        return numbers

    def interrupted_attempt(self, outcome: Literal["interrupted", "crash"]) -> None:
        """Count an attempt of a former owner that has no recorded outcome, because its process died or lost the partition.

        Args:
            outcome: ``crash`` if the event is delivered at least once; ``interrupted`` if it must not run a second time.
        """
        self._attempts[outcome] += 1

    def finished(self, event: InFlightEvent, result: Finished) -> None:
        """Count an event that was finished by neither a success nor a dead letter."""
        self._finished[result] += 1
        # The attempt of a duplicate has not started.
        if event.attempts and result != "duplicate":
            self._attempts_per_event.add_all([event.attempts])

    def dead_lettered(self, dead_letters: Sequence[tuple[InFlightEvent, str]]) -> None:
        """Count acknowledged dead letters, and count their events as finished.

        A dead letter with the reason ``finished-late`` only reports on an event, so its event is not counted.
        """
        for event, reason in dead_letters:
            self._dead_letters[reason] += 1
            self._unreported[reason] += 1
            if reason != _LATE:
                self.finished(event, "dead-letter")

    def removed_by_retention(self, offsets: int) -> None:
        """Count offsets that retention removed before they were finished, including those without an event."""
        self._finished["lost"] += offsets

    def resynced(self, cause: str) -> None:
        self._resyncs_by.labels(self._name, cause).inc()

    def dead_letters_since(self) -> Counter[str]:
        """Return the number of dead letters since the previous call, by reason."""
        counts, self._unreported = self._unreported, Counter()
        return counts

    def export(self) -> None:
        """Add all counts to the Prometheus metrics, and reset them."""
        for outcome, count in self._attempts.items():
            self._attempts_by[outcome].inc(count)
        for result, events in self._finished.items():
            self._finished_by[result].inc(events)
            self.done[result] += events
        for reason, dead_letters in self._dead_letters.items():
            self._dead_letters_by_reason.labels(self._name, reason).inc(dead_letters)
        for counts in (self._attempts, self._finished, self._dead_letters):
            counts.clear()
        for observed in (self._wait, self._attempts_per_event, *self._seconds.values()):
            observed.export()
