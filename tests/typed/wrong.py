"""What users get wrong: mypy and pyright refuse each line that is marked to be ignored, as both tell marks without need."""

from __future__ import annotations

import msgspec

from streams_app import Event, Received, subscriber
from streams_app.testing import SubscriberTester


class OrderPaid(msgspec.Struct, frozen=True):
    order_id: str


class ParcelSent(msgspec.Struct, frozen=True):
    order_id: str


order_paid = Event("order.paid", OrderPaid, description="The money has arrived.", keyed_by="order_id")
parcel_sent = Event("parcel.sent", ParcelSent, description="It was handed over.", keyed_by=None)


nameless = Event("order.paid", OrderPaid, keyed_by="order_id")  # type: ignore[call-overload]
keyless = Event("order.paid", OrderPaid, description="The money has arrived.")  # type: ignore[call-overload]


@subscriber(order_paid, idempotent="yes", description="Takes something else.")  # type: ignore[arg-type]
def other(event: Received[ParcelSent]) -> None:
    pass


@subscriber(order_paid, idempotent="maybe", description="Does not know.")  # type: ignore[arg-type]
def unsure(event: Received[OrderPaid]) -> None:
    pass


@subscriber(order_paid, idempotent="yes", description="Returns something.")  # type: ignore[type-var]
def gives(event: Received[OrderPaid]) -> int:
    return 3


@subscriber(order_paid, idempotent="yes", description="Publishes what does not fit.")
async def publishes(event: Received[OrderPaid]) -> None:
    await event.publish(parcel_sent, OrderPaid(event.data.order_id))  # type: ignore[misc]
    await event.publish(parcel_sent, ParcelSent("o1"), before=OrderPaid("o1"))  # type: ignore[misc]
    print(event.data.cents)  # type: ignore[attr-defined]


def in_a_test() -> None:
    with SubscriberTester(publishes, other) as kit:
        kit.publish(parcel_sent, OrderPaid("o1"))  # type: ignore[misc]
        kit.crash(at="later")  # type: ignore[arg-type]
        kit.assert_idempotent(publishes, ParcelSent("o1"), observe=list)  # type: ignore[misc]
        kit.runs("publishes")  # type: ignore[arg-type]
