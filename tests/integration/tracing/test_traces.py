"""Whole traces: from a published event through subscribers and their events, and from events through a fold to its record."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from opentelemetry import trace

from streams_app import Catalogue, Event, Events
from streams_app.settings import Settings
from streams_app.subscribers.declaration.replayed_event import replay_topic
from tests.helpers.cli.commands import run
from tests.helpers.folding.checker import event
from tests.helpers.kafka.topics import create_topics, read_topic
from tests.helpers.tracing.spans import GARBAGE, Spans, ids_of, trace_parent
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import LIMIT_SECONDS, Site, metric, unhelpful_lines
from tests.helpers.worker.workers import WorkerProcess
from tests.integration.tracing.traced import SPANS
from tests.servers.cache import ROOT

pytestmark = pytest.mark.timeout(200)

CATALOGUE = """
import logging, os
import msgspec
from streams_app import Catalogue, Event, Received, Reject, records_of, subscriber

logger = logging.getLogger("shop")

class OrderPaid(msgspec.Struct, frozen=True):
    order_id: str

class ParcelSent(msgspec.Struct, frozen=True):
    order_id: str

class ParcelSeen(msgspec.Struct, frozen=True):
    order_id: str

class AccountChanged(msgspec.Struct, frozen=True):
    account_id: str

order_paid = Event("order.paid", OrderPaid, description="Paid.", keyed_by="order_id", topic=os.environ["PAID"])
parcel_sent = Event("parcel.sent", ParcelSent, description="Sent.", keyed_by="order_id", topic=os.environ["SENT"])
parcel_seen = Event("parcel.seen", ParcelSeen, description="Seen.", keyed_by="order_id", topic=os.environ["SEEN"])

def note(*words):
    with open(os.environ["LEDGER"], "a") as ledger:
        ledger.write(" ".join(words) + "\\n")

@subscriber(order_paid, idempotent="yes", description="Hands the parcel over.")
async def ship(event: Received[OrderPaid]) -> None:
    if event.data.order_id == "bad":
        note("refused")
        raise Reject("no such order")
    await event.publish(parcel_sent, ParcelSent(event.data.order_id))
    note("ship", event.data.order_id)

@subscriber(parcel_sent, idempotent="yes", description="Looks at it.")
def look_at(event: Received[ParcelSent]) -> None:
    logger.info("parcel seen order=%s", event.data.order_id)
    event.publish_sync(parcel_seen, ParcelSeen(event.data.order_id))
    note("seen", event.data.order_id)

@subscriber(records_of("folded", AccountChanged), idempotent="yes", description="Recomputes.")
async def recompute(event: Received[AccountChanged]) -> None:
    note("recompute", event.data.account_id)

catalogue = Catalogue(events=(order_paid, parcel_sent, parcel_seen), subscribers=(ship, look_at, recompute))
"""


class OrderPaid(msgspec.Struct, frozen=True):
    order_id: str


class TracedWorker(WorkerProcess):
    def command(self, config: Path, arguments: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "tests.integration.tracing.traced", "worker", "--config", str(config.resolve()), *arguments]


@dataclass
class TracedShop:
    """An application with a fold and subscribers, whose worker traces."""

    site: Site

    def __post_init__(self) -> None:
        (self.site.folder / "its_events.py").write_text(CATALOGUE)
        self.ledger.touch()
        fold = self.site.fold("folded", "events", quiet_period="2s")
        self.config = self.site.config(fold + '[events]\ncatalogue = "its_events:catalogue"\n[tracing]\nenabled = true\n')

    @property
    def ledger(self) -> Path:
        return self.site.folder / "ledger"

    async def open(self) -> None:
        await self.site.topics("events", "folded", "events.dead", "paid", "sent", "seen")
        await self.site.topics("paid.ship.dead", "sent.look_at.dead", "folded.recompute.dead")
        await create_topics(self.site.bootstrap, [replay_topic(self.site.names.app_id)])

    def worker(self) -> TracedWorker:
        topics = {name.upper(): self.site.names.topic(name) for name in ("paid", "sent", "seen")}
        path = os.pathsep.join([str(ROOT), str(self.site.folder)])
        files = {"LEDGER": str(self.ledger), SPANS: str(self.site.folder / "spans")}
        return TracedWorker(self.config, self.site.folder, {"PYTHONPATH": path, **files, **topics})

    async def until_recorded(self, *lines: str) -> None:
        await wait_until(lambda: set(lines) <= set(self.ledger.read_text().splitlines()), LIMIT_SECONDS, f"{lines} in the ledger")

    def events(self) -> tuple[Events, Event[OrderPaid, None]]:
        """Return a publisher of paid orders in this process."""
        declared = Event("order.paid", OrderPaid, description="Paid.", keyed_by="order_id", topic=self.site.names.topic("paid"))
        return Events(Settings.load(self.config, {}), Catalogue(events=(declared,))), declared

    def recorded(self) -> list[dict[str, Any]]:
        """Return the spans of the worker, which has ended."""
        return [json.loads(line) for line in (self.site.folder / "spans").read_text().splitlines()]

    def topic(self, name: str) -> str:
        return self.site.names.topic(name)


@pytest.fixture
async def shop(site: Site) -> TracedShop:
    made = TracedShop(site)
    await made.open()
    return made


def named(spans: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [span for span in spans if span["name"] == name]


def place_of(span: dict[str, Any]) -> tuple[int, int]:
    return int(span["context"]["trace_id"], 16), int(span["context"]["span_id"], 16)


def above(span: dict[str, Any]) -> tuple[int, int] | None:
    return None if span["parent_id"] is None else (int(span["context"]["trace_id"], 16), int(span["parent_id"], 16))


async def test_trace_covers_a_publication_its_subscribers_and_their_events(shop: TracedShop, spans: Spans) -> None:
    publisher, order_paid = shop.events()
    with shop.worker() as worker:
        async with publisher as events:
            with trace.get_tracer("web").start_as_current_span("request"):
                await events.publish(order_paid, OrderPaid("o1"))
            await events.publish_many(order_paid, [OrderPaid("bad"), OrderPaid("o2")])
        await shop.until_recorded("seen o1", "seen o2", "refused")
        assert 0 == await worker.terminate()
    found = shop.recorded()
    of_program = {span.name: span for span in spans.all()}
    request = of_program["request"]
    first = next(span for span in spans.all() if span.parent is not None)
    (many,) = (span for span in spans.all() if span.name == first.name and span.parent is None)
    handled = {span["attributes"]["messaging.kafka.message.key"]: span for span in named(found, f"process {shop.topic('paid')}")}

    # request -> publish order.paid -> ship -> publish parcel.sent -> look_at -> publish parcel.seen
    assert request.get_span_context() == first.parent
    chain = [above(handled["o1"])]
    for name in (f"publish {shop.topic('sent')}", f"process {shop.topic('sent')}", f"publish {shop.topic('seen')}"):
        (span,) = (one for one in named(found, name) if one["attributes"]["messaging.kafka.message.key"] == "o1")
        chain.append(above(span))
        parents = [place_of(one) for one in found] + [ids_of(first)]
        assert above(span) in parents
    trace_id = ids_of(request)[0]
    assert [trace_id] * 4 == [place and place[0] for place in chain]
    assert ids_of(first) == above(handled["o1"])
    # all events of publish_many are below its span
    assert [ids_of(many)] * 2 == [above(handled[order]) for order in ("bad", "o2")]
    assert ("ERROR", "Reject") == (handled["bad"]["status"]["status_code"], handled["bad"]["attributes"]["error.type"])
    # log lines
    (line,) = (line for line in worker.log().splitlines() if "parcel seen order=o1" in line)
    (call,) = (
        one for one in named(found, f"process {shop.topic('sent')}") if one["attributes"]["messaging.kafka.message.key"] == "o1"
    )
    assert line.endswith(f"trace_id={trace_id:032x} span_id={place_of(call)[1]:016x}")
    assert [] == unhelpful_lines(worker.log())


async def test_trace_of_a_folded_record_is_linked_to_its_events_and_continues_in_its_subscriber(shop: TracedShop) -> None:
    contexts = [trace_parent(7, number) for number in (1, 2, 3)]
    with shop.worker() as worker:
        await worker.wait_ready()
        for number, context in enumerate([*contexts, *GARBAGE.values()]):
            headers = [("traceparent", context)]
            await shop.site.send("events", [event("account_1", f"n{number}")], partition=1, headers=headers)
        await shop.until_recorded("recompute account_1")
        outcome = await shop.site.outcome("folded", len(contexts) + len(GARBAGE))
        records = await shop.site.records("folded", outcome.events)
        assert 0 == await worker.terminate()
    found = shop.recorded()
    emitted = named(found, f"publish {shop.topic('folded')}")
    recomputed = named(found, f"process {shop.topic('folded')}")

    assert [(7, 1), (7, 2), (7, 3)] == sorted(
        (int(link["context"]["trace_id"], 16), int(link["context"]["span_id"], 16)) for span in emitted for link in span["links"]
    )
    assert {None} == {above(span) for span in emitted}
    assert {dict(record.headers)["fold-id"].decode() for record in records} == {
        span["attributes"]["messaging.message.id"] for span in emitted
    }
    assert sorted(map(place_of, emitted)) == sorted(filter(None, map(above, recomputed)))


@pytest.mark.long
async def test_events_with_an_invalid_trace_parent_are_handled(shop: TracedShop) -> None:
    with shop.worker() as worker:
        for number, value in enumerate(GARBAGE.values()):
            order = f"g{number}"
            await shop.site.send(
                "paid", [(order.encode(), json.dumps({"order_id": order}).encode())],
                headers=[("ce_type", b"order.paid"), ("traceparent", value)],
            )  # fmt: skip
        # Headers beyond the size limit of a value make a dead letter, as without tracing.
        handled = [number for number, value in enumerate(GARBAGE.values()) if len(value) < 1_000_000]
        await shop.until_recorded(*(f"seen g{number}" for number in handled))
        assert 0 == await worker.terminate()
    found = named(shop.recorded(), f"process {shop.topic('paid')}")

    assert {None} == {above(span) for span in found}
    assert len(handled) == len({place_of(span)[0] for span in found})
    assert [] == unhelpful_lines(worker.log())


async def test_disabled_tracing_does_not_change_headers(site: Site) -> None:
    await site.topics("events", "folded", "events.dead")
    with site.worker(site.config(site.fold("folded", "events", quiet_period="1s"))) as worker:
        await site.send("events", [event("account_1", "n1")], headers=[("traceparent", trace_parent(1, 2))])
        records = await read_topic(
            site.bootstrap, site.names.topic("folded"), until=lambda found: len(found) >= 1, timeout_seconds=LIMIT_SECONDS
        )
        assert 0 == await worker.terminate()

    assert [["fold-id"]] == [[name for name, _ in record.headers] for record in records]


@pytest.mark.long
async def test_batch_of_a_read_store_is_linked_to_the_spans_of_its_records(shop: TracedShop) -> None:
    url, store = f"sqlite:///{shop.site.folder}/read.db", "[read_stores.dashboard]\n"
    store += f'url = "{url}"\nfolds = ["folded"]\nsource = "carried"\ndead_letters = "{shop.topic("events.dead")}"\n'
    fold = shop.site.fold("folded", "events", quiet_period="1s", keep="last")
    shop.config = shop.site.config(fold + store + "[tracing]\nenabled = true\n")
    made = await asyncio.to_thread(run, "read-store", "init", "--config", str(shop.config))
    with shop.worker() as worker:
        await worker.wait_ready()
        await shop.site.send("events", [event("account_1", "n1")], headers=[("traceparent", trace_parent(7, 1))])
        await wait_until(
            lambda: metric(worker, 'streams_app_read_store_writes_total{result="written",store="dashboard"}') >= 1,
            LIMIT_SECONDS, "the record is in the store",
        )  # fmt: skip
        assert 0 == await worker.terminate()
    found = shop.recorded()
    (emitted,) = named(found, f"publish {shop.topic('folded')}")
    (synced,) = named(found, f"process {shop.topic('folded')}")

    assert (0, "dashboard", 1) == (
        made.code, synced["attributes"]["streams_app.read_store"], synced["attributes"]["streams_app.read_store.written"],
    )  # fmt: skip
    assert [place_of(emitted)] == [
        (int(link["context"]["trace_id"], 16), int(link["context"]["span_id"], 16)) for link in synced["links"]
    ]
