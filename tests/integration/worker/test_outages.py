"""Kafka or Redis unavailable: the worker reports it in time, its gauges do not fall, and it reports the end."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest
import redis
import redis.asyncio
from aiokafka import AIOKafkaConsumer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from streams_app.embedded import Broker, Valkey
from tests.conftest import KafkaServer, Names
from tests.helpers.folding.checker import event
from tests.helpers.kafka.topics import create_topics, read_topic
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import (
    GROUPS,
    LIMIT_SECONDS,
    Site,
    Stage,
    frozen,
    metric,
    metrics_of,
    outage_reason,
    reasons,
    until_folded,
    up,
)
from tests.helpers.worker.workers import WorkerProcess
from tests.servers.apache_kafka import ApacheKafka

GAUGES = ("streams_app_lag_events", "streams_app_open_groups", "streams_app_oldest_overdue_seconds")
pytestmark = pytest.mark.timeout(240)


@pytest.fixture
async def own_broker_stage(broker: Broker | ApacheKafka, valkey: Valkey, names: Names, tmp_path: Path) -> AsyncIterator[Stage]:
    """Yield a stage whose broker may be stopped; groups stay open."""
    made = Stage(names, broker.bootstrap_servers, valkey.url, tmp_path)
    await create_topics(broker.bootstrap_servers, [made.source, made.output, made.dead])
    made.config(quiet_period="10m")
    yield made


@pytest.fixture
async def staged(kafka: KafkaServer, valkey: Valkey, names: Names, tmp_path: Path) -> AsyncIterator[Stage]:
    """Yield a stage whose Redis may be stopped; groups stay open for longer than it takes to stop it."""
    made = Stage(names, kafka.bootstrap_servers, valkey.url, tmp_path)
    await create_topics(kafka.bootstrap_servers, [made.source, made.output, made.dead])
    made.config(quiet_period="8s")
    yield made


def values(worker: WorkerProcess) -> dict[str, float]:
    """Return the gauges that must not fall."""
    samples = [sample for family in text_string_to_metric_families(metrics_of(worker)) for sample in family.samples]
    return {sample.name: sample.value for sample in samples if sample.name in GAUGES}


async def with_open_groups(stage: Stage, worker: WorkerProcess) -> None:
    await worker.wait_ready()
    await stage.send(120)
    await until_folded(worker, 120)
    await wait_until(
        lambda: (metric(worker, "streams_app_open_groups"), metric(worker, "streams_app_lag_events")) == (GROUPS, 0),
        LIMIT_SECONDS, "all groups are open, and nothing is left to fold",
    )  # fmt: skip


@pytest.mark.long
async def test_frozen_broker_and_its_recovery_are_reported(own_broker_stage: Stage, broker: Broker | ApacheKafka) -> None:
    with own_broker_stage.worker() as worker:
        await with_open_groups(own_broker_stage, worker)
        assert {"kafka": 1, "redis": 1} == up(worker)
        before = values(worker)
        with frozen(broker.pid):
            reason = await outage_reason(worker, "Kafka")
            inside, away = values(worker), up(worker)
            assert ["Kafka"] == [found.split()[0] for found in await reasons(worker) if "has not answered" in found]
        await worker.wait_ready(LIMIT_SECONDS)
        back = up(worker)
        log = worker.log()

    assert own_broker_stage.bootstrap in reason
    assert {"kafka": 0, "redis": 1} == away
    assert {"kafka": 1, "redis": 1} == back
    assert before == inside | {"streams_app_oldest_overdue_seconds": before["streams_app_oldest_overdue_seconds"]}
    assert (1, 1) == (log.count(" is unavailable since "), log.count(" is back after "))


async def test_killed_broker_is_reported_and_its_clients_do_not_flood_the_log(
    own_broker_stage: Stage, broker: Broker | ApacheKafka
) -> None:
    with WorkerProcess(
        own_broker_stage.folder / "streams.toml", own_broker_stage.folder, arguments=["--log-format", "json"]
    ) as worker:
        await with_open_groups(own_broker_stage, worker)
        broker.kill()
        await outage_reason(worker, "Kafka")
        open_groups = values(worker)["streams_app_open_groups"]
        lines = [json.loads(line) for line in worker.log().splitlines()]
    logged = Counter((line["logger"], re.sub(r"\d+", "#", line["message"])) for line in lines)

    assert GROUPS == open_groups
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    assert {f"{own_broker_stage.source}-{number}" for number in range(4)} == {
        line["source"] for line in lines if "claimed" in line["message"]
    }
    assert [] == [kind for kind, count in logged.items() if kind[0].startswith("aiokafka") and count > 1]


async def test_wiped_redis_is_reported(staged: Stage, valkey: Valkey) -> None:
    with staged.worker() as worker, redis.Redis.from_url(valkey.url) as client:
        await with_open_groups(staged, worker)
        assert "Redis has lost its state" not in worker.log()
        client.flushall()
        await staged.send(120)
        pattern = rf"WARNING .*Redis has lost its state: folding again from \d+, records may overlap .* source={staged.source}-\d"
        await wait_until(lambda: re.search(pattern, worker.log()), LIMIT_SECONDS, "the loss is reported")


async def test_wiped_redis_is_not_reported_as_a_log_that_went_back(site: Site, redis_client: redis.asyncio.Redis) -> None:
    await site.topics("events", "folded", "events.dead", partitions=2)
    config = site.config(site.fold("folded", "events", quiet_period="100ms"))
    folded = site.names.topic("folded")
    with site.worker(config) as worker:
        await site.send("events", [event(f"a{number}", "likes") for number in range(50)])
        await read_topic(site.bootstrap, folded, until=lambda records: len(records) >= 50, timeout_seconds=LIMIT_SECONDS)
        places = [TopicPartition(site.names.topic("events"), number) for number in range(2)]
        async with AIOKafkaConsumer(
            bootstrap_servers=site.bootstrap, group_id=site.names.app_id, enable_auto_commit=False
        ) as group:
            group.assign(places)

            async def is_committed() -> bool:
                return sum([await group.committed(place) or 0 for place in places]) == 50  # all of them

            await wait_until(is_committed, LIMIT_SECONDS, "all is committed, as Kafka alone shows")
        async for key in redis_client.scan_iter(f"{{{site.names.app_id}*"):
            await redis_client.delete(key)
        await wait_until(lambda: "Redis has lost its state" in worker.log(), LIMIT_SECONDS, "the loss is reported")
        await site.send("events", [event("after", "likes")])
        await read_topic(
            site.bootstrap, folded, until=lambda records: b"after" in {record.key for record in records},
            timeout_seconds=LIMIT_SECONDS,
        )  # fmt: skip

        assert "the log went back" not in worker.log()


@pytest.mark.long
@pytest.mark.parametrize("how", ["frozen", "killed"])
async def test_lag_and_overdue_rise_while_redis_is_away(staged: Stage, valkey: Valkey, how: str) -> None:
    with staged.worker() as worker:
        await with_open_groups(staged, worker)
        if how == "killed":
            valkey.kill()
        else:
            os.kill(valkey.pid, signal.SIGSTOP)
        try:
            await staged.send(400)
            await outage_reason(worker, "Redis")
            seen = [values(worker)]

            def is_rising() -> bool:
                seen.append(values(worker))
                lag, overdue = seen[-1]["streams_app_lag_events"], seen[-1]["streams_app_oldest_overdue_seconds"]
                return lag >= 400 and overdue > 1

            await wait_until(is_rising, LIMIT_SECONDS, "lag and overdue rise")
            away = up(worker)
        finally:
            if how == "frozen":
                os.kill(valkey.pid, signal.SIGCONT)
        falls = [(name, former, now) for former, now in pairwise(seen) for name in GAUGES if now[name] < former[name]]

    assert [] == falls
    assert {GROUPS} == {found["streams_app_open_groups"] for found in seen}
    assert {"kafka": 1, "redis": 0} == away


@pytest.mark.long
async def test_unclaimed_partitions_count_in_the_lag_of_every_worker(staged: Stage) -> None:
    """The owner is frozen: until its session expires no worker folds its partitions."""
    staged.config(quiet_period="8s", session_timeout="6s")
    with staged.worker() as one, staged.worker() as two:
        await asyncio.gather(one.wait_ready(), two.wait_ready())
        await staged.send(100)
        await wait_until(lambda: metric(one, "streams_app_lag_events") == 0, LIMIT_SECONDS, "nothing is left to fold")
        two.stop_signal()
        for partition in range(4):
            await staged.send(50, partition=partition)
        lag = await wait_until(lambda: metric(one, "streams_app_lag_events"), LIMIT_SECONDS, "the other half is seen")
        two.continue_signal()

    assert lag > 0
