"""The processors of one journal: each appends the events of one partition of its source.

A processor continues after the fence in Redis; the committed offset is only for lag monitoring. If Redis loses the state, the
journal is rebuilt from the log, as far back as it keeps events, even below the committed offset.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError

from streams_app.delivery.batch import TP, Batch
from streams_app.delivery.claim import Claim
from streams_app.delivery.clocks import TrustedClock, advanced, is_caught_up
from streams_app.delivery.offset_metadata import OffsetAndMetadata
from streams_app.delivery.processor import Processor, Processors
from streams_app.delivery.scripts import FencedError
from streams_app.delivery.tasks import cancel_all, run
from streams_app.health.outage_reporter import OutageReporter
from streams_app.health.progress import Progress
from streams_app.journal.agents.beginning import claim_state, lost
from streams_app.journal.agents.keeper import Keeper, KeeperContext
from streams_app.journal.agents.shard import Filing, JournalShard
from streams_app.journal.agents.throttle import FilingThrottle
from streams_app.journal.core.block import MAX_CHUNK_EVENTS
from streams_app.journal.core.entry import PLAIN
from streams_app.journal.store.journal_store import JournalScripts, JournalStore
from streams_app.journal.store.keys import journal_keys
from streams_app.redis_access.client import REDIS_ERRORS
from streams_app.schemas.values import ValueReader
from streams_app.schemas.waiting import PatientRegistry
from streams_app.settings import JournalSettings, Limits

logger = logging.getLogger(__name__)

RESYNC_CAUSES: Final = {
    "token": "another worker has claimed the journal",
    "fence": "the fence of the journal has changed: Redis has lost its last writes",
    "no-state": "Redis has lost the journal",
}
"""Explanations for the log, by the cause for which a script was rejected."""


@dataclass(frozen=True, slots=True)
class JournalContext:
    """Dependencies that the processors of a journal share.

    Attributes:
        on_filed: Called after each append.
        on_lost: Called with the number of offsets that retention removed before they were appended.
        schemas: None if the journal does not need a schema registry.
    """

    app_id: str
    journal: JournalSettings
    limits: Limits
    redis: Redis
    scripts: JournalScripts
    clock: TrustedClock
    keeper_context: KeeperContext
    throttle: FilingThrottle
    outage: OutageReporter
    on_filed: Callable[[Filing], None] = lambda filing: None
    on_lost: Callable[[int], None] = lambda offsets: None
    schemas: PatientRegistry | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether no events are appended because Redis fails or is full, or the schema registry does not answer."""
        return self.outage.fault is not None or (self.schemas is not None and self.schemas.is_away)


class JournalProcessors(Processors):
    """Creates a processor for each source partition of a journal."""

    def __init__(self, context: JournalContext) -> None:
        self.context = context
        self._claimed: dict[TP, JournalProcessor] = {}

    @property
    def topics(self) -> Collection[str]:
        return (self.context.journal.source,)

    def of(self, tp: TP, committed: Collection[str]) -> dict[str, JournalProcessor]:
        self._claimed[tp] = processor = JournalProcessor(tp, self.context)
        return {self.context.journal.name: processor}

    def is_paused(self, topic: str) -> bool:
        if self.context.is_waiting or self.context.throttle.is_limiting:
            return True
        return any(one.is_behind for one in self._claimed.values())

    def shards(self) -> list[JournalShard]:
        return [one.shard for one in self._claimed.values() if one.shard is not None]


class JournalProcessor(Processor):
    """Appends the events of one partition to a journal.

    A single task appends events, and closes a segment after its day, so that no two appends of a shard overlap. The keeper runs
    concurrently. ``shard`` is None before the claim and after the release.
    """

    in_flight = 0

    def __init__(self, tp: TP, context: JournalContext) -> None:
        self.shard: JournalShard | None = None
        self._tp = tp
        self._context = context
        self._batches: deque[Batch] = deque()
        self._wake = asyncio.Event()
        self._is_due = False
        self._served = 0
        self._values = PLAIN
        if context.journal.format != "json":
            registry = None if context.schemas is None else context.schemas.registry
            self._values = ValueReader(context.journal.format, registry, context.journal.unavailable_value)
        self._keeper: Keeper | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_behind(self) -> bool:
        return self.shard is not None and self._keeper is not None and self._keeper.is_behind

    # ---- called by the delivery layer

    async def claim(self, claim: Claim) -> int:
        """Take over the shard, and start two tasks: one appends events, the other one runs the keeper.

        If retention has removed records that were not appended, a gap is appended for them.

        Raises:
            NotOwnerError: Kafka rejected the first commit.
        """
        context = self._context
        self._meta = (keys := journal_keys(context.app_id, context.journal.name, *self._tp)).meta
        store = JournalStore(context.scripts, keys, claim.token, claim.member_id)
        if claim.committed is None:
            # The partition has no commit that could be repeated as proof, so only an accepted new commit proves ownership.
            await claim.commit_now(OffsetAndMetadata(claim.log_bounds.begin))
        claimed = await claim_state(store, context.journal, claim, context.clock)
        shard = JournalShard(context.journal, claim.tp, claim.partitions, context.limits, store, claim.token, claimed, self._values)
        logger.info(
            "claimed journal=%s source=%s floor=%d fence=%d state=%s",
            context.journal.name, claim.tp, shard.floor, shard.fence, "new" if claimed.is_new else "kept",
        )  # fmt: skip
        await self._skip_lost(shard, claim)
        self.shard = shard
        self._keeper = keeper = Keeper(shard, context.keeper_context, self._wake.set)
        name = f"journal {context.journal.name} {self._tp}"
        self._tasks = {
            run(claim, self._work_forever(claim, shard, keeper), name, RESYNC_CAUSES),
            run(claim, keeper.run(), f"{name} keeper", RESYNC_CAUSES),
        }
        return shard.fence + 1

    def deliver(self, batch: Batch) -> None:
        self.in_flight += len(batch.records)
        self._batches.append(batch)
        self._wake.set()

    async def position_to_commit(self) -> OffsetAndMetadata | None:
        return None if self.shard is None else OffsetAndMetadata(self.shard.fence + 1)

    def tick(self, now_ms: int) -> None:
        """Request a check of the shard, which closes a segment whose day is over, and detects that Redis has lost the state.

        Without the check, neither would be noticed in a partition without new events.
        """
        self._is_due = True
        self._wake.set()

    def progress(self, monotonic_ms: int) -> Progress | None:
        """Return how many of the checks of the shard that :meth:`tick` requests are done, so that the watchdog detects a stall."""
        if self._context.is_waiting or self.shard is None:
            return None
        journal = self._context.journal.name
        why = f"journal {journal} does not check its state of {self._tp}"
        return Progress(self._served, self._served + self._is_due, f"journal={journal} source={self._tp}", why)

    async def revoke(self, seconds: float) -> None:
        """Stop at once: the state in Redis is complete for the next owner."""
        self.shard = None
        await cancel_all(self._tasks)
        self._context.outage.forget(self)

    async def _skip_lost(self, shard: JournalShard, claim: Claim) -> None:
        """Append a gap for offsets that retention removed before they were appended; log and count them."""
        gone = lost(shard.fence, await claim.log_bounds_now())
        if not gone:
            return
        logger.error(
            "retention overtook a journal, its readers get a gap journal=%s source=%s offsets=%d-%d",
            self._context.journal.name, self._tp, gone[0], gone[-1],
        )  # fmt: skip
        await shard.skip(gone[-1])
        self._context.on_lost(len(gone))

    # ---- working

    async def _work_forever(self, claim: Claim, shard: JournalShard, keeper: Keeper) -> None:
        while True:
            if self._is_due:
                self._is_due = False
                await self._retry(lambda: self._check_state(claim, shard), keeper)
                self._served += 1
            if self._batches and not keeper.is_behind:
                await self._prepare(self._batches[0])  # before the turn: other journals may append while this one waits
                async with self._context.throttle.turn():
                    await self._file(claim, shard, keeper)
            elif not self._is_due:
                self._wake.clear()
                await self._wake.wait()
            await asyncio.sleep(0)

    async def _file(self, claim: Claim, shard: JournalShard, keeper: Keeper) -> None:
        """Append the first chunk of the first queued batch, and put the rest of the batch back into the queue.

        Retries until Redis has executed the append. If the chunk begins a segment, old segments are removed.
        """
        batch = self._batches.popleft()
        if shard.fence < batch.end - 1:
            await self._prepare(batch)  # usually without a request: the schemas are cached
            filing = shard.filing_of(batch.records, batch.end, self._context.clock.now_ms())
            await self._retry(lambda: shard.write(filing), keeper)
            self._context.on_filed(filing)
            if filing.chunk.begins:  # also here: a shard never exceeds its share by more than a segment
                await self._retry(keeper.drop_once, keeper)
                keeper.wake()
        left = batch.since(shard.fence + 1)
        if left.begin < left.end:
            self._batches.appendleft(left)
        self.in_flight -= len(batch.records) - len(left.records)
        claim.on_progress()

    async def _prepare(self, batch: Batch) -> None:
        """Fetch the schemas that are needed to read the journal keys of the next chunk; wait until the schema registry answers."""
        schemas = self._context.schemas
        if schemas is not None and not self._context.journal.is_by_record_key:
            await schemas.prepare(self._values.framed_parts(batch.records[:MAX_CHUNK_EVENTS]), self)

    async def _check_state(self, claim: Claim, shard: JournalShard) -> None:
        """Advance the clock of a shard that has caught up, close a segment whose day is over, and check the state in Redis."""
        clock, view = self._context.clock, claim.reader_view()
        now_ms = clock.now_ms()
        shard.lag = None if view.stable_offset is None else max(0, view.stable_offset - shard.fence - 1)
        is_known = clock.is_trusted() and is_caught_up(shard.fence, view, now_ms)
        # Only up to the last fetch request: records that arrived later may be unread, and may belong to the former day.
        shard.clock_ms = advanced(shard.clock_ms, min(now_ms, view.fetched_at_ms or now_ms), caught_up=is_known)
        await shard.close_day()
        changed = shard.store.changed  # read before the request: the keeper continues meanwhile
        token, fence, change = await self._context.redis.hmget(self._meta, ["token", "fence", "change"])
        if token is None or fence is None:
            raise FencedError("check", "no-state")
        if token != claim.token.encode():
            raise FencedError("check", "token")
        if int(fence) != shard.fence or int(change or 0) < changed:
            raise FencedError("check", "fence")

    async def _retry(self, step: Callable[[], Awaitable[object]], keeper: Keeper) -> None:
        """Call ``step`` until Redis executes it. Each time Redis is full, remove the oldest closed segment before the next call."""

        async def made_room(error: BaseException) -> bool:
            return isinstance(error, OutOfMemoryError) and await self._made_room(keeper)

        await self._context.outage.retry(step, self, REDIS_ERRORS, made_room)

    async def _made_room(self, keeper: Keeper) -> bool:
        try:
            return await keeper.drop_oldest("memory")
        except REDIS_ERRORS as error:
            logger.debug("cannot drop a segment to make room", exc_info=error)
            return False
