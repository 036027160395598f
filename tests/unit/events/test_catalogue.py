"""A catalogue holds all events and subscribers of an application, and nothing that contradicts itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from streams_app import Catalogue, Event, Received, subscriber
from streams_app.errors import ConfigurationError
from tests.shop import OrderPaid, catalogue, order_paid, parcel_sent, recompute, ship

other_paid = Event("order.paid", OrderPaid, description="Another one.", keyed_by=None)


def faults(**options: Any) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        Catalogue(**options)
    return [fault.removeprefix("catalogue: ") for fault in caught.value.faults]


def test_a_catalogue_holds_what_it_was_given() -> None:
    assert (4, (ship, recompute)) == (len(catalogue.events), catalogue.subscribers)


def test_two_subscribers_cannot_have_one_name() -> None:
    def again() -> Any:
        @subscriber(parcel_sent, idempotent="yes", description="Another one.")
        def ship(event: Received[Any]) -> None:
            pass

        return ship

    assert ["2 subscribers have the name 'ship'"] == faults(events=(order_paid, parcel_sent), subscribers=(ship, again()))


def test_two_events_cannot_have_one_key() -> None:
    assert ["2 events have the key 'order.paid'"] == faults(events=(order_paid, other_paid))


def test_a_subscriber_takes_an_event_of_the_catalogue() -> None:
    near = Event("orders.paid", OrderPaid, description="Nearly.", keyed_by=None)

    assert ["subscriber 'ship' takes 'order.paid', which is not in events, did you mean 'orders.paid'?"] == faults(
        events=(near,), subscribers=(ship,)
    )
    assert ["subscriber 'ship' takes another event 'order.paid' than the one in events"] == faults(
        events=(other_paid,), subscribers=(ship,)
    )


def test_a_function_that_is_no_subscriber_is_told() -> None:
    def plain(event: Any) -> None:
        pass

    told = faults(events=(OrderPaid,), subscribers=(plain,), lifespan=3)

    assert 3 == len(told)
    assert "plain is not a subscriber: decorate the function with @subscriber(…)" in told


def test_parentheses_around_one_thing_are_told_to_be_no_tuple() -> None:
    assert [
        "events = <Event order.paid> is not a tuple or list: a tuple of one element needs a comma, as in events=(it,)",
        "subscribers = <Subscriber ship> is not a tuple or list: a tuple of one element needs a comma, as in subscribers=(it,)",
    ] == faults(events=order_paid, subscribers=ship)


def test_what_stands_in_the_place_of_the_other_is_named() -> None:
    assert [
        "<Subscriber ship> is not an Event",
        "<Event order.paid> is not a subscriber: decorate the function with @subscriber(…)",
    ] == faults(events=(ship,), subscribers=(order_paid,))


async def yielding() -> AsyncIterator[None]:
    yield


async def waiting() -> None:
    pass


@pytest.mark.parametrize("lifespan", [yielding, waiting])
def test_a_lifespan_that_nobody_has_decorated_is_told(lifespan: Any) -> None:
    (fault,) = faults(events=(order_paid,), lifespan=lifespan)

    assert "contextlib.asynccontextmanager" in fault


def test_a_decorated_lifespan_is_taken() -> None:
    assert Catalogue(events=(order_paid,), lifespan=asynccontextmanager(yielding)).lifespan
