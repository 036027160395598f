"""Topics deleted under a running worker, or missing from the start, on a broker that creates topics on request by default."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streams_app.delivery.producer import OutgoingRecord
from streams_app.kafka.producer import AckedProducer
from streams_app.settings.sections import KafkaSettings
from tests.conftest import Names, RedisServer
from tests.helpers.cli.commands import run
from tests.helpers.folding.checker import event
from tests.helpers.kafka.topics import admin_of
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import LIMIT_SECONDS, Site, unhelpful_lines
from tests.helpers.worker.workers import WorkerProcess
from tests.servers.apache_kafka import ApacheKafka
from tests.servers.cache import ROOT

ACCOUNTS = 20

pytestmark = [pytest.mark.apache, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def broker() -> Iterator[ApacheKafka]:
    running = ApacheKafka.start(given={"auto.create.topics.enable": "true"})
    with running:
        yield running


@pytest.fixture
def site(broker: ApacheKafka, redis_server: RedisServer, names: Names, tmp_path: Path) -> Site:
    return Site(names, broker.bootstrap_servers, redis_server.url, tmp_path)


async def delete(site: Site, topic: str) -> None:
    async with admin_of(site.bootstrap) as admin:
        await admin.delete_topics([site.names.topic(topic)])


async def topics_of(site: Site) -> list[str]:
    """Return the topics of this test, without its prefix."""
    async with admin_of(site.bootstrap) as admin:
        prefix = site.names.topic("")
        return sorted(name.removeprefix(prefix) for name in await admin.list_topics() if name.startswith(prefix))


async def send_events(site: Site, numbers: range) -> None:
    await site.send("events", [event(f"account_{number % ACCOUNTS}", f"n{number}") for number in numbers])


async def reasons(worker: WorkerProcess) -> list[str]:
    status, body = await worker.get("/health/ready")
    return json.loads(body)["reasons"] if status == 503 else []


def acked_producer(site: Site, **options: Any) -> AckedProducer:
    return AckedProducer(KafkaSettings(bootstrap_servers=site.bootstrap), client_id="test", **options)


async def test_missing_topic_does_not_block_others_and_is_not_created(site: Site) -> None:
    await site.topics("there")
    there, missing = site.names.topic("there"), site.names.topic("missing")
    producer = acked_producer(site)
    try:
        waiting = asyncio.create_task(producer.send([OutgoingRecord(missing, b"k", b"v")]))
        fine = [await producer.send([OutgoingRecord(there, b"k", b"v")]) for _ in range(5)]
        has_waited = not waiting.done()
        (error,) = await waiting
        mixed = await producer.send([OutgoingRecord(missing, b"k", b"v"), OutgoingRecord(there, b"k", b"v")])
    finally:
        await producer.stop()

    assert ([[None]] * 5, True) == (fine, has_waited)
    assert f"topic {missing!r} does not exist" in str(error)
    assert [True, False] == [outcome is not None for outcome in mixed]
    assert ["there"] == await topics_of(site)


async def test_deleted_output_of_one_fold_does_not_stop_the_others(site: Site) -> None:
    folds = ["first", "second", "third"]
    await site.topics("events", "events.dead", *folds)
    with site.worker(site.config("".join(site.fold(name, "events") for name in folds))) as worker:
        await worker.wait_ready()
        await send_events(site, range(100))
        for name in folds:
            await site.records(name, 100)
        await delete(site, "second")
        await send_events(site, range(100, 200))
        missing = f"topic {site.names.topic('second')!r} does not exist"
        await wait_until(lambda: reports(worker, missing), LIMIT_SECONDS, "the worker reports the missing topic")
        await send_events(site, range(200, 300))
        for name in ("first", "third"):
            await site.records(name, 300)
        still = await reasons(worker)
        there = await topics_of(site)
        await site.topics("second")
        found = await site.outcome("second", 200)
        await worker.wait_ready(60)
        await send_events(site, range(300, 400))
        for name in folds:
            await site.records(name, 300 if name == "second" else 400)
        code = await worker.terminate()

    assert [missing] == still
    assert ["events", "events.dead", "first", "third"] == there
    assert {f"n{number}" for number in range(100, 300)} <= found.ids_of.keys()
    assert 0 == code


async def reports(worker: WorkerProcess, reason: str) -> bool:
    assert worker.exit_code is None, worker.log()
    return reason in await reasons(worker)


async def test_deleted_source_is_not_recreated_and_ends_its_worker_with_75(site: Site) -> None:
    await site.topics("events", "events.dead", "folded", "other", "other.dead", "other-folded")
    config = site.config(site.fold("folded", "events") + site.fold("other-folded", "other"))
    gone = f"topic {site.names.topic('other')!r} does not exist any more"
    with site.worker(config) as worker:
        await worker.wait_ready()
        await delete(site, "other")
        await wait_until(lambda: reports(worker, gone), LIMIT_SECONDS, "the worker reports the missing topic")
        await send_events(site, range(50))
        await site.records("folded", 50)
        code = await worker.wait_exit(LIMIT_SECONDS)
        log = worker.log()
    planned = await asyncio.to_thread(run, "reset", "--fold", "other-folded", "--config", str(config))

    assert (0, "") == (planned.code, planned.err)
    assert f"topic {site.names.topic('other')} does not exist" in planned.out
    assert (75, 1) == (code, log.count(f"{gone}, ending with exit code 75"))
    assert ["events", "events.dead", "folded", "other-folded", "other.dead"] == await topics_of(site)
    assert [] == unhelpful_lines(log)


MISSING = [
    (["check"], 1),
    (["worker"], 1),
    (["reset", "--fold", "folded"], 1),
    (["reset", "--fold", "folded", "--yes"], 1),
    (["groups", "list"], 0),
    (["groups", "explain", "account_1"], 1),
    (["groups", "flush", "--all", "--fold", "folded"], 0),
    (["dead-letters", "list"], 1),
    (["dead-letters", "replay"], 1),
]


def test_commands_create_no_topic(broker: ApacheKafka, site: Site) -> None:
    config = str(site.config(site.fold("folded", "events")))
    codes = [(command, run(*command, "--config", config).code) for command, _ in MISSING]
    faust = subprocess.run(
        [sys.executable, "-m", "faust", "-A", "streams_app.worker", "worker", "-l", "info"],
        cwd=site.folder, env={**os.environ, "STREAMS_APP_CONFIG": config, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS,
    )  # fmt: skip

    assert MISSING == codes
    assert 1 == faust.returncode
    assert f"topic {site.names.topic('events')!r} (source of folded) does not exist" in faust.stderr
    assert "Traceback" not in faust.stdout + faust.stderr
    assert [] == asyncio.run(topics_of(site))
