"""A subscriber that may be called again for one event (``idempotent="yes"``): at least once, whatever happens.

An event runs again after an error, a crash or a claim. Redis keeps the number of attempts of each event; a worker waits for
Redis only where a process may have died. Any unfinished event may be the cause: a fast crash happens before Redis learns which
events were running. After the first crash every unfinished event is therefore suspected. A few of them start at once, after
Redis knows that they do, and nothing else of their partition runs until they have ended or were watched for a while, see
:mod:`.crash_isolation`. After the second crash those that were watched are tried alone. The third crash
makes a dead letter: nothing else of the partition ran but what had been tried alone before, and no other suspected event of the
process was watched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final

from streams_app.delivery.batch import TP
from streams_app.delivery.processor import NO_OFFSET, Claim, OffsetAndMetadata
from streams_app.subscribers.execution.context import SubscriberContext
from streams_app.subscribers.execution.crash_isolation import FEWEST_TOGETHER, WATCHED_MS, next_together, watched_ms
from streams_app.subscribers.execution.decoding import DecodedRecord
from streams_app.subscribers.execution.executor import Attempt, AttemptOutcome
from streams_app.subscribers.execution.in_flight_event import MOST_DEATHS, DeadLettering, InFlightEvent, letter
from streams_app.subscribers.guarantees.attempt_log import AttemptLog
from streams_app.subscribers.guarantees.guarantee import LAST_MARKS_SECONDS
from streams_app.subscribers.guarantees.processor import SubscriberProcessor
from streams_app.subscribers.guarantees.restored_position import REDIS_SECONDS
from streams_app.subscribers.state.offset_tracker import OffsetTracker
from streams_app.subscribers.state.store import AttemptEntry

CLAIMED: Final = -1
"""In the place of an offset: a claim that has not let go. Its entry has a time when it is due that is not 0, which a full Redis
takes, too."""

CALM_SECONDS: Final = 30.0
"""What ran when a process died has begun again so long after the next claim, and a time-out: before it is only what had ended since
the last commit."""


class AtLeastOnceProcessor(SubscriberProcessor):
    """At least once: an event runs again after an error, a crash or a claim."""

    is_repeatable = True
    _attempt_log: AttemptLog

    def __init__(self, tp: TP, around: SubscriberContext) -> None:
        """Nothing is claimed yet."""
        super().__init__(tp, around)
        self._suspects_end = 0
        self._most_together = FEWEST_TOGETHER
        self._are_long = False
        self._suspects: asyncio.Queue[list[Attempt]] = asyncio.Queue()
        self._has_ended = asyncio.Event()

    async def _take_over(self, claim: Claim, window: OffsetTracker) -> int:
        store = self._context.store(self._tp, claim.token)
        self._attempt_log = AttemptLog(store, self._mark(window), self._context.clock.now_ms, self._running)
        found = await self._attempt_log.claim(REDIS_SECONDS)
        if found.pop(CLAIMED, None) is not None:
            # What came later cannot have been running. A broker that keeps no notes may name the end of its log too low.
            self._suspects_end = claim.log_bounds.end if await claim.broker_keeps_metadata() else NO_OFFSET
        for offset, entry in found.items():
            if self._found_at.is_lost(offset):
                self._attempt_log.drop([offset])
            elif not window.is_finished(offset):
                self._before[offset] = kept = self._found(entry)
                self._attempt_log.keep(offset, kept)
        self._attempt_log.keep(CLAIMED, AttemptEntry(1, due_ms=1))
        await self._attempt_log.write_within(REDIS_SECONDS)
        return window.end

    def _found(self, entry: AttemptEntry) -> AttemptEntry:
        if not entry.is_begun and entry.due_ms != WATCHED_MS:
            return entry
        self._context.figures.lost("crash")
        # One of many that ran is a suspect from now on. One of a few that were watched is tried alone, and one that was alone is
        # held to have killed its process. Where that died later, others ran beside it: it is watched longer the next time.
        return AttemptEntry(entry.attempts, entry.deaths + (1 if entry.is_begun else 0), due_ms=1)

    async def mark(self) -> OffsetAndMetadata | None:
        """As of any subscriber; and Redis is told with each commit how far it is: Kafka may remove commits."""
        mark = await super().mark()
        if mark is not None and self._tasks:
            self._attempt_log.progressed(mark)
        return mark

    def _works(self) -> dict[str, Coroutine[Any, Any, None]]:
        return {"marks": self._attempt_log.forever(), "suspects": self._a_few_at_once(), "calm": self._calm()}

    async def _calm(self) -> None:
        await asyncio.sleep(CALM_SECONDS + self._context.subscriber.timeout_ms / 1000)
        self._suspects_end = 0

    def _is_suspect(self, work: InFlightEvent) -> bool:
        return work.deaths > 0 or work.offset < self._suspects_end

    def _instead(self, work: InFlightEvent) -> DeadLettering | None:
        if work.deaths < MOST_DEATHS:
            return None
        return letter(work, "crashed", f"the process died {work.deaths} times in a row, the last time while it was tried alone")

    def _may_try(self, work: InFlightEvent) -> bool:
        if not self._is_suspect(work):
            return True
        is_last = _is_last(work)
        # What was tried alone before it, and takes long, did not kill its process when it began.
        if is_last and not all(_is_last(call.whose) for call in self._running):
            return False
        return self._context.trials.may_begin(self, is_last=is_last, kick=self._context.dispatcher.kick)

    def _together(self, works: Sequence[InFlightEvent]) -> int:
        if not works or not (self._suspects_end or any([work.deaths for work in works])):
            return len(works)
        if not self._is_suspect(works[0]):
            return next((at for at, work in enumerate(works) if self._is_suspect(work)), len(works))
        if not self._may_try(works[0]):
            return 0
        if _is_last(works[0]):
            return 1
        most = min(self._most_together, self._context.subscriber.concurrency)
        if self._are_long:
            # Those that wait for a slot would be tried alone, too, if the process died.
            most = min(most, max(FEWEST_TOGETHER, self._context.subscriber.concurrency - self._context.dispatcher.running))
        some = works[:most]
        return next((at for at, work in enumerate(some) if _is_last(work) or not self._is_suspect(work)), len(some))

    def _begins(self, made: Sequence[tuple[InFlightEvent, DecodedRecord]]) -> list[Attempt]:
        calls = [Attempt(one.event, work) for work, one in made]
        if not self._is_suspect(made[0][0]):
            self._attempt_log.look()
            return calls
        for call in calls:
            work: InFlightEvent = call.whose
            work.deaths = max(1, work.deaths)
            # Counted before it begins: an attempt that kills its process is one, too.
            self._attempt_log.keep(work.offset, AttemptEntry(work.attempts, work.deaths))
            call.is_unnoted = True
        self._context.trials.begin(self, is_last=_is_last(made[0][0]))
        self._is_alone = True
        self._suspects.put_nowait(calls)
        return calls

    def ended(self, calls: Sequence[Attempt], uncounted: Collection[Attempt]) -> None:
        """Clear the crash count of events that have ended, then finish, retry or dead-letter each."""
        for work in [call.whose for call in calls if call.whose.deaths and call.outcome is not AttemptOutcome.CANCELLED]:
            work.deaths = 0
            # Also while its letter is on the way.
            self._attempt_log.keep(work.offset, AttemptEntry(work.attempts, due_ms=1))
        super().ended(calls, uncounted)
        self._has_ended.set()

    async def _a_few_at_once(self) -> None:
        """Lets suspects begin when Redis knows that they do, and others when Redis knows what became of them."""
        while True:
            calls = await self._suspects.get()
            offsets = [call.whose.offset for call in calls]
            await self._attempt_log.told(offsets, REDIS_SECONDS)
            if not self._is_over:
                for call in calls:
                    call.is_unnoted = False
                self._context.dispatcher.noted(calls)
                late = await self._not_ended_while_watched(calls)
                self._are_long = bool(late)
                for work in late:
                    self._attempt_log.keep(work.offset, AttemptEntry(work.attempts, work.deaths, due_ms=WATCHED_MS))
                self._most_together = next_together(self._most_together)
                await self._attempt_log.told(offsets, REDIS_SECONDS)
            self._is_alone = False
            self._context.trials.end(self)
            self._context.dispatcher.kick()

    async def _not_ended_while_watched(self, calls: Sequence[Attempt]) -> list[InFlightEvent]:
        while running := [call for call in calls if call in self._running]:
            left_ms = max(map(self._left_ms, running))
            if left_ms <= 0:
                return [call.whose for call in running]
            self._has_ended.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left_ms / 1000):
                    await self._has_ended.wait()
        return []

    def _left_ms(self, call: Attempt) -> int:
        # It may wait for a slot.
        passed_ms = self._context.clock.monotonic_ms() - call.begun_ms if call.begun_ms else 0
        return watched_ms(call.whose.attempts + _is_last(call.whose)) - passed_ms

    def _keep(self, work: InFlightEvent) -> None:
        self._attempt_log.keep(work.offset, AttemptEntry(work.attempts, work.deaths, work.due_ms))

    def _drop(self, offsets: Sequence[int]) -> None:
        self._attempt_log.drop(offsets)

    def _waits_for(self) -> str | None:
        return self._attempt_log.waits_for()

    def _cut_off(self, work: InFlightEvent, call: Attempt) -> None:
        # It was no failure, and its process did not die.
        self._put_back(work)

    async def _settle(self) -> None:
        unnoted = [call for call in self._running if call.is_unnoted]
        for call in unnoted:
            call.outcome = AttemptOutcome.CANCELLED
        self._context.dispatcher.withdrawn(unnoted)

    async def _leave(self) -> None:
        self._context.trials.end(self)
        # What was cut off is not to be taken for what has killed its process. Where it is not known yet what has killed the one
        # before, the next owner is to find it.
        if not self._suspects_end:
            self._attempt_log.drop([CLAIMED])
        assert self._tracker is not None  # it is claimed
        self._attempt_log.progressed(self._mark(self._tracker))
        await self._attempt_log.write_within(LAST_MARKS_SECONDS)


def _is_last(work: InFlightEvent) -> bool:
    """Whether an event becomes a letter if its process dies once more while it is watched."""
    return work.deaths >= MOST_DEATHS - 1
