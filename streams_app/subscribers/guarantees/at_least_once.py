"""At least once (``idempotent="yes"``): an event may run several times, after an error, a crash or a claim.

Redis stores the number of attempts of each event; attempts wait for Redis only if a process may have crashed. Crash isolation finds
the event that crashes its process:

1. After the first crash every unfinished event is a suspect, because a fast crash happens before Redis learns which events were
   running. A few suspects start together, after their attempts are stored in Redis, and no other event of their partition starts
   until they have ended or were watched for a while, see :mod:`.crash_isolation`.
2. After the second crash, each of the suspects that were watched gets a solo retry.
3. After the third crash, the event becomes a dead letter: no other event of the partition was running, except those that had passed
   a solo retry, and no other suspect of the process was watched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Final

from streams_app.delivery.batch import Batch
from streams_app.delivery.claim import Claim
from streams_app.delivery.offset_metadata import OffsetAndMetadata
from streams_app.delivery.tasks import cancel_all
from streams_app.subscribers.execution.crash_isolation import FEWEST_TOGETHER, WATCH_PASSED, next_together, watched_ms
from streams_app.subscribers.execution.decoding import DecodedRecord
from streams_app.subscribers.execution.executor import Attempt, AttemptOutcome
from streams_app.subscribers.execution.in_flight_event import DUE_AT_ONCE, InFlightEvent
from streams_app.subscribers.execution.partition import SubscriberPartition
from streams_app.subscribers.execution.queues import StartQueue, StartRequest
from streams_app.subscribers.execution.retry_decision import MAX_CRASHES, DeadLettering, dead_lettering
from streams_app.subscribers.guarantees.attempt_log import AttemptLog
from streams_app.subscribers.guarantees.guarantee import CLOSE_SECONDS, Guarantee, Takeover
from streams_app.subscribers.guarantees.restored_position import REDIS_SECONDS, RestoredPosition
from streams_app.subscribers.state.offset_metadata import fitted
from streams_app.subscribers.state.store import AttemptEntry

CLAIMED: Final = -1
"""Stored in place of an offset, from a claim until its release. If the next claim finds this entry, the process may have crashed.
The entry has a due time other than 0, because even a full Redis accepts entries with a due time."""

CALM_SECONDS: Final = 30.0
"""Crash isolation ends this long after a claim, plus the time-out of an attempt. By then, the events that were running at the crash
have started once more. Events that had ended before the crash, but after the last commit, may run once more before them."""


class AtLeastOnceGuarantee(Guarantee):
    """Delivery guarantee of one claimed partition, with retries after errors, and crash isolation after crashes."""

    def __init__(self, partition: SubscriberPartition) -> None:
        context = partition.context
        self._partition = partition
        store = context.store(partition.tp, partition.claim.token)
        self._log = AttemptLog(store, self._position(), context.clock.now_ms, partition.running)
        self._isolated_below = 0
        self._max_together = FEWEST_TOGETHER
        self._are_long = False
        self._isolated: asyncio.Queue[list[Attempt]] = asyncio.Queue()
        self._has_ended = asyncio.Event()

    async def take_over(self, claim: Claim, restored: RestoredPosition) -> Takeover:
        """If the last owner did not release the partition, its process may have crashed: every unfinished event becomes a suspect.

        The crash count of each event whose attempt had begun increases by 1.
        """
        log, tracker = self._log, self._partition.tracker
        found = await log.claim(REDIS_SECONDS)
        if found.pop(CLAIMED, None) is not None:
            # Events beyond the end of the log cannot have been running.
            self._isolated_below = claim.log_bounds.end
        entries = {}
        for offset, entry in found.items():
            if restored.is_lost(offset):
                log.drop([offset])
            elif not tracker.is_finished(offset):
                entries[offset] = kept = self._after_crash(entry)
                log.keep(offset, kept)
        log.keep(CLAIMED, AttemptEntry(1, due_ms=DUE_AT_ONCE))
        await log.write_within(REDIS_SECONDS)
        tasks = {"attempt log": log.writer.forever(), "crash isolation": self._run_isolated(), "calm": self._end_isolation()}
        return Takeover(tracker.end, entries, (), tasks)

    def _after_crash(self, entry: AttemptEntry) -> AttemptEntry:
        if not entry.is_begun and entry.due_ms != WATCH_PASSED:
            return entry
        self._partition.context.subscriber_metrics.interrupted_attempt("crash")
        # The count increases for events that were running or watched: with 1 the event is a suspect, with 2 it gets a solo retry,
        # and with 3 it is the cause. An event that was no longer watched ran beside others, so its count stays, but it is watched
        # for longer the next time.
        return AttemptEntry(entry.attempts, entry.crash_count + (1 if entry.is_begun else 0), due_ms=DUE_AT_ONCE)

    async def _end_isolation(self) -> None:
        await asyncio.sleep(CALM_SECONDS + self._partition.context.subscriber.timeout_ms / 1000)
        self._isolated_below = 0

    def _needs_isolation(self, event: InFlightEvent) -> bool:
        return event.crash_count > 0 or event.offset < self._isolated_below

    # ---- the start of events

    def dead_letter_of(self, event: InFlightEvent) -> DeadLettering | None:
        if event.crash_count < MAX_CRASHES:
            return None
        return dead_lettering(
            event, "crashed", f"the process died {event.crash_count} times in a row, the last time while it ran alone"
        )

    def may_start(self, queue: StartQueue, request: StartRequest) -> list[InFlightEvent]:
        """Take a few suspects of crash isolation, or other events, but never both. No event overtakes a waiting suspect."""
        if queue.fresh and not self._may_try(queue.fresh[0]):
            # Another event that started instead could delay this one without limit.
            return []
        events = queue.take(request)
        together = self._together(events)
        queue.put_front(events[together:])
        return events[:together]

    def _may_try(self, event: InFlightEvent) -> bool:
        if not self._needs_isolation(event):
            return True
        is_solo_retry = _is_solo_retry(event)
        # Running attempts of other solo retries may continue: they have passed their watch without a crash.
        if is_solo_retry and not all(_is_solo_retry(attempt.in_flight_event) for attempt in self._partition.running):
            return False
        context = self._partition.context
        return context.crash_isolation.may_begin(self, is_solo_retry=is_solo_retry, kick=context.dispatcher.kick)

    def _together(self, events: Sequence[InFlightEvent]) -> int:
        """Return how many of the events may start together, counted from the first one; 0 if the first one has to wait."""
        if not events or not (self._isolated_below or any([event.crash_count for event in events])):
            return len(events)
        if not self._needs_isolation(events[0]):
            return next((at for at, event in enumerate(events) if self._needs_isolation(event)), len(events))
        if not self._may_try(events[0]):
            return 0
        if _is_solo_retry(events[0]):
            return 1
        context = self._partition.context
        most = min(self._max_together, context.subscriber.concurrency)
        if self._are_long:
            # After a crash, suspects that were queued for an executor slot would also need solo retries.
            most = min(most, max(FEWEST_TOGETHER, context.subscriber.concurrency - context.dispatcher.running))
        some = events[:most]
        return next((at for at, event in enumerate(some) if _is_solo_retry(event) or not self._needs_isolation(event)), len(some))

    def before_start(self, decoded: Sequence[tuple[InFlightEvent, DecodedRecord]]) -> list[Attempt]:
        """The attempts of suspects start once Redis has stored them, or has not answered in time. Other attempts start at once."""
        attempts = [Attempt(made.event, event) for event, made in decoded]
        if not self._needs_isolation(decoded[0][0]):
            self._log.schedule_write()
            return attempts
        for attempt in attempts:
            event: InFlightEvent = attempt.in_flight_event
            event.crash_count = max(1, event.crash_count)
            # Stored before the start, so that an attempt that crashes its process counts.
            self._log.keep(event.offset, AttemptEntry(event.attempts, event.crash_count))
            attempt.is_unrecorded = True
        self._partition.context.crash_isolation.begin(self, is_solo_retry=_is_solo_retry(decoded[0][0]))
        self._partition.start_limit = 0
        self._isolated.put_nowait(attempts)
        return attempts

    async def _run_isolated(self) -> None:
        """Start suspects; once they have ended or their watch is over, let other events start.

        Before each of these steps, wait until Redis has stored the attempts of the suspects, or has not answered in time.
        """
        partition = self._partition
        while True:
            attempts = await self._isolated.get()
            offsets = [attempt.in_flight_event.offset for attempt in attempts]
            await self._log.written(offsets, REDIS_SECONDS)
            if not partition.is_revoked:
                for attempt in attempts:
                    attempt.is_unrecorded = False
                partition.context.dispatcher.start(attempts)
                late = await self._still_running_after_watch(attempts)
                self._are_long = bool(late)
                for event in late:
                    self._log.keep(event.offset, AttemptEntry(event.attempts, event.crash_count, due_ms=WATCH_PASSED))
                self._max_together = next_together(self._max_together)
                await self._log.written(offsets, REDIS_SECONDS)
            partition.start_limit = None
            partition.context.crash_isolation.end(self)
            partition.context.dispatcher.kick()

    async def _still_running_after_watch(self, attempts: Sequence[Attempt]) -> list[InFlightEvent]:
        while running := [attempt for attempt in attempts if attempt in self._partition.running]:
            left_ms = max(map(self._watch_left_ms, running))
            if left_ms <= 0:
                return [attempt.in_flight_event for attempt in running]
            self._has_ended.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left_ms / 1000):
                    await self._has_ended.wait()
        return []

    def _watch_left_ms(self, attempt: Attempt) -> int:
        # begun_ms is 0 while the attempt is queued for an executor slot.
        passed_ms = self._partition.context.clock.monotonic_ms() - attempt.begun_ms if attempt.begun_ms else 0
        return watched_ms(attempt.in_flight_event.attempts + _is_solo_retry(attempt.in_flight_event)) - passed_ms

    # ---- the end of events

    def after_end(self, attempts: Sequence[Attempt]) -> None:
        """Reset the crash count of each suspect whose attempt has ended without being cancelled."""
        for event in [
            one.in_flight_event
            for one in attempts
            if one.in_flight_event.crash_count and one.outcome is not AttemptOutcome.CANCELLED
        ]:
            event.crash_count = 0
            # Stored as not begun, so that a crash while its dead letter is being sent does not count.
            self._log.keep(event.offset, AttemptEntry(event.attempts, due_ms=DUE_AT_ONCE))
        self._has_ended.set()

    def on_interruption(self, event: InFlightEvent, attempt: Attempt) -> bool:
        return True

    def put_off(self, event: InFlightEvent) -> None:
        self._log.keep(event.offset, AttemptEntry(event.attempts, event.crash_count, event.due_ms))

    def finish(self, offsets: Sequence[int]) -> None:
        self._partition.tracker.finish(offsets)
        self._log.drop(offsets)

    # ---- progress

    def on_batch(self, batch: Batch) -> None:
        """Do nothing: no event ids are stored."""

    def on_tick(self) -> None:
        """Do nothing: the low watermark is written to Redis only with each commit."""

    def sample_wait(self) -> str | None:
        """Only the attempts of suspects wait for a write; other attempts start without it."""
        return self._log.writer.sample_wait()

    def position_to_commit(self) -> OffsetAndMetadata:
        """The position is also written to Redis, because Kafka may remove the commit after its retention."""
        position = self._position()
        self._log.schedule_progress(position)
        return position

    def _position(self) -> OffsetAndMetadata:
        partition = self._partition
        low = partition.tracker.low
        return partition.position(low, fitted(low, partition.offset_metadata(partition.tracker.above())))

    # ---- the end of the claim

    def stop(self) -> None:
        withdrawn = [attempt for attempt in self._partition.running if attempt.is_unrecorded]
        for attempt in withdrawn:
            attempt.outcome = AttemptOutcome.CANCELLED
        self._partition.context.dispatcher.withdrawn(withdrawn)

    async def close(self, tasks: Collection[asyncio.Task[None]]) -> None:
        """The last entries are written so that interrupted attempts do not count as crashes."""
        await cancel_all(tasks)
        self._partition.context.crash_isolation.end(self)
        # If the event that crashed the former process has not been found, the next owner has to continue the isolation.
        if not self._isolated_below:
            self._log.drop([CLAIMED])
        self._log.schedule_progress(self._position())
        await self._log.write_within(CLOSE_SECONDS)

    async def on_commit_rejected(self) -> None:
        """Do nothing: an event that has succeeded, but that no commit lists as finished, may run once more."""


def _is_solo_retry(event: InFlightEvent) -> bool:
    return event.crash_count >= MAX_CRASHES - 1
