"""An application whose fold and two subscribers read one topic, and the commands that are run on it."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from tests.helpers.cli.commands import Ran, run
from tests.helpers.kafka.topics import produce, read_topic
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import LIMIT_SECONDS, Site
from tests.helpers.worker.workers import WorkerProcess
from tests.servers.cache import ROOT

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

THANK = 'idempotent="yes", description="Thanks'


@dataclass
class Orders:
    """An application whose fold and two subscribers read one topic."""

    site: Site

    def __post_init__(self) -> None:
        self.declare(CATALOGUE)
        self.ledger.touch()
        fold = self.site.fold("folded", "paid", group_key="order_id", changed="changed", max_hold="10m")
        self.config = self.site.config(fold + '[events]\ncatalogue = "its_events:catalogue"\n')

    def declare(self, catalogue: str) -> None:
        (self.site.folder / "its_events.py").write_text(catalogue)

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

    async def commits(self, subscriber: str, topic: str) -> list[int | None]:
        """Return the offset that a subscriber's group has committed for each partition."""
        tps = [TopicPartition(self.topic(topic), number) for number in range(4)]
        group = f"{self.site.names.app_id}.{subscriber}"
        consumer = AIOKafkaConsumer(bootstrap_servers=self.site.bootstrap, group_id=group, enable_auto_commit=False)
        await consumer.start()
        try:
            return [await consumer.committed(tp) for tp in tps]
        finally:
            await consumer.stop()

    async def committed(self, subscriber: str, topic: str) -> int:
        """Return the sum of the committed offsets."""
        return sum(filter(None, await self.commits(subscriber, topic)))

    async def has_begun(self, subscriber: str) -> bool:
        """Return whether an offset is committed for each partition that it reads."""
        return None not in [*await self.commits(subscriber, "paid"), *await self.commits(subscriber, "again")]

    async def lines(self, count: int) -> list[str]:
        """Return the ledger, once it has this number of lines."""
        await wait_until(lambda: len(self.ledger.read_text().splitlines()) >= count, LIMIT_SECONDS, f"{count} calls")
        return sorted(self.ledger.read_text().splitlines())
