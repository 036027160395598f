"""Taskiq with Kafka (taskiq-aio-kafka); aiokafka commits the events that it has handed out every five seconds."""

from __future__ import annotations

import asyncio
import os
import sys

from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from taskiq_aio_kafka import AioKafkaBroker

from benchmarks.peers.recording import NAME, SERVER, record_event

broker = AioKafkaBroker(os.environ[SERVER], kafka_topic=os.environ[NAME])
# Its default is the assignor of kafka-python, which current versions of aiokafka cannot call.
broker.configure_consumer(
    group_id=os.environ[NAME], auto_offset_reset="earliest", partition_assignment_strategy=(RoundRobinPartitionAssignor,)
)
broker.configure_producer(linger_ms=5)


@broker.task("noted")
async def recorded(number: int) -> None:
    """Notes an event."""
    await record_event(number)


async def fill(events: int) -> None:
    """Send this number of tasks in batches."""
    await broker.startup()
    for first in range(0, events, 500):
        await asyncio.gather(*(recorded.kiq(number) for number in range(first, min(events, first + 500))))
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(fill(int(sys.argv[1])))
