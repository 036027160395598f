"""A published event is in the log, with its key, its headers and an id by which it can be published again."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from aiokafka.structs import ConsumerRecord
from prometheus_client import CollectorRegistry

from streams_app import Catalogue, Event, Events, Received, Settings
from streams_app.delivery.producer import Outcomes, OutgoingRecord
from streams_app.errors import BadEventError, ConfigurationError, NotPublishedError
from streams_app.health.metrics import Metrics
from streams_app.kafka.producer import AckedProducer
from tests.conftest import KafkaServer, Names
from tests.helpers.events.shop import OrderPaid, PaidBy, ParcelSent, parcel_sent
from tests.helpers.kafka.topics import create_topics, read_topic
from tests.helpers.manual_clock import ManualClock

LIMIT_SECONDS = 60

pytestmark = pytest.mark.timeout(120)

Place = tuple[Settings, Event[OrderPaid, PaidBy], Catalogue]


def settings_of(app_id: str, bootstrap: str) -> Settings:
    fold = {"name": "f", "source": f"{app_id}.s", "group_key": "a", "changed": "b", "quiet_period": "1s"}
    return Settings.model_validate({"app_id": app_id, "kafka": {"bootstrap_servers": bootstrap}, "folds": [fold]})


def declared(topic: str, **options: Any) -> Event[OrderPaid, PaidBy]:
    return Event("order.paid", OrderPaid, description="Paid.", keyed_by="order_id", metadata=PaidBy, topic=topic, **options)


@pytest.fixture
async def place(kafka: KafkaServer, names: Names) -> Place:
    topic = names.topic("orders")
    await create_topics(kafka.bootstrap_servers, [topic], 2)
    order_paid = declared(topic)
    return settings_of(names.app_id, kafka.bootstrap_servers), order_paid, Catalogue(events=(order_paid,))


@pytest.fixture
def unavailable_broker(names: Names) -> Place:
    """Return settings with an unavailable broker, whose answer no test needs."""
    order_paid = declared("orders")
    return settings_of(names.app_id, "127.0.0.1:1"), order_paid, Catalogue(events=(order_paid,))


async def records(place: Place, count: int) -> list[ConsumerRecord]:
    found = await read_topic(
        place[0].kafka.bootstrap_servers, place[1].topic, until=lambda found: len(found) >= count, timeout_seconds=LIMIT_SECONDS
    )
    return sorted(found, key=lambda record: (record.partition, record.offset))


def header(record: ConsumerRecord, name: str) -> str | None:
    return next((value.decode() for key, value in record.headers if key == name), None)


async def test_published_event_is_logged_as_declared(place: Place) -> None:
    settings, order_paid, catalogue = place
    async with Events(settings, catalogue, clock=ManualClock(1_767_225_600_000)) as events:
        event_id = await events.publish(
            order_paid, OrderPaid("o1", 500), before=OrderPaid("o1", 0), metadata=PaidBy("card"), context={"userid": "u7"}
        )
    (record,) = await records(place, 1)

    assert b"o1" == record.key
    assert {
        "order_id": "o1",
        "cents": 500,
        "before": {"order_id": "o1", "cents": 0},
        "metadata": {"method": "card"},
    } == json.loads(record.value)
    assert {
        "content-type": "application/json",
        "ce_specversion": "1.0",
        "ce_id": event_id,
        "ce_type": "order.paid",
        "ce_source": settings.app_id,
        "ce_time": "2026-01-01T00:00:00.000Z",
        "ce_correlationid": event_id,
        "ce_userid": "u7",
    } == {key: value.decode() for key, value in record.headers}


async def test_many_events_are_published_together_in_order(place: Place) -> None:
    settings, order_paid, catalogue = place
    async with Events(settings, catalogue) as events:
        ids = await events.publish_many(order_paid, [OrderPaid("o1", number) for number in range(500)])
    found = await records(place, 500)

    assert list(range(500)) == [json.loads(record.value)["cents"] for record in found]
    assert ids == [header(record, "ce_id") for record in found]


async def test_concurrent_publications_share_few_requests(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, order_paid, catalogue = place
    requests: list[int] = []
    send = AckedProducer.send

    async def counted(self: AckedProducer, outgoing: Sequence[OutgoingRecord]) -> Outcomes:
        requests.append(len(outgoing))
        return await send(self, outgoing)

    monkeypatch.setattr(AckedProducer, "send", counted)
    async with Events(settings, catalogue) as events:
        first = await events.publish(order_paid, OrderPaid("o0", 0))
        ids = await asyncio.gather(*(events.publish(order_paid, OrderPaid(f"o{at % 7}", at)) for at in range(1, 201)))
    found = await records(place, 201)
    published = [(record.partition, json.loads(record.value)["cents"]) for record in found]

    assert (201, 3) == (sum(requests), len(requests))  # the first one, and one for each partition
    assert [first, *ids] == [
        header(record, "ce_id") for record in sorted(found, key=lambda record: json.loads(record.value)["cents"])
    ]
    assert sorted(published) == published


async def test_events_without_a_key_are_spread_over_all_partitions_even_one_by_one(place: Place) -> None:
    settings, order_paid, _ = place
    unkeyed = Event("order.seen", OrderPaid, description="Seen.", keyed_by=None, topic=order_paid.topic)
    async with Events(settings, Catalogue(events=(unkeyed,))) as events:
        for number in range(8):
            await events.publish(unkeyed, OrderPaid("o1", number))
    found = await records(place, 8)

    assert [0] * 4 + [1] * 4 == [record.partition for record in found]


async def test_event_published_by_a_function_is_a_child_of_its_event(place: Place) -> None:
    settings, order_paid, catalogue = place
    headers = [("ce_correlationid", b"c1"), ("ce_userid", b"u7"), ("traceparent", b"00-1-2-01")]

    async def attempt(events: Events) -> list[str]:
        event = Received(data=None, id="e1", headers=headers, subscriber="ship", publisher=events)
        first = await event.publish(order_paid, OrderPaid("o1", 1), context={"page": "3"})
        return [first, await asyncio.to_thread(event.publish_sync, order_paid, OrderPaid("o1", 2))]

    async with Events(settings, catalogue) as events:
        once = await attempt(events)
        retried = await attempt(events)
    found = await records(place, 4)

    assert once == retried == [header(record, "ce_id") for record in found[:2]]
    assert [("c1", "e1", "u7", "3", "00-1-2-01"), ("c1", "e1", "u7", None, "00-1-2-01")] == [
        tuple(header(record, name) for name in ("ce_correlationid", "ce_causationid", "ce_userid", "ce_page", "traceparent"))
        for record in found[:2]
    ]


async def test_synchronous_program_publishes_from_any_thread(place: Place) -> None:
    settings, order_paid, catalogue = place
    with Events(settings, catalogue) as events:
        ids = await asyncio.gather(
            *(asyncio.to_thread(events.publish_sync, order_paid, OrderPaid("o1", number)) for number in range(8))
        )

    assert set(ids) == {header(record, "ce_id") for record in await records(place, 8)}


def publish_in_child(events: Events, order_paid: Event[OrderPaid, PaidBy]) -> None:
    events.publish_sync(order_paid, OrderPaid("o1", os.getpid()))


async def test_forked_process_publishes_over_its_own_connections(place: Place) -> None:
    settings, order_paid, catalogue = place
    with Events(settings, catalogue) as events:
        await asyncio.to_thread(events.publish_sync, order_paid, OrderPaid("o1", os.getpid()))
        child = multiprocessing.get_context("fork").Process(target=publish_in_child, args=(events, order_paid))
        child.start()
        await asyncio.to_thread(child.join, LIMIT_SECONDS)
        await asyncio.to_thread(events.publish_sync, order_paid, OrderPaid("o1", os.getpid()))

    assert 0 == child.exitcode
    assert [os.getpid(), child.pid, os.getpid()] == [json.loads(record.value)["cents"] for record in await records(place, 3)]


async def test_unacknowledged_event_can_be_republished_under_its_id(place: Place, names: Names) -> None:
    settings, order_paid, catalogue = place
    registry = CollectorRegistry()
    async with Events(settings_of(names.app_id, "127.0.0.1:1"), catalogue, metrics=registry, send_seconds=0.5) as nowhere:
        with pytest.raises(NotPublishedError) as caught:
            await nowhere.publish_many(order_paid, [OrderPaid("o1", 1), OrderPaid("o1", 2)])
    async with Events(settings, catalogue) as events:
        assert caught.value.event_id == await events.publish(order_paid, OrderPaid("o1", 1), event_id=caught.value.event_id)
        await events.publish_many(order_paid, [OrderPaid("o1", 2)], event_ids=caught.value.event_ids[1:])

    assert list(caught.value.event_ids) == [header(record, "ce_id") for record in await records(place, 2)]
    assert 2 == registry.get_sample_value("streams_app_published_total", {"event": "order.paid", "result": "unknown"})


async def test_missing_topic_is_named_by_the_error(kafka: KafkaServer, names: Names) -> None:
    order_paid = declared(names.topic("missing"))
    async with Events(settings_of(names.app_id, kafka.bootstrap_servers), Catalogue(events=(order_paid,))) as events:
        with pytest.raises(NotPublishedError, match=r"topic .*missing.* does not exist"):
            await events.publish(order_paid, OrderPaid("o1", 1))


@pytest.mark.apache
async def test_event_the_topic_cannot_accept_is_rejected_and_not_of_unknown_outcome(kafka: KafkaServer, names: Names) -> None:
    topic = names.topic("orders")
    await create_topics(kafka.bootstrap_servers, [topic], 1, {"max.message.bytes": "1000"})
    order_paid = declared(topic)
    async with Events(settings_of(names.app_id, kafka.bootstrap_servers), Catalogue(events=(order_paid,))) as events:
        with pytest.raises(BadEventError) as caught:
            await events.publish(order_paid, OrderPaid("o" * 500, 1), before=OrderPaid("o" * 500, 0))

    assert "too-large" == caught.value.reason


async def test_published_events_are_counted(place: Place) -> None:
    settings, order_paid, catalogue = place
    metrics = Metrics(settings)
    async with Events(settings, catalogue, metrics=metrics) as events:
        await events.publish(order_paid, OrderPaid("o1", 1))
        with pytest.raises(BadEventError):
            await events.publish(order_paid, OrderPaid("o" * 600, 1))

    assert (1, 1, 1) == (
        metrics.registry.get_sample_value("streams_app_published_total", {"event": "order.paid", "result": "acknowledged"}),
        metrics.registry.get_sample_value("streams_app_published_total", {"event": "order.paid", "result": "refused"}),
        metrics.registry.get_sample_value("streams_app_publish_seconds_count", {"event": "order.paid"}),
    )


@pytest.mark.parametrize(
    ("publish", "error", "text"),
    [
        (
            lambda events, one: events.publish(one, OrderPaid("o1", cast(int, "5"))),
            BadEventError,
            "Expected `int`, got `str` - at `$.cents`",
        ),
        (lambda events, one: events.publish(one, OrderPaid("o" * 600, 5)), BadEventError, "the key has 600 bytes"),
        (lambda events, one: events.publish(one, OrderPaid("o1", 5), context={"userId": ""}), ConfigurationError, "a name has a-z"),
        (lambda events, one: events.publish(one, OrderPaid("o1", 5), event_id="x" * 600), BadEventError, "must have 1 to 512"),
        (lambda events, one: events.publish(one, OrderPaid("o1", 5), event_id=""), BadEventError, "must have 1 to 512"),
        (
            lambda events, one: events.publish_many(one, [OrderPaid("o1", 5)], event_ids=["a", "b"]),
            ConfigurationError,
            "there are 2 event_ids for 1 payloads",
        ),
        (
            lambda events, one: events.publish(parcel_sent, ParcelSent("o1")),
            ConfigurationError,
            "parcel.sent: the catalogue has no such event; its `events` have to name it",
        ),
        (
            lambda events, one: events.publish(declared("o"), OrderPaid("o1", 5)),
            ConfigurationError,
            "the catalogue has no such event",
        ),
    ],
)
async def test_unpublishable_event_is_rejected_before_it_is_sent(
    unavailable_broker: Place, publish: Callable[..., Any], error: type[Exception], text: str
) -> None:
    settings, order_paid, catalogue = unavailable_broker
    async with Events(settings, catalogue) as events:
        with pytest.raises(error, match=re.escape(text)):
            await publish(events, order_paid)


async def test_event_with_its_own_decoder_cannot_be_published(unavailable_broker: Place) -> None:
    event = declared("orders", decode=json.loads)
    async with Events(unavailable_broker[0], Catalogue(events=(event,))) as events:
        with pytest.raises(ConfigurationError, match="published by other programs"):
            await events.publish(event, OrderPaid("o1", 5))


async def test_publish_sync_on_a_running_loop_raises(unavailable_broker: Place) -> None:
    async with Events(unavailable_broker[0], unavailable_broker[2]) as events:
        with pytest.raises(RuntimeError, match="await the function without _sync"):
            events.publish_sync(unavailable_broker[1], OrderPaid("o1", 5))


async def test_publish_outside_of_the_context_manager_raises(unavailable_broker: Place) -> None:
    with pytest.raises(RuntimeError, match="outside of `async with"):
        await Events(unavailable_broker[0], unavailable_broker[2]).publish(unavailable_broker[1], OrderPaid("o1", 5))
