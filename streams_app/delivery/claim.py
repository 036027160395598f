"""One claim of one partition: Kafka is asked, its processors take their state, the reader is moved.

A claim asks Kafka first. The claimant commits the committed offset once more under its own consumer-group generation; if
Kafka refuses, the partition is not ours, whatever anybody else remembers. Then every processor of the partition takes its
state, and the reader is moved to the lowest offset that one of them wants.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from streams_app.delivery.batch import TP
from streams_app.delivery.clocks import TrustedClock
from streams_app.delivery.commits import Commits
from streams_app.delivery.group_consumer import GroupConsumer, Member, NotOwnerError
from streams_app.delivery.offset_metadata import offsets_in, offsets_of
from streams_app.delivery.partition import Owner, Partition
from streams_app.delivery.processor import NO_OFFSET, Claim, LogBounds, Processors
from streams_app.delivery.ranges import Served

T = TypeVar("T")


class Claimer:
    """Makes partitions out of assignments."""

    def __init__(self, host: GroupConsumer, processors: Processors, clock: TrustedClock, commits: Commits) -> None:
        """Claims nothing yet."""
        self._host = host
        self._processors = processors
        self._clock = clock
        self._commits = commits

    async def claim_once(self, tp: TP, generation: int, owner: Owner, *, was_reset: bool) -> Partition:
        """Claims a partition for all its processors and places its reader, which stays paused.

        Args:
            tp: The partition.
            generation: Generation of the consumer group in which the partition was assigned.
            owner: Told what the partition and its processors say.
            was_reset: The client has just reset its position in this partition by itself.

        Raises:
            NotOwnerError: Kafka refused, or a rebalance came between.
            FencedError: Another owner came between.
            OtherLogError: The topic was deleted and made again.
            ConfigurationError: The marks of its processors do not fit into a commit.
            KafkaError, RedisError, OSError, TimeoutError: The claim is to be tried again.
        """
        partition = Partition(tp, Member(generation, self._host.member_id), self._host, owner)
        try:
            # Before any state is touched: whoever does not own the partition must not take the state from its owner.
            await self._ask_kafka(partition)
            bounds = await self._claim_all(partition, was_reset=was_reset)
            self._check_generation(generation)
            lowest = min(served.next for served in partition.ranges.served.values())
            position = bounds.end if lowest == NO_OFFSET else lowest
            seek_number = await self._host.seek(tp, position)
            self._check_generation(generation)
        except BaseException:  # also where it was cancelled: its processors have begun, and end with the claim
            await partition.end(0.0)
            raise
        partition.ranges.begin(position, seek_number, self._clock.monotonic_ms())
        return partition

    async def _ask_kafka(self, partition: Partition) -> None:
        """Commits once more what is committed: Kafka refuses that where the partition is not ours."""
        host, tp = self._host, partition.tp
        # Read and committed in one piece: a commit that slipped between would be taken back by ours.
        async with self._commits.lock:
            committed = await host.committed(tp)
            noted = None if committed is None else offsets_in(committed)
            made = self._processors.of(tp, list(noted or ()))
            partition.ranges.served = {name: Served(processor) for name, processor in made.items()}
            if committed is not None:
                partition.marks.found(committed, offsets_of(committed, made))
                # Kafka decides who owns: under a stale generation this commit is refused and nothing has been touched.
                await self._commits.send({tp: partition.marks.committed or committed}, partition.member)

    async def _claim_all(self, partition: Partition, *, was_reset: bool) -> LogBounds:
        """Lets the processors take their states side by side: one that is new waits for the first marks of the others."""
        host, tp = self._host, partition.tp
        partition.incarnation = (await host.incarnations(tp.topic)).get(tp.partition)
        topic_id = await host.topic_id(tp.topic) if partition.incarnation is None else partition.incarnation.topic_id
        bounds = await partition.log_bounds_now()
        marks, beginning = partition.marks.marks, partition.marks.beginning
        beginning.expect(partition.ranges.served.keys() - marks.keys())
        claims = {
            name: Claim(
                tp, name, *partition.member, marks.get(name), bounds, host.partition_count(tp.topic), topic_id, was_reset, partition
            )
            for name in partition.ranges.served
        }

        async def claim(name: str, served: Served) -> None:
            try:
                served.next = await served.processor.claim(claims[name])
            finally:
                beginning.leave(name)

        await together([claim(name, served) for name, served in partition.ranges.served.items()])
        return bounds

    def _check_generation(self, generation: int) -> None:
        if generation != self._host.generation:
            raise NotOwnerError("a new generation began")


async def together(steps: list[Coroutine[Any, Any, T]]) -> None:
    """Runs steps side by side; the first that fails ends the others, and its error is raised."""
    tasks = [asyncio.ensure_future(step) for step in steps]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
