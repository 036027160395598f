"""The base of the ratios of subscribers: aiokafka and msgspec read the topic, and the function is awaited for each event.

Run as a separate process, ``python -m benchmarks.awaited BOOTSTRAP TOPIC``, with the environment of :mod:`benchmarks.subscribed`.
It reads until it is killed.
"""

from __future__ import annotations

import sys

import msgspec
import uvloop
from aiokafka import AIOKafkaConsumer, TopicPartition

from benchmarks.bare import FETCH_BYTES
from benchmarks.loads import PARTITIONS
from benchmarks.subscribed import Numbered, record_call


async def read(bootstrap: str, topic: str) -> None:
    """Await the function for each event of all partitions."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False, max_partition_fetch_bytes=FETCH_BYTES)
    await consumer.start()
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    consumer.assign(partitions)
    await consumer.seek_to_beginning(*partitions)
    decode = msgspec.json.Decoder(Numbered).decode
    while True:
        for records in (await consumer.getmany(timeout_ms=1_000)).values():
            for record in records:
                await record_call(decode(record.value).number)


if __name__ == "__main__":
    uvloop.run(read(*sys.argv[1:]))
