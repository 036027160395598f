"""The processors of one live view: each maintains the current state of one partition of the source.

Redis contains the items that have not expired, and the fence; the offset committed to Kafka is only for lag monitoring. If Redis
loses the state, or the state belongs to another definition or topic, it is rebuilt from the log. The rebuild begins at the oldest
record that has not expired, even below the committed offset.
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
from streams_app.delivery.claim import Claim, LogBounds
from streams_app.delivery.clocks import AcknowledgedUntil, TrustedClock, advanced, is_caught_up
from streams_app.delivery.dead_letters import DeadLetterSender, unacknowledged_text
from streams_app.delivery.fingerprints import followed_by
from streams_app.delivery.offset_metadata import OffsetAndMetadata
from streams_app.delivery.processor import Processor, Processors
from streams_app.delivery.scripts import Scripts
from streams_app.delivery.tasks import cancel_all, run
from streams_app.errors import TryAgainError
from streams_app.health.outage_reporter import OutageReporter
from streams_app.health.progress import Progress
from streams_app.live.core.operations import ViewBatch, view_batches
from streams_app.live.core.record_effects import ViewRule, definition_of
from streams_app.live.store.keys import view_keys
from streams_app.live.store.view_store import ApplyReply, ExpireReply, LiveClaim, ViewMetadata, ViewStart, ViewStore
from streams_app.redis_access.client import REDIS_ERRORS
from streams_app.schemas.waiting import PatientRegistry
from streams_app.settings.live import LiveView

logger = logging.getLogger(__name__)

CAUSES: Final = {
    "token": "another worker has taken over the live view",
    "fence": "the live view in Redis is not at the expected offset: Redis has lost its last writes",
    "no-state": "Redis has lost the live view",
}
"""Explanations for the log, by the cause for which a script was rejected."""


@dataclass(frozen=True, slots=True)
class ViewContext:
    """Dependencies that the processors of one view share.

    Attributes:
        app_id: Id of the application.
        view: Settings of the view.
        value_bytes: Maximum bytes of an event; larger ones become dead letters.
        scripts: Scripts of live views in the application's Redis.
        dead_letters_of: Creates the writer of dead letters for a partition.
        clock: Trusted clock of the worker.
        outages: Determines the wait between attempts during an outage of Redis or of the dead-letter topic, and logs the outage
            once.
        on_part: Called with each applied batch and the reply of the script *apply*.
        on_expired: Called with each reply of the script *expire*, which removes expired items.
        schemas: The schema registry; None if the view does not need one.
    """

    app_id: str
    view: LiveView
    value_bytes: int
    scripts: Scripts
    dead_letters_of: Callable[[TP], DeadLetterSender]
    clock: TrustedClock
    outages: OutageReporter
    on_part: Callable[[ViewBatch, ApplyReply], None] = lambda part, applied: None
    on_expired: Callable[[ExpireReply], None] = lambda expired: None
    schemas: PatientRegistry | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether no changes are applied, because Redis, the dead-letter topic or the schema registry fails, or Redis is full."""
        return self.outages.fault is not None or (self.schemas is not None and self.schemas.is_away)


class ViewProcessors(Processors):
    """Creates a :class:`ViewProcessor` for each source partition of a view."""

    def __init__(self, context: ViewContext) -> None:
        """Create the factory, without processors."""
        self.context = context
        self._claimed: dict[TP, ViewProcessor] = {}

    @property
    def topics(self) -> Collection[str]:
        """The source topic of the view, as a collection of one."""
        return (self.context.view.source,)

    def of(self, tp: TP, committed: Collection[str]) -> dict[str, ViewProcessor]:
        """Create the processor of a source partition; return a dict with this single processor, by the name of the view.

        Args:
            tp: A source partition that is assigned to this member.
            committed: Not used: a view has one processor in each partition, whatever the last commit contains.
        """
        self._claimed[tp] = processor = ViewProcessor(tp, self.context)
        return {self.context.view.name: processor}

    def is_paused(self, topic: str) -> bool:
        """Return whether the view applies no changes, because a dependency fails or Redis is full.

        Args:
            topic: Not used: a view has one source topic.
        """
        return self.context.is_waiting

    def status(self) -> tuple[int, bool]:
        """Return the number of pages with items in the partitions of this worker, and whether a partition is being rebuilt.

        A page is counted once for each partition in which it has items.
        """
        live = [one for one in self._claimed.values() if one.is_claimed]
        return sum(one.pages for one in live), any(one.is_reading for one in live)


class ViewProcessor(Processor):
    """Maintains one partition of a view.

    A single task applies batches and removes expired items, so that no two scripts of a partition overlap.

    Attributes:
        pages: Number of pages that have items in this partition.
        is_claimed: Whether this processor has claimed the state and has not been revoked.
    """

    in_flight = 0

    def __init__(self, tp: TP, context: ViewContext) -> None:
        """Create the processor of a partition that is not claimed yet."""
        self.pages = 0
        self.is_claimed = False
        self._tp = tp
        self._context = context
        self._rule = ViewRule(context.view, context.value_bytes, None if context.schemas is None else context.schemas.registry)
        self._dead_letters = context.dead_letters_of(tp)
        self._batches: deque[Batch] = deque()
        self._wake = asyncio.Event()
        self._is_due = False
        self._ticks_done = 0
        self._task: asyncio.Task[None] | None = None
        self._fence = self._clock_ms = 0
        self._acknowledged = AcknowledgedUntil()
        self._metadata = ViewMetadata()

    @property
    def is_reading(self) -> bool:
        """Whether the state is being rebuilt from the source. Browsers receive the state only after the rebuild."""
        return self._metadata.reading is not None

    # ---- delivery

    async def claim(self, claim: Claim) -> int:
        """Claim the partition's state in Redis, and start the task that applies batches and removes expired items.

        If there is no usable state, one is created. If retention has removed records that were not read, they are skipped.

        Returns:
            The offset to read next. This is the offset after the fence; for a new state, it is the offset before which all records
            have expired or were removed by retention.

        Raises:
            NotOwnerError: Kafka rejected the first commit.
            FencedError: Another worker has claimed the partition meanwhile.
            KafkaError, RedisError, OSError, TimeoutError: Kafka or Redis failed; the caller tries the claim again.
        """
        view = self._context.view
        keys = view_keys(self._context.app_id, view.name, *self._tp)
        self._store = ViewStore(
            self._context.scripts, keys, claim.token,
            has_data=view.kind == "list", expiry_ms=view.expiry_ms, keep=view.keeps,
        )  # fmt: skip
        if claim.committed is None:
            # There is no commit yet. Only an accepted commit proves that this worker owns the partition.
            await claim.commit_now(OffsetAndMetadata(claim.log_bounds.begin))
        claimed = await self._claim_state(claim)
        self._fence, self._clock_ms, self._metadata = claimed.fence, claimed.clock_ms, claimed.metadata
        self._acknowledged = AcknowledgedUntil()
        await self._skip_removed(claim)
        self.is_claimed = True
        self._task = run(claim, self._work_forever(claim), f"live {view.name} {self._tp}", CAUSES)
        return self._fence + 1

    def deliver(self, batch: Batch) -> None:
        """Queue the next range of records for the task that applies them."""
        self.in_flight += len(batch.records)
        self._batches.append(batch)
        self._wake.set()

    async def position_to_commit(self) -> OffsetAndMetadata | None:
        """Return the offset after the fence, without commit metadata; None before the claim and after the release."""
        return OffsetAndMetadata(self._fence + 1) if self.is_claimed else None

    def tick(self, now_ms: int) -> None:
        """Request that the task of this partition removes expired items.

        Args:
            now_ms: Not used: the task reads the trusted clock when it removes the items.
        """
        self._is_due = True
        self._wake.set()

    def progress(self, monotonic_ms: int) -> Progress | None:
        """Return how many ticks have removed expired items, and whether a further tick has been requested.

        Args:
            monotonic_ms: Not used.

        Returns:
            None without a claim, and while :attr:`ViewContext.is_waiting` is true: then a delay is not a stall.
        """
        if self._context.is_waiting or not self.is_claimed:
            return None
        why = f"live view {self._context.view.name} does not expire items of {self._tp}"
        return Progress(self._ticks_done, self._ticks_done + self._is_due, f"view={self._context.view.name} source={self._tp}", why)

    async def revoke(self, seconds: float) -> None:
        """Stop at once. Nothing has to be saved within ``seconds``, because the state in Redis is complete for the next owner."""
        self.is_claimed = False
        if self._task is not None:
            await cancel_all({self._task})
        self._context.outages.forget(self)

    # ---- claiming

    async def _claim_state(self, claim: Claim) -> LiveClaim:
        """Claim the partition's state in Redis. If it is missing or does not match the log, create a new state."""
        view, definition = self._context.view, definition_of(self._context.view)
        found = await self._store.claim(definition, claim.topic_id, claim.partitions)
        if found is not None and await claim.rewind_if_truncated(found.metadata.log, found.fence + 1) is not None:
            # The state contains events that the log no longer has: rebuild it from the current log.
            found = await self._store.claim(definition, claim.topic_id, claim.partitions, drop=True)
        if found is not None and claim.was_reset and found.fence + 1 >= claim.log_bounds.begin:
            # The client reset its position, and not because of retention: the topic was recreated.
            found = await self._store.claim(definition, claim.topic_id, claim.partitions, drop=True)
        if found is not None:
            return found
        start = await claim.offset_at(self._context.clock.now_ms() - view.expiry_ms)
        # Read the bounds last: their time is the initial clock, and all records beyond their end arrive later.
        bounds = await claim.log_bounds_now()
        begin = view_start(start, bounds, view.expiry_ms)
        logger.info("live view is read from its source view=%s source=%s offset=%d", view.name, self._tp, begin.fence + 1)
        created = await self._store.claim(definition, claim.topic_id, claim.partitions, begin=begin)
        assert created is not None  # because of begin
        return created

    async def _skip_removed(self, claim: Claim) -> None:
        """Move the fence past records that retention removed before they were read, and log their offsets.

        The view is then incomplete until items of these records would have expired.
        """
        bounds = await claim.log_bounds_now()
        if self._fence + 1 >= bounds.begin:
            return
        logger.error(
            "retention overtook a live view, events that should be shown are missing view=%s source=%s offsets=%d-%d",
            self._context.view.name, self._tp, self._fence + 1, bounds.begin - 1,
        )  # fmt: skip
        whole_ms = bounds.asked_ms + self._context.view.expiry_ms
        metadata = self._metadata_at(bounds.begin - 1)._replace(whole_ms=max(self._metadata.whole_ms, whole_ms))
        await self._store.apply(self._fence, bounds.begin - 1, (), metadata)
        self._fence, self._metadata = bounds.begin - 1, metadata

    # ---- working

    async def _work_forever(self, claim: Claim) -> None:
        parts: Iterator[ViewBatch] = iter(())
        while True:
            if self._is_due:
                self._is_due = False
                await self._retry(lambda: self._expire_once(claim, moves_clock=True))
                self._ticks_done += 1
            part = next(parts, None)
            if part is not None:
                await self._apply(claim, part)
            elif self._batches:
                parts = await self._read(self._batches.popleft())
            elif not self._is_due:
                self._wake.clear()
                await self._wake.wait()
            await asyncio.sleep(0)

    async def _read(self, batch: Batch) -> Iterator[ViewBatch]:
        """Return the batches of a range, after fetching the schemas that its records need.

        While the schema registry does not answer, this waits, and no item of the partition expires.
        """
        schemas = self._context.schemas
        if schemas is not None:
            await schemas.prepare(self._rule.values.framed_parts(batch.records), self)
        parts = view_batches(self._rule, self._tp.partition, batch.records, batch.end, self._context.clock.now_ms())
        # Evaluate all batches now: once this task awaits, other tasks may evict the fetched schemas.
        return parts if schemas is None else iter(list(parts))

    async def _apply(self, claim: Claim, part: ViewBatch) -> None:
        """Send the dead letters of a batch, then apply the batch. Both are repeated until they succeed."""
        if part.rejected:
            await self._dead_letters.send(part.rejected, self._on_unsent)
            self._context.outages.succeeded(self)
        metadata = self._metadata_at(part.to)
        if part.last is not None:
            metadata = metadata._replace(log=followed_by(metadata.log, part.last))

        async def apply() -> None:
            applied = await self._store.apply(self._fence, part.to, part.changes, metadata)
            self._fence, self._metadata, self.pages = part.to, metadata, applied.pages
            self._context.on_part(part, applied)

        if part.to > self._fence:
            await self._retry(apply, when_full=lambda: self._expire_once(claim, moves_clock=False))
        self.in_flight -= part.events
        claim.on_progress()

    def _on_unsent(self, topic: str, error: BaseException) -> None:
        """Report an outage of the dead-letter topic; during an outage, :meth:`progress` returns None, so no stall is detected."""
        self._context.outages.failed(TryAgainError(unacknowledged_text(topic, error)), self)

    async def _expire_once(self, claim: Claim, *, moves_clock: bool) -> None:
        """Remove a limited number of expired items. If more items have expired, request another call.

        Args:
            claim: Claim of the partition.
            moves_clock: True: advance the clock of the partition, and remove the items that have expired by this clock. False: free
                memory of a full Redis by removing the items that have expired by the wall clock; the clock of the partition does
                not move. An unread event may restore such an item; until it is read, the view is behind.
        """
        clock = self._context.clock
        now_ms = clock.now_ms()
        view = claim.reader_view()
        is_known = clock.is_trusted() and is_caught_up(self._fence, view, now_ms)
        # The clock moves only to the last fetch request: later records may be unread and may prolong items that are due.
        read_until_ms = min(now_ms, view.fetched_at_ms or now_ms)
        if is_known:
            # Records of an open transaction are acknowledged but not readable. Until the transaction ends, the view is behind.
            read_until_ms = self._acknowledged.at(self._fence, view, read_until_ms)
        due_ms = advanced(self._clock_ms, read_until_ms, caught_up=is_known) if moves_clock else now_ms
        expired = await self._store.expire(self._fence, due_ms, moves_clock=moves_clock)
        if moves_clock and not expired.is_more:
            self._clock_ms = max(self._clock_ms, due_ms)
        self.pages = expired.pages
        self._context.on_expired(expired)
        if expired.is_more:
            self._is_due = True

    async def _retry(self, step: Callable[[], Awaitable[None]], when_full: Callable[[], Awaitable[None]] | None = None) -> None:
        """Call ``step`` until Redis has executed it. If the reply to an earlier call was lost, the script detects the repetition.

        Args:
            step: Runs one script.
            when_full: Called before the next attempt if Redis is full, to free memory.

        Raises:
            FencedError: Another worker has claimed the partition, or Redis has lost writes.
        """

        async def free_memory(error: BaseException) -> bool:
            if when_full is not None and isinstance(error, OutOfMemoryError):
                await self._try_once(when_full)
            return False

        await self._context.outages.retry(step, self, REDIS_ERRORS, free_memory)

    async def _try_once(self, step: Callable[[], Awaitable[None]]) -> None:
        try:
            await step()
        except REDIS_ERRORS as error:
            logger.debug("expiry to free memory failed", exc_info=error)

    def _metadata_at(self, fence: int) -> ViewMetadata:
        """Return the metadata to store with a new fence.

        If the fence has reached the end of the rebuild, its field ``reading`` is None: browsers receive the view from then on.
        """
        reading = self._metadata.reading
        return self._metadata if reading is None or fence + 1 < reading else self._metadata._replace(reading=None)


def view_start(start: int, bounds: LogBounds, expiry_ms: int) -> ViewStart:
    """Return the fence, clock and metadata with which the state of a partition is created (pure).

    Args:
        start: Offset before which all records have expired.
        bounds: Bounds of the log, which were read after ``start``.
        expiry_ms: Time after which an item expires.

    Returns:
        The state before any record is read. Its fence is the offset before the first record to read, and its clock the time at
        which the end of the log was read. Browsers receive the view once all records before that end
        are read.
    """
    begin = max(start, bounds.begin)
    # If the log begins at the first required record, retention may have removed more of them; at offset 0 nothing was removed.
    is_cut = bounds.begin > 0 and begin == bounds.begin
    whole_ms = bounds.asked_ms + expiry_ms if is_cut else 0
    return ViewStart(begin - 1, bounds.asked_ms, ViewMetadata(bounds.end if bounds.end > begin else None, whole_ms))
