"""The outcome that the producer reports for a record is the outcome of that record."""

from __future__ import annotations

import asyncio
import logging

import pytest
from aiokafka.errors import ProducerClosed

from streams_app.delivery.producer import TOO_LARGE, OutgoingRecord
from streams_app.folding.core.names import shared_names
from streams_app.folding.core.record import RecordShape, Renderer, SealedGroup
from streams_app.kafka.producer import AckedProducer
from streams_app.kafka.rendered_records import RenderedRecords
from streams_app.settings.sections import KafkaSettings
from tests.conftest import KafkaServer, Names
from tests.helpers.folding.native import required_core
from tests.helpers.kafka.topics import create_topics, read_topic

LIMIT_SECONDS = 60

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize(("count", "senders"), [(1, 1), (120, 1), (40, 6)])
async def test_any_number_of_large_records_for_one_partition_is_acknowledged(
    kafka: KafkaServer, names: Names, count: int, senders: int
) -> None:
    topic = names.topic("out")
    await create_topics(kafka.bootstrap_servers, [topic], 2)
    producer = AckedProducer(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers), client_id="test")
    records = [OutgoingRecord(topic, b"one key", b"%d " % number + b"x" * 250_000) for number in range(count)]
    try:
        outcomes = await asyncio.gather(*(producer.send(records) for _ in range(senders)))
    finally:
        await producer.stop()
    found = await read_topic(
        kafka.bootstrap_servers, topic, until=lambda found: len(found) >= count * senders, timeout_seconds=LIMIT_SECONDS
    )

    assert [[None] * count] * senders == outcomes
    assert sorted(list(range(count)) * senders) == sorted(int(record.value.partition(b" ")[0]) for record in found)


async def test_records_of_the_native_core_are_appended_like_those_of_python(kafka: KafkaServer, names: Names) -> None:
    topic = names.topic("out")
    await create_topics(kafka.bootstrap_servers, [topic], 3)
    changed = shared_names(["likes"])
    groups = [SealedGroup(b"sg%d" % at, at, at + 5, 4, 1_000, 2_000, "quiet", 3_000, 4, changed) for at in range(3_000)]
    columns = Renderer(RecordShape("f", ("id",), "changed", "names"), "posts", 3).columns(required_core(), groups)
    assert columns is not None
    packed = RenderedRecords(topic, columns)
    producer = AckedProducer(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers), client_id="test")
    try:
        outcomes = [await producer.send(records) for records in (packed, list(packed), packed)]
    finally:
        await producer.stop()
    found = await read_topic(kafka.bootstrap_servers, topic, until=lambda found: len(found) >= 9_000, timeout_seconds=LIMIT_SECONDS)
    places: dict[tuple[bytes | None, bytes | None], list[int]] = {}
    for record in found:
        places.setdefault((record.key, record.value), []).append(record.partition)

    assert [[None] * 3_000] * 3 == outcomes
    assert {(record.key, record.value) for record in packed} == places.keys()
    assert all(3 == len(partitions) and 1 == len(set(partitions)) for partitions in places.values())


async def test_stopped_producer_opens_no_connection(kafka: KafkaServer, names: Names) -> None:
    topic = names.topic("out")
    await create_topics(kafka.bootstrap_servers, [topic], 1)
    producer = AckedProducer(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers), client_id="test")
    assert [None] == await producer.send([OutgoingRecord(topic, b"key", b"before")])
    await producer.stop()

    assert [ProducerClosed] == [type(outcome) for outcome in await producer.send([OutgoingRecord(topic, b"key", b"after")])]


async def test_broker_without_idempotent_producers_is_not_an_error_in_the_log(
    kafka: KafkaServer, names: Names, caplog: pytest.LogCaptureFixture
) -> None:
    topic = names.topic("out")
    await create_topics(kafka.bootstrap_servers, [topic], 1)
    producer = AckedProducer(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers), client_id="test")
    try:
        assert [None] == await producer.send([OutgoingRecord(topic, b"key", b"value")])
    finally:
        await producer.stop()

    assert [] == [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.apache
async def test_every_replica_must_acknowledge_a_record_and_none_is_appended_twice(kafka: KafkaServer) -> None:
    producer = AckedProducer(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers), client_id="test")
    opened = await producer._open()
    try:
        assert (-1, True) == (opened._sender._acks, opened._sender._txn_manager is not None)
    finally:
        await opened.stop()


@pytest.mark.apache
async def test_one_oversized_record_does_not_prevent_acknowledgement_of_others(kafka: KafkaServer, names: Names) -> None:
    topic = names.topic("out")
    await create_topics(kafka.bootstrap_servers, [topic], 2, {"max.message.bytes": "10000"})
    producer = AckedProducer(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers), client_id="test")
    waiting = [OutgoingRecord(topic, b"k%d" % number, b"x" * (20_000 if number == 7 else 900)) for number in range(40)]
    rejected: set[bytes | None] = set()
    try:
        for _ in range(3):
            outcomes = await producer.send(waiting)
            rejected |= {each.key for each, outcome in zip(waiting, outcomes, strict=True) if isinstance(outcome, TOO_LARGE)}
            waiting = [each for each, outcome in zip(waiting, outcomes, strict=True) if outcome and each.key not in rejected]
    finally:
        await producer.stop()

    assert ({b"k7"}, []) == (rejected, waiting)


async def test_records_of_several_topics_reach_their_own_topics(kafka: KafkaServer, names: Names) -> None:
    topics = [names.topic("one"), names.topic("two")]
    await create_topics(kafka.bootstrap_servers, topics, 2)
    producer = AckedProducer(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers), client_id="test")
    records = [OutgoingRecord(topics[number % 2], b"k%d" % (number // 2), b"%d" % number) for number in range(40)]
    try:
        outcomes = await producer.send(records)
    finally:
        await producer.stop()
    found = [
        await read_topic(kafka.bootstrap_servers, topic, until=lambda found: len(found) >= 20, timeout_seconds=LIMIT_SECONDS)
        for topic in topics
    ]

    assert [None] * 40 == outcomes
    assert [list(range(0, 40, 2)), list(range(1, 40, 2))] == [sorted(int(record.value) for record in each) for each in found]


async def test_record_is_written_to_its_named_partition(kafka: KafkaServer, names: Names) -> None:
    topic = names.topic("out")
    await create_topics(kafka.bootstrap_servers, [topic], 4)
    producer = AckedProducer(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers), client_id="test")
    try:
        outcomes = await producer.send([OutgoingRecord(topic, b"one key", b"%d" % each, partition=each % 4) for each in range(20)])
    finally:
        await producer.stop()
    found = await read_topic(kafka.bootstrap_servers, topic, until=lambda found: len(found) >= 20, timeout_seconds=LIMIT_SECONDS)

    assert [None] * 20 == outcomes
    assert [each % 4 for each in range(20)] == [record.partition for record in sorted(found, key=lambda record: int(record.value))]
