"""Dead letters of a subscriber are replayed to that subscriber alone."""

from __future__ import annotations

import pytest

from streams_app.delivery.batch import TP
from streams_app.delivery.dead_letters import RejectingComponent, dead_letter_of
from streams_app.delivery.producer import OutgoingRecord
from streams_app.delivery.rejected_event import RejectedEvent
from streams_app.kafka.producer import AckedProducer
from streams_app.reasons import Reason
from streams_app.settings import KafkaSettings
from tests.helpers.kafka.records import Raw
from tests.helpers.subscribers.orders import CATALOGUE, Orders
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import LIMIT_SECONDS

pytestmark = pytest.mark.timeout(200)


async def test_dead_letter_is_replayed_only_to_its_subscriber(orders: Orders) -> None:
    created = await orders.run("topics", "create")
    with orders.worker():
        await orders.pay("o1", ce_id="e1", ce_userid="u7")
        (dead_letter,) = await orders.read("paid.ship.dead", 1)
        listed = await orders.run("dead-letters", "list", "--subscriber", "ship")
        (orders.site.folder / "mended").touch()
        replayed = [await orders.run("dead-letters", "replay", "--subscriber", "ship") for _ in range(2)]
        lines = await orders.lines(2)

        async def all_have_passed() -> bool:
            return [1, 1] == [await orders.committed(name, "again") for name in ("ship", "thank")]

        await wait_until(all_have_passed, LIMIT_SECONDS, "both subscribers have passed what was put back")
        source = await orders.read("paid", 1)
    explained = await orders.run("events", "explain", "ship", "e1")

    topics = {"paid", "folded", "paid.dead", "paid.ship.dead", "paid.thank.dead", "again"}
    assert topics == {line.split()[1].removeprefix(f"{orders.site.names.app_id}.") for line in created.out.splitlines()}
    place = f"{source[0].partition} 0"
    assert [f"ship o1 e1 u7 paid {place}", f"thank o1 e1 u7 paid {place}"] == lines
    assert 1 == len(source)
    assert b"failed" == dict(dead_letter.headers)["reason"]
    assert "key=o1  id=e1  attempts=1  ConnectionError: the carrier is away" in listed.out
    assert "is a dead letter: failed, was replayed since, and is finished." in " ".join(explained.out.split())
    assert ["1 replayed, 0 rejected again", "0 replayed, 0 rejected again"] == [ran.out.splitlines()[-1] for ran in replayed]
    assert "audit replay subscriber=ship interrupted=False reason=any again=False events=1 " in replayed[0].err


async def test_interrupted_event_stays_unless_explicitly_selected(orders: Orders) -> None:
    await orders.run("topics", "create")
    source = TP(orders.topic("paid"), 3)
    component = RejectingComponent("subscriber", "ship", orders.site.names.app_id, orders.topic("paid.ship.dead"))
    rejections: list[tuple[int, Reason]] = [
        (1, "interrupted"), (2, "interrupted"), (2, "finished-late"), (3, "interrupted"), (4, "failed"),
    ]  # fmt: skip
    producer = AckedProducer(KafkaSettings(bootstrap_servers=orders.site.bootstrap), client_id="letters")

    def written(offset: int, reason: Reason) -> OutgoingRecord:
        event_id = f"e{offset}".encode()
        own = (("event-id", event_id), ("source-timestamp-ms", b"5"), ("received-headers", b"1"), ("ce_id", event_id))
        record = Raw(offset, 5, b"o1", b'{"order_id": "o1"}')
        return dead_letter_of(component, source, RejectedEvent(record, reason, "", headers=own), 99)

    outcomes = await producer.send([written(*dead_letter) for dead_letter in rejections])
    await producer.stop()
    listed = await orders.run("dead-letters", "list", "--subscriber", "ship")
    replay = ("dead-letters", "replay", "--subscriber", "ship")
    plain = await orders.run(*replay)
    by_name = await orders.run(*replay, "--event-id", "e3")
    with_interrupted = await orders.run(*replay, "--interrupted")
    put_back = await orders.read("again", 3)

    assert [None] * len(rejections) == outcomes
    assert ["interrupted", "interrupted, finished-late", "finished-late", "interrupted", "failed"] == [
        line.split("Z  ")[1].split(f" {source.topic}")[0].strip() for line in listed.out.splitlines() if source.topic in line
    ]
    assert ["1 replayed", "1 replayed", "1 replayed"] == [
        ran.out.splitlines()[-1].partition(",")[0] for ran in (plain, by_name, with_interrupted)
    ]
    assert "3 not replayed: interrupted, they may have been handled" in plain.out
    assert "1 not replayed: interrupted, and finished late" in with_interrupted.out
    assert [b"e4", b"e3", b"e1"] == [dict(record.headers)["ce_id"] for record in put_back]


async def test_dead_letter_sent_twice_is_listed_once_and_replayed_once(orders: Orders) -> None:
    await orders.run("topics", "create")
    component = RejectingComponent("subscriber", "ship", orders.site.names.app_id, orders.topic("paid.ship.dead"))
    own = (
        ("letter-id", b"ship:paid:3:1:8"), ("event-id", b"e1"), ("source-timestamp-ms", b"5"), ("received-headers", b"1"),
        ("ce_id", b"e1"),
    )  # fmt: skip
    record = Raw(1, 5, b"o1", b'{"order_id": "o1"}')
    dead_letter = dead_letter_of(component, TP(orders.topic("paid"), 3), RejectedEvent(record, "failed", "", headers=own), 99)
    producer = AckedProducer(KafkaSettings(bootstrap_servers=orders.site.bootstrap), client_id="letters")
    outcomes = await producer.send([dead_letter, dead_letter])
    await producer.stop()
    of_ship = ("--subscriber", "ship")
    listed = await orders.run("dead-letters", "list", *of_ship)
    later = await orders.run("dead-letters", "list", *of_ship, "--since", "2100-01-01")
    another = await orders.run("dead-letters", "list", *of_ship, "--event-id", "nope", "--reason", "failed")
    replayed = await orders.run("dead-letters", "replay", *of_ship)
    put_back = await orders.read("again", 1)
    explained = await orders.run("events", "explain", "ship", "e1")
    by_place = await orders.run("events", "explain", "ship", f"{orders.topic('paid')}:3:1")

    assert [None, None] == outcomes
    assert "replayed since" in " ".join(by_place.out.split())
    assert 1 == sum("  failed  " in line for line in listed.out.splitlines())
    assert "(there 2 times)" in listed.out
    assert "none of the dead letters of subscriber ship fits --since\n" == later.out
    assert "none of the dead letters of subscriber ship fits --reason and --event-id\n" == another.out
    assert ["1 duplicates: replayed once", "1 replayed, 0 rejected again"] == replayed.out.splitlines()
    assert 1 == len(put_back)
    assert f"Event e1 ({orders.topic('again')}:{put_back[0].partition}:0) of subscriber ship" in " ".join(explained.out.split())


async def test_dead_letters_of_a_renamed_subscriber_are_replayed_to_it(orders: Orders) -> None:
    await orders.run("topics", "create")
    with orders.worker() as worker:
        await orders.pay("o1")
        await orders.read("paid.ship.dead", 1)
        await worker.terminate()
    orders.declare(CATALOGUE.replace("ship", "send"))
    await orders.run("topics", "create")
    ran = await orders.run("dead-letters", "replay", "--subscriber", "send", "--refused-by", "ship")
    (put_back,) = await orders.read("again", 1)

    assert "1 replayed, 0 rejected again" == ran.out.splitlines()[-1], ran.text
    assert b"send" == dict(put_back.headers)["streams-app-replay"]
