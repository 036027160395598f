"""A subscriber that is called at most once for each record, whatever happens to Redis (``idempotent="no"``).

Before an event begins, Redis knows that it does, and then Kafka: by the note of a commit that it has accepted in the name of this
claim. Whoever claims the partition next finds it there, and a worker whose partition was taken away cannot begin anything more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Final

from streams_app.delivery.batch import TP
from streams_app.delivery.group_consumer import NotOwnerError
from streams_app.delivery.processor import Claim, ImpossibleClaimError, OffsetAndMetadata
from streams_app.delivery.scripts import FencedError
from streams_app.subscribers.execution.context import SubscriberContext
from streams_app.subscribers.execution.executor import Attempt, AttemptOutcome
from streams_app.subscribers.execution.in_flight_event import InFlightEvent
from streams_app.subscribers.guarantees.deduplicated import DeduplicatedProcessor
from streams_app.subscribers.guarantees.restored_position import noted
from streams_app.subscribers.state.initial_offsets import NO_METADATA, how_to_place
from streams_app.subscribers.state.offset_metadata import MOST_NOTE_BYTES, encoded, fits
from streams_app.subscribers.state.offset_tracker import Above, OffsetTracker
from streams_app.subscribers.state.store import AttemptEntry

LOWEST_BYTES: Final = 8
"""Room in a note that is kept for the begin of the lowest unfinished offset; so much at least any one needs, too."""


class AtMostOnceProcessor(DeduplicatedProcessor):
    """At most once for each record, and for each event id as long as ids are remembered."""

    def __init__(self, tp: TP, around: SubscriberContext) -> None:
        """Nothing is claimed yet."""
        super().__init__(tp, around)
        self._has_no_room: set[int] = set()
        self._roomless: list[InFlightEvent] = []
        # What has ended well since the last commit: until one says so its next owner takes it for interrupted.
        self._unsaid: dict[int, InFlightEvent] = {}

    # ---- the claim

    async def _mark_in_redis(self, claim: Claim) -> OffsetAndMetadata | None:
        """Nothing: Redis may have lost what had begun."""
        return None

    def _begin_of(self, claim: Claim) -> int:
        raise self._not_placed("has no commit")

    async def _take_over(self, claim: Claim, window: OffsetTracker) -> int:
        mark = claim.mark
        assert mark is not None  # a worker never chooses where to begin
        if noted(claim, mark) is None:
            if not await claim.broker_keeps_metadata():
                raise ImpossibleClaimError(self._tp, f"cannot be claimed: {NO_METADATA}", "use another broker")
            raise self._not_placed("has a commit that does not say what was begun")
        return await super()._take_over(claim, window)

    def _not_placed(self, what: str) -> ImpossibleClaimError:
        name = self._context.subscriber.name
        return ImpossibleClaimError(self._tp, f"{what} of subscriber {name!r}", how_to_place(name))

    async def _believe(self, above: Above, claim: Claim, window: OffsetTracker) -> None:
        """Nothing: what is not finished in the commit becomes a letter at most, whatever Redis says."""

    def _found(self, found: dict[int, AttemptEntry], window: OffsetTracker) -> dict[int, AttemptEntry]:
        self._interrupted = set(window.begun)
        # What Redis was told, and the commit was not, has never begun.
        known = {
            offset: AttemptEntry(entry.attempts - 1, due_ms=1) if entry.is_begun and offset not in self._interrupted else entry
            for offset, entry in found.items()
        }
        return {offset: AttemptEntry(1) for offset in self._interrupted} | known

    # ---- one event

    async def _begun(self, calls: Sequence[Attempt]) -> Sequence[Attempt]:
        """Commits that calls begin, as many as the note has room for; the others wait for it outside of the slots."""
        window = self._tracker
        assert window is not None  # it is claimed
        low = window.low
        taken = sorted(await super()._begun(calls), key=lambda call: int(call.whose.offset))
        # The lowest may begin in any case: everything above it is named until it is finished.
        while taken and taken[-1].whose.offset > low and not self._fits(window, MOST_NOTE_BYTES - LOWEST_BYTES):
            window.put_off(window.claim, taken.pop().whose.offset)
        if taken:
            await self._commit(window)
        # Only now: what the commit has failed to say is asked about again, and may have room then.
        self._has_no_room = {call.whose.offset for call in calls if call not in taken}
        return taken

    def _fits(self, window: OffsetTracker, most_bytes: int) -> bool:
        return fits(window.low, self._noted(window.must_be_noted()), most_bytes)

    def _said(self) -> Callable[[], Awaitable[None]] | None:
        assert self._tracker is not None  # it is claimed
        return partial(self._commit, self._tracker)

    async def _commit(self, window: OffsetTracker) -> None:
        assert self._claim is not None  # it is claimed
        saying, self._unsaid = self._unsaid, {}
        try:
            await self._claim.commit_now(self._mark(window))
        except BaseException as error:  # also where it was cancelled: nobody knows whether it was said
            self._unsaid = saying | self._unsaid
            if isinstance(error, NotOwnerError):
                raise FencedError("commit", "generation") from error
            raise

    def ended(self, calls: Sequence[Attempt], uncounted: Collection[Attempt]) -> None:
        """Remember which finished events no commit has said yet, then finish, retry or dead-letter each."""
        self._unsaid.update((call.whose.offset, call.whose) for call in calls if call.outcome is AttemptOutcome.DONE)
        super().ended(calls, uncounted)

    async def _leave(self) -> None:
        await super()._leave()
        if self._begin_log.is_robbed:
            # Of these it was said just now.
            self._unsaid = {offset: work for offset, work in self._unsaid.items() if offset not in self._begin_log.done}

    async def on_commit_rejected(self) -> None:
        """See :class:`streams_app.delivery.processor.Processor`."""
        await self._say_late(self._unsaid.values())

    def _cut_off(self, work: InFlightEvent, call: Attempt) -> None:
        if work.offset not in self._has_no_room:
            super()._cut_off(work, call)
            return
        self._has_no_room.remove(work.offset)
        work.attempts, work.due_ms = work.attempts - 1, 1
        self._keep(work)
        self._roomless.append(work)

    def _next(self, most: int, now_ms: int, *, is_fresh: bool | None) -> list[InFlightEvent]:
        window = self._tracker
        assert window is not None  # it is claimed
        if self._roomless:
            if not self._fits(window, MOST_NOTE_BYTES - 2 * LOWEST_BYTES):
                lowest = self._lowest(window.low, now_ms)
                return [] if lowest is None else [lowest]
            self._fresh.extendleft(sorted(self._roomless, key=lambda work: -work.offset))
            self._roomless = []
        return super()._next(most, now_ms, is_fresh=is_fresh)

    def _lowest(self, low: int, now_ms: int) -> InFlightEvent | None:
        """The lowest unfinished event, if it may begin: only its end makes room in the note."""
        if self._fresh and self._fresh[0].offset == low:
            return self._fresh.popleft()
        while (due := self._waiting.pop_due(now_ms)) is not None:
            self._roomless.append(due)
        # What is fresh is not always in order: an event whose key has become free is behind later ones.
        for events in (self._roomless, self._fresh):
            found = next((work for work in events if work.offset == low), None)
            if found is not None:
                events.remove(found)
                return found
        return None

    def _waits_for(self) -> str | None:
        return super()._waits_for() or ("note" if self._roomless else None)

    # ---- what is begun and finished

    def _note(self, low: int, window: OffsetTracker) -> str:
        whole = self._noted(window.above())
        if fits(low, whole, MOST_NOTE_BYTES):
            return encoded(low, whole)
        # Nothing of this may be left out: it has room, as it had when its events began.
        return encoded(low, self._noted(window.must_be_noted()))
