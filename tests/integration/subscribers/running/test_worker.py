"""Subscribers in a worker: a catalogue named in the settings, beside the folds."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.cli.commands import run
from tests.helpers.kafka.topics import produce, read_topic
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import LIMIT_SECONDS, Site
from tests.helpers.worker.workers import WorkerProcess
from tests.servers.cache import ROOT

pytestmark = pytest.mark.timeout(200)

CATALOGUE = """
import os
from contextlib import asynccontextmanager
import msgspec
from streams_app import Catalogue, Event, Received, records_of, subscriber

class OrderPaid(msgspec.Struct, frozen=True):
    order_id: str

class ParcelSent(msgspec.Struct, frozen=True):
    order_id: str
    carrier: str

class AccountChanged(msgspec.Struct, frozen=True):
    account_id: str
    metrics: list[str]

order_paid = Event("order.paid", OrderPaid, description="Paid.", keyed_by="order_id", topic=os.environ["PAID"])
parcel_sent = Event("parcel.sent", ParcelSent, description="Sent.", keyed_by="order_id", topic=os.environ["SENT"])
carrier = ""

def note(*words):
    with open(os.environ["LEDGER"], "a") as ledger:
        ledger.write(" ".join(map(str, words)) + "\\n")

@asynccontextmanager
async def resources():
    global carrier
    carrier = "post"
    yield
    note("closed")

@subscriber(order_paid, idempotent="yes", description="Hands the parcel over.")
async def ship(event: Received[OrderPaid]) -> None:
    await event.publish(parcel_sent, ParcelSent(event.data.order_id, carrier))

@subscriber(parcel_sent, idempotent="yes", description="Writes it down.")
def write(event: Received[ParcelSent]) -> None:
    note("sent", event.data.order_id, event.data.carrier, event.causation_id, event.context.get("userid"))

@subscriber(records_of("f", AccountChanged), idempotent="yes", description="Recomputes.", ordered="key")
def recompute(event: Received[AccountChanged]) -> None:
    note("recompute", event.data.account_id, *event.data.metrics, event.fold.name, event.id == event.fold.id)

catalogue = Catalogue(events=(order_paid, parcel_sent), subscribers=(ship, write, recompute), lifespan=resources)
"""


ONCE = """
import asyncio, os
import msgspec
from streams_app import Catalogue, Event, Received, subscriber

class OrderPaid(msgspec.Struct, frozen=True):
    order_id: str

order_paid = Event("order.paid", OrderPaid, description="Paid.", keyed_by="order_id", topic=os.environ["PAID"])

@subscriber(order_paid, idempotent="PROMISE", description="Hands the parcel over.", timeout="5m")
async def ship(event: Received[OrderPaid]) -> None:
    with open(os.environ["LEDGER"], "a") as ledger:
        ledger.write(event.data.order_id + "\\n")
    if event.data.order_id == "slow":
        await asyncio.Event().wait()

catalogue = Catalogue(events=(order_paid,), subscribers=(ship,))
"""


DECODED = """
import os, time
import msgspec
from streams_app import Catalogue, Event, Received, Retries, subscriber

class OrderPaid(msgspec.Struct, frozen=True):
    order_id: str

def decode(value):
    while value == b"hangs" and not os.path.exists(os.environ["LEDGER"] + ".free"):
        time.sleep(0.02)
    return {"order_id": value.decode("ascii")}

paid = Event("order.paid", OrderPaid, description="Paid.", keyed_by=None, topic=os.environ["PAID"], decode=decode)
sent = Event("parcel.sent", OrderPaid, description="Sent.", keyed_by="order_id", topic=os.environ["SENT"])

def note(*words):
    with open(os.environ["LEDGER"], "a") as ledger:
        ledger.write(" ".join(words) + "\\n")

@subscriber(paid, idempotent="yes", description="Ships.", timeout="1s", retry=Retries(attempts=1))
def ship(event: Received[OrderPaid]) -> None:
    note("ship", event.data.order_id)

@subscriber(sent, idempotent="yes", description="Writes it down.")
async def write(event: Received[OrderPaid]) -> None:
    note("write", event.data.order_id)

catalogue = Catalogue(events=(paid, sent), subscribers=(ship, write))
"""


def declared(site: Site, catalogue: str) -> tuple[Path, dict[str, str], Path]:
    """Return settings, environment and ledger of an application."""
    (site.folder / "its_events.py").write_text(catalogue)
    ledger = site.folder / "ledger"
    ledger.touch()
    fold = site.fold("folded", "events").replace("[folds.folded]", "[folds.f]")
    config = site.config(fold + '[events]\ncatalogue = "its_events:catalogue"\n')
    environment = {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(site.folder)]),
        "PAID": site.names.topic("paid"),
        "SENT": site.names.topic("sent"),
        "LEDGER": str(ledger),
    }
    return config, environment, ledger


def worker_of(site: Site, catalogue: str = CATALOGUE) -> tuple[WorkerProcess, Path]:
    config, environment, ledger = declared(site, catalogue)
    return WorkerProcess(config, site.folder, environment), ledger


async def shown_as_done(worker: WorkerProcess, name: str) -> dict[str, Any] | None:
    """Return the status of a subscriber on the page of events, once it has done something."""
    _, page = await worker.get("/events")
    (shown,) = (one for one in json.loads(page)["subscribers"] if one["name"] == name)
    return shown if shown["here"] and shown["here"]["finished"].get("done") else None


async def test_worker_calls_the_subscribers_of_its_catalogue_and_they_publish_follow_up_events(site: Site) -> None:
    dead = [f"{topic}.{name}.dead" for topic, name in (("paid", "ship"), ("sent", "write"), ("folded", "recompute"))]
    await site.topics("events", "events.dead", "folded", "paid", "sent", *dead, "again")
    worker, ledger = worker_of(site)
    with worker:
        headers = [("ce_id", b"e1"), ("ce_type", b"order.paid"), ("ce_userid", b"u7")]
        await produce(site.bootstrap, site.names.topic("paid"), [(b"o1", b'{"order_id": "o1"}')], headers=headers)
        event = {"account_id": "a1", "metrics": {"likes": 3}}
        await site.send("events", [(b"a1", json.dumps(event).encode())])
        await wait_until(lambda: len(ledger.read_text().splitlines()) == 2, LIMIT_SECONDS, "both were called")
        shown = await wait_until(lambda: shown_as_done(worker, "write"), LIMIT_SECONDS, "the page of events shows it")
        _, asyncapi = await worker.get("/asyncapi.json")
        code = await worker.terminate()

    assert 0 == code
    assert (site.names.topic("sent.write.dead"), True) == (shown["dead_letters"], shown["enabled"])
    assert (0, 0, 0, False) == tuple(shown["here"][name] for name in ("waiting", "running", "retrying", "suspended"))
    assert {"recompute", "ship", "write"} <= {one.rpartition(".")[2] for one in json.loads(asyncapi)["operations"]}
    assert ["closed", "recompute a1 likes f True", "sent o1 post e1 u7"] == sorted(ledger.read_text().splitlines())


async def test_hanging_decoder_is_timed_out_and_does_not_delay_others(site: Site) -> None:
    await site.topics("events", "events.dead", "folded", "paid", "sent", "paid.ship.dead", "sent.write.dead", "again")
    worker, ledger = worker_of(site, DECODED)
    with worker:
        await site.send("paid", [(None, value) for value in (b"hangs", b"o1", "ö".encode())])
        await wait_until(lambda: "ship o1" in ledger.read_text(), LIMIT_SECONDS, "the other one of its partition was called")
        await site.send("sent", [(b"o2", b'{"order_id": "o2"}')])
        await wait_until(lambda: "write o2" in ledger.read_text(), LIMIT_SECONDS, "the other subscriber was called")
        dead = site.names.topic("paid.ship.dead")
        dead_letters = await read_topic(site.bootstrap, dead, until=lambda read: len(read) > 1, timeout_seconds=LIMIT_SECONDS)
        ledger.with_name("ledger.free").touch()
        code = await worker.terminate()

    assert 0 == code
    found = {dead_letter.value: dict(dead_letter.headers) for dead_letter in dead_letters}
    assert (b"timed-out", b"not-valid") == (found[b"hangs"]["reason"], found["ö".encode()]["reason"])
    assert b"UnicodeDecodeError" in found["ö".encode()]["detail"]
    assert ["ship o1", "write o2"] == sorted(line for line in ledger.read_text().splitlines() if "hangs" not in line)


@pytest.mark.apache  # the embedded broker stores no metadata of finished events
@pytest.mark.parametrize("idempotent", ["unknown", "no"])
async def test_running_event_of_a_killed_worker_is_a_dead_letter_and_is_not_repeated(site: Site, idempotent: str) -> None:
    orders = [b"o1", b"slow", b"o2", b"o3"]
    config, environment, ledger = declared(site, ONCE.replace("PROMISE", idempotent))
    made = await asyncio.to_thread(lambda: run("topics", "create", "--config", str(config), cwd=None, **environment))
    assert made.code == 0, made.err
    worker = WorkerProcess(config, site.folder, environment)
    with worker:
        await site.send("paid", [(order, b'{"order_id": "%s"}' % order) for order in orders])
        await wait_until(lambda: len(ledger.read_text().split()) == 4, LIMIT_SECONDS, "all were called")
        worker.kill()
    with WorkerProcess(config, site.folder, environment):
        dead_letters = await read_topic(
            site.bootstrap,
            site.names.topic("paid.ship.dead"),
            until=lambda read: any(one.key == b"slow" for one in read),
            timeout_seconds=LIMIT_SECONDS,
        )
        await site.send("paid", [(b"o4", b'{"order_id": "o4"}')])
        await wait_until(lambda: "o4" in ledger.read_text().split(), LIMIT_SECONDS, "the next one is called")

    assert sorted(["o1", "slow", "o2", "o3", "o4"]) == sorted(ledger.read_text().split())
    # A call that had just ended may not be recorded yet.
    reasons = {dead_letter.key: dict(dead_letter.headers)["reason"] for dead_letter in dead_letters}
    assert b"interrupted" == reasons.pop(b"slow")
    assert {b"interrupted"} >= set(reasons.values())


async def test_worker_does_not_start_an_at_most_once_subscriber_without_a_commit(site: Site) -> None:
    await site.topics("events", "events.dead", "folded", "paid", "paid.ship.dead", "again")
    worker, _ = worker_of(site, ONCE.replace("PROMISE", "no"))
    with worker:
        code = await worker.wait_exit(LIMIT_SECONDS)

    assert 1 == code
    assert "subscriber 'ship' has no commit in" in worker.log()
    assert "streams-app topics create where it is new" in worker.log()


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('records_of("f"', 'records_of("g"', "there is no fold 'g'"),
        ("", "", "folded.recompute.dead' (dead letters of recompute) does not exist"),
    ],
)
async def test_unrunnable_catalogue_ends_the_start(site: Site, old: str, new: str, fault: str) -> None:
    await site.topics("events", "events.dead", "folded", "paid", "sent", "paid.ship.dead", "sent.write.dead")
    worker, _ = worker_of(site, CATALOGUE.replace(old, new))
    with worker:
        await wait_until(lambda: worker.exit_code is not None, LIMIT_SECONDS, "it ends")

    assert 1 == worker.exit_code
    assert fault in worker.log()


async def test_worker_without_its_topics_lists_them_all(site: Site) -> None:
    await site.topics("events")
    worker, _ = worker_of(site, CATALOGUE)
    with worker:
        await worker.wait_exit(LIMIT_SECONDS)
    missing = ("events.dead", "folded", "paid", "sent", "again", "paid.ship.dead", "sent.write.dead", "folded.recompute.dead")

    assert [] == [name for name in missing if f"topic {site.names.topic(name)!r} (" not in worker.log()]
    assert f"topic {site.names.topic('events')!r} (" not in worker.log()
    assert 1 == worker.log().count("streams-app topics create")
