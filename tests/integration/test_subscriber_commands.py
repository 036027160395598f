"""The commands for subscribers, beside a worker that runs them."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from aiokafka import AIOKafkaConsumer, TopicPartition

from tests.conftest import KafkaServer
from tests.helpers import create_topics, produce, read_topic, wait_until
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

THANK = 'idempotent="yes", description="Thanks'


@dataclass
class Orders:
    """An application whose fold and whose two subscribers read one topic."""

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
        """The offset that a subscriber's group has committed for each partition."""
        tps = [TopicPartition(self.topic(topic), number) for number in range(4)]
        group = f"{self.site.names.app_id}.{subscriber}"
        consumer = AIOKafkaConsumer(bootstrap_servers=self.site.bootstrap, group_id=group, enable_auto_commit=False)
        await consumer.start()
        try:
            return [await consumer.committed(tp) for tp in tps]
        finally:
            await consumer.stop()

    async def committed(self, subscriber: str, topic: str) -> int:
        """Their sum."""
        return sum(filter(None, await self.commits(subscriber, topic)))

    async def has_begun(self, subscriber: str) -> bool:
        """Whether something is committed for each partition that it reads."""
        return None not in [*await self.commits(subscriber, "paid"), *await self.commits(subscriber, "again")]

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


@pytest.mark.apache
async def test_a_reset_lets_a_subscriber_begin_somewhere_else_while_no_worker_runs_it(
    orders: Orders, redis_client: redis.asyncio.Redis
) -> None:
    (orders.site.folder / "mended").touch()
    await orders.run("topics", "create")
    reset = ("reset", "--subscriber", "ship", "--at")
    with orders.worker() as worker:
        await orders.pay("o1")
        await orders.lines(2)
        running = await orders.run(*reset, "earliest", "--yes")
        await worker.terminate()
    keys = f"{{{orders.site.names.app_id}/ship/*"
    before = [key async for key in redis_client.scan_iter(keys)]
    dry = await orders.run(*reset, "earliest")
    kept = [key async for key in redis_client.scan_iter(keys)]
    done = await orders.run(*reset, "earliest", "--yes")
    left = [key async for key in redis_client.scan_iter(keys)]
    offsets = [await orders.committed(name, "paid") for name in ("ship", "thank")]
    with orders.worker() as worker:
        lines = await orders.lines(3)
        await worker.terminate()
    skipped = await orders.run(*reset, "latest", "--yes")

    assert (1, True) == (running.code, "stop them first" in running.err)
    assert (len(before), 0) == (len(kept), len(left))
    assert (0, "nothing was changed; --yes does it") == (dry.code, dry.out.splitlines()[-1])
    assert (0, [0, 1]) == (done.code, offsets), done.text
    assert "audit reset subscriber=ship at=earliest partitions=8 keys=" in done.err
    assert ["ship", "ship", "thank"] == [line.split()[0] for line in lines]
    assert (0, 1) == (skipped.code, await orders.committed("ship", "paid"))


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("--subscriber", "ship"), "--subscriber and --at belong together"),
        (("--fold", "folded", "--at", "latest"), "--subscriber and --at belong together"),
        (("--fold", "folded", "--subscriber", "ship", "--at", "latest"), "name either --fold or --subscriber"),
        (("--subscriber", "ship", "--at", "yesterday"), "--at: neither earliest nor latest"),
        (
            ("--subscriber", "shipp", "--at", "latest"),
            "there is no subscriber 'shipp', did you mean 'ship'?; there are: ",
        ),
    ],
)
async def test_a_reset_that_cannot_be_meant_is_refused(orders: Orders, words: tuple[str, ...], fault: str) -> None:
    ran = await orders.run("reset", *words)

    assert (1, True) == (ran.code, fault in ran.err), ran.err


@pytest.mark.apache
async def test_topics_create_places_a_subscriber_that_must_not_be_called_twice_once(orders: Orders) -> None:
    orders.declare(
        CATALOGUE.replace('idempotent="yes", description="Thanks', 'idempotent="no", start="latest", description="Thanks')
    )
    await orders.site.topics("paid")
    await orders.pay("o1")
    first = await orders.run("topics", "create")
    after_first = await orders.committed("thank", "paid")
    await orders.pay("o2")
    second = await orders.run("topics", "create")

    assert "placed   subscriber thank in 8 partitions, by its `start`" in first.out
    assert "placed" not in second.out
    assert (0, 1, 1) == (second.code, after_first, await orders.committed("thank", "paid"))
    assert await orders.has_begun("thank")


async def test_a_broker_without_commit_metadata_has_no_subscriber_that_must_not_be_called_twice(
    orders: Orders, kafka: KafkaServer
) -> None:
    if kafka.is_apache:
        pytest.skip("Apache Kafka keeps it")
    orders.declare(CATALOGUE.replace(THANK, 'idempotent="no", description="Thanks'))
    ran = await orders.run("topics", "create")

    assert (1, True) == (ran.code, "idempotent = 'no' cannot be promised there" in ran.err)
    assert "paid.thank.dead" not in ran.out


@pytest.mark.apache
async def test_check_finds_what_subscribers_lack(orders: Orders) -> None:
    orders.declare(CATALOGUE.replace(THANK, 'idempotent="no", description="Thanks'))
    missing = await orders.run("check")
    await create_topics(orders.site.bootstrap, [orders.topic("paid")], configs={"retention.ms": "7200000"})
    await orders.run("topics", "create")
    found = await orders.run("check")

    assert (1, 0) == (missing.code, found.code), found.text
    for topic, role in (("paid.ship.dead", "dead letters"), ("again", "put back")):
        assert f"topic {orders.topic(topic)} ({role}) does not exist" in missing.out
        assert f"topic {orders.topic(topic)} ({role}) has 4 partitions" in found.out
    assert "keeps its log for 2 h, retries and patience take up to 1.18 h" in found.out
    assert "subscriber thank: its commits say what has begun" in found.out
    assert "subscriber thank remembers ids for 1h" in found.out


async def test_check_says_what_is_wrong_with_a_catalogue(orders: Orders) -> None:
    orders.declare("catalogue = 1")
    ran = await orders.run("check")

    assert (1, True) == (ran.code, "its_events:catalogue is of type int, not Catalogue" in ran.out)


async def test_a_worker_of_one_subscriber_runs_no_other_and_no_fold(orders: Orders) -> None:
    await orders.run("topics", "create")
    (orders.site.folder / "mended").touch()
    with orders.worker("--only", "thank") as alone:
        await orders.pay("o1")
        first = await orders.lines(1)
        code = await alone.terminate()
    with orders.worker():
        both = await orders.lines(2)

    assert (0, ["thank"]) == (code, [line.split()[0] for line in first])
    assert ["ship", "thank"] == [line.split()[0] for line in both]
    assert "only=thank" in alone.log()


async def test_an_application_without_folds_runs_its_subscribers(orders: Orders) -> None:
    orders.config = orders.site.config('[events]\ncatalogue = "its_events:catalogue"\n')
    (orders.site.folder / "mended").touch()
    created = await orders.run("topics", "create")
    with orders.worker() as worker:
        await orders.pay("o1")
        lines = await orders.lines(2)
        await worker.wait_ready()
        code = await worker.terminate()
    checked = await orders.run("check")

    assert 4 == len(created.out.splitlines())
    assert (0, ["ship", "thank"]) == (code, [line.split()[0] for line in lines])
    assert 0 == checked.code, checked.text
