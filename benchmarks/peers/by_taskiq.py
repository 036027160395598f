"""Taskiq with a Redis stream, which has acknowledgements."""

from __future__ import annotations

import asyncio
import os
import sys

from taskiq_redis import RedisStreamBroker

from benchmarks.peers.recording import NAME, SERVER, record_event

broker = RedisStreamBroker(os.environ[SERVER], queue_name=os.environ[NAME], consumer_group_name=os.environ[NAME])


@broker.task("noted")
async def recorded(number: int) -> None:
    """Notes an event."""
    await record_event(number)


async def fill(events: int) -> None:
    """Send this number of tasks in batches."""
    await broker.startup()
    for first in range(0, events, 50):
        await asyncio.gather(*(recorded.kiq(number) for number in range(first, min(events, first + 50))))
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(fill(int(sys.argv[1])))
