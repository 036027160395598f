"""A subscriber that may be called again for one event (``idempotent="yes"``): at least once, whatever happens.

An event runs again after an error, a crash or a claim. Redis knows how often an event was tried, and is not waited for but where a
process may have died: what may have killed it is suspected. A suspect runs alone in its partition, and Redis is told that it begins
before it does, and that it has ended before anything else begins. So its deaths while it runs alone are its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from streams_app.delivery.batch import TP
from streams_app.delivery.processor import Claim
from streams_app.subscribers.around import Around, Decoded
from streams_app.subscribers.marking import Marking
from streams_app.subscribers.processor import MOST_UNFINISHED, REDIS_SECONDS, SubscriberProcessor
from streams_app.subscribers.promise import LAST_MARKS_SECONDS
from streams_app.subscribers.runner import Call, Outcome
from streams_app.subscribers.store import Entry
from streams_app.subscribers.window import Window
from streams_app.subscribers.work import MOST_DEATHS, Letter, Work, letter

CLAIMED: Final = -1
"""In the place of an offset: a claim that has not let go. Its entry has as attempts how many claims in succession have begun at one
offset and not let go, and as the time when it is due that offset plus one: a time that is not 0 is taken by a full Redis, too."""


def suspected(concurrency: int, claims: int) -> int:
    """How many events are suspects, from the first unfinished one on, where so many claims in succession have not let go.

    What ran when a process died is not known to the last call. It was among the first, most of the time. Where it was not, it kills
    the next process, too, and twice as many are suspects.
    """
    return min(2 * concurrency * 2 ** min(claims - 1, MOST_UNFINISHED.bit_length()), MOST_UNFINISHED) if claims else 0


class AgainProcessor(SubscriberProcessor):
    """At least once: an event runs again after an error, a crash or a claim."""

    is_repeatable = True
    _marking: Marking

    def __init__(self, tp: TP, around: Around) -> None:
        """Nothing is claimed yet."""
        super().__init__(tp, around)
        self._suspected = 0
        self._steps: asyncio.Queue[tuple[int, Call | None]] = asyncio.Queue()

    async def _take_over(self, claim: Claim, window: Window) -> int:
        begin = window.low
        self._marking = Marking(self._around.store(self._tp, claim.token), lambda: window.low, self._around.clock.now_ms)
        found = await self._marking.claim(REDIS_SECONDS)
        former = found.pop(CLAIMED, None)
        claims = 0 if former is None else (former.attempts if former.due_ms == begin + 1 else 1)
        self._suspected = suspected(self._around.subscriber.concurrency, claims)
        for offset, entry in found.items():
            if not window.is_finished(offset):
                self._before[offset] = kept = self._found(entry)
                self._marking.keep(offset, kept)
        self._marking.keep(CLAIMED, Entry(claims + 1, due_ms=begin + 1))
        await self._marking.write_within(REDIS_SECONDS)
        return window.end

    def _found(self, entry: Entry) -> Entry:
        if not entry.is_begun:
            return entry
        self._around.figures.lost("crash")
        # One of many that ran is a suspect from now on. One that was a suspect has run alone: nothing else has killed its process.
        return Entry(entry.attempts, entry.deaths + 1, due_ms=1)

    def _works(self) -> dict[str, Coroutine[Any, Any, None]]:
        return {"marks": self._marking.forever(), "suspects": self._one_by_one()}

    def _work(self, record: Any, size_bytes: int) -> Work:
        work = super()._work(record, size_bytes)
        if self._suspected:
            self._suspected -= 1
            work.deaths = max(1, work.deaths)
        return work

    def _instead(self, work: Work) -> Letter | None:
        if work.deaths < MOST_DEATHS:
            return None
        return letter(work, "crashed", f"the process died {work.deaths} times while it ran")

    def _begins(self, work: Work, made: Decoded) -> Call:
        call = Call(made.event, work, is_unnoted=work.deaths > 0)
        # Counted before it begins: an attempt that kills its process is one, too.
        self._marking.keep(work.offset, Entry(work.attempts, work.deaths), None if call.is_unnoted else call)
        if call.is_unnoted:
            self._steps.put_nowait((work.offset, call))
        return call

    def ended(self, work: Work, call: Call, *, counts: bool) -> None:
        """See :class:`streams_app.subscribers.dispatcher.Source`."""
        was_suspect = work.deaths > 0
        if was_suspect and call.outcome is not Outcome.CANCELLED:
            work.deaths = 0
            # Also while its letter is on the way.
            self._marking.keep(work.offset, Entry(work.attempts, due_ms=1))
        super().ended(work, call, counts=counts)
        if was_suspect:
            self._is_alone = True
            self._steps.put_nowait((work.offset, None))

    async def _one_by_one(self) -> None:
        """Lets a suspect begin when Redis knows that it does, and others when Redis knows that it has ended."""
        while True:
            offset, call = await self._steps.get()
            await self._marking.told(offset, REDIS_SECONDS)
            if call is None:
                self._is_alone = False
                self._around.dispatcher.kick()
            elif not self._is_over:
                call.is_unnoted = False
                self._around.dispatcher.noted([call])

    def _keep(self, work: Work) -> None:
        self._marking.keep(work.offset, Entry(work.attempts, work.deaths, work.due_ms))

    def _drop(self, offset: int) -> None:
        self._marking.drop(offset)

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
        # What was cut off is not to be taken for what has killed its process.
        self._marking.drop(CLAIMED)
        await self._marking.write_within(LAST_MARKS_SECONDS)
