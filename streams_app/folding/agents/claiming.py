"""One claim of one partition: Kafka is asked, Redis is told, the log's edges are looked at, the reader is moved.

A claim asks Kafka first. The claimant commits the committed offset once more under its own consumer-group generation; if
Kafka refuses, the partition is not ours, whatever Redis remembers. Then every shard of the partition is claimed in Redis, the
log's edges are looked at, and the reader is moved to the lowest ``fence + 1``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping

from streams_app.delivery.batch import TP
from streams_app.delivery.commits import NotOwnerError
from streams_app.delivery.marks import began_of, began_with, commit_of, marks_of
from streams_app.delivery.packed_marks import too_long
from streams_app.errors import ConfigurationError
from streams_app.fold import Fold
from streams_app.folding.agents import drained as retired
from streams_app.folding.agents.emission import Emitter
from streams_app.folding.agents.lag import ShardKey
from streams_app.folding.agents.parts import Hooks, Parts
from streams_app.folding.agents.processor import Partition
from streams_app.folding.reading.by_functions import reader_of
from streams_app.folding.shard.shard import Shard
from streams_app.folding.store.keys import shard_keys
from streams_app.folding.store.shard_store import ShardStore
from streams_app.kafka.consumer import FoldingConsumer

logger = logging.getLogger(__name__)


class OtherLogError(Exception):
    """What has been folded is not the log that is there now.

    Attributes:
        fold: Whose state says so.
    """

    def __init__(self, tp: TP, fold: str, what: str) -> None:
        super().__init__(f"{tp.topic}-{tp.partition} {what}")
        self.fold = fold


def is_another(folded: str, present: str) -> bool:
    """Whether a topic was made again (pure).

    Args:
        folded: Id of the topic whose events have been folded; "" in a state of before ids were kept: it adopts what is there.
        present: Id of the topic that is there; "" where the broker gives none: then nobody can tell.
    """
    return bool(folded and present and folded != present)


class Claimer:
    """Makes partitions out of assignments."""

    def __init__(
        self,
        parts: Parts,
        consumer: Callable[[], FoldingConsumer],
        generation: Callable[[], int],
        hooks: Hooks,
        committing: asyncio.Lock,
    ) -> None:
        """Claims nothing yet; ``committing`` is held by whoever commits."""
        self._parts = parts
        self._consumer = consumer
        self._generation = generation
        self._hooks = hooks
        self._committing = committing
        self._with_state: set[ShardKey] = set()
        self.folds: dict[str, list[Fold]] = {}
        for fold in parts.settings.folds:
            self.folds.setdefault(fold.source, []).append(fold)
        self._readers = {fold.name: reader_of(fold, parts.settings.limits) for fold in parts.settings.folds}

    async def claim_once(self, tp: TP, generation: int, *, was_reset: bool) -> Partition:
        """Claims every shard of a partition and places its reader; the partition is not started yet.

        Args:
            tp: The partition.
            generation: Of the consumer group.
            was_reset: The client has just reset its position in this partition by itself.

        Raises:
            NotOwnerError: Kafka refused, or a rebalance came between.
            RefusedError: Another owner came between.
            OtherLogError: The topic was deleted and made again.
            ConfigurationError: The marks of its folds, declared or not any more, do not fit into a commit.
            KafkaError, RedisError, OSError, TimeoutError: To be tried again.
        """
        consumer = self._consumer()
        partition = self._new_partition(tp, generation)
        topic_id = await self._same_topic(tp, partition)
        # Read and committed in one piece: a commit that slipped between would be taken back by ours.
        async with self._committing:
            marks, began = await self._marks(tp, partition)
            _check_size(tp, marks, began, [shard.fold.name for shard in partition.shards])
            # Kafka decides who owns: under a stale generation this commit is refused and nothing has been touched.
            await consumer.commit_offsets({tp: commit_of(marks, began)})
        partition.marks, partition.began = marks, began
        partition.committed = commit_of(marks, began)
        count = consumer.partition_count(tp.topic)
        for shard in partition.shards:
            await shard.claim(marks[shard.fold.name], count, topic_id)
        partition.retired = await retired.claimed(tp, marks, (shard.fold.name for shard in partition.shards), count, self._parts)
        asked_ms = self._hooks.clock.now_ms()
        begin, end = await consumer.log_range(tp)
        for shard, emitter in zip(partition.shards, partition.emitters, strict=True):
            self._tell_of_lost_state(shard, partition.resumed.get(shard.fold.name, 0), begin)
            # The end a broker names is not proof enough (the embedded one names the last batch's first record): only a reader
            # that was thrown back tells that what was folded is gone.
            if was_reset and shard.fence + 1 > end:
                about = f"ends at offset {end}, but fold {shard.fold.name!r} has folded up to {shard.fence}"
                raise OtherLogError(tp, shard.fold.name, about)
            if shard.fence + 1 < begin:
                await self._skip_lost(shard, emitter, marks[shard.fold.name], begin)
            if shard.fence + 1 >= end:
                # Whatever is read from here on arrived after this moment.
                shard.caught_up_at_ms = asked_ms
        if generation != self._generation():
            raise NotOwnerError("a new generation began")
        partition.position = min(shard.fence for shard in partition.shards) + 1
        partition.seek_number = await consumer.seek_to(tp, partition.position)
        if generation != self._generation():
            raise NotOwnerError("a new generation began")
        return partition

    async def _same_topic(self, tp: TP, partition: Partition) -> str:
        """The id of the topic; refuses one that is not the one whose events have been folded.

        Before anything is committed: a mark or a watermark of the former log would look like one of the new.
        """
        topic_id = await self._consumer().topic_id(tp.topic)
        for shard in partition.shards:
            folded = await shard.store.topic_id()
            if is_another(folded, topic_id):
                raise OtherLogError(tp, shard.fold.name, f"is another log than the one fold {shard.fold.name!r} has folded")
        return topic_id

    async def _marks(self, tp: TP, partition: Partition) -> tuple[dict[str, int], dict[str, int]]:
        """The mark of every fold: from the commit; of a new fold from its state, else by its ``start``.

        Returns:
            Fold → mark; fold → partitions of the source when it began, where that was asked.
        """
        consumer = self._consumer()
        committed = await consumer.committed(tp)
        marks = {} if committed is None else marks_of(committed, (shard.fold.name for shard in partition.shards))
        began = {} if committed is None else began_of(committed)
        edges: tuple[int, int] | None = None
        for shard in partition.shards:
            if shard.fold.name in marks:
                partition.resumed[shard.fold.name] = marks[shard.fold.name]
                continue
            # Kafka may have forgotten the offset while Redis did not: then its watermark is the truth.
            low = await shard.store.watermark()
            if low is None:
                edges = edges or await consumer.log_range(tp)
                low = edges[0]
                if shard.fold.start == "latest":
                    others = await consumer.commits(tp.topic)
                    count = began_with(shard.fold.name, tp.partition, others, consumer.partition_count(tp.topic))
                    low = edges[1] if tp.partition < count else edges[0]
                    began[shard.fold.name] = count
            marks[shard.fold.name] = low
        return marks, began

    def _tell_of_lost_state(self, shard: Shard, mark: int, begin: int) -> None:
        """Warns if Redis has nothing of a shard that had been folded: by this process, or by the mark in the commit."""
        key = shard.fold.name, TP(shard.topic, shard.partition)
        if shard.is_new and (key in self._with_state or mark > begin):
            logger.warning(
                "Redis has lost its state: folding again from %d, records may overlap fold=%s source=%s-%d",
                shard.fence + 1, shard.fold.name, shard.topic, shard.partition,
            )  # fmt: skip
        self._with_state.add(key)

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
        for fold in self.folds[tp.topic]:
            keys = shard_keys(parts.settings.app_id, fold.name, tp.topic, tp.partition)
            shards.append(Shard(fold, tp.topic, tp.partition, ShardStore(parts.scripts, keys)))
        emitters = [
            Emitter(
                shard, parts.producer, self._hooks.clock, parts.metrics,
                view=lambda: self._consumer().reader_view(tp)[0], trusted=self._hooks.clock.is_trusted,
            )
            for shard in shards
        ]  # fmt: skip
        partition = Partition(tp, shards, self._readers, emitters, parts, self._hooks)
        partition.generation = generation
        return partition


def _check_size(tp: TP, marks: Mapping[str, int], began: Mapping[str, int], declared: Collection[str]) -> None:
    """Refuses marks that may outgrow a commit: nothing would ever be committed any more."""
    fault = too_long(tp.topic, list(marks), began)
    if fault is not None:
        gone = sorted(set(marks) - set(declared))
        advice = [f"`streams-app reset --fold {name}` removes the mark of a fold that is not declared any more" for name in gone]
        raise ConfigurationError([fault, *advice])
