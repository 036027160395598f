"""``streams-app events explain``: why a subscriber has not finished an event."""

from __future__ import annotations

import asyncio
import json
import os
import re
from functools import partial
from typing import Any

import pytest
from aiokafka.conn import AIOKafkaConnection
from aiokafka.protocol.commit import OffsetFetchRequest, OffsetFetchResponse_v3

from streams_app.cli.sentences import lay_out
from streams_app.clock import SystemClock
from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.kafka import group_offsets
from streams_app.operations.event_text import event_sentences
from streams_app.operations.explain_event import SearchScope, explain_event
from streams_app.settings import RedisSettings, Settings
from streams_app.subscribers.declaration.received import Received, Reject
from streams_app.subscribers.declaration.subscriber import subscriber
from streams_app.subscribers.declaration.subscription import Subscription
from tests.conftest import KafkaServer, Names, RedisServer
from tests.helpers.cli.commands import Ran, run
from tests.helpers.folding.checker import event
from tests.helpers.kafka.topics import create_topics, produce
from tests.helpers.subscribers import subscribing
from tests.helpers.subscribers.subscribing import Paid
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import LIMIT_SECONDS, Site, until_folded
from tests.helpers.worker.workers import WorkerProcess
from tests.servers.cache import ROOT

pytestmark = pytest.mark.timeout(200)

REACH = SearchScope(since_ms=0, max_offsets=1_000)

CATALOGUE = """
import os
import msgspec
from streams_app import Catalogue, Event, Received, Retries, subscriber

class OrderPaid(msgspec.Struct, frozen=True):
    order_id: str

order_paid = Event("order.paid", OrderPaid, description="Paid.", keyed_by="order_id", topic=os.environ["PAID"])

@subscriber(
    order_paid, idempotent="yes", description="Hands the parcel over.", timeout="10m", concurrency=2,
    retry=Retries(attempts=3, first="10m", longest="10m"),
)
async def ship(event: Received[OrderPaid]) -> None:
    with open(os.environ["LEDGER"], "a") as ledger:
        ledger.write(event.data.order_id + "\\n")
    if event.data.order_id == "unlucky":
        raise ConnectionError("the carrier is away")

catalogue = Catalogue(events=(order_paid,), subscribers=(ship,))
"""


class Shop:
    """A site with one subscriber, its worker, and the command."""

    def __init__(self, site: Site, more: str = "") -> None:
        self._site = site
        self.topic = site.names.topic("paid")
        self._ledger = site.folder / "ledger"
        self._ledger.touch()
        (site.folder / "explained_events.py").write_text(CATALOGUE)
        self.config = site.config(site.fold("folded", "events") + '[events]\ncatalogue = "explained_events:catalogue"\n' + more)
        self._environment = {
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(site.folder)]),
            "PAID": self.topic,
            "LEDGER": str(self._ledger),
        }

    def worker(self) -> WorkerProcess:
        return WorkerProcess(self.config, self._site.folder, self._environment)

    async def send(self, *orders: str) -> None:
        for order in orders:
            headers = [("ce_id", f"id-{order}".encode())]
            await produce(self._site.bootstrap, self.topic, [(b"k", b'{"order_id": "%s"}' % order.encode())], headers=headers)

    async def produce(self, value: bytes) -> None:
        await produce(self._site.bootstrap, self.topic, [(b"k", value)])

    async def until_called(self, *orders: str) -> None:
        await wait_until(lambda: set(self._ledger.read_text().split()) >= set(orders), LIMIT_SECONDS, f"{orders} were called")

    def command(self, *words: str) -> Ran:
        return run(*words, "--config", str(self.config), cwd=self._site.folder, **self._environment, COLUMNS="400")

    def explained(self, which: str, *, subscriber: str = "ship", **environment: str) -> Ran:
        given = {**self._environment, "COLUMNS": "400", **environment}
        return run("events", "explain", subscriber, which, "--config", str(self.config), cwd=self._site.folder, **given)

    def verdict(self, which: str) -> str:
        ran = self.explained(which)
        assert 0 == ran.code, ran.err
        return " ".join(ran.out.split("\n  commit", 1)[0].split()).replace(self.topic, "TOPIC")


@pytest.fixture
async def shop(site: Site) -> Shop:
    made = Shop(site)
    await site.topics("events", "events.dead", "folded", "paid.ship.dead")
    await create_topics(site.bootstrap, [made.topic], 1)
    await create_topics(site.bootstrap, [f"{site.names.app_id}.again"], 1)
    return made


async def test_event_waiting_for_its_next_attempt_is_explained(shop: Shop) -> None:
    await shop.send("done", "unlucky")
    with shop.worker() as worker:
        await shop.until_called("done", "unlucky")
        expected = r"^Event id-unlucky \(TOPIC:0:1\) of subscriber ship has failed 1 time and waits .* due in \d+ min"
        await wait_until(lambda: re.search(expected, shop.verdict("id-unlucky")), LIMIT_SECONDS, "it waits")
        await wait_until(lambda: "has committed 1 for" in shop.explained("id-unlucky").out, LIMIT_SECONDS, "it is committed")
        explanation = shop.explained("id-unlucky").out

    assert ["commit", "offsets", "redis", "dead", "lag"] == re.findall(r"^  (\w+) +\S", explanation, re.MULTILINE)
    assert "1 attempt made; the next one is due in" in explanation
    assert "subscribers start subscribers=ship" in worker.log()


async def test_cloud_event_in_structured_mode_is_found_by_the_id_in_its_value(shop: Shop) -> None:
    module = shop.config.parent / "explained_events.py"
    module.write_text(CATALOGUE.replace('keyed_by="order_id", ', 'keyed_by=None, format="cloudevents", '))
    await shop.send("other")
    value = b'{"specversion": "1.0", "id": "e1", "source": "/shop", "type": "order.paid", "data": {"order_id": "o1"}}'
    await shop.produce(value)

    assert shop.verdict("e1").startswith("Event e1 (TOPIC:0:1) of subscriber ship has not begun")


async def test_unstarted_event_is_reported_as_such_without_redis(shop: Shop) -> None:
    await shop.send("done")
    ran = shop.explained(f"{shop.topic}:0:0", STREAMS_APP_REDIS_URL="redis://127.0.0.1:1/0")
    found = json.loads(shop.command("events", "explain", "ship", f"{shop.topic}:0:0", "--json").out)
    (state,) = found["events"]

    assert ("ship", "event", "not-begun", "id-done") == (found["subscriber"], found["by"], state["verdict"], state["id"])
    assert (None, None, 1) == (state["commit"], state["attempts"], state["log_end"])
    assert 0 == ran.code
    assert "has not begun: no worker has run this subscriber in this partition" in " ".join(ran.out.split())
    assert "not known: " in next(line for line in ran.out.splitlines() if line.startswith("  redis"))


OF_RECORDS = """
from streams_app import records_of

class Changed(msgspec.Struct, frozen=True):
    account_id: str

@subscriber(records_of("folded", Changed), idempotent="yes", description="Syncs an account.")
async def sync(event: Received[Changed]) -> None:
    pass

catalogue = Catalogue(events=(order_paid,), subscribers=(ship, sync))
"""


@pytest.mark.long
async def test_event_whose_group_was_dropped_is_explained_for_a_subscriber_of_the_records(site: Site) -> None:
    shop = Shop(site)
    await site.topics("events", "events.dead", "folded", "folded.sync.dead", "paid", "paid.ship.dead", partitions=1)
    (site.folder / "explained_events.py").write_text(CATALOGUE + OF_RECORDS)
    shop.config.write_text(shop.config.read_text().replace('quiet_period = "1s"', 'quiet_period = "10m"'))
    await create_topics(site.bootstrap, [f"{site.names.app_id}.again"], 1)
    source = site.names.topic("events")
    tp = f"{source}:0"

    def verdict(offset: int) -> str:
        ran = shop.explained(f"{tp}:{offset}", subscriber="sync")
        assert 0 == ran.code, ran.err
        return " ".join(ran.out.split())

    await site.send("events", [event("a", "likes"), event("a", "shares")])
    with shop.worker() as worker:
        await worker.wait_ready()
        await until_folded(worker, 2)
        is_open = verdict(1)
        dropped = shop.command("groups", "drop", "a", "--fold", "folded", "--yes", "--reason", "a loop")
        await site.send("events", [event("a", "likes"), (b"a", b"no JSON")])
        await until_folded(worker, 3)
        group = " ".join(shop.command("groups", "explain", "a", "--fold", "folded").out.split())
        found = [verdict(offset) for offset in (0, 1, 2, 3, 9)]
        flushed = shop.command("groups", "flush", "a", "--fold", "folded")
        left = verdict(2)
        await worker.terminate()
    nothing = " ".join(shop.command("groups", "explain", "a", "--fold", "folded").out.split())
    beyond = shop.explained(f"{source}:99:0", subscriber="sync")

    assert (0, 0) == (dropped.code, flushed.code), dropped.err + flushed.err
    assert is_open.startswith(f"{tp}:1 is folded into group a of fold folded, which is open")
    for offset, text in enumerate(found[:2]):
        assert text.startswith(f"{tp}:{offset} was folded into group a of fold folded, which was dropped: it is in no record.")
        assert re.search(r"dropped 2 events of \S+, offsets 0 to 1, at \S+ \S+ by \S+@\S+: a loop", text)
    assert "which is open: its record has not been emitted yet" in found[2]
    assert "is in no known group: it is a dead letter of the fold, not-json" in found[3]
    assert found[4].startswith(f"{tp}:9 is not folded yet.")
    assert f"{tp}:2 was folded into group a of fold folded, which is closed: its record is in" in left
    assert "a of fold folded is open" in group
    assert all(re.search(r"dropped 2 events of \S+, offsets 0 to 1, .*: a loop", text) for text in (group, nothing))
    assert nothing.startswith("a is not open in fold folded; it was dropped, without a record.")
    assert (1, True) == (beyond.code, "1 partition, numbered from 0, not 99" in beyond.err)


async def test_unexplainable_event_is_rejected_with_an_instruction(shop: Shop) -> None:
    other = shop.explained("elsewhere:0:0")
    partition = shop.explained(f"{shop.topic}:7:0")
    unknown = shop.explained("e1", subscriber="shop")
    away = shop.explained("e1", STREAMS_APP_KAFKA_BOOTSTRAP_SERVERS="127.0.0.1:1")

    assert [1, 1, 1, 75] == [ran.code for ran in (other, partition, unknown, away)]
    assert f"subscriber 'ship' reads {shop.topic} and " in other.err
    assert "has partitions 0 to 0, not 7" in partition.err
    assert "there is no subscriber 'shop', did you mean 'ship'?" in unknown.err


async def explained_text(settings: Settings, one: Subscription, which: str, scope: SearchScope = REACH) -> str:
    explanation = await explain_event(settings, one, which, SystemClock(), scope)
    return "\n".join(lay_out(verdict, facts, 400) for verdict, facts in event_sentences(explanation))


async def test_state_of_each_event_is_found_by_its_position_and_id(
    kafka: KafkaServer, redis_server: RedisServer, names: Names
) -> None:
    async def ship(event: Received[Paid]) -> None:
        if event.data.order_id == "unwanted":
            raise Reject("nobody lives there")
        if event.data.order_id == "runs":
            await asyncio.Event().wait()

    site = subscribing.Shop(names, kafka.bootstrap_servers, redis_server.url)
    await site.open()
    await site.send("done", headers=[("ce_id", b"e0")])
    await site.send("unwanted", headers=[("ce_id", b"e1")])
    await site.send("runs")
    declared = subscriber(subscribing.order_paid, idempotent="yes", description="Under test.")(ship)
    one = Subscription(declared, site.topic, f"{names.app_id}.ship", f"{site.topic}.dead")

    settings = site.settings.model_copy(update={"redis": RedisSettings(url=redis_server.url)})

    async def explains(which: str, expected: str) -> bool:
        text = await explained_text(settings, one, which)
        return f"of subscriber ship {expected}" in " ".join(text.split())

    async with site.member(ship, grace="1s"):
        for which, expected in (
            (f"{site.topic}:0:0", "is finished."),
            (f"{site.topic}:0:1", "is a dead letter: rejected."),
            (f"{site.topic}:0:2", "runs now, or the process in which it ran has died"),
            (f"{site.topic}:0:3", "is not in the log yet."),
            ("e0", "is finished."),
            ("e7", "has the id or key e7: it is finished, or never came."),
        ):
            await wait_until(partial(explains, which, expected), LIMIT_SECONDS, f"{which} {expected}")
        of_key = await explained_text(settings, one, "unwanted")
        unseen = await explained_text(settings, one, "e7", SearchScope(since_ms=0, max_offsets=2))
        by_id, by_place = [await explained_text(settings, one, which) for which in ("e1", f"{site.topic}:0:1")]

    assert "and below them since 1970-01-01 00:00:00Z (1 offset), but not 1 offset more: --limit 3 looks at them, too" in " ".join(
        unseen.split()
    )
    assert "has the id unwanted, but it is a record key. The newest event with it: Event e1" in " ".join(of_key.split())
    assert f"Event e1 ({site.topic}:0:1) is a dead letter: rejected." in of_key.splitlines()
    assert by_place.splitlines()[1:] == by_id.splitlines()[1:]


LOADING, NOT_AUTHORIZED = 14, 30


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        (LOADING, TryAgainError, "has committed: not within 0.5 s; its coordinator may be starting. Try again"),
        (NOT_AUTHORIZED, ConfigurationError, "does not allow this client what is needed on group"),
    ],
)
async def test_coordinator_that_cannot_return_commits_is_not_taken_for_one_without_any(
    code: int, error: type[Exception], message: str, kafka: KafkaServer, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = AIOKafkaConnection.send

    async def denied(answer: Any) -> OffsetFetchResponse_v3:
        await answer
        return OffsetFetchResponse_v3(0, [], code)

    def sent(self: AIOKafkaConnection, request: Any, *given: Any, **more: Any) -> Any:
        answer = send(self, request, *given, **more)
        return asyncio.ensure_future(denied(answer)) if isinstance(request, OffsetFetchRequest) else answer

    monkeypatch.setattr(AIOKafkaConnection, "send", sent)
    monkeypatch.setattr(group_offsets, "COMMITS_SECONDS", 0.5)
    site = subscribing.Shop(names, kafka.bootstrap_servers, "redis://127.0.0.1:1/0")
    await site.open()

    def ship(event: Received[Paid]) -> None:
        """Do nothing; it is never called."""

    declared = subscriber(subscribing.order_paid, idempotent="yes", description="Under test.")(ship)
    one = Subscription(declared, site.topic, f"{names.app_id}.ship", f"{site.topic}.dead")
    settings = site.settings.model_copy(update={"redis": RedisSettings(url="redis://127.0.0.1:1/0")})

    with pytest.raises(error, match=re.escape(message)):
        await explain_event(settings, one, f"{site.topic}:0:0", SystemClock(), REACH)
