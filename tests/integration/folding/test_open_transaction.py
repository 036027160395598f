"""A long open transaction hides the acknowledged records behind it, and every count and explanation reports that."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from aiokafka import AIOKafkaProducer
from prometheus_client.parser import text_string_to_metric_families

from streams_app.operations.live import page_of_views
from streams_app.settings import Settings
from tests.helpers.folding.checker import event
from tests.helpers.kafka.topics import create_topics, produce
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import LIMIT_SECONDS, Site, metrics_of
from tests.helpers.worker.workers import WorkerProcess
from tests.integration.operations.test_events_explain import Shop

pytestmark = [pytest.mark.timeout(240), pytest.mark.apache]

ACKNOWLEDGED = 20
HIDDEN = ACKNOWLEDGED + 1
"""Includes the record of the transaction itself."""


@dataclass
class Scene:
    """A worker with a fold, a live view and a subscriber, each of which has an open transaction in its topic."""

    site: Site
    shop: Shop
    worker: WorkerProcess
    producer: AIOKafkaProducer

    async def until(self, value: float, name: str, **labels: str) -> None:
        """Wait until a metric of the worker has a value."""

        def has_value() -> bool:
            families = text_string_to_metric_families(metrics_of(self.worker))
            samples = [sample for family in families for sample in family.samples]
            return (f"streams_app_{name}", labels, value) in [(sample.name, sample.labels, sample.value) for sample in samples]

        await wait_until(has_value, LIMIT_SECONDS, f"{name} of {labels} is {value}")

    async def remarks(self) -> list[str]:
        """Return the status remarks of a ready worker."""
        code, text = await self.worker.get("/health/ready")
        assert 200 == code, text
        return list(json.loads(text).get("remarks", []))


@pytest.fixture
async def scene(site: Site) -> AsyncIterator[Scene]:
    events = site.names.topic("events")
    topics = f'source = "{events}"\ndead_letters = "{events}.dead"\n'
    view = f'[live.seen]\nkind = "count"\n{topics}page = "account_id"\nexpiry = "1h"\npublic = true\n'
    shop = Shop(site, view)
    await site.topics("events", "events.dead", "folded", "paid.ship.dead", partitions=1)
    await create_topics(site.bootstrap, [shop.topic, f"{site.names.app_id}.again"], 1)
    producer = AIOKafkaProducer(
        bootstrap_servers=site.bootstrap, transactional_id=site.names.app_id, transaction_timeout_ms=600_000
    )
    await producer.start()
    try:
        with shop.worker() as worker:
            await worker.wait_ready()
            await producer.begin_transaction()
            await producer.send_and_wait(events, *reversed(event("open", "x")))
            await producer.send_and_wait(shop.topic, b'{"order_id": "open"}', b"k", headers=[("ce_id", b"id-open")])
            await produce(site.bootstrap, events, [event("acknowledged", f"x{number}") for number in range(ACKNOWLEDGED)])
            await shop.send(*(f"o{number}" for number in range(ACKNOWLEDGED)))
            yield Scene(site, shop, worker, producer)
    finally:
        await producer.stop()


async def test_records_hidden_by_an_open_transaction_are_lag_and_its_cause_is_reported_until_it_ends(scene: Scene) -> None:
    events, orders = scene.site.names.topic("events"), scene.shop.topic
    await scene.until(HIDDEN, "lag_events", fold="folded")
    await scene.until(HIDDEN, "subscriber_waiting_events", subscriber="ship")
    await scene.until(HIDDEN, "live_lag_records", view="seen")
    for reader, topic in (("folds", events), ("live.seen", events), ("ship", orders)):
        await scene.until(HIDDEN, "open_transaction_records", reader=reader, topic=topic)

    async def is_reported() -> bool:
        remarks = " ".join(await scene.remarks())
        return all(f"an open transaction hides {HIDDEN} offsets of {topic}-0" in remarks for topic in (events, orders))

    await wait_until(is_reported, LIMIT_SECONDS, "the cause is a remark")
    log = scene.worker.log()
    assert all(
        f"an open transaction hides the records after it reader={reader}" in log for reader in ("folds", "live.seen", "ship")
    )

    await scene.producer.commit_transaction()
    await scene.until(0, "lag_events", fold="folded")
    await scene.until(0, "live_lag_records", view="seen")
    for reader, topic in (("folds", events), ("live.seen", events), ("ship", orders)):
        await scene.until(0, "open_transaction_records", reader=reader, topic=topic)
        await scene.until(0, "open_transaction_seconds", reader=reader, topic=topic)
    assert [] == [remark for remark in await scene.remarks() if "transaction" in remark]
    assert "the transaction has ended reader=ship" in scene.worker.log()
    await scene.shop.until_called("open", *(f"o{number}" for number in range(ACKNOWLEDGED)))


async def test_view_that_lacks_hidden_records_is_behind_until_the_transaction_ends(scene: Scene) -> None:
    settings = Settings.load(scene.shop.config, {})

    async def is_shown(state: str, count: int) -> bool:
        (found,) = await page_of_views(settings, "acknowledged", ["seen"])
        return (found.state.state, found.state.count) == (state, count)

    await wait_until(lambda: is_shown("behind", 0), LIMIT_SECONDS, "the view is behind")
    await scene.producer.commit_transaction()
    await wait_until(lambda: is_shown("ok", ACKNOWLEDGED), LIMIT_SECONDS, "the view shows what was hidden")


async def test_acknowledged_event_behind_an_open_transaction_is_found_in_the_log_by_explain(scene: Scene) -> None:
    verdicts = [
        await asyncio.to_thread(scene.shop.verdict, which)
        for which in (f"{scene.shop.topic}:0:7", "id-o6", f"{scene.shop.topic}:0:{HIDDEN}")
    ]

    hidden = "is in the log, hidden by a transaction that is open since offset 0: no consumer reads past it before that has ended"
    assert hidden in verdicts[0]
    assert verdicts[1].startswith("Event id-o6 (TOPIC:0:7) of subscriber ship")
    assert hidden in verdicts[1]
    assert "is not in the log yet" in verdicts[2]


async def test_check_names_the_open_transaction(scene: Scene) -> None:
    ran = await asyncio.to_thread(scene.shop.command, "check")

    assert f"an open transaction hides {HIDDEN} offsets of {scene.shop.topic}-0 from offset 0 on" in ran.text
    assert f"an open transaction hides {HIDDEN} offsets of {scene.site.names.topic('events')}-0 from offset 0 on" in ran.text
