"""What is done with one partition for a subscriber, whatever it promises: its events wait, run, are tried again, and are finished.

An event is finished when its function has returned, or when its dead letter is acknowledged. Kafka has the low watermark and, in
the note of its commit, what is finished above it. What Redis is told of attempts, and what becomes of an event whose process has
died, is up to the promise: :mod:`streams_app.subscribers.guarantees`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Sequence
from functools import partial
from itertools import islice
from typing import Final

from streams_app.delivery.batch import TP, Batch
from streams_app.delivery.fingerprints import Fingerprint, followed_by, thinned
from streams_app.delivery.processor import Claim, OffsetAndMetadata
from streams_app.delivery.tasks import ended, run
from streams_app.errors import BadEventError
from streams_app.events.codec import header_faults
from streams_app.subscribers.declaration.received import Retry
from streams_app.subscribers.execution.circuit_breaker import HalfOpenProbes
from streams_app.subscribers.execution.context import SubscriberContext
from streams_app.subscribers.execution.decoding import DecodedRecord
from streams_app.subscribers.execution.executor import Attempt, AttemptOutcome, AttemptsWaiter
from streams_app.subscribers.execution.in_flight_event import (
    MOST_UNFINISHED,
    MOST_UNFINISHED_BYTES,
    DeadLettering,
    InFlightEvent,
    ScheduledRetry,
    after_failure,
    letter,
    says_something_of_its_event_alone,
    sizes_of,
)
from streams_app.subscribers.execution.queues import KeyQueue, RetryQueue
from streams_app.subscribers.execution.status import PartitionStatus
from streams_app.subscribers.guarantees.guarantee import LAST_MARKS_SECONDS, DeliveryGuarantee
from streams_app.subscribers.guarantees.restored_position import CLAIMS, RestoredPosition, begin_of, found, mark_in_redis
from streams_app.subscribers.state.offset_metadata import Note, fitted
from streams_app.subscribers.state.offset_tracker import Above, OffsetTracker
from streams_app.subscribers.state.store import AttemptEntry

_DONE: Final = (AttemptOutcome.DONE, AttemptOutcome.DUPLICATE)
"""The function has returned, or has nothing to do."""

NEAR_NOTED: Final = 3
"""Of what was read last so many fingerprints are noted with each commit, of older records fewer: a note has little room."""

CANCELLED_SECONDS: Final = 1.0
"""So long what was cancelled may take to end."""

LEAVE_SECONDS: Final = CANCELLED_SECONDS + 3 * LAST_MARKS_SECONDS
"""What the end of a claim takes beside what runs: for what is cancelled, for the last letters and the last marks."""


class SubscriberProcessor(DeliveryGuarantee):
    """See :class:`streams_app.delivery.processor.Processor`."""

    def __init__(self, tp: TP, around: SubscriberContext) -> None:
        """Nothing is claimed yet."""
        self._tp = tp
        self._context = around
        self._tracker: OffsetTracker | None = None
        self._topic_id = ""
        self._read: tuple[Fingerprint, ...] = ()
        self._found_at: RestoredPosition
        self._claim: Claim | None = None
        self._fresh: deque[InFlightEvent] = deque()
        self._waiting: RetryQueue[InFlightEvent] = RetryQueue()
        self._order: KeyQueue[InFlightEvent] | None = KeyQueue() if around.subscriber.ordered else None
        self._before: dict[int, AttemptEntry] = {}
        self._running: set[Attempt] = set()
        self._dead_letters = around.letters_of(tp, self._acknowledged)
        self._ending = AttemptsWaiter(self._running)
        self._tasks: list[asyncio.Task[None]] = []
        self._bytes = self._note_bytes = 0
        self._is_over = self._is_alone = self._is_full = self._is_first_start = False
        self._probes = HalfOpenProbes()

    # ---- the delivery

    @property
    def in_flight(self) -> int:
        """Unfinished events once they are too many, else 0: what runs or waits keeps nobody from reading on."""
        unfinished = 0 if self._tracker is None else self._tracker.unfinished
        return unfinished if unfinished >= MOST_UNFINISHED or self._bytes >= MOST_UNFINISHED_BYTES else 0

    async def claim(self, claim: Claim) -> int:
        """Goes on where the commit and its note say; without a commit where Redis says, and at its first start by ``start``.

        Raises:
            ImpossibleClaimError: The topic was made again; or it is up to somebody else where to begin.
            NotOwnerError: Kafka does not take our first commit.
            FencedError: Another owner came between.
            KafkaError, RedisError, OSError, TimeoutError: Tried again.
        """
        self._claim, self._topic_id = claim, claim.topic_id
        mark = claim.mark or await self._mark_in_redis(claim)
        self._is_first_start = mark is None
        self._found_at = (
            RestoredPosition(OffsetTracker(next(CLAIMS), self._begin_of(claim)))
            if mark is None
            else await found(self._tp, self._context, claim, mark)
        )
        self._tracker, self._read = window, _ = self._found_at[:2]
        if claim.mark is None:
            await claim.commit_now(self._mark(window))
        position = await self._take_over(claim, window)
        works = {**self._works(), "letters": self._dead_letters.forever()}
        self._tasks = [run(claim, work, f"{about} {self._tp}") for about, work in works.items()]
        self._context.dispatcher.join(self)
        return position

    async def _mark_in_redis(self, claim: Claim) -> OffsetAndMetadata | None:
        """What Redis knows of a partition whose commit Kafka may have removed (``offsets.retention.minutes``)."""
        return await mark_in_redis(self._tp, self._context, claim)

    def _begin_of(self, claim: Claim) -> int:
        """Where it begins in a partition in which it has never been."""
        return begin_of(self._context, claim)

    def deliver(self, batch: Batch) -> None:
        """Takes the next range."""
        assert self._tracker is not None  # it is claimed
        records = batch.records
        if records and (not self._read or self._read[-1].offset < records[-1].offset):
            self._read = thinned(followed_by(self._read, records[-1]), near=NEAR_NOTED, spread=1)
        offsets = self._tracker.cover(batch.begin, batch.end, [record.offset for record in records])
        if len(offsets) < len(records):
            wanted = set(offsets)
            records = [record for record in records if record.offset in wanted]
        works = list(map(InFlightEvent, records, sizes := sizes_of(records)))
        self._bytes += sum(sizes)
        self._arrived(works)
        if self._order is not None:
            works = [work for work in works if self._order.arrived(work.record.key, work)]
        self._may_begin(works)
        if gone := [offset for offset in self._before if offset < batch.end]:
            for offset in gone:
                del self._before[offset]
            self._drop(gone)
        self._is_full = self.in_flight > 0
        self._context.dispatcher.kick()

    def _arrived(self, works: Sequence[InFlightEvent]) -> None:
        """Gives events that were read what is known of them from former owners."""
        for work in works if self._before else ():
            if (before := self._before.pop(work.offset, None)) is not None:
                work.attempts, work.deaths, work.due_ms = before.attempts, before.deaths, before.due_ms

    async def mark(self) -> OffsetAndMetadata | None:
        """The low watermark, and what is finished above it."""
        return None if self._tracker is None else self._mark(self._tracker)

    def tick(self, now_ms: int) -> None:
        """Events that waited may be due."""
        self._context.dispatcher.kick()

    async def revoke(self, seconds: float) -> None:
        """Lets what runs end, within limits."""
        self._is_over = True
        self._context.dispatcher.leave(self)
        self._context.dispatcher.runner.recall(self._running)
        if not await self._ending.within(max(0.0, seconds - LEAVE_SECONDS)):
            self._context.dispatcher.runner.cancel(list(self._running))
            await self._ending.though_cancelled(CANCELLED_SECONDS)
        if self._tasks:
            await self._dead_letters.sent(LAST_MARKS_SECONDS)
            await self._settle()
            await ended(self._tasks)
            await self._leave()

    def shorten_deadline(self, seconds: float) -> None:
        """What runs has less time to end."""
        self._ending.shorten_deadline(max(0.0, seconds - LEAVE_SECONDS))

    # ---- the dispatcher

    def take(self, most: int, now_ms: int, *, is_fresh: bool | None = None) -> list[Attempt]:
        """Decode the next events, and schedule their attempts."""
        taken: list[Attempt] = []
        while len(taken) < most and not self._is_over and not self._is_alone:
            if self._fresh and not self._may_try(self._fresh[0]):
                # It may have killed its process: what is found next in its place would keep it from being tried.
                break
            works = self._next(most - len(taken), now_ms, is_fresh=is_fresh)
            if (together := self._together(works)) < len(works):
                self._fresh.extendleft(reversed(works[together:]))
                works = works[:together]
            if not works:
                break
            calls = self._calls(works)
            self._running.update(calls)
            taken += calls
        return taken

    def ready(self, now_ms: int) -> int:
        """Estimate how many events could start now."""
        return 0 if self._is_over or self._is_alone else len(self._fresh) + self._waiting.due(now_ms)

    def ended(self, calls: Sequence[Attempt], uncounted: Collection[Attempt]) -> None:
        """Finish, retry or dead-letter each event by the outcome of its attempt."""
        self._running.difference_update(calls)
        if self._is_over:
            self._ending.told()
        done = [call.whose for call in calls if call.outcome in _DONE]
        self._finish(done)
        # The last one first: those that are put back come to stand as they stood.
        for call in reversed(calls) if len(done) < len(calls) else ():
            if call.outcome is AttemptOutcome.CANCELLED:
                self._cut_off(call.whose, call)
            elif call.outcome not in _DONE:
                self._failed(call.whose, call, counts=call not in uncounted)

    def look(self) -> PartitionStatus:
        """Report what the partition waits for."""
        assert self._tracker is not None  # it is claimed
        queued = [*islice(self._fresh, 1), *(() if self._order is None else self._order.next_behind())]
        waits = {"window": self.in_flight > 0, "dead-letters": self._dead_letters.is_waiting(), self._waits_for(): True}
        return PartitionStatus(
            self._tp, self._tracker.end, self._tracker.unfinished, len(self._waiting),
            min((work.record.timestamp for work in queued), default=None), self._note_bytes,
            frozenset(what for what, is_so in waits.items() if what and is_so), self._dead_letters.fault,
        )  # fmt: skip

    # ---- events

    def _may_begin(self, works: Sequence[InFlightEvent]) -> None:
        """Takes events that are next of their key; a letter that needs no attempt waits for no slot, no lease and no outage."""
        if not any([work.due_ms or work.is_interrupted for work in works]):
            self._fresh.extend(works)
            return
        now_ms = self._context.clock.now_ms()
        for work in works:
            if (instead := self._instead(work)) is not None:
                self._dead_letters.put(work, instead)
            elif work.due_ms > now_ms:
                self._waiting.push(work, work.due_ms)
            else:
                self._fresh.append(work)

    def _next(self, most: int, now_ms: int, *, is_fresh: bool | None) -> list[InFlightEvent]:
        """Events that may begin, those that waited before fresh ones but where a fresh one is wanted."""
        fresh = self._fresh
        works: list[InFlightEvent] = []
        while not (is_fresh and fresh) and len(works) < most and (work := self._waiting.pop_due(now_ms)) is not None:
            works.append(work)
        if is_fresh is not None and fresh and not works:
            works.append(self._probes.take_of(fresh, self._context.dispatcher.suspension.number))
        works += [fresh.popleft() for _ in range(min(most - len(works), len(fresh)))]
        return works

    def _calls(self, works: Sequence[InFlightEvent]) -> list[Attempt]:
        """The next attempts of events, but for those that are finished, or will be with their letters."""
        begin: list[tuple[InFlightEvent, DecodedRecord]] = []
        skipped: list[InFlightEvent] = []
        tp, decode, limits = self._tp, self._context.decode, self._context.limits
        most_bytes = limits.value_bytes
        for work in works:
            try:
                made = decode(tp, work.record, work.attempts + 1)
                if work.size_bytes > most_bytes and made is not None:
                    header_faults(work.record.headers, limits)
            except BadEventError as error:
                self._dead_letters.put(work, letter(work, error.reason, error.detail))
                continue
            if made is None:
                skipped.append(work)
                continue
            work.event_id, work.attempts, work.due_ms = made.event_id, work.attempts + 1, 0
            begin.append((work, made))
        if skipped:
            for work in skipped:
                self._context.figures.finished(work, "skipped")
            self._finish(skipped)
        return self._begins(begin) if begin else []

    def _failed(self, work: InFlightEvent, call: Attempt, *, counts: bool) -> None:
        now_ms = self._context.clock.now_ms()
        work.first_failed_ms = work.first_failed_ms or now_ms
        declared = self._context.subscriber
        # Not by what it is worth: an error may have a length, and that be 0.
        error = TimeoutError(f"not ended within {declared.timeout.total_seconds():g} s") if call.error is None else call.error
        is_timeout = call.outcome is AttemptOutcome.TIMEOUT
        after = after_failure(work, error, declared.retry, is_timeout=is_timeout, is_repeatable=self.is_repeatable)
        # What an outage makes of an event does not count against it, where it may run again.
        is_final = says_something_of_its_event_alone(error, declared.retry) or not (self.is_repeatable or isinstance(error, Retry))
        if isinstance(after, DeadLettering) and (counts or is_final):
            self._dead_letters.put(work, after)
            if is_timeout:
                call.on_late = partial(self._dead_letters.say_late, work)
            return
        wait_ms = after.after_ms if isinstance(after, ScheduledRetry) else declared.retry.longest_ms
        work.waited_ms += wait_ms if counts else 0
        self._put_off(work, attempts=work.attempts if counts else work.attempts - 1, due_ms=now_ms + wait_ms)

    def _put_off(self, work: InFlightEvent, *, attempts: int, due_ms: int) -> None:
        work.attempts, work.due_ms = attempts, due_ms
        self._keep(work)
        self._waiting.push(work, due_ms)

    def _put_back(self, work: InFlightEvent) -> None:
        """An attempt was taken back: an event that has not failed here yet is as fresh as before."""
        work.attempts, work.due_ms = work.attempts - 1, 1
        self._keep(work)
        if work.first_failed_ms:
            self._waiting.push(work, work.due_ms)
        else:
            self._fresh.appendleft(work)

    def _acknowledged(self, works: Sequence[InFlightEvent]) -> None:
        self._finish(works)
        self._context.dispatcher.kick()

    def _finish(self, works: Sequence[InFlightEvent]) -> None:
        assert self._tracker is not None  # it is claimed
        offsets = [work.record.offset for work in works]
        self._tracker.finish_all(self._tracker.claim, offsets)
        self._bytes -= sum([work.size_bytes for work in works])
        self._drop(offsets)
        if self._order is not None:
            following = [self._order.finished(work.record.key) for work in works]
            self._may_begin([work for work in following if work is not None])
        if self._is_full and not self.in_flight and self._claim is not None:
            self._is_full = False
            self._claim.on_progress()

    def _mark(self, window: OffsetTracker) -> OffsetAndMetadata:
        low = window.low
        note = self._note(low, window)
        self._note_bytes = len(note)
        return OffsetAndMetadata(low, note)

    def _note(self, low: int, window: OffsetTracker) -> str:
        return fitted(low, self._noted(window.above()))

    def _noted(self, above: Above) -> Note:
        return Note(self._topic_id, above, self._read)
