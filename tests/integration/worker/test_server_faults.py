"""Redis full or unavailable, broker unavailable: folding waits, reports why, and resumes without loss."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import redis

from streams_app.embedded import Broker, Valkey
from tests.conftest import KAFKA_CHOICE, KafkaServer, Names
from tests.helpers.cli.commands import run
from tests.helpers.kafka.topics import create_topics
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import GROUPS, LIMIT_SECONDS, Stage, frozen, metric, reasons, unhelpful_lines, until_folded
from tests.helpers.worker.workers import WorkerProcess
from tests.servers.apache_kafka import ApacheKafka

FREEZE_SECONDS = 5

EXACTLY_ONCE = {"enable_idempotence": KAFKA_CHOICE != "embedded"}
"""Records that the test sends while leaders change are in the topic once; a plain producer would repeat them."""

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
async def staged(kafka: KafkaServer, valkey: Valkey, names: Names, tmp_path: Path) -> AsyncIterator[Stage]:
    made = Stage(names, kafka.bootstrap_servers, valkey.url, tmp_path)
    await create_topics(kafka.bootstrap_servers, [made.source, made.output, made.dead])
    made.config()
    yield made


@pytest.fixture
async def own_broker_stage(broker: Broker | ApacheKafka, valkey: Valkey, names: Names, tmp_path: Path) -> AsyncIterator[Stage]:
    """Yield a stage whose broker may be stopped."""
    made = Stage(names, broker.bootstrap_servers, valkey.url, tmp_path)
    await create_topics(broker.bootstrap_servers, [made.source, made.output, made.dead])
    made.config(quiet_period="2s")
    yield made


async def send_continuously(stage: Stage, count: int, seconds: float) -> None:
    """Send events continuously."""
    for _ in range(count // 20):
        await stage.send(20)
        await asyncio.sleep(seconds * 20 / count)  # the rate of the load


# Redis


async def fill(client: redis.Redis, worker: WorkerProcess) -> None:
    """Fill Redis, after the worker has folded 120 events."""
    await until_folded(worker, 120)
    client.config_set("maxmemory", client.info("memory")["used_memory"] // 2)


async def reports_full(worker: WorkerProcess) -> bool:
    return any("Redis refuses writes" in reason for reason in await reasons(worker))


async def test_full_redis_pauses_folding_but_not_emission_and_folding_resumes_alone(staged: Stage, valkey: Valkey) -> None:
    config = staged.config(quiet_period="3s")
    with redis.Redis.from_url(valkey.url) as client, staged.worker(config) as worker:
        await worker.wait_ready()
        await staged.send(120)
        await fill(client, worker)
        await staged.send(40, partition=0)
        await wait_until(lambda: reports_full(worker), LIMIT_SECONDS, "the worker reports that Redis is full")
        # The groups of the other partitions are emitted, and no events come in.
        emitted = await wait_until(lambda: metric(worker, "streams_app_records_emitted_total"), LIMIT_SECONDS, "emission continues")
        await wait_until(lambda: metric(worker, "streams_app_outbox_records") == 0, LIMIT_SECONDS, "the outbox is empty")
        paused = [metric(worker, "streams_app_events_folded_total"), await reports_full(worker), worker.exit_code]
        client.config_set("maxmemory", 0)
        outcome = await staged.outcome()
        await worker.wait_ready(LIMIT_SECONDS)
        code = await worker.terminate()

    assert emitted
    assert [120, True, None] == paused
    assert [] == outcome.faults(staged.sent)
    assert "folding paused, Redis is full" in worker.log()
    assert "folding resumed" in worker.log()
    assert 0 == code


@pytest.mark.long
async def test_groups_are_emitted_from_a_full_redis_even_if_every_partition_has_events_waiting(
    staged: Stage, valkey: Valkey
) -> None:
    config = staged.config(quiet_period="2s")
    with redis.Redis.from_url(valkey.url) as client, staged.worker(config) as worker:
        await worker.wait_ready()
        await staged.send(120)
        await fill(client, worker)
        for partition in range(4):
            await staged.send(10, partition=partition)
        await wait_until(lambda: reports_full(worker), LIMIT_SECONDS, "the worker reports that Redis is full")
        await wait_until(lambda: metric(worker, "streams_app_records_emitted_total") >= GROUPS, LIMIT_SECONDS, "all groups leave")


@pytest.mark.long
async def test_frozen_redis_loses_no_event(staged: Stage, valkey: Valkey) -> None:
    with staged.worker(staged.config(quiet_period="2s")) as worker:
        await worker.wait_ready()
        await staged.send(200)
        await until_folded(worker, 200)
        with frozen(valkey.pid):
            await send_continuously(staged, 200, FREEZE_SECONDS)
            inside = metric(worker, "streams_app_events_folded_total")
        await staged.send(200)
        outcome = await staged.outcome()
        await worker.wait_ready(LIMIT_SECONDS)
        code = await worker.terminate()

    assert inside < 400
    assert [] == outcome.faults(staged.sent)
    assert 0 == code


async def test_redis_killed_and_restarted_loses_no_event(staged: Stage, valkey: Valkey, tmp_path: Path) -> None:
    with staged.worker(staged.config(quiet_period="2s")) as worker:
        await worker.wait_ready()
        await staged.send(200)
        await until_folded(worker, 200)
        valkey.kill()
        await send_continuously(staged, 100, 3)
        await wait_until(lambda: reasons(worker), LIMIT_SECONDS, "the worker misses Redis")
        with Valkey.start(valkey.port, tmp_path / "valkey", appendonly=True) as restarted:
            await staged.send(100)
            # A second of its log may be missing: then events are folded again.
            outcome = await staged.outcome()
            with redis.Redis.from_url(restarted.url) as client:
                assert client.dbsize() > 0
            code = await worker.terminate()

    assert "claiming again: " in worker.log()
    assert [] == outcome.faults(staged.sent, is_exact=False)
    assert 0 == code


@pytest.mark.long
async def test_worker_is_ready_once_redis_has_returned(staged: Stage, valkey: Valkey, tmp_path: Path) -> None:
    """Folding detects the outage first, then emission; a stale reason would also silence the watchdog."""
    seldom = {"STREAMS_APP_WORKER_TICK": "3s"}
    with WorkerProcess(staged.config(), tmp_path, seldom) as worker:
        await worker.wait_ready()
        load = asyncio.create_task(send_continuously(staged, 2_000, 8))
        await wait_until(lambda: metric(worker, "streams_app_events_folded_total") > 200, LIMIT_SECONDS, "the load has begun")
        valkey.kill()

        async def is_reported() -> bool:
            return any("Redis does not answer" in reason for reason in await reasons(worker))

        await wait_until(is_reported, LIMIT_SECONDS, "the worker reports that Redis is unavailable")
        await wait_until(lambda: "cannot claim yet" in worker.log(), LIMIT_SECONDS, "the partitions are to be claimed again")
        with Valkey.start(valkey.port, tmp_path / "valkey", appendonly=True):
            await load
            outcome = await staged.outcome()
            # Every partition is claimed and folded to its end, so there is nothing left to wait for.
            left = await reasons(worker)

    assert [] == outcome.faults(staged.sent, is_exact=False)
    assert [] == left


@pytest.mark.long
async def test_redis_error_reply_is_reported(staged: Stage, valkey: Valkey) -> None:
    with staged.worker() as worker, redis.Redis.from_url(valkey.url) as client:
        await worker.wait_ready()
        client.acl_setuser("default", enabled=True, nopass=True, commands=["-hgetall"])
        await staged.send(400)

        async def is_reported() -> bool:
            return any("is claimed repeatedly (a reply of Redis was lost" in reason for reason in await reasons(worker))

        await wait_until(is_reported, LIMIT_SECONDS, "the worker reports that it makes no progress")
        client.acl_setuser("default", enabled=True, nopass=True, commands=["+hgetall"])
        outcome = await staged.outcome()
        await wait_until(lambda: _is_ready(worker), LIMIT_SECONDS, "nothing is in its way any more")

    assert "no permissions to run the 'hgetall' command" in worker.log()
    assert [] == outcome.faults(staged.sent)


async def _is_ready(worker: WorkerProcess) -> bool:
    return (await worker.get("/health/ready"))[0] == 200


# Broker


@pytest.mark.long
async def test_frozen_broker_loses_no_event(own_broker_stage: Stage, broker: Broker | ApacheKafka) -> None:
    with own_broker_stage.worker() as worker:
        await worker.wait_ready()
        await own_broker_stage.send(400)
        await until_folded(worker, 400)
        # Longer than the session timeout: after its return, the broker has removed the worker from the group.
        with frozen(broker.pid):
            await asyncio.sleep(FREEZE_SECONDS)  # the fault lasts
        await own_broker_stage.send(400, **EXACTLY_ONCE)
        outcome = await own_broker_stage.outcome()
        await worker.wait_ready(LIMIT_SECONDS)
        code = await worker.terminate()

    assert [] == outcome.faults(own_broker_stage.sent)
    assert 800 == outcome.events
    assert 0 == code, worker.log()


@pytest.mark.apache
async def test_broker_killed_and_restarted_loses_no_event(valkey: Valkey, names: Names, tmp_path: Path) -> None:
    data = tmp_path / "kafka"
    first = ApacheKafka.start(directory=data)
    with first:
        stage = Stage(names, first.bootstrap_servers, valkey.url, tmp_path)
        await create_topics(stage.bootstrap, [stage.source, stage.output, stage.dead])
        with stage.worker(stage.config(quiet_period="6s")) as worker:
            await worker.wait_ready()
            await stage.send(400)
            await until_folded(worker, 400)
            first.kill()
            # Groups are closed while their records are not accepted. Silence closes none: newer arrivals are unknown.
            await flush_all(stage.config(quiet_period="6s"))
            await wait_until(lambda: metric(worker, "streams_app_outbox_records") > 0, LIMIT_SECONDS, "records wait in the outbox")
            with ApacheKafka.start(int(stage.bootstrap.rsplit(":", 1)[1]), data):
                await stage.send(400, **EXACTLY_ONCE)
                outcome = await stage.outcome()
                await worker.wait_ready(LIMIT_SECONDS)
                code = await worker.terminate()

    assert [] == outcome.faults(stage.sent)
    assert 800 == outcome.events
    assert 0 == code
    assert [] == unhelpful_lines(worker.log())


async def flush_all(config: Path) -> None:
    """Run ``streams-app groups flush --all``."""
    ran = await asyncio.to_thread(run, "groups", "flush", "--all", "--config", str(config))
    assert ran.code == 0, ran.text


# Shutdown


@pytest.mark.long
@pytest.mark.parametrize("which", ["redis", "broker"])
async def test_sigterm_ends_a_worker_within_20_seconds_even_if_a_server_is_frozen(
    own_broker_stage: Stage, valkey: Valkey, broker: Broker | ApacheKafka, which: str
) -> None:
    with own_broker_stage.worker() as worker:
        await worker.wait_ready()
        await own_broker_stage.send(100)
        await until_folded(worker, 100)
        with frozen(valkey.pid if which == "redis" else broker.pid):
            await asyncio.sleep(1)  # by now the worker waits for an answer
            code = await worker.terminate(20)
        with own_broker_stage.worker() as another:
            await own_broker_stage.send(100)
            outcome = await own_broker_stage.outcome()
            assert 0 == await another.terminate()

    assert code in (0, 75)
    assert [] == outcome.faults(own_broker_stage.sent)


class FragileWorker(WorkerProcess):
    """A worker whose Python crashes during interpreter shutdown."""

    def command(self, config: Path, arguments: Sequence[str]) -> list[str]:
        program = "import atexit, os, runpy, signal; atexit.register(os.kill, os.getpid(), signal.SIGSEGV); print('printed'); "
        program += "runpy.run_module('streams_app', run_name='__main__')"
        return [sys.executable, "-c", program, "worker", "--config", str(config.resolve()), *arguments]


@pytest.mark.long
async def test_exit_code_is_independent_of_interpreter_shutdown(staged: Stage, valkey: Valkey) -> None:
    with FragileWorker(staged.config(), staged.folder, {"PYTHONUNBUFFERED": ""}) as worker:
        await worker.wait_ready()
        assert 0 == await worker.terminate(), worker.log()
        assert "worker ended" in worker.log()
        assert "printed" in worker.log()
    valkey.stop()
    with FragileWorker(staged.config(), staged.folder) as worker:
        assert 75 == await worker.wait_exit(60)
        assert "cannot reach Redis" in worker.log()
