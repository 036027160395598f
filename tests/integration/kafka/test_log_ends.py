"""Ends of logs, as the clients of this package query them: the same on every broker."""

from __future__ import annotations

from aiokafka import TopicPartition

from streams_app.kafka.embedded_broker import is_embedded
from streams_app.kafka.log_ends import high_watermarks, stable_ends
from streams_app.kafka.log_reader import log_reader
from streams_app.settings import KafkaSettings
from tests.conftest import KafkaServer, Names
from tests.helpers.kafka.topics import create_topics, produce


async def test_end_of_a_log_is_the_offset_after_the_last_record_of_its_last_batch(kafka: KafkaServer, names: Names) -> None:
    topic, bootstrap = names.topic("events"), kafka.bootstrap_servers
    tps = [TopicPartition(topic, number) for number in range(3)]
    await create_topics(bootstrap, [topic], 3)
    await produce(bootstrap, topic, [(b"a", b"1")] * 5, partition=0)
    await produce(bootstrap, topic, [(b"a", b"1")] * 7, partition=0)
    await produce(bootstrap, topic, [(b"a", b"1")], partition=1)
    settings = KafkaSettings(bootstrap_servers=bootstrap)
    async with log_reader(settings, topic, range(3)) as consumer:
        ends = await stable_ends(consumer, tps)
        high = await high_watermarks(consumer, tps)
        leader = consumer._client.cluster.leader_for_partition(tps[0])
        found = is_embedded(consumer._client, leader)

    expected = dict(zip(tps, (12, 1, 0), strict=True))
    assert (expected, expected) == (ends, high)
    assert found is not kafka.is_apache
