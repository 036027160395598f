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
from streams_app.delivery.log_continuity import Action, LogVerdict, Policy, StoredPosition
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

ACTIONS: Final = {
    LogVerdict.SAME: Action.CONTINUE,
    LogVerdict.RECREATED: Action.RESTART,
    LogVerdict.TRUNCATED: Action.RESTART,
    LogVerdict.WENT_BACK: Action.RESTART,
    LogVerdict.SHORTER: Action.CONTINUE,
    LogVerdict.UNCOMPARED: Action.RESTART,
    LogVerdict.UNIDENTIFIED: Action.RESTART,
}
"""A view loses nothing if it is rebuilt from the log."""

RESYNC_CAUSES: Final = {
    "token": "another worker has taken over the live view",
    "fence": "the live view in Redis is not at the expected offset: Redis has lost its last writes",
    "no-state": "Redis has lost the live view",
}
"""Explanations for the log, by the cause for which a script was rejected."""


@dataclass(frozen=True, slots=True)
class ViewContext:
    """Dependencies that the processors of one view share.

    Attributes:
        value_bytes: Maximum bytes of an event; larger ones become dead letters.
        outages: Outages of Redis and of the dead-letter topic.
        on_part: Called with each applied batch.
        schemas: None if the view does not need a schema registry.
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
        self.context = context
        self._claimed: dict[TP, ViewProcessor] = {}

    @property
    def topics(self) -> Collection[str]:
        return (self.context.view.source,)

    def of(self, tp: TP, committed: Collection[str]) -> dict[str, ViewProcessor]:
        self._claimed[tp] = processor = ViewProcessor(tp, self.context)
        return {self.context.view.name: processor}

    def is_paused(self, topic: str) -> bool:
        return self.context.is_waiting

    def status(self) -> tuple[int, bool]:
        """Return the number of pages with items, counted once for each partition, and whether a partition is being rebuilt."""
        live = [one for one in self._claimed.values() if one.is_claimed]
        return sum(one.pages for one in live), any(one.is_reading for one in live)


class ViewProcessor(Processor):
    """Maintains one partition of a view.

    A single task applies batches and removes expired items, so that no two scripts of a partition overlap.

    Attributes:
        pages: Number of pages that have items in this partition.
    """

    in_flight = 0

    def __init__(self, tp: TP, context: ViewContext) -> None:
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

        If there is no usable state, one is created: it begins where all earlier records have expired or were removed by retention.
        If retention has removed records that were not read, they are skipped.

        Raises:
            NotOwnerError: Kafka rejected the first commit.
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
        self._task = run(claim, self._work_forever(claim), f"live {view.name} {self._tp}", RESYNC_CAUSES)
        return self._fence + 1

    def deliver(self, batch: Batch) -> None:
        self.in_flight += len(batch.records)
        self._batches.append(batch)
        self._wake.set()

    async def position_to_commit(self) -> OffsetAndMetadata | None:
        return OffsetAndMetadata(self._fence + 1) if self.is_claimed else None

    def tick(self, now_ms: int) -> None:
        self._is_due = True
        self._wake.set()

    def progress(self, monotonic_ms: int) -> Progress | None:
        """Return how many ticks have removed expired items, and whether a further tick has been requested."""
        if self._context.is_waiting or not self.is_claimed:
            return None
        why = f"live view {self._context.view.name} does not expire items of {self._tp}"
        return Progress(self._ticks_done, self._ticks_done + self._is_due, f"view={self._context.view.name} source={self._tp}", why)

    async def revoke(self, seconds: float) -> None:
        """Stop at once: the state in Redis is complete for the next owner."""
        self.is_claimed = False
        if self._task is not None:
            await cancel_all({self._task})
        self._context.outages.forget(self)

    # ---- claiming

    async def _claim_state(self, claim: Claim) -> LiveClaim:
        """Claim the partition's state in Redis. If it is missing or does not match the log, create a new state."""
        view, definition = self._context.view, definition_of(self._context.view)
        found = await self._store.claim(definition, claim.topic_id, claim.partitions)
        if found is not None:
            # The script has dropped the state of another topic, so the present id is that of the state.
            stored = StoredPosition(found.fence + 1, claim.topic_id, found.metadata.log)
            action, _ = await claim.continuation(stored, policy_of(view.name))
            if action is not Action.RESTART:
                return found
            await self._store.claim(definition, claim.topic_id, claim.partitions, drop=True)
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
        self._context.outages.failed(TryAgainError(unacknowledged_text(topic, error)), self)

    async def _expire_once(self, claim: Claim, *, moves_clock: bool) -> None:
        """Remove a limited number of expired items. If more items have expired, request another call.

        Args:
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
        """Call ``step`` until Redis has executed it; if Redis is full, call ``when_full`` before the next attempt, to free memory.

        If the reply to an earlier call was lost, the script detects the repetition.
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
        """Return the metadata to store with a new fence. Once it has reached the end of the rebuild, browsers receive the view."""
        reading = self._metadata.reading
        return self._metadata if reading is None or fence + 1 < reading else self._metadata._replace(reading=None)


def policy_of(view: str) -> Policy:
    """Return what a live view does if the log is not the one that was read."""
    return Policy(f"live view {view}", ACTIONS)


def view_start(start: int, bounds: LogBounds, expiry_ms: int) -> ViewStart:
    """Return the fence, clock and metadata with which the state of a partition is created (pure).

    All records before ``start`` have expired; the bounds were read after it. The clock is the time at which the end of the log was
    read. Browsers receive the view once all records before this end are read.
    """
    begin = max(start, bounds.begin)
    # If the log begins at the first required record, retention may have removed more of them; at offset 0 nothing was removed.
    is_cut = bounds.begin > 0 and begin == bounds.begin
    whole_ms = bounds.asked_ms + expiry_ms if is_cut else 0
    return ViewStart(begin - 1, bounds.asked_ms, ViewMetadata(bounds.end if bounds.end > begin else None, whole_ms))
