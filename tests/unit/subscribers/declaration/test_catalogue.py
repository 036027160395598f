"""A catalogue contains all events and subscribers of an application, and rejects contradictions among them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from streams_app import Catalogue, Event, Received, subscriber
from streams_app.errors import ConfigurationError
from tests.helpers.events.shop import OrderPaid, catalogue, order_paid, parcel_sent, recompute, ship

other_paid = Event("order.paid", OrderPaid, description="Another one.", keyed_by=None)


def faults(**options: Any) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        Catalogue(**options)
    return [fault.removeprefix("catalogue: ") for fault in caught.value.faults]


def test_catalogue_contains_its_declarations() -> None:
    assert (4, (ship, recompute)) == (len(catalogue.events), catalogue.subscribers)


def test_subscriber_names_are_unique() -> None:
    def duplicate() -> Any:
        @subscriber(parcel_sent, idempotent="yes", description="Another one.")
        def ship(event: Received[Any]) -> None:
            pass

        return ship

    assert ["2 subscribers have the name 'ship'"] == faults(events=(order_paid, parcel_sent), subscribers=(ship, duplicate()))


def test_event_keys_are_unique() -> None:
    assert ["2 events have the key 'order.paid'"] == faults(events=(order_paid, other_paid))


def test_subscriber_needs_an_event_of_the_catalogue() -> None:
    near = Event("orders.paid", OrderPaid, description="Nearly.", keyed_by=None)

    assert ["subscriber 'ship' takes 'order.paid', which is not in events, did you mean 'orders.paid'?"] == faults(
        events=(near,), subscribers=(ship,)
    )
    assert ["subscriber 'ship' takes another event 'order.paid' than the one in events"] == faults(
        events=(other_paid,), subscribers=(ship,)
    )


def test_undecorated_subscriber_function_is_reported() -> None:
    def plain(event: Any) -> None:
        pass

    reported = faults(events=(OrderPaid,), subscribers=(plain,), lifespan=3)

    assert 3 == len(reported)
    assert "plain is not a subscriber: decorate the function with @subscriber(…)" in reported


def test_parenthesized_single_value_is_reported_as_no_tuple() -> None:
    assert [
        "events = <Event order.paid> is not a tuple or list: a tuple of one element needs a comma, as in events=(it,)",
        "subscribers = <Subscriber ship> is not a tuple or list: a tuple of one element needs a comma, as in subscribers=(it,)",
    ] == faults(events=order_paid, subscribers=ship)


def test_swapped_arguments_are_named() -> None:
    assert [
        "<Subscriber ship> is not an Event",
        "<Event order.paid> is not a subscriber: decorate the function with @subscriber(…)",
    ] == faults(events=(ship,), subscribers=(order_paid,))


async def yielding() -> AsyncIterator[None]:
    yield


async def waiting() -> None:
    pass


@pytest.mark.parametrize("lifespan", [yielding, waiting])
def test_undecorated_lifespan_is_reported(lifespan: Any) -> None:
    (fault,) = faults(events=(order_paid,), lifespan=lifespan)

    assert "contextlib.asynccontextmanager" in fault


def test_decorated_lifespan_is_accepted() -> None:
    assert Catalogue(events=(order_paid,), lifespan=asynccontextmanager(yielding)).lifespan
