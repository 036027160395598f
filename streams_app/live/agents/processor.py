"""The processors of one live view: each keeps one partition of its source as it is now.

Redis holds what has not expired, with the fence; what is committed to Kafka is for those who look at the lag there. A state that is
lost, or of another definition or topic, is read from the log once more, as far back as an item lives, also below the commit.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final

from redis.exceptions import OutOfMemoryError

from streams_app.delivery.batch import TP, Batch
from streams_app.delivery.clocks import AcknowledgedUntil, TrustedClock, advanced, is_caught_up
from streams_app.delivery.dead_letters import DeadLetters, unacknowledged_text
from streams_app.delivery.fingerprints import followed_by
from streams_app.delivery.processor import Claim, LogBounds, OffsetAndMetadata, Processor, Processors
from streams_app.delivery.tasks import ended, run
from streams_app.errors import TryAgainError
from streams_app.health.outage_reporter import OutageReporter
from streams_app.health.progress import Progress
from streams_app.live.core.decide import ViewRule, definition_of
from streams_app.live.core.operations import ViewBatch, view_batches
from streams_app.live.store.keys import view_keys
from streams_app.live.store.view_store import ApplyReply, ExpireReply, LiveClaim, LiveScripts, ViewMetadata, ViewStart, ViewStore
from streams_app.redis_access.client import REDIS_ERRORS
from streams_app.settings.live import LiveView

logger = logging.getLogger(__name__)

PAUSE_SECONDS: Final = 1.0
"""A Redis that has failed is asked again after at most so long: everything that happens waits for it."""

CAUSES: Final = {
    "token": "another worker has taken the live view over",
    "fence": "the live view in Redis stands elsewhere than it was left: Redis has lost its last writes",
    "no-state": "Redis has lost the live view",
}
"""Cause of a refusal → the same for people."""


@dataclass(frozen=True, slots=True)
class ViewContext:
    """What the processors of a view share.

    Attributes:
        app_id: Of the application.
        view: The view.
        value_bytes: Bytes of an event, at most.
        scripts: Those of the application's Redis.
        dead_letters_of: Makes the dead letters of a partition.
        clock: Of the worker.
        outages: How a Redis that fails is waited for, and what is said of it.
        on_part: Called with each part that was applied, and what the script said.
        on_expired: Called with what has expired.
    """

    app_id: str
    view: LiveView
    value_bytes: int
    scripts: LiveScripts
    dead_letters_of: Callable[[TP], DeadLetters]
    clock: TrustedClock
    outages: OutageReporter
    on_part: Callable[[ViewBatch, ApplyReply], None] = lambda part, applied: None
    on_expired: Callable[[ExpireReply], None] = lambda expired: None


class ViewProcessors(Processors):
    """Makes the processors of all partitions of a view."""

    def __init__(self, context: ViewContext) -> None:
        """Claims nothing yet."""
        self.context = context
        self._claimed: dict[TP, ViewProcessor] = {}

    @property
    def topics(self) -> Collection[str]:
        """The source."""
        return (self.context.view.source,)

    def of(self, tp: TP, committed: Collection[str]) -> dict[str, ViewProcessor]:
        """One processor for each partition, by the name of the view."""
        self._claimed[tp] = processor = ViewProcessor(tp, self.context)
        return {self.context.view.name: processor}

    def is_paused(self, topic: str) -> bool:
        """Whether Redis is away or full, which explains that nothing is applied."""
        return self.context.outages.fault is not None

    def status(self) -> tuple[int, bool]:
        """Pages that hold anything in the partitions of this worker, and whether any of them is read anew."""
        live = [one for one in self._claimed.values() if one.is_claimed]
        return sum(one.pages for one in live), any(one.is_reading for one in live)


class ViewProcessor(Processor):
    """See :class:`streams_app.delivery.processor.Processor`.

    One task applies parts and expires items, so that no two scripts of a partition overlap.

    Attributes:
        pages: Pages that hold anything.
        is_claimed: Whether the state is ours, as far as is known.
    """

    in_flight = 0

    def __init__(self, tp: TP, context: ViewContext) -> None:
        """Nothing is claimed yet."""
        self.pages = 0
        self.is_claimed = False
        self._tp = tp
        self._context = context
        self._decider = ViewRule(context.view, context.value_bytes)
        self._dead_letters = context.dead_letters_of(tp)
        self._batches: deque[Batch] = deque()
        self._wake = asyncio.Event()
        self._is_due = False
        self._ticks_done = 0
        self._task: asyncio.Task[None] | None = None
        self._fence = self._clock_ms = 0
        self._acknowledged = AcknowledgedUntil()
        self._marks = ViewMetadata()

    @property
    def is_reading(self) -> bool:
        """Whether the state is read anew, and not shown meanwhile."""
        return self._marks.reading is not None

    # ---- the delivery

    async def claim(self, claim: Claim) -> int:
        """Goes on behind the fence; without a state that fits, reads as far back as an item lives.

        Raises:
            NotOwnerError: Kafka does not take our first commit.
            KafkaError, RedisError, OSError, TimeoutError: Tried again.
        """
        view = self._context.view
        keys = view_keys(self._context.app_id, view.name, *self._tp)
        self._store = ViewStore(
            self._context.scripts, keys, claim.token,
            has_data=view.kind == "list", expiry_ms=view.expiry_ms, keep=view.keeps,
        )  # fmt: skip
        if claim.mark is None:
            # Nobody has committed here before: only now Kafka says that the partition is ours.
            await claim.commit_now(OffsetAndMetadata(claim.log_bounds.begin))
        claimed = await self._claim_state(claim)
        self._fence, self._clock_ms, self._marks = claimed.fence, claimed.clock_ms, claimed.marks
        self._acknowledged = AcknowledgedUntil()
        await self._skip_removed(claim)
        self.is_claimed = True
        self._task = run(claim, self._work_forever(claim), f"live {view.name} {self._tp}", CAUSES)
        return self._fence + 1

    def deliver(self, batch: Batch) -> None:
        """Takes the next range."""
        self.in_flight += len(batch.records)
        self._batches.append(batch)
        self._wake.set()

    async def mark(self) -> OffsetAndMetadata | None:
        """Behind the fence; nothing while the state is not ours."""
        return OffsetAndMetadata(self._fence + 1) if self.is_claimed else None

    def tick(self, now_ms: int) -> None:
        """Items may be due."""
        self._is_due = True
        self._wake.set()

    def progress(self, monotonic_ms: int) -> Progress | None:
        """Whether what ticks ask for is done."""
        if self._context.outages.fault is not None or not self.is_claimed:
            return None
        why = f"live view {self._context.view.name} does not expire items of {self._tp}"
        return Progress(self._ticks_done, self._ticks_done + self._is_due, f"view={self._context.view.name} source={self._tp}", why)

    async def revoke(self, seconds: float) -> None:
        """Stops at once; the state stays for the next owner."""
        self.is_claimed = False
        if self._task is not None:
            await ended({self._task})
        self._context.outages.forget(self)

    # ---- claiming

    async def _claim_state(self, claim: Claim) -> LiveClaim:
        """The state under our token, created where there is none that fits."""
        view, definition = self._context.view, definition_of(self._context.view)
        found = await self._store.claim(definition, claim.topic_id, claim.partitions)
        if found is not None and await claim.common_end(found.marks.log, found.fence + 1) is not None:
            # What it shows is of events that are gone: it is read once more, as it is now.
            found = await self._store.claim(definition, claim.topic_id, claim.partitions, drop=True)
        if found is not None and claim.was_reset and found.fence + 1 >= claim.log_bounds.begin:
            # The reader was thrown back, and not by retention: the topic was made again.
            found = await self._store.claim(definition, claim.topic_id, claim.partitions, drop=True)
        if found is not None:
            return found
        start = await claim.offset_at(self._context.clock.now_ms() - view.expiry_ms)
        # After that: what is behind this end arrives later than the clock the state begins with.
        bounds = await claim.log_bounds_now()
        begin = view_start(start, bounds, view.expiry_ms)
        logger.info("live view is read from its source view=%s source=%s offset=%d", view.name, self._tp, begin.fence + 1)
        created = await self._store.claim(definition, claim.topic_id, claim.partitions, begin=begin)
        assert created is not None  # it was to be created
        return created

    async def _skip_removed(self, claim: Claim) -> None:
        """Moves the fence over what retention has removed before it was read; the view says so for one expiry."""
        bounds = await claim.log_bounds_now()
        if self._fence + 1 >= bounds.begin:
            return
        logger.error(
            "retention overtook a live view, what is missing would be shown until it had expired view=%s source=%s offsets=%d-%d",
            self._context.view.name, self._tp, self._fence + 1, bounds.begin - 1,
        )  # fmt: skip
        whole_ms = bounds.asked_ms + self._context.view.expiry_ms
        marks = self._marks_at(bounds.begin - 1)._replace(whole_ms=max(self._marks.whole_ms, whole_ms))
        await self._store.apply(self._fence, bounds.begin - 1, (), marks)
        self._fence, self._marks = bounds.begin - 1, marks

    # ---- working

    async def _work_forever(self, claim: Claim) -> None:
        parts: Iterator[ViewBatch] = iter(())
        while True:
            if self._is_due:
                self._is_due = False
                await self._retry_until_done(lambda: self._expire_once(claim, moves_clock=True))
                self._ticks_done += 1
            part = next(parts, None)
            if part is not None:
                await self._apply(claim, part)
            elif self._batches:
                batch = self._batches.popleft()
                parts = view_batches(self._decider, self._tp.partition, batch.records, batch.end, self._context.clock.now_ms())
            elif not self._is_due:
                self._wake.clear()
                await self._wake.wait()
            await asyncio.sleep(0)

    async def _apply(self, claim: Claim, part: ViewBatch) -> None:
        """Applies a part, for as long as it takes; its dead letters come first."""
        if part.refused:
            await self._dead_letters.send(part.refused, self._on_unsent)
            self._context.outages.succeeded(self)
        marks = self._marks_at(part.to)
        if part.last is not None:
            marks = marks._replace(log=followed_by(marks.log, part.last))

        async def apply() -> None:
            applied = await self._store.apply(self._fence, part.to, part.changes, marks)
            self._fence, self._marks, self.pages = part.to, marks, applied.pages
            self._context.on_part(part, applied)

        if part.to > self._fence:
            await self._retry_until_done(apply, when_full=lambda: self._expire_once(claim, moves_clock=False))
        self.in_flight -= part.events
        claim.on_progress()

    def _on_unsent(self, topic: str, error: BaseException) -> None:
        """Says which topic stands in the way; the worker is not stuck while it waits for it."""
        self._context.outages.failed(TryAgainError(unacknowledged_text(topic, error)), self)

    async def _expire_once(self, claim: Claim, *, moves_clock: bool) -> None:
        """Removes some of what is due by the clock of the partition.

        Args:
            claim: Of the partition.
            moves_clock: Whether the clock moves; if not, what is due by the wall clock leaves all the same, so that a Redis that is
                full gets room. What is unread may bring it back; the view says meanwhile that it is behind.
        """
        clock = self._context.clock
        now_ms = clock.now_ms()
        view = claim.reader_view()
        is_known = clock.is_trusted() and is_caught_up(self._fence, view, now_ms)
        # Until the last fetch was asked for, and no longer: what has come since may be unread, and prolong what is due.
        read_until_ms = min(now_ms, view.fetched_at_ms or now_ms)
        if is_known:
            # What a transaction hides is acknowledged and not shown: while one stays open the view says that it is behind.
            read_until_ms = self._acknowledged.at(self._fence, view, read_until_ms)
        due_ms = advanced(self._clock_ms, read_until_ms, caught_up=is_known) if moves_clock else now_ms
        expired = await self._store.expire(self._fence, due_ms, moves_clock=moves_clock)
        if moves_clock and not expired.is_more:
            self._clock_ms = max(self._clock_ms, due_ms)
        self.pages = expired.pages
        self._context.on_expired(expired)
        if expired.is_more:
            self._is_due = True

    async def _retry_until_done(
        self, step: Callable[[], Awaitable[None]], when_full: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Does something in Redis as soon as that works; a script that was done and whose reply was lost says so.

        Raises:
            FencedError: The state is not as it was left.
        """
        outages = self._context.outages
        while True:
            try:
                await step()
            except REDIS_ERRORS as error:
                wait_ms = outages.failed(error, self)
                if when_full is not None and isinstance(error, OutOfMemoryError):
                    await self._try_once(when_full)
                await asyncio.sleep(min(wait_ms / 1000, PAUSE_SECONDS))
            else:
                outages.succeeded(self)
                return

    async def _try_once(self, step: Callable[[], Awaitable[None]]) -> None:
        try:
            await step()
        except REDIS_ERRORS as error:
            logger.debug("nothing could be expired", exc_info=error)

    def _marks_at(self, fence: int) -> ViewMetadata:
        """What the state says of itself once the fence is there."""
        reading = self._marks.reading
        return self._marks if reading is None or fence + 1 < reading else self._marks._replace(reading=None)


def view_start(start: int, bounds: LogBounds, expiry_ms: int) -> ViewStart:
    """The state with which a view begins that has none (pure).

    Args:
        start: Offset of the first record that may not have expired.
        bounds: Of the log, asked for after that.
        expiry_ms: An item is gone so long after its time.

    Returns:
        Its clock is the moment at which the end of the log was asked for: whatever was there by then is read before it is shown.
    """
    begin = max(start, bounds.begin)
    # Where the log begins with what is asked for, retention may have removed more of it; it has not where the log is whole.
    is_cut = bounds.begin > 0 and begin == bounds.begin
    whole_ms = bounds.asked_ms + expiry_ms if is_cut else 0
    return ViewStart(begin - 1, bounds.asked_ms, ViewMetadata(bounds.end if bounds.end > begin else None, whole_ms))
