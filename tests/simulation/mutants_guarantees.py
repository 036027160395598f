"""Broken variants of delivery guarantees: schedules detect some of them, unit tests of the changed part the others."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutants import Change, Mutant

MISSING_METADATA: Final = (
    Mutant(
        "without metadata, the committed offset counts as finished",
        "The committed offset is the lowest one that is not finished (astubbs/parallel-consumer #183).",
        ("", "history crash:4"),
        (
            Change(
                "subscribers.guarantees.restored_position:position_at",
                "tracker = OffsetTracker(position.offset, above)",
                "tracker = OffsetTracker(position.offset + (metadata is None), above)",
            ),
        ),
    ),
)

IN_ORDER: Final = (
    Mutant(
        "a key is unblocked while its event waits",
        "The next event of the key is called before the one that waits for its retry.",
        ("", "history"),
        (
            Change(
                "subscribers.running.processor:SubscriberProcessor._retry_later",
                "self._queue.retries.push(event, due_ms)",
                "self._queue.retries.push(event, due_ms)\n"
                "if self._key_queue is not None and (behind := self._key_queue._behind.get(event.record.key)):\n"
                "    self._enqueue([behind.popleft()])",
            ),
        ),
    ),
)

REUSED_PROCESSOR: Final = Mutant(
    "the next claim reuses the processor of the former one",
    "A record of the former assignment, on which nothing works any more, keeps its place (confluentinc/parallel-consumer #909).",
    ("drops:9 rebalance:9", "drops:9 rebalance:2", "rebalance:9 history"),
    (
        Change(
            "subscribers.running.agent:SubscriberProcessors.of",
            "SubscriberProcessor(tp, self._context, guarantee)",
            'vars(self).setdefault("kept", {}).setdefault(tp, SubscriberProcessor(tp, self._context, guarantee))',
        ),
    ),
)

SHOWN_BY_TESTS: Final = {
    mutant.name: mutant
    for mutant in (
        Mutant(
            "metadata beyond the end of the log is accepted",
            "It belongs to another log (astubbs/parallel-consumer #480).",
            (),
            (Change("subscribers.state.offset_metadata:decoded", "if parts and parts[-1].end > log_end:", "if False:"),),
        ),
        Mutant(
            "attempts count while the circuit breaker is open",
            "An outage makes dead letters of events that are not at fault.",
            (),
            (
                Change(
                    "subscribers.execution.circuit_breaker:CircuitBreaker.counts",
                    "return not self.is_suspended or now_ms - self._since_ms >= self._patience_ms",
                    "return True",
                ),
            ),
        ),
        Mutant(
            "waiting retries stop the reader",
            "A failing event delays the events behind it (confluentinc/parallel-consumer #857).",
            (),
            (
                Change(
                    "subscribers.running.processor:SubscriberProcessor.in_flight",
                    "unfinished >= MAX_UNFINISHED or",
                    "unfinished >= MAX_UNFINISHED or len(self._queue.retries) or",
                ),
            ),
        ),
        Mutant(
            "a replayed event is delivered to all subscribers",
            "Each subscriber of the application is called with the event again.",
            (),
            (
                Change(
                    "subscribers.declaration.replayed_event:is_replay_for",
                    "return bool(headers) and headers[0] == (REPLAY_HEADER, subscriber.encode())",
                    "return True",
                ),
            ),
        ),
        Mutant(
            "ids of published events are random",
            "A repeated attempt publishes its events once more, under other ids.",
            (),
            (
                Change(
                    "events.parent:Parent.child_id",
                    "return str(uuid5(NAMESPACE, json.dumps([*foreign, self._event_id, self._subscriber, event_key, ordinal])))",
                    "from uuid import uuid4\nreturn str(uuid4())",
                ),
            ),
        ),
        Mutant(
            "a worker chooses the initial offset of at most once",
            "It cannot distinguish a new subscriber from one whose commit is lost.",
            (),
            (
                Change(
                    "subscribers.guarantees.restored_position:restored_position",
                    "if claim.committed is None and context.subscriber.requires_commit:",
                    "if False:",
                ),
            ),
        ),
        Mutant(
            "subscribers share a thread pool",
            "If the functions of one subscriber hang, no other one is called.",
            (),
            (
                Change(
                    "subscribers.execution.thread_executor:ThreadExecutor._serve",
                    "call_inline(self._function, attempt.event)",
                    'with vars(threading).setdefault("pool", threading.Semaphore(2)):\n'
                    "    call_inline(self._function, attempt.event)",
                ),
            ),
        ),
    )
}
