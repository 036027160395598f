"""Kafka or Redis unavailable for workers without folds: they report it, and its end, as those with folds do."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import redis
from aiokafka.errors import KafkaError

from streams_app.embedded import Broker, Valkey
from streams_app.kafka.source_ends import SourceEnds
from streams_app.settings import KafkaSettings
from tests.conftest import KafkaServer, Names
from tests.helpers.waiting import wait_until
from tests.helpers.worker.impatient import DeafWorker, ImpatientWorker
from tests.helpers.worker.site import LIMIT_SECONDS, Site, frozen, outage_reason, reasons, up
from tests.helpers.worker.workers import WorkerProcess
from tests.servers.apache_kafka import ApacheKafka
from tests.servers.cache import ROOT

pytestmark = pytest.mark.timeout(240)

CATALOGUE = """
import os
import msgspec
from streams_app import Catalogue, Event, Received, subscriber

class OrderPaid(msgspec.Struct, frozen=True):
    order_id: str

paid = Event("order.paid", OrderPaid, description="Paid.", keyed_by="order_id", topic=os.environ["PAID"])

@subscriber(paid, idempotent="yes", description="Ships.")
def ship(event: Received[OrderPaid]) -> None:
    with open(os.environ["LEDGER"], "a") as ledger:
        ledger.write(event.data.order_id + "\\n")

@subscriber(paid, idempotent="yes", description="Thanks.")
def thank(event: Received[OrderPaid]) -> None:
    pass

catalogue = Catalogue(events=(paid,), subscribers=(ship, thank))
"""

OUTAGE_MESSAGES = "is unavailable since", "is back after"


class Shop:
    """An application whose catalogue has one event, on servers that may be stopped."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.ledger = site.folder / "ledger"
        self.ledger.touch()
        self.declare(CATALOGUE)
        self.environment = {
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(site.folder)]),
            "PAID": site.names.topic("paid"),
            "LEDGER": str(self.ledger),
        }

    async def open(self) -> None:
        await self.site.topics("events", "events.dead", "folded", "paid", "paid.ship.dead", "paid.thank.dead", "again")

    def config(self, more: str = "") -> Path:
        return self.site.config(f'[events]\ncatalogue = "its_events:catalogue"\n{more}')

    def worker(self, *arguments: str, more: str = "") -> WorkerProcess:
        return WorkerProcess(self.config(more), self.site.folder, self.environment, arguments)

    def declare(self, catalogue: str) -> None:
        (self.site.folder / "its_events.py").write_text(catalogue)

    async def send(self, *orders: str) -> None:
        await self.site.send("paid", [(order.encode(), json.dumps({"order_id": order}).encode()) for order in orders])

    async def ship(self, order: str) -> None:
        """Send an event, and return when it was handled."""
        await self.send(order)
        await self.until_shipped(order)

    async def until_shipped(self, order: str) -> None:
        await wait_until(lambda: order in self.ledger.read_text().split(), LIMIT_SECONDS, f"{order} is shipped")


@pytest.fixture
async def shop(broker: Broker | ApacheKafka, valkey: Valkey, names: Names, tmp_path: Path) -> Shop:
    made = Shop(Site(names, broker.bootstrap_servers, valkey.url, tmp_path))
    await made.open()
    return made


async def test_worker_without_folds_is_not_ready_while_redis_is_away_and_continues_to_call(shop: Shop, valkey: Valkey) -> None:
    with shop.worker() as worker:
        await worker.wait_ready()
        await shop.ship("o1")
        before = up(worker)
        with frozen(valkey.pid):
            reason = await outage_reason(worker, "Redis")
            away = up(worker)
            await shop.ship("o2")
            assert [reason] == [found for found in await reasons(worker) if "has not answered" in found]
        await worker.wait_ready(LIMIT_SECONDS)
        back = up(worker)
        log = worker.log()
        code = await worker.terminate()

    assert 0 == code
    assert shop.site.redis_url in reason
    assert [{"kafka": 1, "redis": 1}, {"kafka": 1, "redis": 0}, {"kafka": 1, "redis": 1}] == [before, away, back]
    assert [1, 1] == [log.count(text) for text in OUTAGE_MESSAGES]


@pytest.mark.long
async def test_worker_of_one_subscriber_is_not_ready_while_the_broker_is_away(shop: Shop, broker: Broker | ApacheKafka) -> None:
    with shop.worker("--only", "ship", more=shop.site.fold("folded", "events")) as worker:
        await worker.wait_ready()
        await shop.ship("o1")
        with frozen(broker.pid):
            reason = await outage_reason(worker, "Kafka")
            away = up(worker)
            assert [reason] == [found for found in await reasons(worker) if "has not answered" in found]
        await worker.wait_ready(LIMIT_SECONDS)
        await shop.ship("o2")
        log = worker.log()

    assert shop.site.bootstrap in reason
    assert {"kafka": 0, "redis": 1} == away
    assert [1, 1] == [log.count(text) for text in OUTAGE_MESSAGES]


async def test_worker_of_one_read_store_reports_the_broker_and_does_not_query_redis(
    broker: Broker | ApacheKafka, names: Names, tmp_path: Path
) -> None:
    site = Site(names, broker.bootstrap_servers, "redis://127.0.0.1:1/0", tmp_path)
    await site.topics("events", "events.dead", "folded", "read-store.board.dead")
    store = (
        f'[read_stores.board]\nurl = "sqlite:///{tmp_path}/board.db"\nfolds = ["folded"]\n'
        f'source_url = "sqlite:///{tmp_path}/write.db"\nsql = "SELECT account_id, metric, value FROM m"\n'
    )
    config = site.config(site.fold("folded", "events") + store)
    with WorkerProcess(config, tmp_path, arguments=["--only", "board"]) as worker:
        await worker.wait_ready()
        await wait_until(lambda: "kafka" in up(worker), LIMIT_SECONDS, "it tells who is up")
        before = up(worker)
        broker.kill()
        await outage_reason(worker, "Kafka")
        away = up(worker)

    assert (1, 0) == (before["kafka"], away["kafka"])
    assert "redis" not in before.keys() | away.keys()


async def test_broker_is_queried_each_time_even_without_a_topic(broker: Broker | ApacheKafka) -> None:
    asked = SourceEnds(KafkaSettings(bootstrap_servers=broker.bootstrap_servers), "nobody", [])
    await asked.ask_once()
    await asked.ask_once()
    broker.kill()
    with pytest.raises((KafkaError, OSError)):
        await asked.ask_once()
    await asked.close()

    assert set() == asked.missing


async def test_worker_without_folds_warns_at_startup_that_redis_may_evict(
    kafka: KafkaServer, valkey: Valkey, names: Names, tmp_path: Path
) -> None:
    shop = Shop(Site(names, kafka.bootstrap_servers, valkey.url, tmp_path))
    await shop.open()
    with redis.Redis.from_url(valkey.url) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    with shop.worker() as worker:
        await worker.wait_ready()
        pattern = r"ERROR .*maxmemory-policy is allkeys-lru: .* may be evicted; CONFIG SET"
        await wait_until(lambda: re.search(pattern, worker.log()), LIMIT_SECONDS, "it is reported")


async def test_worker_without_folds_whose_subscriber_is_stuck_ends_with_75(shop: Shop) -> None:
    with DeafWorker(shop.config(), shop.site.folder, shop.environment) as deaf:
        await shop.send("o1")
        code = await deaf.wait_exit(LIMIT_SECONDS)
        log = deaf.log()

    assert 75 == code, log
    assert f"source={shop.site.names.topic('paid')}" in log


@pytest.mark.long
@pytest.mark.parametrize("idempotent", ["yes", "unknown"])
async def test_subscriber_waiting_for_redis_does_not_end_its_worker(shop: Shop, valkey: Valkey, idempotent: str) -> None:
    shop.declare(CATALOGUE.replace('"yes", description="Ships', f'"{idempotent}", description="Ships'))
    with ImpatientWorker(shop.config(), shop.site.folder, shop.environment) as worker:
        await worker.wait_ready()
        await shop.ship("o0")
        with frozen(valkey.pid):
            await outage_reason(worker, "Redis")
            await shop.send(*(f"o{number}" for number in range(1, 200)))
            await worker.is_checked()
            await shop.send("o200")
            assert worker.exit_code is None, worker.log()
        await shop.until_shipped("o200")
