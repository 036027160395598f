"""Broken variants of the rules by which a subscriber finishes each event."""

from __future__ import annotations

from typing import Final

from tests.chaos.mutants import Change, Mutant

PROCESSOR = "subscribers.running.processor:SubscriberProcessor"
AT_LEAST_ONCE = "subscribers.guarantees.at_least_once:AtLeastOnceGuarantee"
WINDOW = "subscribers.state.offset_tracker:OffsetTracker"

AGAIN: Final = (
    Mutant(
        "commit the position",
        "What runs when the process dies is never called again.",
        ("", "lossy crash zombie rebalance"),
        (
            Change(
                f"{AT_LEAST_ONCE}.position_to_commit",
                "low = partition.tracker.low",
                "return partition.position(partition.tracker.end, '')",
            ),
        ),
    ),
    Mutant(
        "gaps hold the watermark",
        "What the log skips is waited for by nobody, for ever.",
        ("",),
        (
            Change(
                f"{WINDOW}.cover",
                "self._unfinished.update(dict.fromkeys(new))",
                "self._unfinished.update(dict.fromkeys(range(known_end, end)))",
            ),
        ),
    ),
    Mutant(
        "cancelled is done",
        "What a rebalance cut off is never called again.",
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
        "finished before the letter is acknowledged",
        "A letter that is lost with its process is nowhere.",
        ("history lossy:6 zombie:4", "fragile:letter lossy:4 crash:4 rebalance:4", "lossy:6 crash:8 history rebalance:6"),
        (
            Change(
                "subscribers.execution.dead_letter_writer:DeadLetterWriter.put",
                "self._has_some.set()",
                "self._on_acknowledged([work])\nself._has_some.set()",
            ),
        ),
    ),
    Mutant(
        "one of two due retries is lost",
        "Of two events that are due at once the later one never runs.",
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
        "a paused reader is never told to go on",
        "Where too much was unfinished once, nothing is read any more.",
        ("",),
        (Change(f"{PROCESSOR}._finish", "if self._is_full and not self.in_flight:", "if False:"),),
    ),
    Mutant(
        "the commit says nothing of what is finished above it",
        "All above the watermark runs again after each crash.",
        ("", "lossy crash zombie rebalance"),
        (Change(f"{AT_LEAST_ONCE}.position_to_commit", "partition.tracker.above()", "type(partition.tracker.above())()"),),
    ),
    Mutant(
        "what retention took is passed over in silence",
        "Events are lost, and nobody is told.",
        ("retention:3", "retention lossy crash"),
        (Change("subscribers.guarantees.restored_position:position_at", "logger.error(", "logger.debug("),),
    ),
    Mutant(
        "attempts are counted afterwards",
        "An event that kills its process kills the next one, and the next one.",
        ("",),
        (
            Change(
                f"{AT_LEAST_ONCE}.before_start",
                "self._log.keep(event.offset, AttemptEntry(event.attempts, event.deaths))",
                "pass",
            ),
            Change(
                "subscribers.guarantees.attempt_log:AttemptLog._find_started",
                "elif attempt.outcome is None and not attempt.in_flight_event.deaths:",
                "elif False:",
            ),
        ),
    ),
    Mutant(
        "suspects run together",
        "What ran beside an event that kills its process is taken for the cause, too.",
        ("", "history"),
        (
            Change(f"{AT_LEAST_ONCE}._together", "if _is_last(events[0]):", "if False:"),
            Change(
                f"{AT_LEAST_ONCE}._together",
                "if _is_last(event) or not self._needs_isolation(event)",
                "if not self._needs_isolation(event)",
            ),
        ),
    ),
    Mutant(
        "a suspect does not wait for its attempt entry",
        "An event that kills its process at once is never known to have run.",
        ("", "history"),
        (
            Change(
                f"{AT_LEAST_ONCE}._run_isolated",
                "offsets = [attempt.in_flight_event.offset for attempt in attempts]",
                "offsets: list[int] = []",
            ),
        ),
    ),
)

AS_OFTEN: Final = (
    Mutant(
        "twice the attempts",
        "What always fails is tried more often than it is declared.",
        ("",),
        (
            Change(
                "subscribers.execution.retry_decision:_after_failure",
                "work.attempts >= rule.attempts",
                "work.attempts >= 2 * rule.attempts",
            ),
        ),
    ),
    Mutant(
        "what has ended well runs once more",
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
