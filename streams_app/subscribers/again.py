"""A subscriber that may be called again for one event (``idempotent="yes"``): at least once, whatever happens.

An event runs again after an error, a crash or a claim. Redis knows how often an event was tried, and is not waited for but where a
process may have died: what may have killed it is suspected. After a suspect nothing else of its partition begins until it has ended
or was watched for a while, see :mod:`streams_app.subscribers.trials`. Redis is told that it begins before it does, and what became
of it before anything else begins. Only deaths while it is watched are held against it, and the one that makes it a dead letter only
where nothing else of its partition ran and no other suspect of the process was watched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final

from streams_app.delivery.batch import TP
from streams_app.delivery.processor import Claim
from streams_app.subscribers.around import Around, Decoded
from streams_app.subscribers.marking import Marking
from streams_app.subscribers.processor import MOST_UNFINISHED, REDIS_SECONDS, SubscriberProcessor
from streams_app.subscribers.promise import LAST_MARKS_SECONDS
from streams_app.subscribers.runner import Call, Outcome
from streams_app.subscribers.store import Entry
from streams_app.subscribers.trials import WATCHED_MS, watched_ms
from streams_app.subscribers.window import Window
from streams_app.subscribers.work import MOST_DEATHS, Letter, Work, letter

CLAIMED: Final = -1
"""In the place of an offset: a claim that has not let go. Its entry has as attempts how many claims in quick succession have not,
and a time when it is due that is not 0: that is taken by a full Redis, too."""

CALM_SECONDS: Final = 30.0
"""A claim that has lasted so long has nothing to do with the death of the process before."""


def suspected(concurrency: int, claims: int) -> int:
    """How many events are suspects, from the first unfinished one on, where so many claims in quick succession have not let go.

    What ran when a process died is not known to the last call, nor is all that had ended. It was among the first, most of the time.
    Where it was not, as much was done since the last commit, it kills the next process, too, and eight times as many are suspects.
    """
    return min(2 * concurrency * 8 ** min(claims - 1, MOST_UNFINISHED.bit_length()), MOST_UNFINISHED) if claims else 0


class AgainProcessor(SubscriberProcessor):
    """At least once: an event runs again after an error, a crash or a claim."""

    is_repeatable = True
    _marking: Marking

    def __init__(self, tp: TP, around: Around) -> None:
        """Nothing is claimed yet."""
        super().__init__(tp, around)
        self._suspected = 0
        self._suspects: asyncio.Queue[Call] = asyncio.Queue()
        self._tried: Call | None = None
        self._has_ended = asyncio.Event()

    async def _take_over(self, claim: Claim, window: Window) -> int:
        store = self._around.store(self._tp, claim.token)
        self._marking = Marking(store, lambda: window.low, self._around.clock.now_ms, self._running)
        found = await self._marking.claim(REDIS_SECONDS)
        former = found.pop(CLAIMED, None)
        claims = 0 if former is None else former.attempts
        self._suspected = suspected(self._around.subscriber.concurrency, claims)
        for offset, entry in found.items():
            if not window.is_finished(offset):
                self._before[offset] = kept = self._found(entry)
                self._marking.keep(offset, kept)
        self._marking.keep(CLAIMED, Entry(claims + 1, due_ms=1))
        await self._marking.write_within(REDIS_SECONDS)
        return window.end

    def _found(self, entry: Entry) -> Entry:
        if not entry.is_begun and entry.due_ms != WATCHED_MS:
            return entry
        self._around.figures.lost("crash")
        # One of many that ran is a suspect from now on. One that was watched is held to have killed its process. Where that died
        # later, others ran beside it: it is watched longer the next time.
        return Entry(entry.attempts, entry.deaths + (1 if entry.is_begun else 0), due_ms=1)

    def _works(self) -> dict[str, Coroutine[Any, Any, None]]:
        return {"marks": self._marking.forever(), "suspects": self._one_by_one(), "calm": self._calm()}

    async def _calm(self) -> None:
        await asyncio.sleep(CALM_SECONDS)
        self._marking.keep(CLAIMED, Entry(1, due_ms=1))

    def _arrived(self, works: Sequence[Work]) -> None:
        super()._arrived(works)
        suspects = works[: self._suspected]
        self._suspected -= len(suspects)
        for work in suspects:
            work.deaths = max(1, work.deaths)

    def _instead(self, work: Work) -> Letter | None:
        if work.deaths < MOST_DEATHS:
            return None
        return letter(work, "crashed", f"the process died {work.deaths} times while it ran")

    def _may_try(self, work: Work) -> bool:
        is_last = _is_last(work)
        if is_last and self._running:
            return False
        return self._around.trials.may_begin(self, is_last=is_last, kick=self._around.dispatcher.kick)

    def _begins(self, made: Sequence[tuple[Work, Decoded]]) -> list[Call]:
        calls = [Call(one.event, work) for work, one in made]
        suspect: Work = made[0][0]
        if not suspect.deaths:
            self._marking.look()
            return calls
        # Counted before it begins: an attempt that kills its process is one, too.
        self._marking.keep(suspect.offset, Entry(suspect.attempts, suspect.deaths))
        self._around.trials.begin(self, is_last=_is_last(suspect))
        (call,) = calls
        call.is_unnoted = True
        self._is_alone, self._tried = True, call
        self._has_ended.clear()
        self._suspects.put_nowait(call)
        return calls

    def ended(self, calls: Sequence[Call], uncounted: Collection[Call]) -> None:
        """See :class:`streams_app.subscribers.dispatcher.Source`."""
        for work in [call.whose for call in calls if call.whose.deaths and call.outcome is not Outcome.CANCELLED]:
            work.deaths = 0
            # Also while its letter is on the way.
            self._marking.keep(work.offset, Entry(work.attempts, due_ms=1))
        super().ended(calls, uncounted)
        if self._tried in calls:
            self._has_ended.set()

    async def _one_by_one(self) -> None:
        """Lets a suspect begin when Redis knows that it does, and others when Redis knows what became of it."""
        while True:
            call = await self._suspects.get()
            work = call.whose
            await self._marking.told(work.offset, REDIS_SECONDS)
            if not self._is_over:
                call.is_unnoted = False
                self._around.dispatcher.noted([call])
                if not await self._ends_while_watched(call, watched_ms(work.attempts)):
                    self._marking.keep(work.offset, Entry(work.attempts, work.deaths, due_ms=WATCHED_MS))
                await self._marking.told(work.offset, REDIS_SECONDS)
            self._is_alone, self._tried = False, None
            self._around.trials.end(self)
            self._around.dispatcher.kick()

    async def _ends_while_watched(self, call: Call, most_ms: int) -> bool:
        while not self._has_ended.is_set():
            # It may wait for a slot.
            left_ms = most_ms - (self._around.clock.monotonic_ms() - call.begun_ms if call.begun_ms else 0)
            if left_ms <= 0:
                return False
            with suppress(TimeoutError):
                async with asyncio.timeout(left_ms / 1000):
                    await self._has_ended.wait()
        return True

    def _keep(self, work: Work) -> None:
        self._marking.keep(work.offset, Entry(work.attempts, work.deaths, work.due_ms))

    def _drop(self, offsets: Sequence[int]) -> None:
        self._marking.drop(offsets)

    def _waits_for(self) -> str | None:
        return self._marking.waits_for()

    def _cut_off(self, work: Work, call: Call) -> None:
        # It was no failure, and its process did not die.
        self._put_off(work, attempts=work.attempts - 1, due_ms=1)

    async def _settle(self) -> None:
        unnoted = [call for call in self._running if call.is_unnoted]
        for call in unnoted:
            call.outcome = Outcome.CANCELLED
        self._around.dispatcher.withdrawn(unnoted)

    async def _leave(self) -> None:
        self._around.trials.end(self)
        # What was cut off is not to be taken for what has killed its process.
        self._marking.drop([CLAIMED])
        await self._marking.write_within(LAST_MARKS_SECONDS)


def _is_last(work: Work) -> bool:
    """Whether an event becomes a letter if its process dies once more while it is watched."""
    return work.deaths >= MOST_DEATHS - 1
