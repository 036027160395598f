"""The processors of one journal: each files the events of one partition of its source.

Redis holds what was filed, with the fence; what is committed to Kafka is for those who watch the lag there. A state that is lost
is filed anew from the log, as far back as the journal keeps events, also below the commit.
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
from streams_app.delivery.clocks import TrustedClock, advanced, is_caught_up
from streams_app.delivery.processor import Claim, OffsetAndMetadata, Processor, Processors
from streams_app.delivery.scripts import FencedError
from streams_app.delivery.tasks import ended, run
from streams_app.health.outage_reporter import OutageReporter
from streams_app.health.progress import Progress
from streams_app.journal.agents.beginning import lost, taken
from streams_app.journal.agents.keeper import Keeper, Keeping
from streams_app.journal.agents.shard import Filing, Shard
from streams_app.journal.agents.throttle import FilingThrottle
from streams_app.journal.store.journal_store import JournalStore, Scripts
from streams_app.journal.store.keys import journal_keys
from streams_app.redis_access.client import REDIS_ERRORS
from streams_app.settings import JournalSettings, Limits

logger = logging.getLogger(__name__)

PAUSE_SECONDS: Final = 1.0
"""A Redis that has failed is asked once more after at most so long: everything that happens waits for it."""

WORDS: Final = {
    "token": "another worker has taken the journal over",
    "fence": "the journal in Redis stands elsewhere than it was left: Redis has lost its last writes",
    "no-state": "Redis has lost the journal",
}
"""Cause of a refusal → the same for people."""


@dataclass(frozen=True, slots=True)
class JournalContext:
    """What the processors of a journal share.

    Attributes:
        app_id: Of the application.
        journal: The journal.
        limits: Of the application.
        redis: The application's Redis.
        scripts: Those of journals there.
        clock: Of the worker.
        keeping: What the keepers of a worker share.
        throttle: Limits filing while the folds of the worker have a backlog.
        patience: How a Redis that fails is waited for, and what is said of it.
        on_filed: Called with each chunk that was filed.
        on_lost: Called with how many offsets retention has removed before they were filed.
    """

    app_id: str
    journal: JournalSettings
    limits: Limits
    redis: Redis
    scripts: Scripts
    clock: TrustedClock
    keeping: Keeping
    throttle: FilingThrottle
    patience: OutageReporter
    on_filed: Callable[[Filing], None] = lambda filing: None
    on_lost: Callable[[int], None] = lambda offsets: None


class JournalProcessors(Processors):
    """Makes the processors of all partitions of a journal."""

    def __init__(self, context: JournalContext) -> None:
        """Claims nothing yet."""
        self.context = context
        self._claimed: dict[TP, JournalProcessor] = {}

    @property
    def topics(self) -> Collection[str]:
        """The source."""
        return (self.context.journal.source,)

    def of(self, tp: TP, committed: Collection[str]) -> dict[str, JournalProcessor]:
        """One processor for each partition, by the name of the journal."""
        self._claimed[tp] = processor = JournalProcessor(tp, self.context)
        return {self.context.journal.name: processor}

    def is_paused(self, topic: str) -> bool:
        """Whether a known pause explains that nothing is filed: Redis is away or full, or folding or compression comes first."""
        if self.context.patience.fault is not None or self.context.throttle.is_limiting:
            return True
        return any(one.is_behind for one in self._claimed.values())

    def shards(self) -> list[Shard]:
        """The shards that this worker has."""
        return [one.shard for one in self._claimed.values() if one.shard is not None]


class JournalProcessor(Processor):
    """See :class:`streams_app.delivery.processor.Processor`.

    One task files events and closes days, so that no two appends of a shard overlap; the keeper works beside it.

    Attributes:
        shard: Its state, while it is ours as far as is known.
    """

    in_flight = 0

    def __init__(self, tp: TP, context: JournalContext) -> None:
        """Nothing is claimed yet."""
        self.shard: Shard | None = None
        self._tp = tp
        self._context = context
        self._batches: deque[Batch] = deque()
        self._wake = asyncio.Event()
        self._is_due = False
        self._served = 0
        self._keeper: Keeper | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_behind(self) -> bool:
        """Whether filing waits until what is over is compressed."""
        return self.shard is not None and self._keeper is not None and self._keeper.is_behind

    # ---- the delivery

    async def claim(self, claim: Claim) -> int:
        """Goes on behind the fence; without a state, begins as far back as the journal keeps events.

        Raises:
            NotOwnerError: Kafka does not take our first commit.
            OtherLogError: What was filed is of another log than the one that is there.
            KafkaError, RedisError, OSError, TimeoutError: Tried again.
        """
        context = self._context
        self._meta = (keys := journal_keys(context.app_id, context.journal.name, *self._tp)).meta
        store = JournalStore(context.scripts, keys, claim.token, claim.member_id)
        if claim.mark is None:
            # Nobody has committed here before: only now Kafka says that the partition is ours.
            await claim.commit_now(OffsetAndMetadata(claim.log_bounds.begin))
        claimed = await taken(store, context.journal, claim, context.clock)
        shard = Shard(context.journal, claim.tp, claim.partitions, context.limits, store, claim.token, claimed)
        logger.info(
            "claimed journal=%s source=%s floor=%d fence=%d state=%s",
            context.journal.name, claim.tp, shard.floor, shard.fence, "new" if claimed.is_new else "kept",
        )  # fmt: skip
        await self._skip_lost(shard, claim)
        self.shard = shard
        self._keeper = keeper = Keeper(shard, context.keeping, self._wake.set)
        name = f"journal {context.journal.name} {self._tp}"
        self._tasks = {
            run(claim, self._work_forever(claim, shard, keeper), name, WORDS),
            run(claim, keeper.run(), f"{name} keeper", WORDS),
        }
        return shard.fence + 1

    def deliver(self, batch: Batch) -> None:
        """Takes the next range."""
        self.in_flight += len(batch.records)
        self._batches.append(batch)
        self._wake.set()

    async def mark(self) -> OffsetAndMetadata | None:
        """Behind the fence; nothing while the state is not ours."""
        return None if self.shard is None else OffsetAndMetadata(self.shard.fence + 1)

    def tick(self, now_ms: int) -> None:
        """A day may be over, and Redis may have lost the state while nothing came."""
        self._is_due = True
        self._wake.set()

    def progress(self, monotonic_ms: int) -> Progress | None:
        """Whether what ticks ask for is done."""
        if self._context.patience.fault is not None or self.shard is None:
            return None
        journal = self._context.journal.name
        why = f"journal {journal} does not check {self._tp}"
        return Progress(self._served, self._served + self._is_due, f"journal={journal} source={self._tp}", why)

    async def revoke(self, seconds: float) -> None:
        """Stops at once; the state stays for the next owner."""
        self.shard = None
        await ended(self._tasks)
        self._context.patience.forget(self)

    async def _skip_lost(self, shard: Shard, claim: Claim) -> None:
        """Files as gone what retention has removed before it was filed."""
        gone = lost(shard.fence, await claim.log_bounds_now())
        if not gone:
            return
        logger.error(
            "retention overtook a journal, its readers are given a gap journal=%s source=%s offsets=%d-%d",
            self._context.journal.name, self._tp, gone[0], gone[-1],
        )  # fmt: skip
        await shard.skip(gone[-1])
        self._context.on_lost(len(gone))

    # ---- working

    async def _work_forever(self, claim: Claim, shard: Shard, keeper: Keeper) -> None:
        while True:
            if self._is_due:
                self._is_due = False
                await self._insist(lambda: self._check_state(claim, shard), keeper)
                self._served += 1
            if self._batches and not keeper.is_behind:
                async with self._context.throttle.turn():
                    await self._file(claim, shard, keeper)
            elif not self._is_due:
                self._wake.clear()
                await self._wake.wait()
            await asyncio.sleep(0)

    async def _file(self, claim: Claim, shard: Shard, keeper: Keeper) -> None:
        """Files the next chunk, for as long as it takes."""
        batch = self._batches.popleft()
        if shard.fence < batch.end - 1:
            filing = shard.filing_of(batch.records, batch.end, self._context.clock.now_ms())
            await self._insist(lambda: shard.write(filing), keeper)
            self._context.on_filed(filing)
            if filing.chunk.begins:  # here, too: however fast events come, there is never more than the share and a segment
                await self._insist(keeper.drop_once, keeper)
                keeper.wake()
        left = batch.since(shard.fence + 1)
        if left.begin < left.end:
            self._batches.appendleft(left)
        self.in_flight -= len(batch.records) - len(left.records)
        claim.on_progress()

    async def _check_state(self, claim: Claim, shard: Shard) -> None:
        """Moves the clock of a shard that has caught up, closes its day, and finds out whether the state is still ours.

        Raises:
            FencedError: It is not.
        """
        clock, view = self._context.clock, claim.reader_view()
        now_ms = clock.now_ms()
        shard.lag = None if view.stable_offset is None else max(0, view.stable_offset - shard.fence - 1)
        is_known = clock.is_trusted() and is_caught_up(shard.fence, view, now_ms)
        # Until the last fetch was asked for, and no longer: what has come since may be unread, and of the day before.
        shard.clock_ms = advanced(shard.clock_ms, min(now_ms, view.fetched_at_ms or now_ms), caught_up=is_known)
        await shard.close_day()
        changed = shard.store.changed  # before it is asked: the keeper goes on meanwhile
        token, fence, change = await self._context.redis.hmget(self._meta, ["token", "fence", "change"])
        if token is None or fence is None:
            raise FencedError("check", "no-state")
        if token != claim.token.encode():
            raise FencedError("check", "token")
        if int(fence) != shard.fence or int(change or 0) < changed:
            raise FencedError("check", "fence")

    async def _insist(self, step: Callable[[], Awaitable[object]], keeper: Keeper) -> None:
        """Does something in Redis as soon as that works; where Redis is full, the oldest closed segment goes first.

        Raises:
            FencedError: The state is not as it was left.
        """
        patience = self._context.patience
        while True:
            try:
                await step()
            except REDIS_ERRORS as error:
                wait_ms = patience.failed(error, self)
                if isinstance(error, OutOfMemoryError) and await self._made_room(keeper):
                    continue
                await asyncio.sleep(min(wait_ms / 1000, PAUSE_SECONDS))
            else:
                patience.succeeded(self)
                return

    async def _made_room(self, keeper: Keeper) -> bool:
        try:
            return await keeper.drop_oldest("memory")
        except REDIS_ERRORS as error:
            logger.debug("nothing could be dropped", exc_info=error)
            return False
