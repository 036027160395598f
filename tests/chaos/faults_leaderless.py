"""A fault of one topic: its partitions have no leader for a while, because the only broker with a replica was killed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.admin import AlterPartitionReassignmentsRequest
from aiokafka.protocol.metadata import MetadataRequest

from tests.chaos.stage import EXCUSED, PARTITIONS, SESSION_SECONDS, Stage
from tests.chaos.traces import TRACE_SECONDS, must
from tests.helpers.waiting import wait_until
from tests.servers.apache_kafka import ApacheKafka
from tests.servers.second_broker import SecondBroker

FIRST = 1
NO_LEADER = -1
FOLDED = "folded"
CONTINUES_SECONDS = 15.0
"""Shorter than the time for which a worker waits for an acknowledgement, so that one fold that waits for the other is detected."""

_REQUEST_MS = 10_000


async def leaderless(stage: Stage, chance: random.Random) -> None:
    """Move the output of the excused fold to a second broker, kill that broker and restart it.

    The other fold must not be affected. No data is deleted: in the end the topic is on the first broker again, and the second one
    has shut down cleanly.
    """
    # Only a member of the group has records for the topic, and can report that the topic does not accept them.
    await wait_until(stage.is_settled, TRACE_SECONDS, "every worker is a member of the group")
    assert isinstance(stage.broker, ApacheKafka)
    home = stage.folder / "second-broker"
    second = await _started(stage.broker, home)
    try:
        await _move(stage, second.NODE)
        await _accepts_records(stage, EXCUSED)
        second.kill()
        # The controller detects it after the session timeout of a broker, nine seconds. Clients use the killed broker until then.
        await _led_by(stage, NO_LEADER)
        await wait_until(lambda: _is_reported(stage), TRACE_SECONDS, "every worker reports that the topic does not acknowledge")
        await asyncio.sleep(chance.uniform(1, 3) * SESSION_SECONDS)  # the fault lasts
        await _accepts_records(stage, FOLDED, CONTINUES_SECONDS)
        must(await _leaders(stage) == {NO_LEADER}, "a topic without a leader")
        second = await _started(stage.broker, home, second.port)
        await _led_by(stage, second.NODE)
        await _move(stage, FIRST)
        await _accepts_records(stage, EXCUSED)
    finally:
        await asyncio.to_thread(second.stop)
        stage.record_healed()


async def _started(first: ApacheKafka, home: Path, port: int | None = None) -> SecondBroker:
    return await asyncio.to_thread(SecondBroker.start, first, home, port)


async def _is_reported(stage: Stage) -> bool:
    pages = [(await worker.get("/health/ready"))[1] for worker in stage.workers]
    return all(f"topic {EXCUSED!r} does not acknowledge" in page for page in pages)


async def _accepts_records(stage: Stage, topic: str, limit_seconds: float = TRACE_SECONDS) -> None:
    """Wait until every partition of a topic has more records than now."""
    tps = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    consumer = AIOKafkaConsumer(bootstrap_servers=stage.bootstrap)
    await consumer.start()
    try:
        before = await consumer.end_offsets(tps)

        async def has_more() -> bool:
            now = await consumer.end_offsets(tps)
            return all(now[tp] > before[tp] for tp in tps)

        await wait_until(has_more, limit_seconds, f"every partition of {topic} accepts records")
    finally:
        await consumer.stop()


# aiokafka's admin client may send a request to the killed broker. These functions send it to the first broker.


@asynccontextmanager
async def _client(stage: Stage) -> AsyncIterator[AIOKafkaClient]:
    client = AIOKafkaClient(bootstrap_servers=stage.bootstrap)
    await client.bootstrap()
    try:
        yield client
    finally:
        await client.close()


async def _leaders(stage: Stage) -> set[int]:
    """Return the brokers that lead partitions of the topic."""
    async with _client(stage) as client:
        response = (await client.send(FIRST, MetadataRequest([EXCUSED]))).to_object()
    return {each["leader"] for topic in response["topics"] for each in topic["partitions"]}


async def _led_by(stage: Stage, node: int) -> None:
    async def is_led() -> bool:
        return await _leaders(stage) == {node}

    await wait_until(is_led, TRACE_SECONDS, f"{EXCUSED} is led by {node}")


async def _move(stage: Stage, node: int) -> None:
    """Move every partition of the topic with its records to a broker, and wait until it leads them."""
    partitions: list[Any] = [(number, [node], {}) for number in range(PARTITIONS)]
    request = AlterPartitionReassignmentsRequest(_REQUEST_MS, [(EXCUSED, partitions, {})], {})
    async with _client(stage) as client:
        response = await client.send(FIRST, request)
    codes = {response.error_code, *(each[1] for topic in response.responses for each in topic[1])}
    must(codes == {0}, f"partitions that move, not {codes}")
    await _led_by(stage, node)
