"""A subscriber that may be called again for one event (``idempotent="yes"``): at least once, whatever happens.

An event runs again after an error, a crash or a claim. Redis knows how often an event was tried, and is not waited for.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from streams_app.delivery.processor import Claim
from streams_app.subscribers.around import Decoded
from streams_app.subscribers.marking import Marking
from streams_app.subscribers.processor import REDIS_SECONDS, SubscriberProcessor
from streams_app.subscribers.promise import LAST_MARKS_SECONDS
from streams_app.subscribers.runner import Call
from streams_app.subscribers.store import Entry
from streams_app.subscribers.window import Window
from streams_app.subscribers.work import MOST_DEATHS, Letter, Work, letter


class AgainProcessor(SubscriberProcessor):
    """At least once: an event runs again after an error, a crash or a claim."""

    is_repeatable = True
    _marking: Marking

    async def _take_over(self, claim: Claim, window: Window) -> int:
        self._marking = Marking(self._around.store(self._tp, claim.token), lambda: window.low, self._around.clock.now_ms)
        for offset, entry in (await self._marking.claim(REDIS_SECONDS)).items():
            # An attempt that was under way when its process died may have killed it.
            kept = Entry(entry.attempts, entry.deaths + 1, due_ms=1) if entry.is_begun else entry
            if not window.is_finished(offset):
                if entry.is_begun:
                    self._around.figures.lost("crash")
                self._before[offset] = kept
                self._marking.keep(offset, kept)
        return window.end

    def _works(self) -> dict[str, Coroutine[Any, Any, None]]:
        return {"marks": self._marking.forever()}

    def _instead(self, work: Work) -> Letter | None:
        if work.deaths < MOST_DEATHS:
            return None
        return letter(work, "crashed", f"the process died {work.deaths} times while it ran")

    def _begins(self, work: Work, made: Decoded) -> Call:
        # Counted before it begins: an attempt that kills its process is one, too.
        self._marking.keep(work.offset, Entry(work.attempts, work.deaths))
        return Call(made.event, work)

    def _keep(self, work: Work) -> None:
        self._marking.keep(work.offset, Entry(work.attempts, work.deaths, work.due_ms))

    def _drop(self, offset: int) -> None:
        self._marking.drop(offset)

    def _waits_for(self) -> str | None:
        return self._marking.waits_for()

    def _cut_off(self, work: Work, call: Call) -> None:
        # It was no failure, and its process did not die.
        self._put_off(work, attempts=work.attempts - 1, due_ms=1)

    async def _leave(self) -> None:
        # What was cut off is not to be taken for what has killed its process.
        await self._marking.write_last(LAST_MARKS_SECONDS)
