"""Which partitions this process owns: claims, resyncs, revocations, commits.

Claims (see :mod:`streams_app.folding.agents.claiming`) run in the background, each with a deadline, while the partition
stays paused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from streams_app.delivery.batch import TP, Batch
from streams_app.delivery.commits import Committed, NotOwnerError
from streams_app.delivery.partition_clock import SKEW_MS
from streams_app.delivery.patience import BACKOFF_SECONDS, DEPENDENCY_ERRORS, Patience
from streams_app.delivery.progress import UNCLAIMED
from streams_app.delivery.trusted_clock import TrustedClock
from streams_app.errors import ConfigurationError, text_of
from streams_app.folding.agents.claiming import Claimer, OtherLogError
from streams_app.folding.agents.known import LastKnown
from streams_app.folding.agents.lag import ShardKey
from streams_app.folding.agents.parts import Hooks, Parts
from streams_app.folding.agents.processor import RESET, WAITING_BATCHES, Partition
from streams_app.folding.store.replies import CAUSES, RefusedError
from streams_app.kafka.consumer import FoldingConsumer

logger = logging.getLogger(__name__)

CLAIM_SECONDS: Final = 30.0
REVOKE_SECONDS: Final = 4.0
IDLE_MS: Final = 10_000
LONG_AGO_MS: Final = 60_000


class Ownership:
    """Claims and releases the partitions that the consumer group assigns to this process."""

    def __init__(
        self,
        parts: Parts,
        consumer: Callable[[], FoldingConsumer],
        generation: Callable[[], int],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self.partitions: dict[TP, Partition] = {}
        self.assignment: set[TP] = set()
        self.known = LastKnown()
        self._parts = parts
        self._consumer = consumer
        self._generation = generation
        self._on_fatal = on_fatal
        self._claims: dict[TP, asyncio.Task[None]] = {}
        self._reset: set[TP] = set()
        self._stuck: dict[TP, tuple[int, int, int]] = {}
        self._ticked: set[Partition] = set()
        self._skewed = self._is_commit_failing = False
        self._clock = TrustedClock(parts.clock)
        self.folds = parts.settings.folds
        self._committing = asyncio.Lock()
        hooks = Hooks(self._refused, self._flow, on_fatal, self._clock)
        self._claimer = Claimer(parts, consumer, generation, hooks, self._committing)

    # ---- assignment

    def assigned(self, generation: int) -> None:
        """Claims whatever the group has assigned, in the background."""
        assignment = {tp for tp in self._consumer().assignment() if tp.topic in self._claimer.folds}
        self.assignment = assignment
        for tp in list(self.partitions):
            self._let_go(tp)
        self._parts.producer.forget_trouble()
        self._parts.status.clear("start")
        self._parts.status.clear("claim")
        for tp in assignment:
            self._parts.status.set_not_ready("claim", f"claiming {len(assignment)} partitions")
            self._claim_soon(tp, generation)

    async def revoked(self, tps: Iterable[TP]) -> None:
        """Lets go of partitions and commits their marks, within a few seconds."""
        held = [self.partitions[tp] for tp in tps if tp in self.partitions]
        for tp in tps:
            self._let_go(tp)
        if held:
            try:
                async with asyncio.timeout(REVOKE_SECONDS):
                    await self._commit(held)
            except TimeoutError:
                logger.info("commit on revocation not answered in time; the next owner folds a little again")

    async def stop(self) -> None:
        """Releases everything after a last commit."""
        await self.revoked(list(self.partitions) + list(self._claims))

    def _let_go(self, tp: TP) -> None:
        claim = self._claims.pop(tp, None)
        if claim is not None and claim is not asyncio.current_task():
            claim.cancel()
        partition = self.partitions.pop(tp, None)
        if partition is not None:
            partition.release()

    def _claim_soon(self, tp: TP, generation: int, delay_seconds: float = 0.0) -> None:
        self._let_go(tp)
        task = asyncio.create_task(self._claim_forever(tp, generation, delay_seconds), name=f"claim {tp}")
        self._claims[tp] = task
        task.add_done_callback(self._claim_ended)

    def _claim_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_fatal(error)

    # ---- claim

    async def _claim_forever(self, tp: TP, generation: int, delay_seconds: float) -> None:
        await asyncio.sleep(delay_seconds)
        patience = Patience(self._parts.clock, self._parts.settings.kafka.session_timeout_ms)
        while generation == self._generation() and tp in self._consumer().assignment():
            try:
                async with asyncio.timeout(CLAIM_SECONDS):
                    partition = await self._claimer.claim_once(tp, generation, was_reset=tp in self._reset)
            except OtherLogError as error:
                advice = f"the topic was deleted and made again. Run `streams-app reset --fold {error.fold}` to begin anew."
                raise ConfigurationError([f"{error}: {advice}"]) from error
            except (NotOwnerError, RefusedError, *DEPENDENCY_ERRORS) as error:
                if isinstance(error, DEPENDENCY_ERRORS):
                    self._parts.status.set_not_ready("claim", f"cannot claim {tp.topic}-{tp.partition}: {text_of(error)}")
                await asyncio.sleep(patience.failed(tp, error))
                continue
            self._reset.discard(tp)
            self._claims.pop(tp, None)
            # Redis and the broker have just answered. Whoever waits for them still says so again with the next try.
            for about in ("redis", "redis-memory"):
                self._parts.status.clear(about)
            if not self._claims:
                self._parts.status.clear("claim")
            # Nothing is awaited from here on: a revocation finds either the claim or the partition.
            self.partitions[tp] = partition
            partition.start()
            self._consumer().resume_partitions({tp})
            return
        self._claims.pop(tp, None)

    # ---- resync and flow

    def _refused(self, partition: Partition, script: str, cause: str) -> None:
        """A refusal or a hole: claim again, from the commit on."""
        if self.partitions.get(partition.tp) is not partition:
            return
        why = CAUSES.get(cause, cause)
        logger.warning("claiming again: %s source=%s script=%s cause=%s", why, partition.source, script, cause)
        if cause == RESET:
            self._reset.add(partition.tp)
        for shard in partition.shards:
            self._parts.metrics.resyncs.labels(fold=shard.fold.name, cause=cause).inc()
        self._consumer().pause_partitions({partition.tp})
        self._claim_soon(partition.tp, partition.generation, self._delay_seconds(partition, CAUSES.get(cause, cause)))

    def _delay_seconds(self, partition: Partition, why: str) -> float:
        """Until the next claim: longer each time a partition is refused again before it got any further."""
        fence, now_ms = min(shard.fence for shard in partition.shards), self._parts.clock.monotonic_ms()
        stood_at, times, before_ms = self._stuck.get(partition.tp, (-1, -1, -LONG_AGO_MS))
        times = times + 1 if fence == stood_at and now_ms - before_ms < LONG_AGO_MS else 0
        self._stuck[partition.tp] = fence, times, now_ms
        if times >= len(BACKOFF_SECONDS):
            about = f"{partition.tp.topic}-{partition.tp.partition} is claimed again and again ({why}), see the log"
            self._parts.status.set_not_ready("claim", about)
        return BACKOFF_SECONDS[min(times, len(BACKOFF_SECONDS) - 1)]

    def deliver(self, batch: Batch) -> None:
        """Hands a fetched range to its partition; unclaimed partitions drop it, their claim reads it again."""
        partition = self.partitions.get(batch.tp)
        if partition is not None:
            partition.deliver(batch)
            self._flow(partition)

    def _flow(self, partition: Partition) -> None:
        """Pauses the reader of a partition that cannot keep up; no other partition waits for it."""
        if self.partitions.get(partition.tp) is not partition:
            return
        full = partition.waiting >= WAITING_BATCHES
        if full and not partition.is_paused:
            self._consumer().pause_partitions({partition.tp})
        elif not full and partition.is_paused:
            self._consumer().resume_partitions({partition.tp})
        partition.is_paused = full

    def held(self) -> int:
        """Records that were delivered and are not folded yet."""
        return sum(partition.held for partition in self.partitions.values())

    def positions(self) -> dict[TP, int]:
        """Next offset to be folded of every partition the group has assigned; -1 while it is not claimed.

        Safe to call from any thread.
        """
        held = dict(self.partitions)
        assigned = {tp for tp in self._consumer().assignment() if tp.topic in self._claimer.folds}
        return {tp: min(shard.fence for shard in held[tp].shards) + 1 if tp in held else UNCLAIMED for tp in assigned}

    def fences(self) -> dict[ShardKey, int]:
        """Highest offset folded of every shard held here; safe to call from any thread."""
        return {
            (shard.fold.name, tp): shard.fence for tp, partition in self.partitions.copy().items() for shard in partition.shards
        }

    def read_end(self, tp: TP) -> int | None:
        """End of a partition as the last fetch named it; safe to call from any thread."""
        return self._consumer().reader_view(tp)[0].stable_offset

    # ---- every tick

    def look_once(self) -> None:
        """Notes what is known of every shard, for the gauges and for the watchdog."""
        held = [(emitter.shard, emitter.acknowledged) for partition in self.partitions.values() for emitter in partition.emitters]
        self.known.look(held, self.assignment, self._clock.now_ms(), self._parts.clock.monotonic_ms())

    async def check_skew_once(self) -> None:
        """Compares the wall clock with Redis ``TIME``; too far apart, no partition clock follows it.

        For the first time before anything is claimed: a clock that is ahead would close every group, and be left to the next owner.
        """
        asked = self._clock.read()
        seconds, micros = await self._parts.scripts.redis.time()
        self._clock.compare(asked, seconds * 1000 + micros // 1000)
        skew = self._clock.skew_ms
        if (abs(skew) > SKEW_MS) != self._skewed:
            self._skewed = not self._skewed
            if self._skewed:
                self._parts.status.set_not_ready("clock-skew", f"wall clock and Redis TIME are {skew} ms apart")
                logger.error("wall clock differs from Redis TIME, partition clocks stand still skew_ms=%d", skew)
            else:
                self._parts.status.clear("clock-skew")
                logger.info("wall clock agrees with Redis TIME again")

    def tick_once(self) -> None:
        """Wakes emission and notices a reader that is ahead of a fence with nothing on its way.

        Partitions are woken one after the other, evenly over the tick: all at once they would wait for each other, and folding for
        them. One that has been claimed since the last tick is woken now, too, as it may not have its turn for another one.
        """
        now = self._parts.clock.monotonic_ms()
        loop, tick_seconds = asyncio.get_running_loop(), self._parts.settings.worker.tick_ms / 1000
        partitions = list(self.partitions.values())
        ticked, self._ticked = self._ticked, set(partitions)
        for place, partition in enumerate(partitions):
            if partition not in ticked:
                partition.tick()
            # If it is released by then, nobody waits for it.
            loop.call_later(tick_seconds * place / len(partitions), partition.tick)
            _, position = self._consumer().reader_view(partition.tp)
            fence = min(shard.fence for shard in partition.shards)
            ahead = position is not None and position > fence + 1
            if position is not None and position < partition.position:
                self._refused(partition, "fold", RESET)
            elif ahead and not partition.waiting and now - partition.progress_ms > IDLE_MS:
                self._refused(partition, "fold", "idle")

    # ---- commit

    async def commit_once(self) -> None:
        """Commits the low watermark of every partition that has one to commit."""
        await self._commit(list(self.partitions.values()))

    async def _commit(self, partitions: Iterable[Partition]) -> None:
        async with self._committing:
            offsets: dict[TP, Committed] = {}
            try:
                for partition in partitions:
                    low = await partition.low_marks()
                    if low is not None and low != partition.committed:
                        offsets[partition.tp] = low
                if not offsets:
                    return
                await self._consumer().commit_offsets(offsets)
            except NotOwnerError as error:
                logger.info("commit refused, a rebalance is under way error=%s", error)
            except DEPENDENCY_ERRORS as error:
                level = logging.DEBUG if self._is_commit_failing else logging.WARNING
                logger.log(level, "commit not made, tried again until it is error=%s", text_of(error))
                self._is_commit_failing = True
            else:
                self._is_commit_failing = False
                for partition in partitions:
                    partition.committed = offsets.get(partition.tp, partition.committed)
