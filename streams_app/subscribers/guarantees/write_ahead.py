"""Deduplication by event ids, and recording events as begun before they start, for the two guarantees that run no event twice.

The script ``state/lua/begin.lua`` decides whether an id is a duplicate. :class:`.BeginLog` then ends the attempt without
calling the function.

After an error, a time-out or a crash, the effect of an attempt is unknown, so its event becomes a dead letter. It is retried only
if its function raised :class:`.Retry`, by which it declares that it had no effect.
"""

from __future__ import annotations

from asyncio import Task
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from streams_app.delivery.batch import Batch
from streams_app.delivery.claim import Claim
from streams_app.delivery.offset_metadata import OffsetAndMetadata
from streams_app.delivery.processor import NO_OFFSET
from streams_app.delivery.tasks import cancel_all
from streams_app.errors import BadEventError
from streams_app.events.codec import check_headers
from streams_app.subscribers.execution.decoding import DecodedRecord
from streams_app.subscribers.execution.executor import Attempt, AttemptOutcome
from streams_app.subscribers.execution.in_flight_event import DUE_AT_ONCE, InFlightEvent
from streams_app.subscribers.execution.partition import SubscriberPartition
from streams_app.subscribers.execution.retry_decision import DeadLettering, dead_lettering
from streams_app.subscribers.guarantees.begin_log import BeginLog
from streams_app.subscribers.guarantees.guarantee import CLOSE_SECONDS
from streams_app.subscribers.guarantees.restored_position import RestoredPosition, below, is_of_another_log, was_set_by_hand
from streams_app.subscribers.state.intervals import Interval
from streams_app.subscribers.state.offset_metadata import OffsetMetadata, decoded, encoded
from streams_app.subscribers.state.offset_tracker import OffsetsAbove
from streams_app.subscribers.state.store import AttemptEntry, Begin, StoredState

INTERRUPTED: Final = "its process died, or lost the partition, while it ran; it may have succeeded"
LATE: Final = "its function succeeded after its worker had lost the partition"


class IdReadback:
    """Reads the ids of finished events back from the log if Redis has lost them, before new events start.

    Redis must have the ids of all events that may have run within ``remember``, so that their duplicates do not run. If ids are
    missing after a claim, the reader of the partition begins at a lower offset, and the ids of the events that it reads are written
    to Redis.
    """

    def __init__(self, partition: SubscriberPartition) -> None:
        self._partition = partition
        self._read_to = self._below = 0

    async def begin(self, claim: Claim, fence: int, watermark: int, below: int) -> int:
        """Prepare to read missing ids after a claim; return the offset at which the reader of the partition begins.

        The offset is the low watermark if Redis has the ids of all events below it. Otherwise, it is an offset from which the log
        contains all events of the time ``remember`` before the watermark, or the beginning of the log if that is higher.

        Args:
            claim: Claim of the partition, which gives the bounds of its log and finds offsets by time.
            fence: Redis has the ids of all events below this offset.
            watermark: The low watermark.
            below: Offset after the last event that may have run; the ids of events below it are needed.
        """
        self._below, self._read_to = below, watermark
        if fence < watermark:
            self._read_to = max(claim.log_bounds.begin, min(watermark, await self._remembered_from(claim, watermark)))
        return self._read_to

    @property
    def is_complete(self) -> bool:
        """Whether all needed ids were read."""
        return self._read_to >= self._below

    def read(self, batch: Batch) -> list[tuple[int, str]]:
        """Return the offset and the id of each event of a batch whose id is needed; empty once all needed ids were read."""
        if self.is_complete:
            return []
        self._read_to = batch.end
        records = [record for record in batch.records if record.offset < self._below]
        return [(record.offset, own_id) for record in records if (own_id := self._id_of(record))]

    async def _remembered_from(self, claim: Claim, watermark: int) -> int:
        """Return an offset from which the log contains all events whose ids have to be remembered.

        These are the events from ``remember`` before the time of the watermark on. That time is estimated and may be too early, so
        the offset may be lower than necessary.
        """
        now_ms, remember_ms = self._partition.context.clock.now_ms(), self._partition.context.subscriber.remember_ms
        # The event at the watermark may be old although it has run just now. Its age can be found only in the log.
        age_ms = remember_ms
        while watermark > claim.log_bounds.begin and age_ms < now_ms and await claim.offset_at(now_ms - age_ms) >= watermark:
            age_ms *= 2
        return await claim.offset_at(max(0, now_ms - age_ms - remember_ms))

    def _id_of(self, record: Any) -> str:
        context = self._partition.context
        try:
            made = context.decode(self._partition.tp, record, 1)
            check_headers(record.headers, context.limits)
        except BadEventError:
            return ""  # it becomes or was a dead letter, and cannot have a duplicate without a valid id
        return "" if made is None else made.own_id


class WriteAhead:
    """Connects one partition to its begin log, under one claim: events are recorded there before they start and after they end.

    Attributes:
        log: The begin log; available after :meth:`claim`.
    """

    log: BeginLog

    def __init__(
        self,
        partition: SubscriberPartition,
        position_to_commit: Callable[[], OffsetAndMetadata],
        on_begun: Callable[[Sequence[Attempt]], Awaitable[Sequence[Attempt]]],
        commit_ends: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Prepare for a claim.

        Args:
            partition: The partition.
            position_to_commit: Returns the offset and metadata to commit.
            on_begun: Called with attempts that are recorded as begun in Redis; returns those that may start.
            commit_ends: Commits outcomes; None if outcomes need no commit.
        """
        self._partition = partition
        self._position_to_commit = position_to_commit
        self._on_begun = on_begun
        self._commit_ends = commit_ends
        self._readback = IdReadback(partition)
        self._is_closed = False

    async def claim(self, claim: Claim, restored: RestoredPosition, *, trusts_redis: bool) -> StoredState:
        """Take over the state of the partition in Redis.

        Args:
            claim: Claim of the partition, with its token and the bounds of its log.
            restored: Position at which the subscriber continues according to its commit.
            trusts_redis: Whether offsets that are finished in Redis, but not in the commit, count as finished. If False, only the
                commit decides which offsets are finished.

        Returns:
            The state from Redis, without the entries of finished events.

        Raises:
            FencedError: Another owner has claimed the partition.
            KafkaError, RedisError, OSError, TimeoutError: A server does not answer; the caller repeats the claim.
        """
        partition, tracker = self._partition, self._partition.tracker
        dispatcher = partition.context.dispatcher
        self.log = log = BeginLog(
            partition.context.store(partition.tp, claim.token), self._progress, partition.context.clock.now_ms, dispatcher,
            self._begun, claim.on_progress, self._readback.read, self._commit_ends,
        )  # fmt: skip
        # A new subscriber has run no events below its initial offset, and needs no ids from there.
        kept = await log.claim(tracker.end if restored.is_first_start else 0)
        # A topic id identifies the log, so its end is not checked: the embedded broker may report too low an end.
        metadata = decoded(kept.metadata, kept.fence, NO_OFFSET if claim.topic_id else claim.log_bounds.end)
        if metadata is not None and is_of_another_log(metadata, claim.topic_id):
            log.drop(kept.open)
            metadata, kept = None, StoredState(0, kept.number, {})
        if (common := await _rewind_if_truncated(claim, restored, metadata, kept.fence)) is not None:
            log.drop([offset for offset in kept.open if offset >= common])
            kept = replace(kept, fence=min(kept.fence, common), open={at: one for at, one in kept.open.items() if at < common})
            metadata = None if metadata is None else metadata._replace(above=below(metadata.above, common))
        was_set = await was_set_by_hand(claim)
        if metadata is not None and trusts_redis and not was_set:
            tracker.also_finished((Interval(0, kept.fence), *metadata.above.finished))
        if common is not None or was_set:
            # Redis first, then Kafka: after the commit, the next claim trusts Redis, which must not contain the old progress then.
            await log.write_progress()
            await claim.commit_now(self._position_to_commit())
        unfinished = {
            offset: entry._replace(crash_count=0) for offset, entry in kept.open.items() if not tracker.is_finished(offset)
        }
        log.drop(kept.open.keys() - unfinished.keys())
        return replace(kept, open=unfinished)

    async def begin(self, claim: Claim, kept: StoredState, watermark: int, interrupted: Collection[int]) -> int:
        """Count the interrupted attempts in the metrics, and prepare to read from the log the event ids that Redis has lost.

        Args:
            claim: The claim that was passed to :meth:`claim`.
            kept: The state that :meth:`claim` returned.
            watermark: The low watermark.
            interrupted: Offsets of the events whose attempts were interrupted. These events do not run again, but they may have
                succeeded, so their ids are needed to recognise duplicates.

        Returns:
            The offset at which the reader of the partition begins: the low watermark, or a lower offset if Redis has lost ids of
            events below it; see :meth:`IdReadback.begin`.
        """
        tracker = self._partition.tracker
        for _ in interrupted:
            self._partition.context.subscriber_metrics.interrupted_attempt("interrupted")
        # Interrupted events may have succeeded, so their ids are needed, too.
        finished = [run.end for run in tracker.above().finished]
        wanted = max([watermark, tracker.low, *finished, *(offset + 1 for offset in interrupted)])
        return await self._readback.begin(claim, kept.fence, watermark, wanted)

    def dead_letter_of(self, event: InFlightEvent) -> DeadLettering | None:
        """Return a dead letter for an event whose attempt was interrupted, so that its effect is unknown; None for other events."""
        if not event.is_interrupted:
            return None
        context = self._partition.context
        try:
            made = context.decode(self._partition.tp, event.record, event.attempts)
            event.event_id = event.event_id if made is None else made.event_id
        except BadEventError:
            event.event_id = ""  # it was valid only by an earlier version of its declaration
        return dead_lettering(event, "interrupted", INTERRUPTED)

    def before_start(self, decoded_events: Sequence[tuple[InFlightEvent, DecodedRecord]]) -> list[Attempt]:
        """Create attempts, and schedule a write to Redis that records their events as begun; the attempts start afterwards."""
        attempts = [Attempt(made.event, event, is_unrecorded=True) for event, made in decoded_events]
        begins = [Begin(event.record.offset, AttemptEntry(event.attempts), made.own_id) for event, made in decoded_events]
        self.log.begin(zip(attempts, begins, strict=True))
        return attempts

    async def _begun(self, attempts: Sequence[Attempt]) -> Sequence[Attempt]:
        self._partition.tracker.begin_all([attempt.in_flight_event.record.offset for attempt in attempts])
        return await self._on_begun(attempts)

    def after_end(self, attempts: Sequence[Attempt]) -> None:
        """Count duplicates. Remember each event that has succeeded until its outcome is written.

        If an event succeeds only after :meth:`close`, a dead letter ``finished-late`` is sent.
        """
        for attempt in attempts:
            if attempt.outcome is AttemptOutcome.DUPLICATE:
                self._partition.context.subscriber_metrics.finished(attempt.in_flight_event, "duplicate")
            elif attempt.outcome is AttemptOutcome.DONE:
                self.log.done[attempt.in_flight_event.record.offset] = attempt.in_flight_event
                if self._is_closed:
                    # Its function blocked the loop of all functions, so that the attempt could not be cancelled in time.
                    self._partition.dead_letters.send_late_soon(attempt.in_flight_event, LATE)

    def on_interruption(self, event: InFlightEvent, attempt: Attempt) -> bool:
        """Decide whether an event may start again after its attempt was cancelled: only if the function was not called yet.

        If the function was called, its effect is unknown, so the next owner of the partition sends a dead letter ``interrupted``.
        The function may still be running, in a thread or because it ignores its cancellation. If it succeeds after all, a second
        dead letter, ``finished-late``, reports this.
        """
        if not attempt.begun_ms:
            return True
        # A function in a thread continues, and so does one that ignores its cancellation.
        attempt.on_late = partial(self._partition.dead_letters.send_late_soon, event, LATE)
        return False

    async def close(self, tasks: Collection[Task[None]]) -> None:
        """End the tasks, and write the last outcomes.

        If another owner has claimed the partition, send a dead letter ``finished-late`` instead for each event that has succeeded,
        because that owner treats these events as interrupted.
        """
        partition, log = self._partition, self.log
        await log.current_write_ended(CLOSE_SECONDS)
        await cancel_all(tasks)
        for attempt in [one for one in partition.running if not one.begun_ms and not one.is_unrecorded]:
            # Cancelled before it started; no executor slot has picked it up.
            partition.running.discard(attempt)
            event: InFlightEvent = attempt.in_flight_event
            event.attempts -= 1
            partition.tracker.put_off(event.offset)
            log.keep(event.offset, AttemptEntry(event.attempts, due_ms=DUE_AT_ONCE))
        await log.write_last(CLOSE_SECONDS)
        if log.is_fenced:
            await self.send_late(log.done.values())
        self._is_closed = True

    async def send_late(self, events: Collection[InFlightEvent]) -> None:
        """Send a dead letter for each event that succeeded after another owner had become responsible for it."""
        if events:
            dead_letters = [(event, dead_lettering(event, "finished-late", LATE)) for event in events]
            await self._partition.dead_letters.send_last(dead_letters, CLOSE_SECONDS)

    def _progress(self) -> OffsetAndMetadata | None:
        if not self._readback.is_complete:
            return None  # the fence implies that Redis has the ids of all events below it
        tracker = self._partition.tracker
        low = tracker.low
        return OffsetAndMetadata(low, encoded(low, self._partition.offset_metadata(OffsetsAbove(tracker.required().finished))))


async def _rewind_if_truncated(claim: Claim, restored: RestoredPosition, metadata: OffsetMetadata | None, fence: int) -> int | None:
    """Compare the log with the records that were read; return the first offset at which it may differ from them.

    None if no difference was found. The fingerprints of the records come from the commit and from Redis. If the log was truncated,
    the offset in the next commit is lowered, see :meth:`.Claim.rewind_if_truncated`.

    If a broker is restored from an older copy, its commits are old as well. Then only Redis has the fingerprints of what was read.
    """
    common = restored.common
    if metadata is None or metadata.topic_id != claim.topic_id:
        return common
    by_redis = await claim.rewind_if_truncated(metadata.read, fence)
    return by_redis if common is None else common if by_redis is None else min(common, by_redis)
