"""Topics as clients from outside create, write, read and delete them, without the package."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError
from aiokafka.structs import ConsumerRecord, RecordMetadata

from tests.helpers.waiting import wait_until

T = TypeVar("T")

_TOPIC_LIMIT_SECONDS = 60
_FETCH_MS = 100
_SEND_OPTIONS = frozenset({"partition", "timestamp_ms", "headers"})


class OddName(str):
    """A header name that is sent as invalid UTF-8."""

    __slots__ = ()

    def encode(self, *_: Any, **__: Any) -> bytes:
        return b"\xff\xfe odd"


@asynccontextmanager
async def admin_of(bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    """Yield an admin client of a broker for the ``with`` block."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


async def create_topics(
    bootstrap: str, names: Iterable[str], partitions: int = 4, configs: Mapping[str, str] | None = None
) -> None:
    """Create topics and return when every partition has a leader.

    Args:
        bootstrap: host:port.
        names: Each must be new.
        partitions: Of each topic.
        configs: Topic configuration, by its Kafka name.
    """
    wanted = list(names)
    async with admin_of(bootstrap) as admin:
        new = [NewTopic(name, partitions, 1, topic_configs=dict(configs or {})) for name in wanted]
        answer = await admin.create_topics(new)
        faults = [error for error in answer.topic_errors if error[1] != 0]
        assert not faults, f"topics not created: {faults}"

        async def leaders() -> bool:
            topics = await _unless_away(admin.describe_topics(wanted))
            return topics is not None and all(
                len(topic["partitions"]) == partitions and all(each["leader"] >= 0 for each in topic["partitions"])
                for topic in topics
            )

        await wait_until(leaders, _TOPIC_LIMIT_SECONDS, f"all partitions of {wanted} have a leader")


async def delete_topic(bootstrap: str, topic: str) -> None:
    """Delete a topic and return when it is gone."""
    async with admin_of(bootstrap) as admin:
        await admin.delete_topics([topic])

        async def is_gone() -> bool:
            left = await _unless_away(admin.list_topics())
            return left is not None and topic not in left

        await wait_until(is_gone, _TOPIC_LIMIT_SECONDS, f"topic {topic} is gone")


async def produce(
    bootstrap: str, topic: str, items: Iterable[tuple[bytes | None, bytes | None]], **options: Any
) -> list[RecordMetadata]:
    """Send records and wait until all are acknowledged.

    Args:
        bootstrap: host:port.
        topic: The topic.
        items: Key and value of each.
        options: ``partition``, ``timestamp_ms`` and ``headers`` apply to every record; others are options of the producer.

    Returns:
        Position of each record, in the order of ``items``.
    """
    each = {name: value for name, value in options.items() if name in _SEND_OPTIONS}
    others = {name: value for name, value in options.items() if name not in _SEND_OPTIONS}
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, **{"acks": "all", **others})
    await producer.start()
    try:
        sent = [await producer.send(topic, key=key, value=value, **each) for key, value in items]
        return list(await asyncio.gather(*sent))
    finally:
        await producer.stop()


async def read_topic(
    bootstrap: str, topic: str, *, until: Callable[[list[ConsumerRecord]], bool], timeout_seconds: float
) -> list[ConsumerRecord]:
    """Read all partitions from their beginning, without a group, until the records read satisfy ``until``.

    Returns:
        Every record read; ordered within a partition only. More may follow in the topic.

    Raises:
        AssertionError: The records did not satisfy ``until`` in time.
    """
    deadline = time.monotonic() + timeout_seconds
    assigned = [TopicPartition(topic, partition) for partition in await _partitions(bootstrap, topic, timeout_seconds)]
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False, auto_offset_reset="earliest")
    await consumer.start()
    records: list[ConsumerRecord] = []
    try:
        consumer.assign(assigned)
        await consumer.seek_to_beginning(*assigned)
        while not until(records):
            if time.monotonic() >= deadline:
                raise AssertionError(f"not within {timeout_seconds} s: enough of {topic}; {len(records)} records: {records[-3:]}")
            for batch in (await consumer.getmany(timeout_ms=_FETCH_MS)).values():
                records += batch
    finally:
        await consumer.stop()
    return records


async def _partitions(bootstrap: str, topic: str, timeout_seconds: float) -> list[int]:
    async with admin_of(bootstrap) as admin:

        async def partitions() -> list[int]:
            found = await _unless_away(admin.describe_topics([topic]))
            return [] if found is None else sorted(each["partition"] for each in found[0]["partitions"])

        return await wait_until(partitions, timeout_seconds, f"topic {topic} exists")


async def _unless_away(answer: Awaitable[T]) -> T | None:
    """Return the broker's answer; None if it has none yet: a frozen broker must be registered by its controller again."""
    try:
        return await answer
    except KafkaError:
        return None
