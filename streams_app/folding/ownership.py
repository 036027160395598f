"""Which partitions this process owns: claims, resyncs, revocations, commits.

A claim asks Kafka first. The claimant commits the committed offset once more under its own consumer-group generation; if
Kafka refuses, the partition is not ours, whatever Redis remembers. Then every shard of the partition is claimed in Redis, the
log's edges are looked at, and the reader is moved to the lowest ``fence + 1``.

Claims run in the background, each with a deadline, while the partition stays paused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from aiokafka.errors import KafkaError
from faust.types import TP
from redis.exceptions import RedisError

from streams_app.clock import Clock
from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.folding.definition import Fold
from streams_app.folding.emitter import Emitter
from streams_app.folding.keys import shard_keys
from streams_app.folding.partition import WAITING_BATCHES, Partition
from streams_app.folding.partition_clock import SKEW_MS
from streams_app.folding.reader import EventReader
from streams_app.folding.shard import Shard
from streams_app.folding.store import RefusedError, ScriptSet, ShardStore
from streams_app.kafka.batches import Batch
from streams_app.kafka.consumer import Committed, FoldingConsumer, NotOwnerError
from streams_app.kafka.marks import commit_of, marks_of
from streams_app.kafka.producer import AckedProducer
from streams_app.metrics import Metrics
from streams_app.settings import Settings
from streams_app.status import Status

logger = logging.getLogger(__name__)

CLAIM_SECONDS: Final = 30.0
REVOKE_SECONDS: Final = 4.0
IDLE_MS: Final = 10_000
BACKOFF_SECONDS: Final = (0.05, 0.2, 0.5, 1.0, 2.0)
DEPENDENCY_ERRORS: Final = (KafkaError, RedisError, OSError, TimeoutError)


@dataclass(slots=True)
class Parts:
    """What every partition is built from."""

    settings: Settings
    scripts: ScriptSet
    producer: AckedProducer
    clock: Clock
    metrics: Metrics
    status: Status


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
        self._parts = parts
        self._consumer = consumer
        self._generation = generation
        self._on_fatal = on_fatal
        self._claims: dict[TP, asyncio.Task[None]] = {}
        self._committing = asyncio.Lock()
        self._skewed = False
        self._folds: dict[str, list[Fold]] = {}
        for fold in parts.settings.folds:
            self._folds.setdefault(fold.source, []).append(fold)
        self.folds = parts.settings.folds
        self._readers = {fold.name: EventReader(fold, parts.settings.limits) for fold in parts.settings.folds}

    # ---- assignment

    def assigned(self, generation: int) -> None:
        """Claims whatever the group has assigned, in the background."""
        assignment = {tp for tp in self._consumer().assignment() if tp.topic in self._folds}
        for tp in list(self.partitions):
            self._let_go(tp)
        for tp in assignment:
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
        attempt, refused_ms = 0, None
        clock = self._parts.clock
        give_up_ms = 3 * self._parts.settings.kafka.session_timeout_ms + 10_000
        while generation == self._generation() and tp in self._consumer().assignment():
            try:
                async with asyncio.timeout(CLAIM_SECONDS):
                    await self._claim_once(tp, generation)
            except NotOwnerError as error:
                refused_ms = clock.monotonic_ms() if refused_ms is None else refused_ms
                logger.info("claim refused by Kafka, waiting for a new generation source=%s error=%s", tp, error)
                if clock.monotonic_ms() - refused_ms > give_up_ms:
                    raise TryAgainError(f"Kafka refuses our commits for {tp} and no rebalance follows: not the owner") from error
            except RefusedError as refused:
                logger.info("claim overtaken, trying again source=%s cause=%s", tp, refused.cause)
            except DEPENDENCY_ERRORS as error:
                self._parts.status.set_not_ready("claim", f"cannot claim {tp}: {error!r}")
                if attempt == 0:
                    logger.warning("cannot claim yet, trying again source=%s error=%r", tp, error)
            else:
                self._claims.pop(tp, None)
                if not self._claims:
                    self._parts.status.clear("claim")
                return
            await asyncio.sleep(BACKOFF_SECONDS[min(attempt, len(BACKOFF_SECONDS) - 1)])
            attempt += 1
        self._claims.pop(tp, None)

    async def _claim_once(self, tp: TP, generation: int) -> None:
        consumer = self._consumer()
        partition = self._new_partition(tp, generation)
        marks = await self._marks(tp, partition)
        # Kafka decides who owns: under a stale generation this commit is refused and nothing has been touched.
        await consumer.commit_offsets({tp: commit_of(marks)})
        partition.marks = marks
        partition.committed = commit_of(marks)
        count = consumer.partition_count(tp.topic)
        for shard in partition.shards:
            await shard.claim(marks[shard.fold.name], count)
        begin, end = await consumer.log_range(tp)
        for shard, emitter in zip(partition.shards, partition.emitters, strict=True):
            if shard.fence + 1 > end:
                self._refuse_recreated(tp, shard, end)
            if shard.fence + 1 < begin:
                await self._skip_lost(shard, emitter, marks[shard.fold.name], begin)
        if generation != self._generation():
            raise NotOwnerError("a new generation began")
        partition.position = min(shard.fence for shard in partition.shards) + 1
        partition.seek_number = await consumer.seek_to(tp, partition.position)
        if generation != self._generation():
            raise NotOwnerError("a new generation began")
        self.partitions[tp] = partition
        partition.start()
        consumer.resume_partitions({tp})

    async def _marks(self, tp: TP, partition: Partition) -> dict[str, int]:
        """The mark of every fold: from the commit; of a new fold from its state, else by its ``start``."""
        committed = await self._consumer().committed(tp)
        marks = {} if committed is None else marks_of(committed, (shard.fold.name for shard in partition.shards))
        edges: tuple[int, int] | None = None
        for shard in partition.shards:
            if shard.fold.name in marks:
                continue
            # Kafka may have forgotten the offset while Redis did not: then its watermark is the truth.
            low = await shard.store.watermark()
            if low is None:
                edges = edges or await self._consumer().log_range(tp)
                low = edges[0] if shard.fold.start == "earliest" else edges[1]
            marks[shard.fold.name] = low
        return marks

    def _refuse_recreated(self, tp: TP, shard: Shard, end: int) -> None:
        raise ConfigurationError(
            [
                f"{tp.topic}-{tp.partition} ends at offset {end}, but fold {shard.fold.name!r} has folded up to {shard.fence}: "
                f"the topic was deleted and made again. Run `streams-app reset --fold {shard.fold.name}` to begin anew."
            ]
        )

    async def _skip_lost(self, shard: Shard, emitter: Emitter, mark: int, begin: int) -> None:
        """Retention overtook the worker: says so first, lets open groups go, then moves the fence."""
        lost_from = max(shard.fence + 1, mark)
        if lost_from < begin:
            logger.error(
                "known loss: retention removed events before they were folded fold=%s source=%s-%d offsets=%d-%d",
                shard.fold.name, shard.topic, shard.partition, lost_from, begin - 1,
            )  # fmt: skip
            self._parts.metrics.known_loss_events.labels(fold=shard.fold.name).inc(begin - lost_from)
        await emitter.drain()
        await shard.skip_to(begin - 1)

    def _new_partition(self, tp: TP, generation: int) -> Partition:
        parts = self._parts
        shards = []
        for fold in self._folds[tp.topic]:
            keys = shard_keys(parts.settings.app_id, fold.name, tp.topic, tp.partition)
            shards.append(Shard(fold, tp.topic, tp.partition, ShardStore(parts.scripts, keys)))
        emitters = [
            Emitter(
                shard, parts.producer, parts.clock, parts.metrics,
                view=lambda: self._consumer().reader_view(tp)[0], trusted=self.is_clock_trusted,
            )
            for shard in shards
        ]  # fmt: skip
        partition = Partition(
            tp, shards, self._readers, emitters,
            producer=parts.producer, limits=parts.settings.limits, clock=parts.clock, metrics=parts.metrics,
            status=parts.status, on_refused=self._refused, on_backlog=self._flow, on_crash=self._on_fatal,
            trusted=self.is_clock_trusted,
        )  # fmt: skip
        partition.generation = generation
        return partition

    # ---- resync and flow

    def _refused(self, partition: Partition, script: str, cause: str) -> None:
        """A refusal or a hole: claim again, from the commit on."""
        if self.partitions.get(partition.tp) is not partition:
            return
        logger.warning("resync script=%s cause=%s source=%s", script, cause, partition.tp)
        for shard in partition.shards:
            self._parts.metrics.resyncs.labels(fold=shard.fold.name, cause=cause).inc()
        self._consumer().pause_partitions({partition.tp})
        self._claim_soon(partition.tp, partition.generation, delay_seconds=BACKOFF_SECONDS[0])

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

    # ---- every tick

    def is_clock_trusted(self) -> bool:
        """False while the wall clock is too far from that of Redis."""
        return not self._skewed

    async def check_skew_once(self) -> None:
        """Compares the wall clock with Redis ``TIME``; too far apart, no partition clock follows it."""
        before = self._parts.clock.now_ms()
        seconds, micros = await self._parts.scripts.redis.time()
        after = self._parts.clock.now_ms()
        theirs = seconds * 1000 + micros // 1000
        skew = before - theirs if theirs < before else max(0, theirs - after)
        if (abs(skew) > SKEW_MS) != self._skewed:
            self._skewed = not self._skewed
            if self._skewed:
                self._parts.status.set_not_ready("clock-skew", f"wall clock and Redis TIME are {skew} ms apart")
                logger.error("wall clock differs from Redis TIME, partition clocks stand still skew_ms=%d", skew)
            else:
                self._parts.status.clear("clock-skew")
                logger.info("wall clock agrees with Redis TIME again")

    def tick_once(self) -> None:
        """Wakes emission and notices a reader that is ahead of a fence with nothing on its way."""
        now = self._parts.clock.monotonic_ms()
        for partition in list(self.partitions.values()):
            partition.tick()
            _, position = self._consumer().reader_view(partition.tp)
            fence = min(shard.fence for shard in partition.shards)
            ahead = position is not None and position > fence + 1
            if ahead and not partition.waiting and now - partition.progress_ms > IDLE_MS:
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
                logger.warning("commit not made, the next one will be error=%r", error)
            else:
                for partition in partitions:
                    partition.committed = offsets.get(partition.tp, partition.committed)
