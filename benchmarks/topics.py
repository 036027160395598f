"""Topics of a benchmark: creating, filling in batches, and reading them while they grow."""

from __future__ import annotations

import asyncio
import gc
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import orjson
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError

from benchmarks.loads import PARTITIONS, Event

BATCH_BYTES: Final = 65_536
"""Size of a produced batch, as of a busy producer."""

FETCH_BYTES: Final = 16 << 20
"""Size of a fetch from a partition of an output topic: with 1 MiB, the default, a consumer that pauses limits a fast worker."""

STEP_SECONDS: Final = 0.025
_UNACKNOWLEDGED: Final = 32


@asynccontextmanager
async def admin(bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    """Yield a connected admin client."""
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=30_000)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def make(bootstrap: str, *names: str, partitions: int = PARTITIONS) -> None:
    """Create topics and wait until each partition has a leader."""
    async with admin(bootstrap) as client:
        reply = await client.create_topics([NewTopic(name, partitions, 1) for name in names], timeout_ms=20_000)
        faults = [error for error in reply.topic_errors if error[1]]
        if faults:
            raise RuntimeError(f"topics not created: {faults}")
        while True:
            found = await client.describe_topics(list(names))
            ready = [topic for topic in found if len(topic["partitions"]) == partitions]
            if len(ready) == len(names) and all(each["leader"] >= 0 for topic in ready for each in topic["partitions"]):
                return
            await asyncio.sleep(0.05)


async def members(bootstrap: str, consumer_group: str) -> int:
    """Return the number of members of a stable consumer group; 0 if it is not stable."""
    async with admin(bootstrap) as client:
        try:
            (reply,) = await client.describe_consumer_groups([consumer_group])
        except KafkaError:  # the first group of a broker: the topic of the groups is being created
            return 0
    _, _, state, _, _, found = reply.groups[0][:6]
    return len(found) if state == "Stable" else 0


async def remove(bootstrap: str, *names: str) -> None:
    """Delete topics, because the servers may continue after the run, and an in-memory broker would fill up."""
    async with admin(bootstrap) as client:
        await client.delete_topics(list(names))


class Filler:
    """Appends events to a topic in batches of their partition, with their own timestamps.

    ``AIOKafkaProducer.send`` for each event would take longer than the measurement.
    """

    def __init__(self, producer: AIOKafkaProducer, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self._open: dict[int, Any] = {}
        self._acks: deque[asyncio.Future[Any]] = deque()

    async def add(
        self, partition: int, timestamp_ms: int, key: bytes, value: bytes, headers: Sequence[tuple[str, bytes]] = ()
    ) -> None:
        """Add one event, and send its batch if it is full."""
        batch = self._open.get(partition)
        if batch is None:
            batch = self._open[partition] = self._producer.create_batch()
        if batch.append(key=key, value=value, timestamp=timestamp_ms, headers=list(headers)) is None:
            await self._send(partition)
            await self.add(partition, timestamp_ms, key, value, headers)

    async def flush(self, *, wait: bool = True) -> None:
        """Send the open batches, and wait until everything is acknowledged."""
        for partition in list(self._open):
            await self._send(partition)
        while wait and self._acks:
            await self._acks.popleft()

    async def _send(self, partition: int) -> None:
        batch = self._open.pop(partition)
        batch.close()
        self._acks.append(await self._producer.send_batch(batch, self._topic, partition=partition))
        while len(self._acks) > _UNACKNOWLEDGED:
            await self._acks.popleft()


@asynccontextmanager
async def filling(bootstrap: str, topic: str) -> AsyncIterator[Filler]:
    """Yield a filler of a topic; at the end of the block, everything is acknowledged."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", max_batch_size=BATCH_BYTES, linger_ms=0)
    await producer.start()
    try:
        filler = Filler(producer, topic)
        yield filler
        await filler.flush()
    finally:
        await producer.stop()


async def fill(bootstrap: str, topic: str, events: Iterator[Event], begin_ms: int) -> None:
    """Produce a whole load.

    Args:
        bootstrap: host:port.
        topic: An existing, empty topic.
        events: Events of the load.
        begin_ms: Wall clock time of the begin of its span.
    """
    async with filling(bootstrap, topic) as filler:
        for event in events:
            await filler.add(event.partition, begin_ms + event.at_ms, event.key, event.value)


async def steady(bootstrap: str, topic: str, events: Iterator[Event], total: int, rate: int) -> tuple[float, int]:
    """Produce the next events at a steady rate, in steps of 25 ms, with the current time.

    Returns:
        Duration in seconds, and the maximum delay in ms.
    """
    produced, late_ms = 0, 0
    async with filling(bootstrap, topic) as filler:
        started = time.monotonic()
        while produced < total:
            wanted = min(total, int((time.monotonic() - started) * rate))
            late_ms = max(late_ms, (wanted - produced) * 1000 // rate - int(STEP_SECONDS * 1000))
            now_ms = time.time_ns() // 1_000_000
            for event in islice(events, wanted - produced):
                await filler.add(event.partition, now_ms, event.key, event.value)
            produced = wanted
            await filler.flush(wait=False)
            await asyncio.sleep(STEP_SECONDS)
        return time.monotonic() - started, late_ms


@dataclass(frozen=True, slots=True)
class Folded:
    """The checked fields of a folded record.

    Attributes:
        id: Its ``fold-id``.
        events: Number of events in it.
        last_event_ms: Timestamp of the newest of them.
        produced_ms: Timestamp of the record.
    """

    id: str
    events: int
    last_event_ms: int
    produced_ms: int


class Outputs:
    """A light consumer of an output topic: it counts what comes and keeps the bytes, which are looked at afterwards.

    End offsets would cost even less, but those of the embedded broker lag behind the readable records.
    """

    def __init__(self) -> None:
        self._kept: list[tuple[bytes, int]] = []

    @property
    def count(self) -> int:
        """Return the number of records so far."""
        return len(self._kept)

    def values(self) -> list[bytes]:
        """Return the values of the records so far."""
        return [value for value, _ in self._kept]

    def folded(self) -> list[Folded]:
        """Return the records so far."""
        found = []
        for value, produced_ms in self._kept:
            about = orjson.loads(value)["fold"]
            found.append(Folded(about["id"], about["events"], about["last_event_ms"], produced_ms))
        return found

    async def read(self, consumer: AIOKafkaConsumer) -> None:
        """Read until cancelled."""
        while True:
            for records in (await consumer.getmany(timeout_ms=1_000)).values():
                self._kept += [(record.value, record.timestamp) for record in records]
            # Fewer, larger fetches, because the CPU of this consumer reduces the measured rate.
            await asyncio.sleep(0.05)


@asynccontextmanager
async def reading(bootstrap: str, topic: str, partitions: int = PARTITIONS) -> AsyncIterator[Outputs]:
    """Read a topic from its beginning until the end of the block."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, enable_auto_commit=False, auto_offset_reset="earliest", max_partition_fetch_bytes=FETCH_BYTES,
        fetch_max_bytes=partitions * FETCH_BYTES,
    )  # fmt: skip
    await consumer.start()
    outputs = Outputs()
    consumer.assign([TopicPartition(topic, number) for number in range(partitions)])
    task = asyncio.create_task(outputs.read(consumer), name="read output")
    gc.disable()  # it would be a fifth of the consumer's cost
    try:
        yield outputs
    finally:
        gc.enable()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await consumer.stop()
