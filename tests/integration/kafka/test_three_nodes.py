"""A cluster of three nodes loses one under load: it may lead partitions, and be the coordinator and the controller."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import NewTopic
from aiokafka.protocol.metadata import MetadataRequest

from streams_app.kafka import admin
from streams_app.settings import KafkaSettings
from tests.conftest import Names, RedisServer
from tests.helpers.folding.checker import event, outcome_of
from tests.helpers.kafka.topics import admin_of, create_topics, read_topic
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import Site, write_config
from tests.helpers.worker.workers import WorkerProcess
from tests.servers.cluster import KafkaCluster

PARTITIONS = 6
EVENTS = 6_000
GROUPS = 40
LIMIT_SECONDS = 90

pytestmark = [pytest.mark.apache, pytest.mark.timeout(240)]


@pytest.fixture
def cluster() -> Iterator[KafkaCluster]:
    running = KafkaCluster.start()
    with running:
        yield running


async def create(bootstrap: str, names: list[str]) -> None:
    async with admin_of(bootstrap) as admin:
        answer = await admin.create_topics(
            [NewTopic(name, PARTITIONS, 3, topic_configs={"min.insync.replicas": "2"}) for name in names]
        )
        assert [0] * len(names) == [code for _, code, *_ in answer.topic_errors]

        async def is_complete() -> bool:
            found = [each for topic in await admin.describe_topics(names) for each in topic["partitions"]]
            return len(found) == PARTITIONS * len(names) and all(len(each["isr"]) == 3 for each in found)

        await wait_until(is_complete, 60, "every partition is on three nodes")


async def leader_of(bootstrap: str, topic: str) -> set[int]:
    """Return the nodes that lead partitions of a topic."""
    async with admin_of(bootstrap) as admin:
        (found,) = await admin.describe_topics([topic])
        return {each["leader"] for each in found["partitions"]}


async def committed(bootstrap: str, app_id: str, topic: str) -> tuple[int, int]:
    """Return the sum of a group's committed offsets, and the sum of the ends of the partitions."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=app_id, enable_auto_commit=False)
    await consumer.start()
    try:
        partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        offsets = [await consumer.committed(each) or 0 for each in partitions]
        ends = await consumer.end_offsets(partitions)
        return sum(offsets), sum(ends.values())
    finally:
        await consumer.stop()


async def test_new_topics_are_visible_on_every_node_when_they_are_created(cluster: KafkaCluster, names: Names) -> None:
    kafka = KafkaSettings(bootstrap_servers=cluster.bootstrap_servers, partitions=20, replication_factor=3)
    async with admin_of(kafka.bootstrap_servers) as client:

        async def names_of(node: int) -> set[str]:
            reply = (await client._send_request(MetadataRequest(None), node)).to_object()
            return {each["topic"] for each in reply["topics"]}

        await asyncio.gather(*(names_of(node) for node in cluster.nodes))  # connected from now on
        for number in range(10):
            topics = [names.topic(f"new{number}.{one}") for one in range(10)]
            await admin.create_topics(kafka, [admin.Topic(topic, "source", ("accounts",)) for topic in topics])
            for visible in await asyncio.gather(*(names_of(node) for node in cluster.nodes)):
                assert set(topics) <= visible


@pytest.mark.parametrize("victim", ["coordinator", "another"])
async def test_node_killed_under_load_loses_no_event_and_repeats_none(
    cluster: KafkaCluster, redis_server: RedisServer, names: Names, tmp_path: Path, victim: str
) -> None:
    bootstrap = cluster.bootstrap_servers
    source, output, dead = (names.topic(suffix) for suffix in ("events", "folded", "dead"))
    await create(bootstrap, [source, output, dead])
    config = write_config(
        tmp_path / "streams.toml", app_id=names.app_id, bootstrap=bootstrap, redis_url=redis_server.url,
        source=source, output=output, dead=dead, quiet_period="2s",
    )  # fmt: skip
    sent = {f"n{number}": f"account_{number % GROUPS}".encode() for number in range(EVENTS)}
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", enable_idempotence=True, request_timeout_ms=60_000)
    with WorkerProcess(config, tmp_path) as worker:
        await worker.wait_ready()
        coordinator = await coordinator_of(bootstrap, names.app_id)
        node = coordinator if victim == "coordinator" else next(each for each in cluster.nodes if each != coordinator)
        assert node in await leader_of(bootstrap, source)
        await producer.start()
        try:
            acks = []
            for number, (name, group) in enumerate(sent.items()):
                acks.append(await producer.send(source, event(group.decode(), name)[1], group))
                if number == EVENTS // 3:
                    cluster.kill_node(node)
                if number % 20 == 0:
                    await asyncio.sleep(0.02)  # the node dies in the middle of the load
            await asyncio.gather(*acks)
        finally:
            await producer.stop()
        assert node not in await leader_of(bootstrap, source)
        records = await read_topic(
            bootstrap, output, until=lambda found: outcome_of(found).events >= EVENTS, timeout_seconds=LIMIT_SECONDS
        )

        async def is_committed() -> bool:
            offset, end = await committed(bootstrap, names.app_id, source)
            return offset == end

        await wait_until(is_committed, LIMIT_SECONDS, "everything is committed")
        assert worker.exit_code is None
        code = await worker.terminate()

    outcome = outcome_of(records)
    assert [] == outcome.faults(sent)
    assert EVENTS == outcome.events
    assert 0 == code


async def coordinator_of(bootstrap: str, group: str) -> int:
    """Return the node that coordinates a consumer group."""
    async with admin_of(bootstrap) as admin:
        return await admin.find_coordinator(group)


async def test_partitions_without_a_leader_block_one_fold_and_no_other(
    cluster: KafkaCluster, redis_server: RedisServer, names: Names, tmp_path: Path
) -> None:
    """Each output has one replica on one node, so the partitions of the killed node have no leader until it returns."""
    site = Site(names, cluster.bootstrap_servers, redis_server.url, tmp_path)
    await create(site.bootstrap, [names.topic(each) for each in ("events", "events.dead", "safe")])
    await create_topics(site.bootstrap, [names.topic("fragile")], PARTITIONS)
    with site.worker(site.config(site.fold("safe", "events") + site.fold("fragile", "events"))) as worker:
        await worker.wait_ready()
        await site.send("events", [event(f"account_{number % GROUPS}", f"n{number}") for number in range(400)])
        await site.records("safe", 400)
        coordinator = await coordinator_of(site.bootstrap, names.app_id)
        victim = next(each for each in cluster.nodes if each != coordinator)
        assert victim in await leader_of(site.bootstrap, names.topic("fragile"))
        cluster.kill_node(victim)
        await site.send("events", [event(f"account_{number % GROUPS}", f"n{number}") for number in range(400, 800)])
        await site.records("safe", 800)

        async def is_reported() -> bool:
            return f"topic {names.topic('fragile')!r} does not acknowledge" in (await worker.get("/health/ready"))[1]

        await wait_until(is_reported, LIMIT_SECONDS, "the worker reports the topic that does not acknowledge")
        cluster.start_node(victim)
        cluster.wait_complete()
        outcome = await site.outcome("fragile", 800)
        await worker.wait_ready(LIMIT_SECONDS)
        code = await worker.terminate()

    assert {f"n{number}" for number in range(800)} == outcome.ids_of.keys()
    assert 0 == code
