"""What a worker checks in Kafka before it starts."""

from __future__ import annotations

from typing import Final

import pytest

from streams_app.operations.topics import create_missing_topics
from streams_app.settings import Settings
from tests.helpers.kafka.topics import admin_of
from tests.helpers.worker.site import LIMIT_SECONDS, Site
from tests.helpers.worker.workers import WorkerProcess

UNREACHABLE: Final = "127.0.0.1:1"


def declared(site: Site) -> str:
    """Return the tables of a fold and of a read store of its records."""
    store = f'[read_stores.board]\nurl = "sqlite:///{site.folder}/board.db"\nfolds = ["folded"]\nsource = "carried"\n'
    return site.fold("folded", "events", keep="last") + store


def missing_in(site: Site, log: str) -> list[str]:
    """Return the topics, without the prefix of the test, that a worker reports as missing."""
    names = ("events", "events.dead", "folded", "read-store.board.dead")
    return [name for name in names if f"topic {site.names.topic(name)!r} (" in log]


@pytest.mark.parametrize(
    ("arguments", "missing"),
    [
        ([], ["events", "events.dead", "folded", "read-store.board.dead"]),
        (["--only", "board"], ["folded", "read-store.board.dead"]),
    ],
    ids=["with folds", "one read store"],
)
async def test_worker_without_its_topics_ends_with_1_and_names_those_of_what_it_runs(
    site: Site, arguments: list[str], missing: list[str]
) -> None:
    with WorkerProcess(site.config(declared(site)), site.folder, arguments=arguments) as worker:
        code = await worker.wait_exit(LIMIT_SECONDS)
        log = worker.log()
    async with admin_of(site.bootstrap) as admin:
        created = [name for name in await admin.list_topics() if name.startswith(site.names.topic(""))]

    assert (1, missing, 1) == (code, missing_in(site, log), log.count("create what is missing with `streams-app topics create`"))
    assert "Traceback" not in log
    assert [] == created


async def test_worker_of_one_read_store_starts_once_its_topics_are_created(site: Site) -> None:
    config = site.config(declared(site))
    await create_missing_topics(Settings.load(config, {}))
    with WorkerProcess(config, site.folder, arguments=["--only", "board"]) as worker:
        await worker.wait_ready()
        code = await worker.terminate()

    assert 0 == code


@pytest.mark.parametrize("arguments", [[], ["--only", "board"]], ids=["with folds", "one read store"])
async def test_worker_that_cannot_reach_kafka_at_the_start_ends_with_75(site: Site, arguments: list[str]) -> None:
    config = site.config(declared(site))
    environment = {"STREAMS_APP_KAFKA_BOOTSTRAP_SERVERS": UNREACHABLE}
    with WorkerProcess(config, site.folder, environment, arguments) as worker:
        code = await worker.wait_exit(LIMIT_SECONDS)

    assert 75 == code
    assert f"cannot reach Kafka at {UNREACHABLE}" in worker.log()
