"""Broken variants of at-least-once subscribers: the rules by which each event is finished."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutants import Change, Mutant

PROCESSOR = "subscribers.running.processor:SubscriberProcessor"
GUARANTEE = "subscribers.guarantees.at_least_once:AtLeastOnceGuarantee"
TRACKER = "subscribers.state.offset_tracker:OffsetTracker"

AT_LEAST_ONCE: Final = (
    Mutant(
        "a subscriber commits its read position",
        "An event that is running when the process dies is never called again.",
        ("", "lossy crash zombie rebalance"),
        (
            Change(
                f"{GUARANTEE}._position",
                "low = partition.tracker.low",
                "return partition.position(partition.tracker.end, '')",
            ),
        ),
    ),
    Mutant(
        "offsets without a record hold the watermark",
        "The watermark waits forever for an offset that the log skips.",
        ("",),
        (
            Change(
                f"{TRACKER}.cover",
                "self._unfinished.update(dict.fromkeys(new))",
                "self._unfinished.update(dict.fromkeys(range(known_end, end)))",
            ),
        ),
    ),
    Mutant(
        "a cancelled attempt counts as done",
        "An event whose attempt was cancelled by a rebalance is never called again.",
        ("history rebalance:9", "lossy rebalance:9 history"),
        (
            Change(
                f"{PROCESSOR}.ended",
                "if attempt.outcome in _DONE]",
                "if attempt.outcome in (*_DONE, AttemptOutcome.CANCELLED)]",
            ),
        ),
    ),
    Mutant(
        "finished before the dead letter is acknowledged",
        "A dead letter that is lost with its process is never sent.",
        ("history lossy:6 zombie:4", "lossy:4 crash:4 rebalance:4", "lossy:6 crash:8 history rebalance:6"),
        (
            Change(
                "subscribers.execution.dead_letter_writer:DeadLetterWriter.put",
                "self._has_some.set()",
                "self._on_acknowledged([event])\nself._has_some.set()",
            ),
        ),
    ),
    Mutant(
        "one of two due retries is lost",
        "Of two events that are due at the same time, the later one never runs.",
        ("history", "lossy drops:3 rebalance:2"),
        (
            Change(
                "subscribers.execution.queues:RetryQueue.pop_due",
                "if self._heap and self._heap[0][0] <= now_ms:",
                "while len(self._heap) > 1 and self._heap[1][0] <= now_ms:\n    heapq.heappop(self._heap)\n"
                "if self._heap and self._heap[0][0] <= now_ms:",
            ),
        ),
    ),
    Mutant(
        "a paused reader is never resumed",
        "Once too many events were unfinished, nothing is read any more.",
        ("",),
        (Change(f"{PROCESSOR}._finish", "if self._is_full and not self.in_flight:", "if False:"),),
    ),
    Mutant(
        "the commit metadata omits what is finished above it",
        "Everything above the watermark runs again after each crash.",
        ("", "lossy crash zombie rebalance"),
        (Change(f"{GUARANTEE}._position", "partition.tracker.above()", "type(partition.tracker.above())()"),),
    ),
    Mutant(
        "loss by retention is not logged",
        "Events are lost without a report.",
        ("retention:3", "retention lossy crash"),
        (Change("subscribers.guarantees.restored_position:position_at", "logger.error(", "logger.debug("),),
    ),
    Mutant(
        "attempts are counted after they end",
        "An event that kills its process kills each following one, too.",
        ("",),
        (
            Change(
                f"{GUARANTEE}.before_start",
                "self._log.keep(event.offset, AttemptEntry(event.attempts, event.crash_count))",
                "pass",
            ),
            Change(
                "subscribers.guarantees.attempt_log:AttemptLog._find_started",
                "elif attempt.outcome is None and not attempt.in_flight_event.crash_count:",
                "elif False:",
            ),
        ),
    ),
    Mutant(
        "suspects are not isolated",
        "Events that ran beside one that kills its process count as the cause, too.",
        ("", "history"),
        (
            Change(f"{GUARANTEE}._together", "if _is_solo_retry(events[0]):", "if False:"),
            Change(
                f"{GUARANTEE}._together",
                "if _is_solo_retry(event) or not self._needs_isolation(event)",
                "if not self._needs_isolation(event)",
            ),
        ),
    ),
    Mutant(
        "a suspect starts before its attempt is recorded",
        "An event that kills its process at once never counts as attempted.",
        ("", "history"),
        (
            Change(
                f"{GUARANTEE}._run_isolated",
                "offsets = [attempt.in_flight_event.offset for attempt in attempts]",
                "offsets: list[int] = []",
            ),
        ),
    ),
)

NUMBER_OF_ATTEMPTS: Final = (
    Mutant(
        "twice the declared number of attempts",
        "An event that always fails is attempted more often than declared.",
        ("",),
        (
            Change(
                "subscribers.execution.retry_decision:_after_failure",
                "event.attempts >= rule.attempts",
                "event.attempts >= 2 * rule.attempts",
            ),
        ),
    ),
    Mutant(
        "a successful event runs once more",
        "An event is called twice without an error, a crash or a claim.",
        ("",),
        (
            Change(
                f"{PROCESSOR}.ended",
                "if attempt.outcome in _DONE]",
                "if attempt.outcome in _DONE and attempt.in_flight_event.attempts > 1]\n"
                "for attempt in attempts:\n"
                "    if attempt.outcome in _DONE and attempt.in_flight_event.attempts == 1:\n"
                "        self._retry_later(attempt.in_flight_event, attempts=1, due_ms=self._context.clock.now_ms())",
            ),
        ),
    ),
)
"""Detected by schedules in which no event kills its process, so that the number of calls of each event is known."""
