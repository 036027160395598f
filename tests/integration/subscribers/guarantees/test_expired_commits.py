"""Kafka removes the commits of groups after a long absence: components with state of their own do not start anew."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import pytest
from aiokafka.protocol.admin import DeleteGroupsRequest

from streams_app.read_store.sqlite.store import SqliteStore
from streams_app.subscribers.declaration.received import Received
from tests.conftest import KafkaServer, Names, RedisServer
from tests.helpers.kafka.topics import admin_of
from tests.helpers.subscribers.subscribing import Shop
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import GROUPS, LIMIT_SECONDS, Stage

pytestmark = [pytest.mark.timeout(200), pytest.mark.apache]


async def expire(bootstrap: str, app_id: str) -> list[str]:
    """Delete the commits of an application's groups, as the broker does after ``offsets.retention.minutes``."""
    async with admin_of(bootstrap) as admin:
        groups = [group for group, _ in await admin.list_consumer_groups() if group.startswith(app_id)]
        reply = await admin._send_request(DeleteGroupsRequest(groups), await admin.find_coordinator(groups[0]))
        assert {(group, 0) for group in groups} == {tuple(result) for result in reply.results}
        assert [{}] * len(groups) == [await admin.list_consumer_group_offsets(group) for group in groups]
    return groups


@pytest.mark.parametrize("start", ["latest", "earliest"])
@pytest.mark.parametrize("idempotent", ["yes", "unknown"])
async def test_subscriber_resumes_where_it_stopped(
    kafka: KafkaServer, redis_server: RedisServer, names: Names, idempotent: Any, start: Any
) -> None:
    shop = Shop(names, kafka.bootstrap_servers, redis_server.url)
    await shop.open()

    async def ship(event: Received[Any]) -> None:
        shop.called(event)

    await shop.send("old")
    async with shop.member(ship, idempotent=idempotent, start="earliest"):
        await shop.until_called("old")
        await shop.send("o1", "o2")
        await shop.send("o3", partition=1)
        await shop.until_called("o1", "o2", "o3")
    await shop.send("o4")
    await shop.send("o5", partition=1)
    groups = await expire(shop.bootstrap, names.app_id)
    async with shop.member(ship, idempotent=idempotent, start=start):
        await shop.until_called("o4", "o5")
        await shop.send("o6")
        await shop.until_called("o6")

    assert [f"{names.app_id}.ship"] == groups
    assert {order: [1] for order in ("old", "o1", "o2", "o3", "o4", "o5", "o6")} == shop.calls


STORE = """
[read_stores.dashboard]
url = "sqlite:///{folder}/read.db"
folds = ["account-metrics"]
dead_letters = "{dead}"
source_url = "sqlite:///{folder}/write.db"
sql = "SELECT account_id, metric, value FROM m WHERE account_id IN (SELECT value FROM json_each(:groups))"
"""


async def until_stored(stage: Stage) -> None:
    """Return once the store contains everything sent."""
    names = {(account.decode(), name) for name, account in stage.sent.items()}

    def are_stored() -> bool:
        with closing(sqlite3.connect(stage.folder / "read.db")) as store:
            return names <= set(store.execute("SELECT group_key, name FROM folded_values").fetchall())

    await wait_until(are_stored, LIMIT_SECONDS, "all of it is in the store")


async def test_folds_and_read_stores_resume_where_they_stopped(stage: Stage) -> None:
    with closing(sqlite3.connect(stage.folder / "write.db")) as source, source:
        source.execute("CREATE TABLE m (account_id TEXT, metric TEXT, value INTEGER)")
        source.executemany("INSERT INTO m VALUES (?, ?, ?)", [(f"account_{at % GROUPS}", f"n{at}", at) for at in range(48)])
    store = SqliteStore(f"sqlite:///{stage.folder}/read.db", "folded_values", "dashboard")
    await store.initialise()
    await store.close()
    config = stage.config(fold='start = "latest"', extra=STORE.format(folder=stage.folder, dead=stage.dead))
    with stage.worker(config) as worker:
        await worker.wait_ready()
        await stage.send(24)
        await stage.outcome()
        await until_stored(stage)
        assert 0 == await worker.terminate()
    await stage.send(24)
    groups = await expire(stage.bootstrap, stage.names.app_id)
    with stage.worker(config) as worker:
        await worker.wait_ready()
        outcome = await stage.outcome()
        await until_stored(stage)
        assert 0 == await worker.terminate()

    assert 2 <= len(groups)
    assert {name: 1 for name in stage.sent} == {name: len(ids) for name, ids in outcome.ids_of.items()}
