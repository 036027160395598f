"""Claim of a partition: verify the ownership with Kafka, take over the processors' state, seek the reader.

A claim first commits the already committed offset once more, under its own consumer-group generation. If Kafka rejects that commit,
this member does not own the partition. A partition without a commit is claimed without this check. Then each processor takes
over its state, and the reader seeks to the lowest offset that a processor needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from streams_app.delivery.batch import TP
from streams_app.delivery.claim import LogBounds
from streams_app.delivery.clocks import TrustedClock
from streams_app.delivery.commits import Commits
from streams_app.delivery.group_consumer import GroupConsumer, Member, NotOwnerError
from streams_app.delivery.offset_metadata import check_format, offsets_in, offsets_of
from streams_app.delivery.partition import Owner, Partition, PartitionClaim
from streams_app.delivery.processor import NO_OFFSET, Processors
from streams_app.delivery.ranges import ServedProcessor

T = TypeVar("T")


class Claimer:
    """Claims the partitions that the group assigned to this member. One claim covers all processors of a partition."""

    def __init__(self, group_consumer: GroupConsumer, processors: Processors, clock: TrustedClock, commits: Commits) -> None:
        self._group_consumer = group_consumer
        self._processors = processors
        self._clock = clock
        self._commits = commits

    async def claim_once(self, tp: TP, generation: int, owner: Owner, *, was_reset: bool) -> Partition:
        """Claim a partition for all its processors, and return it.

        The reader seeks to the lowest offset that a processor needs, and then stays paused. If the claim fails, its
        processors are ended.

        Args:
            was_reset: Whether the client has just reset its position in this partition by itself.

        Raises:
            NotOwnerError: Kafka rejected the commit, or a rebalance began during the claim.
            FencedError: Another owner took over the state during the claim.
            NewerFormatError: A newer version has written the commit or a state of the partition, in a format of its own.
            ImpossibleClaimError: An operator must act, for example because the topic was deleted and created again.
            ConfigurationError: The offsets of the partition's processors do not fit into a commit.
            KafkaError, RedisError, OSError, TimeoutError: A dependency failed; retry the claim.
        """
        member = Member(generation, self._group_consumer.member_id)
        partition = Partition(tp, member, self._group_consumer, owner, self._commits, self._clock)
        try:
            # Kafka must confirm the ownership before any state is touched, so that a wrong member does not take over the state.
            await self._ask_kafka(partition)
            bounds = await self._claim_all(partition, was_reset=was_reset)
            self._check_generation(generation)
            lowest = min(served.next for served in partition.ranges.served.values())
            position = bounds.end if lowest == NO_OFFSET else lowest
            seek_number = await self._group_consumer.seek(tp, position)
            self._check_generation(generation)
        except BaseException:  # Also on cancellation: end the processors that have started.
            await partition.end(0.0)
            raise
        partition.ranges.begin(position, seek_number, self._clock.monotonic_ms())
        return partition

    async def _ask_kafka(self, partition: Partition) -> None:
        """Create the processors of a partition, and restore their offsets from its commit."""
        group_consumer, tp = self._group_consumer, partition.tp
        # Read and commit under one lock: otherwise this commit could undo another one made in between.
        async with self._commits.lock:
            committed = await group_consumer.committed(tp)
            if committed is not None:
                check_format(tp, committed.metadata)
            in_commit = None if committed is None else offsets_in(committed)
            made = self._processors.of(tp, list(in_commit or ()))
            partition.ranges.served = {name: ServedProcessor(processor) for name, processor in made.items()}
            if committed is not None:
                partition.offsets.restore(committed, offsets_of(committed, made))
                # Kafka rejects this commit under a stale generation. Until then, no state has been touched.
                await self._commits.send({tp: partition.offsets.committed or committed}, partition.member)

    async def _claim_all(self, partition: Partition, *, was_reset: bool) -> LogBounds:
        """Run the claims of all processors concurrently, and return the bounds of the log."""
        group_consumer, tp = self._group_consumer, partition.tp
        partition.incarnation = (await group_consumer.incarnations(tp.topic)).get(tp.partition)
        topic_id = await group_consumer.topic_id(tp.topic) if partition.incarnation is None else partition.incarnation.topic_id
        bounds = await partition.log_bounds_now()
        positions, first_commit = partition.offsets.by_name, partition.offsets.first_commit
        first_commit.expect(partition.ranges.served.keys() - positions.keys())
        claims = {
            name: PartitionClaim(
                tp,
                name,
                *partition.member,
                positions.get(name),
                bounds,
                group_consumer.partition_count(tp.topic),
                topic_id,
                was_reset,
                partition,
            )
            for name in partition.ranges.served
        }

        async def claim(name: str, served: ServedProcessor) -> None:
            try:
                served.next = await served.processor.claim(claims[name])
            finally:
                first_commit.discard(name)

        await together([claim(name, served) for name, served in partition.ranges.served.items()])
        return bounds

    def _check_generation(self, generation: int) -> None:
        if generation != self._group_consumer.generation:
            raise NotOwnerError("a new generation began")


async def together(steps: list[Coroutine[Any, Any, T]]) -> None:
    """Run coroutines concurrently; if one fails, cancel the others and raise its error."""
    tasks = [asyncio.ensure_future(step) for step in steps]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
