"""A Redis Cluster of three masters: every shard's keys stay in one slot, and every script works."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.asyncio.connection import AbstractConnection

from streams_app import JournalReader
from streams_app.clock import SystemClock
from streams_app.codec import member_of
from streams_app.embedded import Valkey
from streams_app.embedded.ports import free_port
from streams_app.errors import TryAgainError
from streams_app.fold import Fold
from streams_app.journal.core.cursor import parse_start
from streams_app.journal.reading.entries import Entry
from streams_app.operations.replay_lease import replay_lease
from streams_app.redis_access.client import REDIS_ERRORS, connect
from streams_app.redis_access.request_limit import MAX_REQUESTS
from streams_app.settings import RedisSettings, Settings
from tests.conftest import KafkaServer, Names
from tests.helpers.folding.checker import event, outcome_of
from tests.helpers.journal.journals import JournalShard, row
from tests.helpers.kafka.topics import create_topics, produce, read_topic
from tests.helpers.waiting import turns_of_loop, wait_until, wait_until_sync
from tests.helpers.worker.site import unhelpful_lines, write_config
from tests.helpers.worker.workers import WorkerProcess
from tests.integration.redis_access.test_connections import OTHER_CONNECTIONS, connections_received

SLOTS = ((0, 5461), (5462, 10922), (10923, 16383))
OPTIONS = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--cluster-require-full-coverage", "no")


def ask(client: redis.Redis, *words: object) -> Any:
    """Run a CLUSTER command."""
    return client.execute_command("CLUSTER", *words)  # type: ignore[no-untyped-call]  # redis-py gives it no types


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Valkey]]:
    """Yield the servers of the cluster; a test may replace them."""
    started = [
        Valkey.start(None, tmp_path / f"node-{number}", appendonly=True, extra_args=OPTIONS) for number, _ in enumerate(SLOTS)
    ]
    try:
        yield started
    finally:
        for node in started:
            node.stop()


@pytest.fixture
def masters(nodes: list[Valkey]) -> Iterator[list[redis.Redis]]:
    clients = [redis.Redis(port=node.port, decode_responses=True) for node in nodes]
    try:
        for number, (client, (first, last)) in enumerate(zip(clients, SLOTS, strict=True), start=1):
            ask(client, "ADDSLOTSRANGE", first, last)
            ask(client, "SET-CONFIG-EPOCH", number)
        for node in nodes[1:]:
            ask(clients[0], "MEET", "127.0.0.1", node.port)

        def agree() -> bool:
            states = [ask(client, "INFO") for client in clients]
            return all("cluster_state:ok" in state and "cluster_known_nodes:3" in state for state in map(str, states))

        wait_until_sync(agree, 60, "the masters know each other")
        yield clients
    finally:
        for client in clients:
            client.close()


@pytest.mark.long
async def test_worker_folds_in_a_redis_cluster_whose_first_named_node_is_down_and_whose_nodes_restart(
    kafka: KafkaServer, masters: list[redis.Redis], nodes: list[Valkey], names: Names, tmp_path: Path
) -> None:
    source, output, dead = names.topic("events"), names.topic("folded"), names.topic("dead")
    await create_topics(kafka.bootstrap_servers, [source, output, dead], partitions=8)
    port = masters[0].connection_pool.connection_kwargs["port"]
    config = write_config(
        tmp_path / "streams.toml", app_id=names.app_id, bootstrap=kafka.bootstrap_servers,
        redis_url=f"redis+cluster://127.0.0.1:{free_port()},127.0.0.1:{port}",
        source=source, output=output, dead=dead, quiet_period="2s",
    )  # fmt: skip
    sent = {f"n{i}": f"a{{{i % 40}}}".encode() for i in range(400)}
    with WorkerProcess(config, tmp_path) as worker:
        await worker.wait_ready()
        await produce(kafka.bootstrap_servers, source, [event(group.decode(), name) for name, group in sent.items()])
        await wait_until(lambda: all(master.dbsize() > 0 for master in masters), 60, "every master holds shards")
        for number, node in enumerate(nodes):
            node.stop()
            nodes[number] = Valkey.start(node.port, tmp_path / f"node-{number}", appendonly=True, extra_args=OPTIONS)
            more = {f"m{number}-{i}": f"a{{{i}}}".encode() for i in range(40)}
            await produce(kafka.bootstrap_servers, source, [event(group.decode(), name) for name, group in more.items()])
            sent |= more
        records = await read_topic(
            kafka.bootstrap_servers, output, until=lambda found: outcome_of(found).events >= len(sent), timeout_seconds=60
        )
        code = await worker.terminate()

    assert [] == outcome_of(records).faults(sent)
    assert (0, []) == (code, unhelpful_lines(worker.log()))


@pytest.mark.parametrize("is_pipeline", [False, True], ids=["command", "pipeline"])
async def test_error_raised_by_the_cluster_client_is_a_broken_connection(
    masters: list[redis.Redis], is_pipeline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = masters[0].connection_pool.connection_kwargs["port"]
    client: Any = connect(RedisSettings(url=f"redis+cluster://127.0.0.1:{port}"))

    async def ask() -> None:
        if not is_pipeline:
            return await client.set("k", "v")
        async with client.pipeline(transaction=False) as pipe:
            await pipe.set("k", "v").execute()

    async def close_at_once(_: object, **options: object) -> None:
        """Close a connection at once, as another task might between its opening and its first command."""

    try:
        await ask()
        for node in client.get_nodes():
            await node.disconnect()
        with monkeypatch.context() as patch, pytest.raises(REDIS_ERRORS, match="NoneType"):
            patch.setattr(AbstractConnection, "connect_check_health", close_at_once)
            await ask()
        await ask()
    finally:
        await client.aclose()


@pytest.mark.parametrize("is_pipeline", [False, True], ids=["commands", "pipelines"])
async def test_client_of_a_cluster_needs_few_connections_to_each_node(
    masters: list[redis.Redis], nodes: list[Valkey], is_pipeline: bool
) -> None:
    client: Any = connect(RedisSettings(url=f"redis+cluster://127.0.0.1:{nodes[0].port}"))
    before = [connections_received(master) for master in masters]

    async def ask(number: int) -> bytes:
        if not is_pipeline:
            return bytes(await client.echo(str(number), target_nodes=client.get_primaries()[number % 3]))
        async with client.pipeline(transaction=False) as pipe:
            _, found = await pipe.set(f"k{number}", number).get(f"k{number}").execute()
        return bytes(found)

    try:
        await client.ping()
        answers = await asyncio.gather(*(ask(number) for number in range(1_000)))
    finally:
        await client.aclose()
    received = [connections_received(master) - former for master, former in zip(masters, before, strict=True)]

    assert [str(number).encode() for number in range(1_000)] == answers
    assert max(received) <= MAX_REQUESTS + OTHER_CONNECTIONS


async def test_node_of_a_cluster_that_does_not_answer_delays_no_command_to_another_node(
    masters: list[redis.Redis], nodes: list[Valkey]
) -> None:
    client: Any = connect(RedisSettings(url=f"redis+cluster://127.0.0.1:{nodes[0].port}"))
    try:
        await client.ping()
        silent, *others = sorted(client.get_primaries(), key=lambda node: node.port != nodes[2].port)
        os.kill(nodes[2].pid, signal.SIGSTOP)
        try:
            waiting = [asyncio.create_task(client.echo("a", target_nodes=silent)) for _ in range(10 * MAX_REQUESTS)]
            await turns_of_loop(10)
            answers = await asyncio.gather(*(client.echo("b", target_nodes=node) for node in others for _ in range(100)))
            are_waiting = not any(task.done() for task in waiting)
        finally:
            os.kill(nodes[2].pid, signal.SIGCONT)
        await asyncio.gather(*waiting)
    finally:
        await client.aclose()

    assert {b"b"} == set(answers)
    assert are_waiting


@pytest.mark.long
async def test_redis_cluster_permits_one_replay_at_a_time(masters: list[redis.Redis], names: Names) -> None:
    port = masters[0].connection_pool.connection_kwargs["port"]
    fold = Fold(name="one", source="s", group_key="id", changed="m", quiet_period="15m")
    settings = Settings(app_id=names.app_id, redis=RedisSettings(url=f"redis+cluster://127.0.0.1:{port}"), folds=(fold,))
    address = f"{names.app_id}/one".encode()
    async with replay_lease(settings, address, SystemClock()) as lease:
        await lease.require()
        with pytest.raises(TryAgainError, match="another replay is in progress, begun"):
            async with replay_lease(settings, address, SystemClock()):
                pass
    async with replay_lease(settings, address, SystemClock()) as lease:
        await lease.require()


@pytest.mark.long
async def test_journal_is_read_in_a_redis_cluster(masters: list[redis.Redis], nodes: list[Valkey], names: Names) -> None:
    declared = {"name": "accounts", "source": "events", "key": "account_id"}
    url = f"redis+cluster://127.0.0.1:{nodes[0].port}"
    settings = Settings.model_validate({"app_id": names.app_id, "redis": {"url": url}, "journals": [declared]})
    client = connect(settings.redis)
    try:
        for partition in range(6):
            shard = JournalShard(client, settings, partition, partitions=6)
            await shard.claim()
            await shard.append([row("a", 0), row("a", 1, 1)])
    finally:
        await client.aclose()
    async with JournalReader(settings) as reader:
        found = [(one.partition, one.cursor) async for one in reader.read("a") if isinstance(one, Entry)]
        page = await reader.page((member_of(("a",)),), parse_start("earliest", 0), limit=100, max_bytes=10_000)

    assert [(partition, partition) for partition in range(6) for _ in range(2)] == [(one, one) for one, _ in found]
    assert (dict.fromkeys(range(6), 1), dict.fromkeys(range(6), 0)) == (page.fences, page.floors)
