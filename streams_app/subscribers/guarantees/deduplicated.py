"""Deduplicated (``idempotent="unknown"``): no event id runs twice unless Redis loses data. The base of at most once, too.

Before an event starts, the begin log records it as begun in Redis, with its id. The script ``state/lua/begin.lua`` decides whether
the id is a duplicate; :class:`.BeginLog` then ends the attempt without calling the function.

After an error, a time-out or a crash, the effect of an attempt is unknown, so its event becomes a dead letter. It is retried only
if its function raised :class:`.Retry`, by which it declares that it had no effect.

At most once (``idempotent="no"``) adds one step: :class:`.BeginCommits` commits the begin to Kafka before the event starts.
"""

from __future__ import annotations

from asyncio import Task
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from streams_app.delivery.batch import Batch
from streams_app.delivery.claim import Claim
from streams_app.delivery.log_continuity import Action, is_recreated
from streams_app.delivery.offset_metadata import OffsetAndMetadata
from streams_app.delivery.processor import NO_OFFSET
from streams_app.delivery.tasks import cancel_all
from streams_app.errors import BadEventError
from streams_app.subscribers.execution.decoding import DecodedRecord
from streams_app.subscribers.execution.executor import Attempt, AttemptOutcome
from streams_app.subscribers.execution.in_flight_event import DUE_AT_ONCE, InFlightEvent
from streams_app.subscribers.execution.partition import SubscriberPartition
from streams_app.subscribers.execution.queues import StartQueue, StartRequest
from streams_app.subscribers.execution.retry_decision import DeadLettering, dead_lettering
from streams_app.subscribers.guarantees.at_most_once import BeginCommits
from streams_app.subscribers.guarantees.begin_log import BeginLog
from streams_app.subscribers.guarantees.guarantee import CLOSE_SECONDS, Guarantee, Takeover
from streams_app.subscribers.guarantees.id_readback import IdReadback
from streams_app.subscribers.guarantees.restored_position import RestoredPosition, below, policy_of, was_set_by_hand
from streams_app.subscribers.state.intervals import Interval
from streams_app.subscribers.state.offset_metadata import OffsetMetadata, decoded, encoded, fitted, stored_position
from streams_app.subscribers.state.offset_tracker import OffsetsAbove
from streams_app.subscribers.state.store import AttemptEntry, Begin, StoredState

INTERRUPTED: Final = "its process died, or lost the partition, while it ran; it may have succeeded"
LATE: Final = "its function succeeded after its worker had lost the partition"


class DeduplicatedGuarantee(Guarantee):
    """Delivery guarantee under which no event id runs twice unless Redis loses data.

    With :class:`.BeginCommits`, no record runs twice even then.
    """

    def __init__(self, partition: SubscriberPartition, commits: BeginCommits | None = None) -> None:
        """Create the guarantee of a claimed partition.

        With ``commits``, the last commit decides which events have begun; those of them that have finished since are read from
        Redis. Without, Redis decides both.
        """
        context, claim = partition.context, partition.claim
        self._partition = partition
        self._commits = commits
        self._readback = IdReadback(partition)
        self._log = BeginLog(
            context.store(partition.tp, claim.token), self._progress, context.clock.now_ms, context.dispatcher, self._on_recorded,
            claim.on_progress, partition.unwritten_ids, None if commits is None else commits.commit,
        )  # fmt: skip
        self._is_closed = False

    # ---- the claim

    async def take_over(self, claim: Claim, restored: RestoredPosition) -> Takeover:
        """Events that are recorded as begun count as interrupted, and do not run again.

        But they may have succeeded, so their duplicates must not run either: if Redis has lost ids, the ids of interrupted events
        are read back, too.
        """
        tracker = self._partition.tracker
        watermark = tracker.end
        kept = await self._claim(claim, restored)
        begun = {offset for offset, entry in kept.open.items() if entry.is_begun}
        interrupted = begun if self._commits is None else set(tracker.begun)
        # Events that are begun in Redis, but not in the commit, have never started.
        entries = {
            offset: AttemptEntry(entry.attempts - 1, due_ms=DUE_AT_ONCE) if offset in begun - interrupted else entry
            for offset, entry in kept.open.items()
        }
        for _ in interrupted:
            self._partition.context.subscriber_metrics.interrupted_attempt("interrupted")
        finished = [run.end for run in tracker.above().finished]
        wanted = max([watermark, tracker.low, *finished, *(offset + 1 for offset in interrupted)])
        begin = await self._readback.prepare(claim, kept.fence, watermark, wanted)
        known = {offset: AttemptEntry(1) for offset in interrupted} | entries
        return Takeover(begin, known, interrupted, {"begin log": self._log.writer.forever()})

    async def _claim(self, claim: Claim, restored: RestoredPosition) -> StoredState:
        """Take over the state of the partition in Redis, and return it without the entries of finished events."""
        log, tracker = self._log, self._partition.tracker
        # A new subscriber has run no events below its initial offset, and needs no ids from there.
        kept = await log.claim(tracker.end if restored.is_first_start else 0)
        # A topic id identifies the log, so its end is not checked.
        metadata = decoded(kept.metadata, kept.fence, NO_OFFSET if claim.topic_id else claim.log_bounds.end)
        if metadata is not None and is_recreated(metadata.topic_id, claim.topic_id):
            log.drop(kept.open)
            metadata, kept = None, StoredState(0, kept.number, {})
        if (common := await _rewind_if_truncated(claim, restored, metadata, kept.fence)) is not None:
            log.drop([offset for offset in kept.open if offset >= common])
            kept = replace(kept, fence=min(kept.fence, common), open={at: one for at, one in kept.open.items() if at < common})
            metadata = None if metadata is None else metadata._replace(above=below(metadata.above, common))
        was_set = await was_set_by_hand(claim)
        if metadata is not None and not was_set:
            if self._commits is None:
                tracker.also_finished((Interval(0, kept.fence), *metadata.above.finished))
            else:
                tracker.also_ended((Interval(0, kept.fence), *metadata.above.finished))
        if common is not None or was_set:
            # Redis first, then Kafka: after the commit, the next claim trusts Redis, which must not contain the old progress then.
            await log.write_progress()
            await claim.commit_now(self.position_to_commit())
        unfinished = {
            offset: entry._replace(crash_count=0) for offset, entry in kept.open.items() if not tracker.is_finished(offset)
        }
        log.drop(kept.open.keys() - unfinished.keys())
        return replace(kept, open=unfinished)

    def on_batch(self, batch: Batch) -> None:
        if ids := self._readback.read(batch):
            self._log.schedule_ids(ids)

    # ---- the start of events

    def dead_letter_of(self, event: InFlightEvent) -> DeadLettering | None:
        if not event.is_interrupted:
            return None
        context = self._partition.context
        try:
            made = context.decode(self._partition.tp, event.record, event.attempts)
            event.event_id = event.event_id if made is None else made.event_id
        except BadEventError:
            event.event_id = ""  # it was valid only by an earlier version of its declaration
        return dead_lettering(event, "interrupted", INTERRUPTED)

    def may_start(self, queue: StartQueue, request: StartRequest) -> list[InFlightEvent]:
        return queue.take(request) if self._commits is None else self._commits.may_start(queue, request)

    def before_start(self, decoded: Sequence[tuple[InFlightEvent, DecodedRecord]]) -> list[Attempt]:
        attempts = [Attempt(made.event, event, is_unrecorded=True) for event, made in decoded]
        begins = [Begin(event.record.offset, AttemptEntry(event.attempts), made.own_id) for event, made in decoded]
        self._log.schedule_begins(zip(attempts, begins, strict=True))
        return attempts

    async def _on_recorded(self, attempts: Sequence[Attempt]) -> Sequence[Attempt]:
        """Return the attempts that may start: all of them or, for at most once, those that a commit lists as begun."""
        self._partition.tracker.begin([attempt.in_flight_event.record.offset for attempt in attempts])
        return attempts if self._commits is None else await self._commits.commit_begun(attempts)

    # ---- the end of events

    def after_end(self, attempts: Sequence[Attempt]) -> None:
        """Count duplicates, and remember each event that has succeeded until its outcome is stored.

        The outcome is stored in Redis and, for at most once, also in a commit. If another owner takes over before it is in either,
        or if the event succeeds only after :meth:`close`, a dead letter ``finished-late`` is sent.
        """
        for attempt in attempts:
            if attempt.outcome is AttemptOutcome.DUPLICATE:
                self._partition.context.subscriber_metrics.finished(attempt.in_flight_event, "duplicate")
            elif attempt.outcome is AttemptOutcome.DONE:
                event: InFlightEvent = attempt.in_flight_event
                self._log.done[event.record.offset] = event
                if self._commits is not None:
                    self._commits.uncommitted[event.record.offset] = event
                if self._is_closed:
                    # Its function blocked the loop of all functions, so that the attempt could not be cancelled in time.
                    self._partition.dead_letters.send_late_soon(event, LATE)

    def on_interruption(self, event: InFlightEvent, attempt: Attempt) -> bool:
        """An event may start again only if its function was not called yet, because otherwise its effect is unknown.

        The next owner of the partition then sends a dead letter ``interrupted``. The function may still be running, in a thread or
        because it ignores its cancellation. If it succeeds after all, a second dead letter, ``finished-late``, reports this.
        """
        if not attempt.begun_ms:
            return True
        # A function in a thread continues, and so does one that ignores its cancellation.
        attempt.on_late = partial(self._partition.dead_letters.send_late_soon, event, LATE)
        return False

    def put_off(self, event: InFlightEvent) -> None:
        self._partition.tracker.put_off(event.offset)
        self._log.keep(event.offset, AttemptEntry(event.attempts, event.crash_count, event.due_ms))

    def finish(self, offsets: Sequence[int]) -> None:
        self._partition.tracker.finish(offsets)
        self._log.drop(offsets)

    # ---- progress

    def position_to_commit(self) -> OffsetAndMetadata:
        if self._commits is not None:
            return self._commits.position()
        partition = self._partition
        low = partition.tracker.low
        return partition.position(low, fitted(low, partition.offset_metadata(OffsetsAbove(partition.tracker.above().finished))))

    def _progress(self) -> OffsetAndMetadata | None:
        if not self._readback.is_complete:
            return None  # the fence implies that Redis has the ids of all events below it
        tracker = self._partition.tracker
        low = tracker.low
        return OffsetAndMetadata(low, encoded(low, self._partition.offset_metadata(OffsetsAbove(tracker.required().finished))))

    def on_tick(self) -> None:
        self._log.schedule_progress(self._partition.tracker.low)

    def sample_wait(self) -> str | None:
        """Return ``note`` if nothing else has waited, but the commit metadata has no room to list more events as begun."""
        is_full = self._commits is not None and self._commits.is_full
        return self._log.writer.sample_wait() or ("note" if is_full else None)

    # ---- the end of the claim

    def stop(self) -> None:
        self._log.stop()

    async def close(self, tasks: Collection[Task[None]]) -> None:
        """If another owner has claimed the partition, send a dead letter ``finished-late`` for each event that has succeeded.

        That owner treats these events as interrupted.
        """
        partition, log = self._partition, self._log
        await log.current_write_ended(CLOSE_SECONDS)
        await cancel_all(tasks)
        for attempt in [one for one in partition.running if not one.begun_ms and not one.is_unrecorded]:
            # Cancelled before it started; no executor slot has picked it up.
            partition.running.discard(attempt)
            event: InFlightEvent = attempt.in_flight_event
            event.attempts, event.due_ms = event.attempts - 1, DUE_AT_ONCE
            self.put_off(event)
        await log.write_last(CLOSE_SECONDS)
        if log.is_fenced:
            await self._send_late(log.done.values())
            if self._commits is not None:
                for offset in log.done:
                    self._commits.uncommitted.pop(offset, None)  # its dead letter is sent
        self._is_closed = True

    async def on_commit_rejected(self) -> None:
        """Only at most once sends them, for each event whose success is neither in a commit nor in Redis."""
        if self._commits is not None:
            log, uncommitted = self._log, self._commits.uncommitted
            await self._send_late([one for offset, one in uncommitted.items() if log.has_no_state or offset in log.done])

    async def _send_late(self, events: Collection[InFlightEvent]) -> None:
        if events:
            dead_letters = [(event, dead_lettering(event, "finished-late", LATE)) for event in events]
            await self._partition.dead_letters.send_last(dead_letters, CLOSE_SECONDS)


async def _rewind_if_truncated(claim: Claim, restored: RestoredPosition, metadata: OffsetMetadata | None, fence: int) -> int | None:
    """Return the first offset at which the log may differ from the records that were read; None if no difference was found.

    If the log was truncated, the offset in the next commit is lowered, see :meth:`.Claim.continuation`. If a broker is
    restored from an older copy, its commits are old as well. Then only Redis has the fingerprints of what was read.
    """
    if metadata is None or not claim.topic_id:
        return restored.common
    action, by_redis = await claim.continuation(stored_position(fence, metadata), policy_of(claim.name))
    if action is not Action.REREAD:
        return restored.common
    return by_redis if restored.common is None else min(restored.common, by_redis)
