"""The commands for subscribers, beside a worker that runs them."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from tests.helpers import produce, read_topic, wait_until
from tests.integration.commands import Ran, run
from tests.integration.site import LIMIT_SECONDS, Site
from tests.servers.cache import ROOT
from tests.workers import WorkerProcess

pytestmark = pytest.mark.timeout(200)

CATALOGUE = """
import os
from pathlib import Path
import msgspec
from streams_app import Catalogue, Event, Received, Retries, subscriber

HERE = Path(os.environ["HERE"])

class OrderPaid(msgspec.Struct, frozen=True):
    order_id: str

order_paid = Event("order.paid", OrderPaid, description="Paid.", keyed_by="order_id", topic=os.environ["PAID"])

def note(name, event):
    place = event.topic.rpartition(".")[2], event.partition, event.offset
    words = name, event.data.order_id, event.id, event.context.get("userid"), *place
    with open(HERE / "ledger", "a") as ledger:
        ledger.write(" ".join(map(str, words)) + "\\n")

@subscriber(order_paid, idempotent="yes", description="Hands the parcel over.", retry=Retries(attempts=1))
async def ship(event: Received[OrderPaid]) -> None:
    if not (HERE / "mended").exists():
        raise ConnectionError("the carrier is away")
    note("ship", event)

@subscriber(order_paid, idempotent="yes", description="Thanks the customer.")
async def thank(event: Received[OrderPaid]) -> None:
    note("thank", event)

catalogue = Catalogue(events=(order_paid,), subscribers=(ship, thank))
"""


@dataclass
class Orders:
    """An application whose fold and whose two subscribers read one topic."""

    site: Site

    def __post_init__(self) -> None:
        (self.site.folder / "its_events.py").write_text(CATALOGUE)
        self.ledger.touch()
        fold = self.site.fold("folded", "paid", group_key="order_id", changed="changed")
        self.config = self.site.config(fold + '[events]\ncatalogue = "its_events:catalogue"\n')

    @property
    def ledger(self) -> Path:
        return self.site.folder / "ledger"

    @property
    def environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(ROOT), str(self.site.folder)])
        return {"PYTHONPATH": path, "PAID": self.topic("paid"), "HERE": str(self.site.folder)}

    def topic(self, name: str) -> str:
        return self.site.names.topic(name)

    def worker(self, *arguments: str) -> WorkerProcess:
        return WorkerProcess(self.config, self.site.folder, self.environment, arguments)

    async def run(self, *words: str) -> Ran:
        return await asyncio.to_thread(lambda: run(*words, "--config", str(self.config), cwd=None, **self.environment))

    async def pay(self, order: str, **headers: str) -> None:
        value = json.dumps({"order_id": order, "changed": ["x"]}).encode()
        given = [(name, text.encode()) for name, text in {"ce_type": "order.paid", **headers}.items()]
        await produce(self.site.bootstrap, self.topic("paid"), [(order.encode(), value)], headers=given)

    async def read(self, topic: str, count: int) -> list[Any]:
        return await read_topic(
            self.site.bootstrap, self.topic(topic), until=lambda found: len(found) >= count, timeout_seconds=LIMIT_SECONDS
        )

    async def committed(self, subscriber: str, topic: str) -> int:
        """Sum of the offsets that a subscriber's group has committed."""
        tps = [TopicPartition(self.topic(topic), number) for number in range(4)]
        group = f"{self.site.names.app_id}.{subscriber}"
        consumer = AIOKafkaConsumer(bootstrap_servers=self.site.bootstrap, group_id=group, enable_auto_commit=False)
        await consumer.start()
        try:
            return sum([await consumer.committed(tp) or 0 for tp in tps])
        finally:
            await consumer.stop()

    async def lines(self, count: int) -> list[str]:
        """The ledger, once it has so many lines."""
        await wait_until(lambda: len(self.ledger.read_text().splitlines()) >= count, LIMIT_SECONDS, f"{count} calls")
        return sorted(self.ledger.read_text().splitlines())


@pytest.fixture
def orders(site: Site) -> Orders:
    return Orders(site)


async def test_a_dead_letter_goes_back_to_its_subscriber_and_to_nobody_else(orders: Orders) -> None:
    created = await orders.run("topics", "create")
    with orders.worker():
        await orders.pay("o1", ce_id="e1", ce_userid="u7")
        (letter,) = await orders.read("paid.ship.dead", 1)
        listed = await orders.run("dead-letters", "list", "--subscriber", "ship")
        (orders.site.folder / "mended").touch()
        replayed = [await orders.run("dead-letters", "replay", "--subscriber", "ship") for _ in range(2)]
        lines = await orders.lines(2)

        async def all_have_passed() -> bool:
            return [1, 1] == [await orders.committed(name, "again") for name in ("ship", "thank")]

        await wait_until(all_have_passed, LIMIT_SECONDS, "both subscribers have passed what was put back")
        source = await orders.read("paid", 1)

    topics = {"paid", "folded", "paid.dead", "paid.ship.dead", "paid.thank.dead", "again"}
    assert topics == {line.split()[1].removeprefix(f"{orders.site.names.app_id}.") for line in created.out.splitlines()}
    place = f"{source[0].partition} 0"
    assert [f"ship o1 e1 u7 paid {place}", f"thank o1 e1 u7 paid {place}"] == lines
    assert 1 == len(source)
    assert b"failed" == dict(letter.headers)["reason"]
    assert "key=o1  id=e1  attempts=1  ConnectionError: the carrier is away" in listed.out
    assert ["1 put back, 0 refused again", "0 put back, 0 refused again"] == [ran.out.splitlines()[-1] for ran in replayed]
    assert "audit replay subscriber=ship interrupted=False reason=any again=False events=1 " in replayed[0].err
