"""A subscriber that may be called again for one event (``idempotent="yes"``): at least once, whatever happens.

An event runs again after an error, a crash or a claim. Redis knows how often an event was tried, and is not waited for but where a
process may have died. It may be any event that has killed it: what kills at once does so before anybody could tell Redis that it
begins. So after the first death all events are suspects. They begin a few at once, when Redis knows that they do, and nothing else
of their partition does until they have ended or were watched for a while, see :mod:`streams_app.subscribers.trials`. After the
second death those that were watched are tried alone. The third one makes a dead letter: nothing else of its partition ran, but what
had been tried alone before it, and no other suspect of the process was watched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final

from streams_app.delivery.batch import TP
from streams_app.delivery.processor import READS_NOTHING, Claim, Mark
from streams_app.subscribers.around import Around, Decoded
from streams_app.subscribers.beginning import REDIS_SECONDS
from streams_app.subscribers.marking import Marking
from streams_app.subscribers.processor import SubscriberProcessor
from streams_app.subscribers.promise import LAST_MARKS_SECONDS
from streams_app.subscribers.runner import Call, Outcome
from streams_app.subscribers.store import Entry
from streams_app.subscribers.trials import FEWEST_TOGETHER, WATCHED_MS, next_together, watched_ms
from streams_app.subscribers.window import Window
from streams_app.subscribers.work import MOST_DEATHS, Letter, Work, letter

CLAIMED: Final = -1
"""In the place of an offset: a claim that has not let go. Its entry has a time when it is due that is not 0, which a full Redis
takes, too."""

CALM_SECONDS: Final = 30.0
"""What ran when a process died has begun again so long after the next claim, and a time-out: before it is only what had ended since
the last commit."""


class AgainProcessor(SubscriberProcessor):
    """At least once: an event runs again after an error, a crash or a claim."""

    is_repeatable = True
    _marking: Marking

    def __init__(self, tp: TP, around: Around) -> None:
        """Nothing is claimed yet."""
        super().__init__(tp, around)
        self._suspects_end = 0
        self._most_together = FEWEST_TOGETHER
        self._are_long = False
        self._suspects: asyncio.Queue[list[Call]] = asyncio.Queue()
        self._has_ended = asyncio.Event()

    async def _take_over(self, claim: Claim, window: Window) -> int:
        store = self._around.store(self._tp, claim.token)
        self._marking = Marking(store, self._mark(window), self._around.clock.now_ms, self._running)
        found = await self._marking.claim(REDIS_SECONDS)
        if found.pop(CLAIMED, None) is not None:
            # What came later cannot have been running. A broker that keeps no notes may name the end of its log too low.
            self._suspects_end = claim.edges.end if await claim.keeps_notes() else READS_NOTHING
        for offset, entry in found.items():
            if self._found_at.is_lost(offset):
                self._marking.drop([offset])
            elif not window.is_finished(offset):
                self._before[offset] = kept = self._found(entry)
                self._marking.keep(offset, kept)
        self._marking.keep(CLAIMED, Entry(1, due_ms=1))
        await self._marking.write_within(REDIS_SECONDS)
        return window.end

    def _found(self, entry: Entry) -> Entry:
        if not entry.is_begun and entry.due_ms != WATCHED_MS:
            return entry
        self._around.figures.lost("crash")
        # One of many that ran is a suspect from now on. One of a few that were watched is tried alone, and one that was alone is
        # held to have killed its process. Where that died later, others ran beside it: it is watched longer the next time.
        return Entry(entry.attempts, entry.deaths + (1 if entry.is_begun else 0), due_ms=1)

    async def mark(self) -> Mark | None:
        """As of any subscriber; and Redis is told with each commit how far it is: Kafka may remove commits."""
        mark = await super().mark()
        if mark is not None and self._tasks:
            self._marking.progressed(mark)
        return mark

    def _works(self) -> dict[str, Coroutine[Any, Any, None]]:
        return {"marks": self._marking.forever(), "suspects": self._a_few_at_once(), "calm": self._calm()}

    async def _calm(self) -> None:
        await asyncio.sleep(CALM_SECONDS + self._around.subscriber.timeout_ms / 1000)
        self._suspects_end = 0

    def _is_suspect(self, work: Work) -> bool:
        return work.deaths > 0 or work.offset < self._suspects_end

    def _instead(self, work: Work) -> Letter | None:
        if work.deaths < MOST_DEATHS:
            return None
        return letter(work, "crashed", f"the process died {work.deaths} times in a row, the last time while it was tried alone")

    def _may_try(self, work: Work) -> bool:
        if not self._is_suspect(work):
            return True
        is_last = _is_last(work)
        # What was tried alone before it, and takes long, did not kill its process when it began.
        if is_last and not all(_is_last(call.whose) for call in self._running):
            return False
        return self._around.trials.may_begin(self, is_last=is_last, kick=self._around.dispatcher.kick)

    def _together(self, works: Sequence[Work]) -> int:
        if not works or not (self._suspects_end or any([work.deaths for work in works])):
            return len(works)
        if not self._is_suspect(works[0]):
            return next((at for at, work in enumerate(works) if self._is_suspect(work)), len(works))
        if not self._may_try(works[0]):
            return 0
        if _is_last(works[0]):
            return 1
        most = min(self._most_together, self._around.subscriber.concurrency)
        if self._are_long:
            # Those that wait for a slot would be tried alone, too, if the process died.
            most = min(most, max(FEWEST_TOGETHER, self._around.subscriber.concurrency - self._around.dispatcher.running))
        some = works[:most]
        return next((at for at, work in enumerate(some) if _is_last(work) or not self._is_suspect(work)), len(some))

    def _begins(self, made: Sequence[tuple[Work, Decoded]]) -> list[Call]:
        calls = [Call(one.event, work) for work, one in made]
        if not self._is_suspect(made[0][0]):
            self._marking.look()
            return calls
        for call in calls:
            work: Work = call.whose
            work.deaths = max(1, work.deaths)
            # Counted before it begins: an attempt that kills its process is one, too.
            self._marking.keep(work.offset, Entry(work.attempts, work.deaths))
            call.is_unnoted = True
        self._around.trials.begin(self, is_last=_is_last(made[0][0]))
        self._is_alone = True
        self._suspects.put_nowait(calls)
        return calls

    def ended(self, calls: Sequence[Call], uncounted: Collection[Call]) -> None:
        """See :class:`streams_app.subscribers.dispatcher.Source`."""
        for work in [call.whose for call in calls if call.whose.deaths and call.outcome is not Outcome.CANCELLED]:
            work.deaths = 0
            # Also while its letter is on the way.
            self._marking.keep(work.offset, Entry(work.attempts, due_ms=1))
        super().ended(calls, uncounted)
        self._has_ended.set()

    async def _a_few_at_once(self) -> None:
        """Lets suspects begin when Redis knows that they do, and others when Redis knows what became of them."""
        while True:
            calls = await self._suspects.get()
            offsets = [call.whose.offset for call in calls]
            await self._marking.told(offsets, REDIS_SECONDS)
            if not self._is_over:
                for call in calls:
                    call.is_unnoted = False
                self._around.dispatcher.noted(calls)
                late = await self._not_ended_while_watched(calls)
                self._are_long = bool(late)
                for work in late:
                    self._marking.keep(work.offset, Entry(work.attempts, work.deaths, due_ms=WATCHED_MS))
                self._most_together = next_together(self._most_together)
                await self._marking.told(offsets, REDIS_SECONDS)
            self._is_alone = False
            self._around.trials.end(self)
            self._around.dispatcher.kick()

    async def _not_ended_while_watched(self, calls: Sequence[Call]) -> list[Work]:
        while running := [call for call in calls if call in self._running]:
            left_ms = max(map(self._left_ms, running))
            if left_ms <= 0:
                return [call.whose for call in running]
            self._has_ended.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left_ms / 1000):
                    await self._has_ended.wait()
        return []

    def _left_ms(self, call: Call) -> int:
        # It may wait for a slot.
        passed_ms = self._around.clock.monotonic_ms() - call.begun_ms if call.begun_ms else 0
        return watched_ms(call.whose.attempts + _is_last(call.whose)) - passed_ms

    def _keep(self, work: Work) -> None:
        self._marking.keep(work.offset, Entry(work.attempts, work.deaths, work.due_ms))

    def _drop(self, offsets: Sequence[int]) -> None:
        self._marking.drop(offsets)

    def _waits_for(self) -> str | None:
        return self._marking.waits_for()

    def _cut_off(self, work: Work, call: Call) -> None:
        # It was no failure, and its process did not die.
        self._put_back(work)

    async def _settle(self) -> None:
        unnoted = [call for call in self._running if call.is_unnoted]
        for call in unnoted:
            call.outcome = Outcome.CANCELLED
        self._around.dispatcher.withdrawn(unnoted)

    async def _leave(self) -> None:
        self._around.trials.end(self)
        # What was cut off is not to be taken for what has killed its process. Where it is not known yet what has killed the one
        # before, the next owner is to find it.
        if not self._suspects_end:
            self._marking.drop([CLAIMED])
        assert self._window is not None  # it is claimed
        self._marking.progressed(self._mark(self._window))
        await self._marking.write_within(LAST_MARKS_SECONDS)


def _is_last(work: Work) -> bool:
    """Whether an event becomes a letter if its process dies once more while it is watched."""
    return work.deaths >= MOST_DEATHS - 1
