"""A subscriber that may not be called twice for one event (``idempotent="unknown"``).

That an event begins is in Redis before it begins. After an error, a time-out or the death of its process nobody knows what it has
done: it becomes a dead letter. It runs again only where its function said that it had done nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from streams_app.delivery.batch import TP, Batch
from streams_app.delivery.processor import NO_OFFSET, Claim
from streams_app.errors import BadEventError
from streams_app.events.codec import header_faults
from streams_app.subscribers.execution.context import SubscriberContext
from streams_app.subscribers.execution.decoding import DecodedRecord
from streams_app.subscribers.execution.executor import Attempt, AttemptOutcome
from streams_app.subscribers.execution.in_flight_event import MOST_UNFINISHED, DeadLettering, InFlightEvent, letter
from streams_app.subscribers.guarantees.begin_log import BeginLog, EndLog
from streams_app.subscribers.guarantees.guarantee import LAST_MARKS_SECONDS
from streams_app.subscribers.guarantees.processor import SubscriberProcessor
from streams_app.subscribers.guarantees.restored_position import below, is_of_another_log, was_made_by_hand
from streams_app.subscribers.state.intervals import Interval
from streams_app.subscribers.state.offset_metadata import Note, decoded, encoded, fitted
from streams_app.subscribers.state.offset_tracker import Above, OffsetTracker
from streams_app.subscribers.state.store import AttemptEntry, Begin, StoredState

INTERRUPTED: Final = "its process died, or had to let go of the partition, while it ran; it may have ended well"
LATE: Final = "its function ended well after its worker had let go of the partition"


class DeduplicatedProcessor(SubscriberProcessor):
    """Once for each event id, while Redis keeps its data."""

    is_repeatable = False
    _begin_log: BeginLog

    def __init__(self, tp: TP, around: SubscriberContext) -> None:
        """Nothing is claimed yet."""
        super().__init__(tp, around)
        # The ids of what stands in between are read first.
        self._read_to = self._learns_below = 0
        self._interrupted: set[int] = set()
        self._has_left = False

    # ---- the claim

    async def _take_over(self, claim: Claim, window: OffsetTracker) -> int:
        store = self._context.store(self._tp, claim.token)
        now_ms, dispatcher = self._context.clock.now_ms, self._context.dispatcher
        self._begin_log = BeginLog(
            store, lambda: self._progress(window), now_ms, dispatcher, self._begun, claim.on_progress, self._said()
        )
        watermark = window.end
        # A new subscriber has to know no ids of what stands below its begin: it has done nothing of that.
        kept = await self._begin_log.claim(watermark if self._is_first_start else 0)
        # Whose log it speaks of is told by the id of the topic: the end that the embedded broker names may be behind.
        note = decoded(kept.note, kept.fence, NO_OFFSET if claim.topic_id else claim.log_bounds.end)
        if note is not None and is_of_another_log(note, claim.topic_id):
            self._begin_log.drop(kept.open)
            note, kept = None, StoredState(0, kept.number, {})
        if (common := await self._common_with(claim, note, kept.fence)) is not None:
            self._found_at = self._found_at._replace(common=common)
            self._begin_log.drop([offset for offset in kept.open if offset >= common])
            kept = replace(kept, fence=min(kept.fence, common), open={at: one for at, one in kept.open.items() if at < common})
            note = None if note is None else note._replace(above=below(note.above, common))
        if note is not None:
            await self._believe(Above((Interval(0, kept.fence), *note.above.finished)), claim, window)
        if self._found_at.common is not None or await was_made_by_hand(claim):
            # First Redis, then Kafka: what Redis says from now on is to be believed by the next claim, and nothing it said before.
            await self._begin_log.tell()
            await claim.commit_now(self._mark(window))
        found = {offset: entry for offset, entry in kept.open.items() if not window.is_finished(offset)}
        self._begin_log.drop(kept.open.keys() - found.keys())
        self._before = self._found(found, window)
        for _ in self._interrupted:
            self._context.figures.lost("interrupted")
        # What was cut off may have happened: its id is known, too.
        self._learns_below = max(
            [watermark, window.low, *(run.end for run in window.above().finished), *(at + 1 for at in self._interrupted)]
        )
        self._read_to = watermark
        if kept.fence < watermark:
            # Redis has lost something: the ids of what is below the watermark are read back.
            self._read_to = max(claim.log_bounds.begin, min(watermark, await self._remembered_from(claim, watermark)))
        return self._read_to

    async def _common_with(self, claim: Claim, note: Note | None, fence: int) -> int | None:
        """The offset from which on the log is another one than Redis or the commit speak of.

        A broker that is restored takes its commits back, too: then Redis alone knows what was read.
        """
        common = self._found_at.common
        if note is None or note.topic_id != claim.topic_id:
            return common
        by_redis = await claim.common_end(note.read, fence)
        return by_redis if common is None else common if by_redis is None else min(common, by_redis)

    async def _remembered_from(self, claim: Claim, watermark: int) -> int:
        """Where that begins of which ids are remembered: so long before the watermark, however far behind that is."""
        now_ms, remember_ms = self._context.clock.now_ms(), self._context.subscriber.remember_ms
        # What stands below the watermark may be old and have run just now: how old it is nobody says but the log.
        age_ms = remember_ms
        while watermark > claim.log_bounds.begin and age_ms < now_ms and await claim.offset_at(now_ms - age_ms) >= watermark:
            age_ms *= 2
        return await claim.offset_at(max(0, now_ms - age_ms - remember_ms))

    async def _believe(self, above: Above, claim: Claim, window: OffsetTracker) -> None:
        """Takes what Redis calls finished for finished."""
        if not await was_made_by_hand(claim):
            window.also_finished(above.finished)

    def _found(self, found: dict[int, AttemptEntry], window: OffsetTracker) -> dict[int, AttemptEntry]:
        """What is known of unfinished events, after a look at which of them were interrupted."""
        self._interrupted = {offset for offset, entry in found.items() if entry.is_begun}
        return found

    def _said(self) -> Callable[[], Awaitable[None]] | None:
        """What says elsewhere what has ended; None: nobody else has to know."""
        return None

    def _works(self) -> dict[str, Coroutine[Any, Any, None]]:
        return {"notes": self._begin_log.forever()}

    @property
    def in_flight(self) -> int:
        """As of any subscriber; and ids that Redis has not been told, once they are too many."""
        backlog = self._begin_log.backlog if self._tasks else 0
        return super().in_flight + (backlog if backlog >= MOST_UNFINISHED else 0)

    def deliver(self, batch: Batch) -> None:
        """Takes the next range; ids of what was read before are noted first, in the order of the log."""
        if self._read_to < self._learns_below:
            self._read_to = batch.end
            for record in batch.records:
                if record.offset < self._learns_below and (own_id := self._id_of(record)):
                    self._begin_log.learn(record.offset, own_id)
        super().deliver(batch)

    def tick(self, now_ms: int) -> None:
        """As of any subscriber; and Redis is told how far it is."""
        super().tick(now_ms)
        if self._tracker is not None:
            self._begin_log.look(self._tracker.low)

    def _id_of(self, record: Any) -> str:
        try:
            made = self._context.decode(self._tp, record, 1)
            header_faults(record.headers, self._context.limits)
        except BadEventError:
            return ""  # it was, or will be, a dead letter: it has no id that could come again
        return "" if made is None else made.own_id

    def _arrived(self, works: Sequence[InFlightEvent]) -> None:
        super()._arrived(works)
        assert self._tracker is not None  # it is claimed
        for work in works if self._interrupted else ():
            work.is_interrupted = work.offset in self._interrupted
            if work.is_interrupted:
                # What is begun is told as finished once it is: nobody else is to begin it after its letter.
                self._tracker.begin(self._tracker.claim, work.offset)

    # ---- one event

    def _instead(self, work: InFlightEvent) -> DeadLettering | None:
        if not work.is_interrupted:
            return None
        try:
            made = self._context.decode(self._tp, work.record, work.attempts)
            work.event_id = work.event_id if made is None else made.event_id
        except BadEventError:
            work.event_id = ""  # it has begun once, under another version of its declaration
        return letter(work, "interrupted", INTERRUPTED)

    def _begins(self, made: Sequence[tuple[InFlightEvent, DecodedRecord]]) -> list[Attempt]:
        calls = [Attempt(one.event, work, is_unnoted=True) for work, one in made]
        begins = [Begin(work.record.offset, AttemptEntry(work.attempts), one.own_id) for work, one in made]
        self._begin_log.begin(zip(calls, begins, strict=True))
        return calls

    async def _begun(self, calls: Sequence[Attempt]) -> Sequence[Attempt]:
        """Takes calls that Redis knows to begin; returns those that may begin now."""
        assert self._tracker is not None  # it is claimed
        self._tracker.begin_all(self._tracker.claim, [call.whose.record.offset for call in calls])
        return calls

    def ended(self, calls: Sequence[Attempt], uncounted: Collection[Attempt]) -> None:
        """Have the begin log write which events have ended, then finish, retry or dead-letter each."""
        for call in calls:
            if call.outcome is AttemptOutcome.DUPLICATE:
                self._context.figures.finished(call.whose, "duplicate")
            elif call.outcome is AttemptOutcome.DONE:
                self._begin_log.done[call.whose.record.offset] = call.whose
                if self._has_left:
                    # It blocked the loop of all functions, so that nobody could take it back in time.
                    self._dead_letters.say_late(call.whose, LATE)
        super().ended(calls, uncounted)

    def _keep(self, work: InFlightEvent) -> None:
        assert self._tracker is not None  # it is claimed
        self._tracker.put_off(self._tracker.claim, work.offset)
        self._begin_log.keep(work.offset, AttemptEntry(work.attempts, due_ms=work.due_ms))

    def _drop(self, offsets: Sequence[int]) -> None:
        self._begin_log.drop(offsets)

    def _waits_for(self) -> str | None:
        return self._begin_log.waits_for()

    def _cut_off(self, work: InFlightEvent, call: Attempt) -> None:
        # What has begun stays so: whoever claims the partition next makes a letter of it.
        if not call.begun_ms:
            self._put_back(work)
        else:
            # A thread goes on, and so does a function that does not let itself be cancelled.
            call.on_late = partial(self._dead_letters.say_late, work, LATE)

    # ---- the end

    async def revoke(self, seconds: float) -> None:
        """Lets what runs end, within limits; what is cut off becomes a letter."""
        self._is_over = True  # first: what is taken back is not to be taken up here again
        if self._tasks:
            self._begin_log.stop()
        await super().revoke(seconds)

    async def _settle(self) -> None:
        await self._begin_log.settled(LAST_MARKS_SECONDS)

    async def _leave(self) -> None:
        for call in list(self._running):
            if not call.begun_ms and not call.is_unnoted:
                # It was taken back long ago, and its slot has not come to it.
                self._running.discard(call)
                self._cut_off(call.whose, call)
        await self._begin_log.write_last(LAST_MARKS_SECONDS)
        if self._begin_log.is_robbed:
            await self._say_late(self._begin_log.done.values())
        self._has_left = True

    async def _say_late(self, works: Collection[InFlightEvent]) -> None:
        """Sends letters of events that have ended well, and are another's to finish."""
        if works:
            await self._dead_letters.send_last([(work, letter(work, "finished-late", LATE)) for work in works], LAST_MARKS_SECONDS)

    # ---- what is finished

    def _note(self, low: int, window: OffsetTracker) -> str:
        return fitted(low, self._noted(Above(window.above().finished)))

    def _progress(self, window: OffsetTracker) -> EndLog | None:
        if self._read_to < self._learns_below:
            return None  # a fence says that Redis knows the ids of all that is below it
        low = window.low
        return EndLog(low, encoded(low, self._noted(Above(window.must_be_noted().finished))))
