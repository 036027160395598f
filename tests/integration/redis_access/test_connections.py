"""A process needs few connections to Redis, however many shards it has: further requests wait their turn."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import redis

from streams_app.embedded import Valkey
from streams_app.redis_access.client import REDIS_ERRORS, connect, connect_briefly, redis_fault_text, why_unreachable
from streams_app.redis_access.request_limit import MAX_REQUESTS
from streams_app.settings import RedisSettings
from tests.conftest import KafkaServer, Names
from tests.helpers.folding.checker import event, outcome_of
from tests.helpers.kafka.topics import create_topics, produce, read_topic
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import unhelpful_lines, write_config
from tests.helpers.worker.workers import WorkerProcess

PARTITIONS = 200
MANY = 400
OTHER_CONNECTIONS = 8
"""Maximum number of connections of the test itself, of the watchdog, and of the server's start."""


def connections_received(client: redis.Redis) -> int:
    """Return how many connections a server has accepted since its start."""
    return int(client.info("stats")["total_connections_received"])


async def requests(client: Any, *, has_pipelines: bool) -> list[int]:
    """Make many requests at the same time, each of which increments one number, and return their replies."""

    async def in_pipeline() -> int:
        async with client.pipeline(transaction=False) as pipe:
            (found,) = await pipe.incr("n").execute()
        return int(found)

    return list(await asyncio.gather(*(in_pipeline() if has_pipelines else client.incr("n") for _ in range(MANY))))


@pytest.mark.long  # 400 shards take half a minute of CPU
async def test_worker_with_400_shards_is_ready_and_emits_over_few_connections(
    kafka: KafkaServer, valkey: Valkey, names: Names, tmp_path: Path
) -> None:
    source, outputs, dead = names.topic("events"), [names.topic("folded"), names.topic("totals")], names.topic("dead")
    await create_topics(kafka.bootstrap_servers, [source], partitions=PARTITIONS)
    await create_topics(kafka.bootstrap_servers, [*outputs, dead])
    config = write_config(
        tmp_path / "streams.toml", app_id=names.app_id, bootstrap=kafka.bootstrap_servers, redis_url=valkey.url,
        source=source, output=outputs[0], dead=dead,
        extra=f'[folds.totals]\nsource = "{source}"\noutput = "{outputs[1]}"\ndead_letters = "{dead}"\n'
        'group_key = "account_id"\nchanged = "metrics"\nquiet_period = "1s"\n',
    )  # fmt: skip
    sent = [event(f"g{one}", f"n{one}") for one in range(10 * PARTITIONS)]
    with WorkerProcess(config, tmp_path) as worker, redis.Redis(port=valkey.port) as client:
        await worker.wait_ready(120)
        await produce(kafka.bootstrap_servers, source, sent)
        for output in outputs:
            await read_topic(
                kafka.bootstrap_servers, output, until=lambda found: outcome_of(found).events >= len(sent), timeout_seconds=120
            )
        code = await worker.terminate()
        received = connections_received(client)

    assert (0, []) == (code, unhelpful_lines(worker.log()))
    assert [] == [line for line in worker.log().splitlines() if "WARNING" in line or "ERROR" in line]
    assert received <= MAX_REQUESTS + OTHER_CONNECTIONS


@pytest.mark.parametrize("has_pipelines", [False, True], ids=["commands", "pipelines"])
async def test_request_beyond_the_limit_waits_for_its_turn(valkey: Valkey, has_pipelines: bool) -> None:
    client = connect(RedisSettings(url=valkey.url))
    try:
        answers = await requests(client, has_pipelines=has_pipelines)
    finally:
        await client.aclose()
    with redis.Redis(port=valkey.port) as other:
        received = connections_received(other)

    assert list(range(1, MANY + 1)) == sorted(answers)
    assert received <= MAX_REQUESTS + OTHER_CONNECTIONS


async def test_request_that_is_cancelled_gives_up_its_turn(valkey: Valkey) -> None:
    client = connect(RedisSettings(url=valkey.url))
    try:
        tasks = [asyncio.ensure_future(client.incr("n")) for _ in range(MANY)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        answers = await requests(client, has_pipelines=False)
    finally:
        await client.aclose()

    assert MANY == len(set(answers))


async def test_server_without_room_for_clients_is_named_as_the_limit(tmp_path: Path) -> None:
    with (
        Valkey.start(directory=tmp_path / "valkey", extra_args=("--maxclients", "1")) as full,
        redis.Redis(port=full.port) as only,
    ):
        await wait_until(lambda: is_connected(only), 30, "the only client is connected")
        settings = RedisSettings(url=full.url)
        client = connect_briefly(settings)
        try:
            with pytest.raises(REDIS_ERRORS) as raised:
                await client.incr("n")
            error = await why_unreachable(settings, raised.value)
        finally:
            await client.aclose()

    assert "it accepts no more clients: raise its maxclients" in str(error)
    assert "Redis accepts no more clients: max number of clients reached" == redis_fault_text(raised.value)


def is_connected(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:  # the process that started the server may still be connected
        return False
