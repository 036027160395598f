"""The metrics of a worker that is not ready, and of a Redis that rejects writes, with a real worker and real servers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families

from streams_app.embedded import Valkey
from streams_app.health.status import NOT_READY_CAUSES
from streams_app.redis_access.client import connect, write_rejection
from streams_app.settings import RedisSettings
from tests.conftest import KafkaServer, Names
from tests.helpers.cli.commands import run
from tests.helpers.kafka.topics import create_topics, delete_topic
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import LIMIT_SECONDS, Site, Stage, frozen, metrics_of
from tests.helpers.worker.workers import WorkerProcess
from tests.servers.cache import ROOT

pytestmark = pytest.mark.timeout(240)

CATALOGUE = """
import os
import msgspec
from streams_app import Catalogue, Received, records_of, subscriber

class AccountChanged(msgspec.Struct):
    account_id: str

@subscriber(records_of("folded", AccountChanged), idempotent="yes", description="Shows it.")
async def show(event: Received[AccountChanged]) -> None:
    pass

catalogue = Catalogue(events=(), subscribers=(show,))
"""


def causes(worker: WorkerProcess, name: str = "streams_app_not_ready") -> dict[str, float]:
    """Return the cause and value of each series."""
    samples = [sample for family in text_string_to_metric_families(metrics_of(worker)) for sample in family.samples]
    return {sample.labels["cause"]: sample.value for sample in samples if sample.name == name}


def nonzero(found: dict[str, float]) -> set[str]:
    """Return the causes whose value is not zero."""
    return {cause for cause, value in found.items() if value}


@pytest.fixture
def client(valkey: Valkey) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(valkey.url) as made:
        yield made


@pytest.fixture
async def staged(kafka: KafkaServer, valkey: Valkey, names: Names, tmp_path: Path) -> Stage:
    """Return a stage with a Redis of its own."""
    made = Stage(names, kafka.bootstrap_servers, valkey.url, tmp_path)
    await create_topics(kafka.bootstrap_servers, [made.source, made.output, made.dead])
    made.config()
    return made


async def test_ready_worker_has_a_zero_series_for_each_cause(staged: Stage) -> None:
    with staged.worker() as worker:
        await worker.wait_ready()
        ready, writes = causes(worker), causes(worker, "streams_app_redis_refuses_writes")

    assert dict.fromkeys(NOT_READY_CAUSES, 0.0) == ready
    assert {"memory": 0, "read-only": 0, "other": 0} == writes


async def test_worker_that_is_not_ready_reports_the_cause_and_clears_it(staged: Stage, valkey: Valkey) -> None:
    with staged.worker() as worker:
        await worker.wait_ready()
        with frozen(valkey.pid):
            await wait_until(lambda: "redis" in nonzero(causes(worker)), LIMIT_SECONDS, "Redis is reported")
        await wait_until(lambda: not nonzero(causes(worker)), LIMIT_SECONDS, "no cause is reported")
        await delete_topic(staged.bootstrap, staged.source)
        await wait_until(lambda: "topic" in nonzero(causes(worker)), LIMIT_SECONDS, "the topic is reported")


async def test_hanging_main_loop_is_reported_in_the_metrics(staged: Stage) -> None:
    (staged.folder / "hanging.py").write_text(
        "import time\nfrom pathlib import Path\nfrom streams_app import create_app\nfrom streams_app.health import status\n"
        "from streams_app.settings import Settings\nstatus.LIVE_MS = 2_000\n"
        f'app = create_app(Settings.load(Path("{staged.folder}/streams.toml"), {{}}))\n'
        "@app.timer(0.5)\nasync def hang():\n    time.sleep(600)\n"
    )
    environment = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(staged.folder)])}
    with PythonAppWorker(staged.folder / "streams.toml", staged.folder, environment) as worker:
        await wait_until(lambda: bool(worker.url), LIMIT_SECONDS, "its pages are served")
        await wait_until(lambda: "loop" in nonzero(causes(worker)), LIMIT_SECONDS, "the hanging loop is reported")


class PythonAppWorker(WorkerProcess):
    """A worker of an application in Python."""

    def command(self, config: Path, arguments: Sequence[str]) -> list[str]:
        return [*super().command(config, arguments)[:4], "--app", "hanging:app"]


async def test_full_or_read_only_redis_is_reported_even_by_an_at_least_once_subscriber(
    kafka: KafkaServer, valkey: Valkey, client: redis.Redis, names: Names, tmp_path: Path
) -> None:
    site = Site(names, kafka.bootstrap_servers, valkey.url, tmp_path)
    (tmp_path / "its_events.py").write_text(CATALOGUE)
    config = site.config(site.fold("folded", "events") + '[events]\ncatalogue = "its_events:catalogue"\n')
    environment = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    created = await asyncio.to_thread(partial(run, "topics", "create", "--config", str(config), cwd=None, **environment))
    assert 0 == created.code
    with WorkerProcess(config, tmp_path, environment, ["--only", "show"]) as worker, Valkey.start() as primary:
        await worker.wait_ready()

        def rejects_writes(cause: str | None) -> bool:
            found = nonzero(causes(worker, "streams_app_redis_refuses_writes"))
            return found == (set() if cause is None else {cause})

        for cause, breaks, mends in (
            ("memory", lambda: client.config_set("maxmemory", 1), lambda: client.config_set("maxmemory", 0)),
            ("read-only", lambda: client.replicaof("127.0.0.1", primary.port), lambda: client.replicaof("no", "one")),
        ):
            breaks()
            await wait_until(partial(rejects_writes, cause), LIMIT_SECONDS, f"{cause} is told")
            assert 200 == (await worker.get("/health/live"))[0]
            mends()
            await wait_until(lambda: rejects_writes(None), LIMIT_SECONDS, "the cause is cleared")


async def test_redis_write_check_writes_nothing(valkey: Valkey, client: redis.Redis) -> None:
    asking = connect(RedisSettings(url=valkey.url))
    before = client.info()["rdb_changes_since_last_save"]
    try:
        assert None is await write_rejection(asking)
        client.config_set("min-replicas-to-write", 1)
        assert "other" == await write_rejection(asking)
    finally:
        await asking.aclose()

    assert (0, before) == (client.dbsize(), client.info()["rdb_changes_since_last_save"])
