"""The base of every ratio: aiokafka and orjson read the topic and do nothing else. Run as a separate process.

Usage: ``python -m benchmarks.bare BOOTSTRAP TOPIC EVENTS``; prints one JSON object.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Final

import orjson
import uvloop
from aiokafka import AIOKafkaConsumer, TopicPartition

from benchmarks.loads import PARTITIONS
from benchmarks.processes import CpuWatch, memory_mb

FETCH_BYTES: Final = 4 * 1024 * 1024
"""The fetch size of a worker, so that the base is not slower because of smaller fetches."""


async def read(bootstrap: str, topic: str, events: int) -> dict[str, object]:
    """Read this number of events from all partitions; the time begins with the first fetch."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False, max_partition_fetch_bytes=FETCH_BYTES)
    await consumer.start()
    try:
        partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        cpu = CpuWatch({"bare": os.getpid()})
        started = time.perf_counter()
        left = events
        while left > 0:
            for records in (await consumer.getmany(timeout_ms=1_000)).values():
                for record in records:
                    orjson.loads(record.value)
                left -= len(records)
        seconds = time.perf_counter() - started
    finally:
        await consumer.stop()
    return {"seconds": seconds, "cpu": cpu.used(), "peak_rss_mb": memory_mb(os.getpid(), "VmHWM")}


def main() -> None:
    """Read and print the result."""
    bootstrap, topic, events = sys.argv[1:]
    print(json.dumps(uvloop.run(read(bootstrap, topic, int(events)))))


if __name__ == "__main__":
    main()
