"""Processor of one partition for one subscriber: queues, runs, retries and finishes its events, with every delivery guarantee.

An event is finished when its function has returned, when its dead letter is acknowledged, or when it is skipped or a duplicate.
A commit in Kafka has the low watermark and, as metadata, the finished offsets above it. The :class:`.Guarantee` decides what is
stored before and after an attempt, and how events that a crash interrupted are handled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import islice
from typing import Final

from streams_app.delivery.batch import TP, Batch
from streams_app.delivery.claim import Claim
from streams_app.delivery.fingerprints import with_last_for_metadata
from streams_app.delivery.offset_metadata import OffsetAndMetadata
from streams_app.delivery.processor import Processor
from streams_app.delivery.tasks import run
from streams_app.errors import BadEventError
from streams_app.events.codec import check_headers
from streams_app.schemas.cache import NotFetchedError
from streams_app.schemas.waiting import PatientRegistry
from streams_app.subscribers.declaration.received import Retry
from streams_app.subscribers.execution.context import SubscriberContext
from streams_app.subscribers.execution.decoding import DecodedRecord
from streams_app.subscribers.execution.executor import Attempt, AttemptOutcome, AttemptsWaiter
from streams_app.subscribers.execution.in_flight_event import (
    DUE_AT_ONCE,
    MAX_UNFINISHED,
    MAX_UNFINISHED_BYTES,
    InFlightEvent,
    sizes_of,
)
from streams_app.subscribers.execution.partition import SubscriberPartition
from streams_app.subscribers.execution.queues import KeyQueue, StartQueue, StartRequest
from streams_app.subscribers.execution.retry_decision import (
    DeadLettering,
    ScheduledRetry,
    after_failure,
    concerns_event_alone,
    dead_lettering,
)
from streams_app.subscribers.execution.status import PartitionStatus
from streams_app.subscribers.guarantees.guarantee import CLOSE_SECONDS, Guarantee
from streams_app.subscribers.guarantees.restored_position import restored_position
from streams_app.subscribers.state.store import AttemptEntry

_DONE: Final = (AttemptOutcome.DONE, AttemptOutcome.DUPLICATE)
"""Outcomes that finish the event: the function has returned, or need not be called."""

CANCELLED_SECONDS: Final = 1.0
"""How long a release waits for cancelled attempts to end."""

RELEASE_SECONDS: Final = CANCELLED_SECONDS + 3 * CLOSE_SECONDS
"""Time that a release keeps for cancelled attempts, last dead letters and last writes, after its wait for running attempts."""


class SubscriberProcessor(Processor):
    """Processes one partition for a subscriber, see :class:`streams_app.delivery.processor.Processor`."""

    _guarantee: Guarantee
    """Not set before the partition is claimed."""

    def __init__(self, tp: TP, context: SubscriberContext, guarantee: Callable[[SubscriberPartition], Guarantee]) -> None:
        self._context = context
        self._partition = SubscriberPartition(tp, context, self._acknowledged)
        self._new_guarantee = guarantee
        self._queue = StartQueue()
        self._key_queue: KeyQueue[InFlightEvent] | None = KeyQueue() if context.subscriber.ordered else None
        self._inherited: dict[int, AttemptEntry] = {}
        self._interrupted: Collection[int] = ()
        self._unknown_schemas: list[InFlightEvent] = []
        self._needs_schemas = asyncio.Event()
        self._waiter = AttemptsWaiter(self._partition.running)
        self._tasks: list[asyncio.Task[None]] = []
        self._bytes = 0
        self._is_full = False

    # ---- called by the delivery

    @property
    def in_flight(self) -> int:
        """Number of unfinished events, plus that of event ids to be written to Redis; each counts only if it requires a pause."""
        if not self._partition.is_claimed:
            return 0
        unfinished, unwritten = self._partition.tracker.unfinished, len(self._partition.unwritten_ids)
        backlog = unwritten if unwritten >= MAX_UNFINISHED else 0
        return backlog + (unfinished if unfinished >= MAX_UNFINISHED or self._bytes >= MAX_UNFINISHED_BYTES else 0)

    async def claim(self, claim: Claim) -> int:
        partition = self._partition
        restored = await restored_position(partition.tp, self._context, claim)
        partition.restore(claim, restored.tracker, restored.read)
        self._guarantee = guarantee = self._new_guarantee(partition)
        if claim.committed is None:
            await claim.commit_now(guarantee.position_to_commit())
        taken = await guarantee.take_over(claim, restored)
        self._inherited, self._interrupted = taken.entries, taken.interrupted
        tasks = {**taken.tasks, "dead letters": partition.dead_letters.forever()}
        if self._context.schemas is not None:
            tasks["schemas"] = self._fetch_schemas(self._context.schemas)
        self._tasks = [run(claim, task, f"{about} {partition.tp}") for about, task in tasks.items()]
        self._context.dispatcher.join(self)
        return taken.begin

    def deliver(self, batch: Batch) -> None:
        partition = self._partition
        self._guarantee.on_batch(batch)
        records = batch.records
        partition.read = with_last_for_metadata(partition.read, records)
        offsets = partition.tracker.cover(batch.begin, batch.end, [record.offset for record in records])
        if len(offsets) < len(records):
            wanted = set(offsets)
            records = [record for record in records if record.offset in wanted]
        events = list(map(InFlightEvent, records, sizes := sizes_of(records)))
        self._bytes += sum(sizes)
        self._inherit(events)
        if self._key_queue is not None:
            events = [event for event in events if self._key_queue.arrived(event.record.key, event)]
        self._enqueue(events)
        if gone := [offset for offset in self._inherited if offset < batch.end]:
            for offset in gone:
                del self._inherited[offset]
            self._guarantee.finish(gone)
        self._is_full = self.in_flight > 0
        self._context.dispatcher.kick()

    def _inherit(self, events: Sequence[InFlightEvent]) -> None:
        """Set the attempts and crash counts of events, and whether they were interrupted, from the state of former owners."""
        for event in events if self._inherited else ():
            if (entry := self._inherited.pop(event.offset, None)) is not None:
                event.attempts, event.crash_count, event.due_ms = entry.attempts, entry.crash_count, entry.due_ms
        for event in events if self._interrupted else ():
            event.is_interrupted = event.offset in self._interrupted
            if event.is_interrupted:
                # Marked as begun, so that the metadata lists it as finished after its dead letter, and no later owner begins it.
                self._partition.tracker.begin([event.offset])

    async def position_to_commit(self) -> OffsetAndMetadata | None:
        return self._guarantee.position_to_commit() if self._partition.is_claimed else None

    def tick(self, now_ms: int) -> None:
        self._context.dispatcher.kick()
        if self._tasks:
            self._guarantee.on_tick()

    async def revoke(self, seconds: float) -> None:
        """Attempts that have not ended in time are cancelled, so that the release takes at most ``seconds``."""
        self._partition.is_revoked = True  # set first, so that withdrawn attempts are not taken once more
        if self._tasks:
            self._guarantee.stop()
        executor = self._context.dispatcher.executor
        self._context.dispatcher.remove_queue(self)
        executor.recall(self._partition.running)
        if not await self._waiter.within(max(0.0, seconds - RELEASE_SECONDS)):
            executor.cancel(list(self._partition.running))
            await self._waiter.cancelled_within(CANCELLED_SECONDS)
        if self._tasks:
            await self._partition.dead_letters.sent(CLOSE_SECONDS)
            await self._guarantee.close(self._tasks)

    def shorten_deadline(self, seconds: float) -> None:
        self._waiter.shorten_deadline(max(0.0, seconds - RELEASE_SECONDS))

    async def on_commit_rejected(self) -> None:
        if self._partition.is_claimed:
            await self._guarantee.on_commit_rejected()

    # ---- called by the dispatcher

    def take(self, most: int, now_ms: int, *, is_fresh: bool | None = None) -> list[Attempt]:
        partition = self._partition
        taken: list[Attempt] = []
        while len(taken) < most and not partition.is_revoked and partition.start_limit != 0:
            request = StartRequest(most - len(taken), now_ms, is_fresh, self._context.dispatcher.circuit_breaker.number)
            events = self._guarantee.may_start(self._queue, request)
            if not events:
                break
            attempts = self._attempts_of(events)
            partition.running.update(attempts)
            taken += attempts
        return taken

    def ready(self, now_ms: int) -> int:
        if self._partition.is_revoked:
            return 0
        ready, limit = self._queue.ready(now_ms), self._partition.start_limit
        return ready if limit is None else min(ready, limit)

    def retry_now(self, now_ms: int) -> int:
        return self._queue.retries.make_due(now_ms)

    def ended(self, attempts: Sequence[Attempt], uncounted: Collection[Attempt]) -> None:
        self._guarantee.after_end(attempts)
        self._partition.running.difference_update(attempts)
        if self._partition.is_revoked:
            self._waiter.attempt_ended()
        done = [attempt.in_flight_event for attempt in attempts if attempt.outcome in _DONE]
        self._finish(done)
        # In reverse, because each event that is requeued goes to the front.
        for attempt in reversed(attempts) if len(done) < len(attempts) else ():
            if attempt.outcome is AttemptOutcome.CANCELLED:
                if self._guarantee.on_interruption(attempt.in_flight_event, attempt):
                    self._undo_attempt(attempt.in_flight_event)
            elif attempt.outcome not in _DONE:
                self._failed(attempt.in_flight_event, attempt, counts=attempt not in uncounted)

    def status(self) -> PartitionStatus:
        partition, tracker = self._partition, self._partition.tracker
        queued = [*islice(self._queue.fresh, 1), *(() if self._key_queue is None else self._key_queue.next_behind())]
        waits = {
            "window": self.in_flight > 0,
            "dead-letters": partition.dead_letters.sample_stalled(),
            "schema-registry": self._context.schemas is not None and self._context.schemas.is_away,
            self._guarantee.sample_wait(): True,
        }
        return PartitionStatus(
            partition.tp, tracker.end, tracker.unfinished, len(self._queue.retries),
            min((event.record.timestamp for event in queued), default=None), partition.metadata_bytes,
            frozenset(what for what, is_so in waits.items() if what and is_so), partition.dead_letters.fault,
        )  # fmt: skip

    # ---- events

    def _enqueue(self, events: Sequence[InFlightEvent]) -> None:
        """Queue events that no earlier event of their key blocks; dead-letter those that must not run."""
        if not any([event.due_ms or event.is_interrupted for event in events]):
            self._queue.fresh.extend(events)
            return
        now_ms = self._context.clock.now_ms()
        for event in events:
            if (dead_letter := self._guarantee.dead_letter_of(event)) is not None:
                self._partition.dead_letters.put(event, dead_letter)
            elif event.due_ms > now_ms:
                self._queue.retries.push(event, event.due_ms)
            else:
                self._queue.fresh.append(event)

    def _attempts_of(self, events: Sequence[InFlightEvent]) -> list[Attempt]:
        """Decode events and return their attempts; events that are skipped or dead-lettered have none."""
        decoded: list[tuple[InFlightEvent, DecodedRecord]] = []
        skipped: list[InFlightEvent] = []
        tp, decode, limits = self._partition.tp, self._context.decode, self._context.limits
        max_bytes = limits.value_bytes
        for event in events:
            try:
                made = decode(tp, event.record, event.attempts + 1)
                if event.size_bytes > max_bytes and made is not None:
                    check_headers(event.record.headers, limits)
            except BadEventError as error:
                self._partition.dead_letters.put(event, dead_lettering(event, error.reason, error.detail))
                continue
            except NotFetchedError:
                self._unknown_schemas.append(event)
                self._needs_schemas.set()
                continue
            if made is None:
                skipped.append(event)
                continue
            event.event_id, event.attempts, event.due_ms = made.event_id, event.attempts + 1, 0
            decoded.append((event, made))
        if skipped:
            for event in skipped:
                self._context.subscriber_metrics.finished(event, "skipped")
            self._finish(skipped)
        return self._guarantee.before_start(decoded) if decoded else []

    async def _fetch_schemas(self, schemas: PatientRegistry) -> None:
        """Fetch the schemas of events that could not be decoded without them, and requeue the events at the front."""
        while True:
            await self._needs_schemas.wait()
            self._needs_schemas.clear()
            await schemas.prepare([event.record.value for event in self._unknown_schemas], self._partition.tp)
            events, self._unknown_schemas = self._unknown_schemas, []
            self._queue.put_front(events)
            self._context.dispatcher.kick()

    def _failed(self, event: InFlightEvent, attempt: Attempt, *, counts: bool) -> None:
        now_ms = self._context.clock.now_ms()
        event.first_failed_ms = event.first_failed_ms or now_ms
        declared, is_repeatable = self._context.subscriber, self._context.subscriber.is_repeatable
        # Compared with None: an error of a user's class may have a length of 0.
        error = TimeoutError(f"not ended within {declared.timeout.total_seconds():g} s") if attempt.error is None else attempt.error
        is_timeout = attempt.outcome is AttemptOutcome.TIMEOUT
        after = after_failure(event, error, declared.retry, is_timeout=is_timeout, is_repeatable=is_repeatable)
        # A failure during an outage does not count as an attempt, if the event may run a second time.
        is_final = concerns_event_alone(error, declared.retry) or not (is_repeatable or isinstance(error, Retry))
        if isinstance(after, DeadLettering) and (counts or is_final):
            self._partition.dead_letters.put(event, after)
            if is_timeout:
                attempt.on_late = partial(self._partition.dead_letters.send_late_soon, event)
            return
        wait_ms = after.after_ms if isinstance(after, ScheduledRetry) else declared.retry.longest_ms
        event.waited_ms += wait_ms if counts else 0
        self._retry_later(event, attempts=event.attempts if counts else event.attempts - 1, due_ms=now_ms + wait_ms)

    def _retry_later(self, event: InFlightEvent, *, attempts: int, due_ms: int) -> None:
        event.attempts, event.due_ms = attempts, due_ms
        self._guarantee.put_off(event)
        self._queue.retries.push(event, due_ms)

    def _undo_attempt(self, event: InFlightEvent) -> None:
        event.attempts, event.due_ms = event.attempts - 1, DUE_AT_ONCE
        self._guarantee.put_off(event)
        self._queue.requeue(event)

    def _acknowledged(self, events: Sequence[InFlightEvent]) -> None:
        self._finish(events)
        self._context.dispatcher.kick()

    def _finish(self, events: Sequence[InFlightEvent]) -> None:
        self._guarantee.finish([event.record.offset for event in events])
        self._bytes -= sum([event.size_bytes for event in events])
        if self._key_queue is not None:
            following = [self._key_queue.finished(event.record.key) for event in events]
            self._enqueue([event for event in following if event is not None])
        if self._is_full and not self.in_flight:
            self._is_full = False
            self._partition.claim.on_progress()
