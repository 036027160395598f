"""At least once (``idempotent="yes"``): an event runs again after an error, a crash or a claim.

Redis keeps the number of attempts of each event; a worker waits for Redis only where a process may have died. Any unfinished event
may be the cause: a fast crash happens before Redis learns which events were running. So after the first crash every unfinished
event is a suspect, a possible cause. A few suspects start at once, after their attempts are in Redis, and no other event of their
partition runs until they have ended or were watched for a while, see :mod:`.crash_isolation`. After the second crash each of those
that were watched runs alone. The third crash makes a dead letter: no other event of the partition was running, except those that
had run alone before, and no other suspect of the process was watched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Final

from streams_app.delivery.processor import NO_OFFSET, Claim, OffsetAndMetadata
from streams_app.delivery.tasks import ended
from streams_app.subscribers.execution.crash_isolation import FEWEST_TOGETHER, WATCHED_MS, next_together, watched_ms
from streams_app.subscribers.execution.decoding import DecodedRecord
from streams_app.subscribers.execution.executor import Attempt, AttemptOutcome
from streams_app.subscribers.execution.in_flight_event import MAX_DEATHS, DeadLettering, InFlightEvent, dead_lettering
from streams_app.subscribers.execution.partition import SubscriberPartition
from streams_app.subscribers.execution.queues import StartQueue, StartRequest
from streams_app.subscribers.guarantees.attempt_log import AttemptLog
from streams_app.subscribers.guarantees.guarantee import CLOSE_SECONDS, Guarantee, TakenOver
from streams_app.subscribers.guarantees.restored_position import REDIS_SECONDS, RestoredPosition
from streams_app.subscribers.state.offset_metadata import fitted
from streams_app.subscribers.state.store import AttemptEntry

CLAIMED: Final = -1
"""In place of an offset: a claim that has not been released. Its entry has a due time other than 0, which even a full Redis
accepts."""

CALM_SECONDS: Final = 30.0
"""This long after a claim, plus a time-out, the events that were running when a process died have started again. Before, only those
that had ended since the last commit may have."""


class AtLeastOnceGuarantee(Guarantee):
    """At least once."""

    is_repeatable = True
    _log: AttemptLog

    def __init__(self, partition: SubscriberPartition) -> None:
        self._partition = partition
        self._isolated_below = 0
        self._max_together = FEWEST_TOGETHER
        self._are_long = False
        self._isolated: asyncio.Queue[list[Attempt]] = asyncio.Queue()
        self._has_ended = asyncio.Event()

    @property
    def log(self) -> AttemptLog:
        """The attempt log."""
        return self._log

    async def take_over(self, claim: Claim, restored: RestoredPosition) -> TakenOver:
        """Take over the entries of former owners; every unfinished event is a suspect if a claim was not released."""
        partition, tracker = self._partition, self._partition.tracker
        store = partition.context.store(partition.tp, claim.token)
        self._log = log = AttemptLog(store, self.position_to_commit(), partition.context.clock.now_ms, partition.running)
        found = await log.claim(REDIS_SECONDS)
        if found.pop(CLAIMED, None) is not None:
            # Events beyond the end of the log cannot have been running. The embedded broker may report too low an end.
            self._isolated_below = claim.log_bounds.end if await claim.broker_keeps_metadata() else NO_OFFSET
        entries = {}
        for offset, entry in found.items():
            if restored.is_lost(offset):
                log.drop([offset])
            elif not tracker.is_finished(offset):
                entries[offset] = kept = self._after_crash(entry)
                log.keep(offset, kept)
        log.keep(CLAIMED, AttemptEntry(1, due_ms=1))
        await log.write_within(REDIS_SECONDS)
        tasks = {"attempt log": log.forever(), "crash isolation": self._run_isolated(), "calm": self._end_isolation()}
        return TakenOver(tracker.end, entries, (), tasks)

    def _after_crash(self, entry: AttemptEntry) -> AttemptEntry:
        if not entry.is_begun and entry.due_ms != WATCHED_MS:
            return entry
        self._partition.context.subscriber_metrics.interrupted_attempt("crash")
        # One of many that were running becomes a suspect. One of a few that were watched runs alone next, and one that ran alone is
        # taken for the cause. An event that was no longer watched ran beside others: it is watched for longer the next time.
        return AttemptEntry(entry.attempts, entry.deaths + (1 if entry.is_begun else 0), due_ms=1)

    async def _end_isolation(self) -> None:
        await asyncio.sleep(CALM_SECONDS + self._partition.context.subscriber.timeout_ms / 1000)
        self._isolated_below = 0

    def _needs_isolation(self, event: InFlightEvent) -> bool:
        return event.deaths > 0 or event.offset < self._isolated_below

    # ---- the start of events

    def dead_letter_of(self, event: InFlightEvent) -> DeadLettering | None:
        """Return the dead letter of an event that has killed its process too often."""
        if event.deaths < MAX_DEATHS:
            return None
        return dead_lettering(event, "crashed", f"the process died {event.deaths} times in a row, the last time while it ran alone")

    def may_start(self, queue: StartQueue, request: StartRequest) -> list[InFlightEvent]:
        """Take the next events: either suspects, as many as may run together, or others."""
        if queue.fresh and not self._may_try(queue.fresh[0]):
            # An event taken in its place would keep it from being tried.
            return []
        events = queue.take(request)
        together = self._together(events)
        queue.put_front(events[together:])
        return events[:together]

    def _may_try(self, event: InFlightEvent) -> bool:
        if not self._needs_isolation(event):
            return True
        is_last = _is_last(event)
        # Long attempts that were started alone before this one have not killed the process when they began.
        if is_last and not all(_is_last(attempt.in_flight_event) for attempt in self._partition.running):
            return False
        context = self._partition.context
        return context.crash_isolation.may_begin(self, is_last=is_last, kick=context.dispatcher.kick)

    def _together(self, events: Sequence[InFlightEvent]) -> int:
        """Return how many of these events may start together, from the first on."""
        if not events or not (self._isolated_below or any([event.deaths for event in events])):
            return len(events)
        if not self._needs_isolation(events[0]):
            return next((at for at, event in enumerate(events) if self._needs_isolation(event)), len(events))
        if not self._may_try(events[0]):
            return 0
        if _is_last(events[0]):
            return 1
        context = self._partition.context
        most = min(self._max_together, context.subscriber.concurrency)
        if self._are_long:
            # If the process died, those that wait for an executor slot would also have to run alone.
            most = min(most, max(FEWEST_TOGETHER, context.subscriber.concurrency - context.dispatcher.running))
        some = events[:most]
        return next((at for at, event in enumerate(some) if _is_last(event) or not self._needs_isolation(event)), len(some))

    def before_start(self, decoded: Sequence[tuple[InFlightEvent, DecodedRecord]]) -> list[Attempt]:
        """Start events at once; suspects when their attempts are in Redis."""
        attempts = [Attempt(made.event, event) for event, made in decoded]
        if not self._needs_isolation(decoded[0][0]):
            self._log.schedule_write()
            return attempts
        for attempt in attempts:
            event: InFlightEvent = attempt.in_flight_event
            event.deaths = max(1, event.deaths)
            # Before it starts: an attempt that kills its process counts, too.
            self._log.keep(event.offset, AttemptEntry(event.attempts, event.deaths))
            attempt.is_unrecorded = True
        self._partition.context.crash_isolation.begin(self, is_last=_is_last(decoded[0][0]))
        self._partition.start_limit = 0
        self._isolated.put_nowait(attempts)
        return attempts

    async def _run_isolated(self) -> None:
        """Start suspects once Redis knows their attempts, and other events once Redis knows what became of the suspects."""
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
                    self._log.keep(event.offset, AttemptEntry(event.attempts, event.deaths, due_ms=WATCHED_MS))
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
        # It may still wait for an executor slot.
        passed_ms = self._partition.context.clock.monotonic_ms() - attempt.begun_ms if attempt.begun_ms else 0
        return watched_ms(attempt.in_flight_event.attempts + _is_last(attempt.in_flight_event)) - passed_ms

    # ---- the end of events

    def after_end(self, attempts: Sequence[Attempt]) -> None:
        """Clear the crash count of suspects that have ended."""
        for event in [
            one.in_flight_event for one in attempts if one.in_flight_event.deaths and one.outcome is not AttemptOutcome.CANCELLED
        ]:
            event.deaths = 0
            # Also while its dead letter is being sent.
            self._log.keep(event.offset, AttemptEntry(event.attempts, due_ms=1))
        self._has_ended.set()

    def on_interruption(self, event: InFlightEvent, attempt: Attempt) -> bool:
        """Let the event start again: the attempt has not failed, and its process has not died."""
        return True

    def position_to_commit(self) -> OffsetAndMetadata:
        """Return the low watermark, with as many finished offsets above it as fit into the metadata."""
        partition = self._partition
        low = partition.tracker.low
        return partition.position(low, fitted(low, partition.offset_metadata(partition.tracker.above())))

    def on_commit(self, position: OffsetAndMetadata) -> None:
        """Schedule a write of the position to Redis, because Kafka may remove commits."""
        self._log.progressed(position)

    def stop(self) -> None:
        """Withdraw suspects whose attempts are not in Redis."""
        withdrawn = [attempt for attempt in self._partition.running if attempt.is_unrecorded]
        for attempt in withdrawn:
            attempt.outcome = AttemptOutcome.CANCELLED
        self._partition.context.dispatcher.withdrawn(withdrawn)

    async def close(self, tasks: Collection[asyncio.Task[None]]) -> None:
        """End the tasks, and write the last entries, so that attempts that were cut off are not taken for crashes."""
        await ended(tasks)
        self._partition.context.crash_isolation.end(self)
        # While it is unknown which event has killed the former process, the next owner has to find it.
        if not self._isolated_below:
            self._log.drop([CLAIMED])
        self._log.progressed(self.position_to_commit())
        await self._log.write_within(CLOSE_SECONDS)


def _is_last(event: InFlightEvent) -> bool:
    """Return whether an event is dead-lettered if its process dies once more while it is watched."""
    return event.deaths >= MAX_DEATHS - 1
