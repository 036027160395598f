"""The processor of one partition for one fold: folds ranges into its shard, retries failed scripts, and emits due groups.

:mod:`streams_app.delivery` delivers the ranges. From claim to revocation, a processor runs two tasks: one folds, the other emits.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import attrgetter
from typing import Final

from redis.exceptions import OutOfMemoryError

from streams_app.delivery.batch import Batch
from streams_app.delivery.claim import Claim
from streams_app.delivery.clocks import ReaderView
from streams_app.delivery.offset_metadata import OffsetAndMetadata
from streams_app.delivery.scripts import FencedError
from streams_app.delivery.tasks import cancel_all, run
from streams_app.errors import text_of
from streams_app.fold import Fold
from streams_app.folding.agents.claim import (
    apply_log_bounds,
    check_topic,
    initial_position,
    rewind_if_lost,
    warn_of_lost_state,
)
from streams_app.folding.agents.context import FoldContext, report_misrouted_events
from streams_app.folding.agents.decoded_batches import DecodedBatchCache
from streams_app.folding.agents.emitter import Emitter
from streams_app.folding.core.chunks import Chunk
from streams_app.folding.core.event import FoldInput
from streams_app.folding.reading.reader import RangeFaults
from streams_app.folding.shard.range_progress import FoldStep
from streams_app.folding.shard.shard import Shard
from streams_app.folding.store.replies import RESYNC_CAUSES, FoldOutcome
from streams_app.health.progress import Progress
from streams_app.health.status import Status
from streams_app.native import native_core
from streams_app.redis_access.client import REDIS_ERRORS, redis_fault_text
from streams_app.reported_backoff import ReportedBackoff
from streams_app.retries import retried
from streams_app.schemas.waiting import ABOUT as SCHEMA_REGISTRY

logger = logging.getLogger(__name__)

WORTH_SENDING = 500
"""Number of records in the outbox from which a request to the broker is worth its fixed cost."""

ROOM_SECONDS = 1.0
"""After this time, a script that found the outbox full is tried again, even if no record was removed."""


class FoldProcessor:
    """Folds the events of one source partition for one fold, and emits its records; implements :class:`.Processor`.

    The processors of all folds of the partition share a :class:`.DecodedBatchCache`.
    """

    def __init__(self, shard: Shard, decoded_batches: DecodedBatchCache, context: FoldContext) -> None:
        self.shard = shard
        self._statistics = context.statistics_of(shard.fold)
        self._dead_letter_sender = context.dead_letter_sender_of(shard.fold, shard.tp)
        self.emitter = Emitter(
            shard, context.producer, self._dead_letter_sender, context.clock, context.metrics,
            statistics=self._statistics, tracing=context.record_tracing_of(shard), core=native_core(context.settings.worker.native),
        )  # fmt: skip
        self._decoded_batches = decoded_batches
        self._context = context
        self._report_progress: Callable[[], None] = lambda: None
        self._metadata = ""
        self._queue = BatchQueue()
        self._tasks: list[asyncio.Task[None]] = []

    # ---- called by the delivery layer

    @property
    def in_flight(self) -> int:
        return self._queue.records_above(self.shard.fence)

    async def claim(self, claim: Claim) -> int:
        self._report_progress, self.emitter.view = claim.on_progress, claim.reader_view
        shard, status = self.shard, self._context.status
        folded_id = await check_topic(shard, claim)
        begin = claim.committed or await initial_position(shard, claim)
        self._metadata = begin.metadata
        if await shard.claim(begin.offset, claim.partitions, claim.topic_id, claim.token):
            warn_of_lost_state(shard, claim, had_state=self._context.claimed_shards.was_claimed(shard))
        self._context.older_workers.expect(claim.tp.topic, claim.partitions)
        await shard.store_singly(singly=await self._context.older_workers.exist())
        await rewind_if_lost(shard, self.emitter, claim, folded_id)
        await apply_log_bounds(shard, self.emitter, claim, begin, self._context.metrics)
        # Redis has just answered. If another shard still waits for Redis, it reports that at its next attempt.
        for about in ("redis", "redis-memory"):
            status.clear(about)
        self._context.claimed_shards.add(self.emitter)
        self._tasks = [
            run(claim, self._fold_forever(), f"fold {shard.fold.name} {shard.tp}", RESYNC_CAUSES),
            run(claim, self._emit_forever(), f"emit {shard.fold.name} {shard.tp}", RESYNC_CAUSES),
        ]
        return shard.fence + 1

    def deliver(self, batch: Batch) -> None:
        self._queue.add(batch)

    async def position_to_commit(self) -> OffsetAndMetadata | None:
        """Return the low watermark in Redis, with the metadata that the position had at the claim."""
        low = await self.shard.store.watermark()
        return None if low is None else OffsetAndMetadata(low, self._metadata)

    def tick(self, now_ms: int = 0) -> None:
        self.emitter.ticked.set()

    def progress(self, monotonic_ms: int) -> Progress | None:
        if explains_emission(self.shard.fold, self._context.status):
            return None
        return self._context.claimed_shards.snapshots.progress(self.shard.key, monotonic_ms)

    async def revoke(self, seconds: float) -> None:
        """Stop at once, and store a state that workers of older versions can read."""
        self._context.claimed_shards.remove(self.emitter)
        self.shard.release()
        self._queue.clear()
        await cancel_all(self._tasks)
        await self.shard.make_readable(seconds)

    def shorten_deadline(self, seconds: float) -> None: ...

    async def on_commit_rejected(self) -> None:
        """Do nothing: Redis contains everything that the commit would have contained."""

    # ---- folding

    async def _fold_forever(self) -> None:
        while True:
            whole = await self._queue.first(self.shard.waits_for)
            if whole is not None:
                await self.fold_once(whole)
            self._queue.done()
            self._report_progress()
            await asyncio.sleep(0)

    async def fold_once(self, batch: Batch) -> None:
        """Fold one range, which must begin where the range before it ended.

        Raises:
            FencedError: The shard must be claimed again.
        """
        shard, end = self.shard, batch.end - 1
        clock = self._context.clock
        view = ReaderView(batch.stable_offset, batch.fetched_at_ms)
        await self._decoded_batches.prepare(batch, shard.fold.name)
        events, faults, reread = self._decoded_batches.read(batch, shard.fold.name)
        if self.emitter.tracing is not None:
            events = self.emitter.tracing.collected(events, batch.records)
        chunks = shard.chunks(events, end, view, clock.now_ms())
        was_waiting = await self._fold_all(batch, chunks, faults, reread)
        if clock.is_trusted() and shard.observe_fetch(view, clock.now_ms()) and was_waiting:
            self.tick()  # the backlog is folded: due groups need not wait for the next tick
        metrics, name = self._context.metrics, shard.fold.name
        metrics.events_read.labels(fold=name, reader="native").inc(faults.native)
        metrics.events_read.labels(fold=name, reader="python").inc(len(batch.records) - faults.native)
        if faults.misrouted:
            report_misrouted_events(shard.fold.name, faults, batch.tp, self._context.metrics)

    async def _fold_all(
        self, batch: Batch, chunks: Iterator[Chunk], faults: RangeFaults, reread: Callable[[Chunk], Iterable[FoldInput]]
    ) -> bool:
        """Fold the chunks of one range of records; return whether the last chunk was part of a backlog."""
        was_waiting = False
        for chunk in chunks:
            await self._send_dead_letters(faults)
            self.shard.add_fingerprint(batch.last_up_to(chunk.to))
            if self.shard.clock.is_backlog(chunk.time) and await self.emitter.seal_ahead():
                self._wake(chunk)
            await self._fold_chunk(chunk, partial(reread, chunk))
            was_waiting = chunk.time.arrived_ms is None
        return was_waiting

    async def _fold_chunk(self, chunk: Chunk, events: Callable[[], Iterable[FoldInput]]) -> None:
        """Fold one chunk by as many script calls as it needs; retry while Redis fails, and wait while the outbox is full."""
        progress, backoff = self.shard.begin(chunk, events), _backoff()
        outcome = FoldOutcome.MORE

        async def reported(error: BaseException) -> float:
            self._report_failure(error, should_log=backoff.should_report)
            return backoff.failed()

        while outcome is not FoldOutcome.DONE:
            step = await retried(partial(self.shard.fold_once, progress), REDIS_ERRORS, reported)
            if backoff.succeeded():
                self._report_recovery()
            outcome = step.outcome
            self._context.metrics.duplicate_events.labels(fold=self.shard.fold.name).inc(step.duplicates)
            if outcome is not FoldOutcome.FULL:
                self._report_progress()
            await self._make_room(chunk, step)
        self._context.metrics.events_folded.labels(fold=self.shard.fold.name).inc(chunk.events)
        self._statistics.folded(self.shard.tp.partition, chunk)

    async def _make_room(self, chunk: Chunk, step: FoldStep) -> None:
        """Wake the emission if a step has sealed records or found the outbox full; if full, also wait until a record is removed."""
        if step.outcome is FoldOutcome.FULL:
            self.tick()
            await self.shard.outbox.room(ROOM_SECONDS)
        elif step.sealed:
            self._wake(chunk)

    def _report_failure(self, error: BaseException, *, should_log: bool) -> None:
        name, status = self.shard.fold.name, self._context.status
        if isinstance(error, OutOfMemoryError):
            self.emitter.is_redis_full = True
            status.set_not_ready("redis-memory", f"Redis refuses writes: {error}")
            if should_log:
                logger.warning("folding paused, Redis is full; emission continues fold=%s source=%s", name, self.shard.tp)
            return
        fault = redis_fault_text(error)
        status.set_not_ready("redis", fault)
        if should_log:
            logger.warning("folding paused, %s fold=%s source=%s", fault, name, self.shard.tp)

    def _report_recovery(self) -> None:
        self.emitter.is_redis_full = False
        self._context.status.clear("redis-memory")
        self._context.status.clear("redis")
        logger.info("folding resumed fold=%s source=%s", self.shard.fold.name, self.shard.tp)

    def _wake(self, chunk: Chunk) -> None:
        """Wake the emission task; if the chunk is of a backlog and the outbox has few records, leave this to the next tick."""
        if not self.shard.clock.is_backlog(chunk.time) or len(self.shard.outbox) >= WORTH_SENDING:
            self.tick()

    async def _send_dead_letters(self, faults: RangeFaults) -> None:
        """Send rejected events to the dead-letter topic and wait for the acknowledgement, before the fence passes them."""
        if faults.rejected:
            await self._dead_letter_sender.send(faults.rejected)
            faults.rejected.clear()

    # ---- emission

    async def _emit_forever(self) -> None:
        shard, backoff = self.shard, _backoff()
        while True:
            try:
                await shard.store_singly(singly=await self._context.older_workers.exist())
                emitted = await self.emitter.emit_due_once()
            except REDIS_ERRORS as error:
                if backoff.should_report:
                    logger.warning("emission paused fold=%s source=%s error=%s", shard.fold.name, shard.tp, text_of(error))
                if not shard.is_claimed:
                    raise FencedError("seal", "lost-reply") from error
                await asyncio.sleep(backoff.failed())
                continue
            if emitted.failed is not None:
                if backoff.should_report:
                    logger.warning("emission paused fold=%s source=%s error=%r", shard.fold.name, shard.tp, emitted.failed)
                await asyncio.sleep(backoff.failed())
                continue
            if backoff.succeeded():
                logger.info("emission resumed fold=%s source=%s", shard.fold.name, shard.tp)
            if not emitted.more:
                await self.emitter.wait_for_next_pass(emitted)


def _backoff() -> ReportedBackoff:
    """Create a backoff of 0.1 to 1 second for Redis and the broker; it is short because events and records wait."""
    return ReportedBackoff(first_seconds=0.1, longest_seconds=1.0)


_OFFSET = attrgetter("offset")


class BatchQueue:
    """Queue of the record ranges that were delivered to one fold; a range is removed once it is folded."""

    def __init__(self) -> None:
        self._batches: deque[Batch] = deque()
        self._begun: Batch | None = None
        self._arrived = asyncio.Event()

    def add(self, batch: Batch) -> None:
        self._batches.append(batch)
        self._arrived.set()

    def clear(self) -> None:
        self._batches.clear()

    def records_above(self, fence: int) -> int:
        """Return the number of queued records above the fence. Any thread may call this."""
        batches = tuple(self._batches)  # the main loop adds and removes ranges meanwhile
        if not batches:
            return 0
        folded = bisect_right(batches[0].records, fence, key=_OFFSET)
        return sum(len(batch.records) for batch in batches) - folded

    async def first(self, is_part: Callable[[int], bool]) -> Batch | None:
        """Wait until a range is queued; return the range to fold next, or None if it is too short to be folded yet.

        If another owner has folded only some groups of a range, the rest must be folded up to the same end. Otherwise the events
        would get other scores, and events of groups that are already folded might be skipped. So ``is_part`` tells by the last
        offset whether a range is too short, and the next call joins it with the next range. Call :meth:`done` before that call.
        """
        while not self._batches:
            self._arrived.clear()
            await self._arrived.wait()
        batch = self._batches[0] if self._begun is None else self._begun.followed_by(self._batches[0])
        self._begun = batch if is_part(batch.end - 1) else None
        return None if self._begun is not None else batch

    def done(self) -> None:
        """Remove the first range; call this after each :meth:`first`. It does nothing if the queue is empty."""
        if self._batches:
            self._batches.popleft()


BOTH: Final = ("start", "redis", "producer", "kafka-away", "redis-away")
FOLDING: Final = (*BOTH, "claim", "redis-memory", SCHEMA_REGISTRY)
EMISSION: Final = (*BOTH, "clock-skew")


def explains_folding(folds: Iterable[Fold], status: Status) -> bool:
    """Return whether a known pause, such as an outage of Redis or Kafka, explains why these folds make no progress."""
    return status.is_waiting_for(*FOLDING, *_topics(folds))


def explains_emission(fold: Fold, status: Status) -> bool:
    """Return whether a known pause, such as an outage of Redis or Kafka, explains why a fold emits nothing."""
    return status.is_waiting_for(*EMISSION, *_topics([fold]))


def _topics(folds: Iterable[Fold]) -> Iterable[str]:
    return (f"producer:{topic}" for fold in folds for topic in (fold.output, fold.dead_letters))
