"""Reports of a subscriber whose log, or whose commit, has changed."""

from __future__ import annotations

import asyncio
import logging

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from streams_app.health.metrics import Metrics
from streams_app.health.status import Status
from streams_app.subscribers.declaration.received import Received
from tests.conftest import KafkaServer, Names, RedisServer
from tests.helpers.subscribers.subscribing import LIMIT_SECONDS, Paid, Shop
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
async def shop(kafka: KafkaServer, redis_server: RedisServer, names: Names) -> Shop:
    made = Shop(names, kafka.bootstrap_servers, redis_server.url)
    await made.open()
    return made


@pytest.mark.apache
async def test_unfinished_records_removed_by_retention_are_counted_and_reported(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = asyncio.Event()

    async def ship(event: Received[Paid]) -> None:
        shop.called(event)
        if event.data.order_id == "runs":
            await blocked.wait()

    await shop.send("runs", "done")
    async with shop.member(ship, grace="1s"):
        await shop.until_called("runs", "done")
    await shop.send("never")
    admin = AIOKafkaAdminClient(bootstrap_servers=shop.bootstrap)
    await admin.start()
    await admin.delete_records({TopicPartition(shop.topic, 0): RecordsToDelete(before_offset=-1)})
    await admin.close()
    await shop.send("after")
    blocked.set()
    metrics = Metrics(shop.settings)
    lost_events = metrics.subscriber_finished.labels("ship", "order.paid", "lost")
    with caplog.at_level(logging.ERROR):
        async with shop.member(ship, metrics=metrics):
            await shop.until_called("after")
            await wait_until(lost_events._value.get, LIMIT_SECONDS, "the loss is counted")

    assert "never" not in shop.calls
    assert 2 == lost_events._value.get()
    assert "events are lost subscriber=ship source=" in caplog.text


async def test_subscriber_without_initial_offsets_reports_why_it_waits_and_its_worker_is_not_ready(shop: Shop) -> None:
    async def ship(event: Received[Paid]) -> None:
        """Do nothing; it is never called."""

    status, metrics = Status(), Metrics(shop.settings)
    waits = {what: metrics.waiting_for.labels("ship", what) for what in ("operator", "broker")}
    async with shop.member(ship, idempotent="no", status=status, metrics=metrics):
        await wait_until(status.remarks, LIMIT_SECONDS, "it reports why it waits")
        (remark,) = status.remarks()
        not_ready = [why for why in status.ready_reasons() if why.startswith("subscriber ship does not run: ")]
        await wait_until(waits["operator"]._value.get, LIMIT_SECONDS, "the metric shows it, too")
        for_broker = waits["broker"]._value.get()

    assert remark.startswith("subscriber ship waits: ")
    assert 1 == len(not_ready)
    assert 0 == for_broker
    assert (
        "has no commit of subscriber 'ship': streams-app topics create where it is new or its topic has new partitions, else "
        "streams-app reset --subscriber ship --at ...; while no worker runs it" in remark
    )
