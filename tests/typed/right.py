"""What users write: mypy and pyright accept it in their strict modes, without a plugin."""

from __future__ import annotations

from typing import assert_type

import msgspec

from streams_app import (
    Catalogue,
    Event,
    Events,
    EventsSettings,
    KafkaSettings,
    Received,
    RedisSettings,
    Reject,
    Retries,
    Retry,
    Settings,
    records_of,
    subscriber,
)  # fmt: skip
from streams_app.local import LocalEvents
from streams_app.testing import Run, SubscriberDeadLetter, SubscriberTester


class OrderPaid(msgspec.Struct, frozen=True):
    order_id: str
    cents: int


class PaidBy(msgspec.Struct, frozen=True):
    method: str


class ParcelSent(msgspec.Struct, frozen=True):
    order_id: str


order_paid = Event("order.paid", OrderPaid, description="The money has arrived.", keyed_by="order_id", metadata=PaidBy)
parcel_sent = Event("parcel.sent", ParcelSent, description="A parcel was handed over.", keyed_by=None)

assert_type(order_paid, Event[OrderPaid, PaidBy])
assert_type(parcel_sent, Event[ParcelSent])
assert_type(parcel_sent, Event[ParcelSent, None])


@subscriber(order_paid, idempotent="no", description="Hands it to the carrier.", concurrency=8, timeout="20s", rate="50/s")
async def ship(event: Received[OrderPaid, PaidBy]) -> None:
    assert_type(event.data.cents, int)
    assert_type(event.before, OrderPaid | None)
    assert_type(event.metadata, PaidBy | None)
    if event.attempt > 1:
        raise Retry(after="30s")
    assert_type(await event.publish(parcel_sent, ParcelSent(event.data.order_id)), str)


@subscriber(parcel_sent, idempotent="yes", ordered="key", description="Tells the customer.", retry=Retries(never=(KeyError,)))
def tell(event: Received[ParcelSent]) -> None:
    assert_type(event.metadata, None)
    raise Reject(event.data.order_id)


@subscriber(records_of("parcels", ParcelSent), idempotent="unknown", description="Counts.")
def count(event: Received[ParcelSent]) -> None:
    assert_type(event.id, str)


async def by_hand() -> None:
    await ship(Received(data=OrderPaid("o1", 1), id="e1"))
    count(Received(data=ParcelSent("o1"), id="e1"))


catalogue = Catalogue(events=(order_paid, parcel_sent), subscribers=(ship, tell, count))


def in_a_test() -> None:
    rows: list[str] = []
    with SubscriberTester(ship, tell, count, clock="2026-01-01") as kit:
        assert_type(kit.publish(order_paid, OrderPaid("o1", 5), metadata=PaidBy("card")), str)
        kit.publish(records_of("parcels", ParcelSent), ParcelSent("o1"), group="o1")
        kit.advance("1m")
        kit.crash(at="begun", of=tell)
        assert_type(kit.runs(ship), list[Run])
        assert_type(kit.published(parcel_sent), list[Received[ParcelSent]])
        assert_type(kit.published(order_paid)[0].metadata, PaidBy | None)
        assert_type(kit.dead_letters(ship), list[SubscriberDeadLetter])
        kit.assert_idempotent(tell, ParcelSent("o1"), observe=rows.copy, reset=rows.clear)
    with SubscriberTester(catalogue):
        pass


def publishing_alone() -> Events:
    kafka, redis = KafkaSettings(bootstrap_servers="localhost:9092"), RedisSettings(url="redis://localhost:6379/0")
    return Events(Settings(app_id="web", kafka=kafka, redis=redis, events=EventsSettings(catalogue="shop:catalogue")), catalogue)


async def without_servers() -> None:
    events: Events
    async with LocalEvents(catalogue) as events:
        assert_type(await events.publish(parcel_sent, ParcelSent("o1")), str)
