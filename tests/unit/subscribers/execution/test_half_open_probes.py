"""Which events a suspended subscriber probes, by the test kit."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest

from streams_app import Event, Received, subscriber
from streams_app.testing import SubscriberTester


class Paid(msgspec.Struct, frozen=True):
    order_id: str


paid = Event("order.paid", Paid, description="Paid.", keyed_by="order_id")

GOOD = [f"good{number}" for number in range(40)]


def failing(events: int) -> list[str]:
    return [f"failing{number}" for number in range(events)]


@pytest.mark.parametrize("idempotent", ["yes", "unknown", "no"])
@pytest.mark.parametrize(
    ("before", "behind", "ordered"), [(300, 0, None), (300, 0, "key"), (40, 40, None)], ids=["before", "by key", "around"]
)
def test_many_failing_events_delay_good_ones_for_minutes_at_most(
    before: int, behind: int, ordered: Literal["key"] | None, idempotent: Any
) -> None:
    done: set[str] = set()

    @subscriber(paid, idempotent=idempotent, description="Ships.", ordered=ordered)
    async def ship(event: Received[Paid]) -> None:
        if event.data.order_id.startswith("failing"):
            raise ConnectionError("nobody is there")
        done.add(event.data.order_id)

    with SubscriberTester(ship) as kit:
        for order in [*failing(before), *GOOD, *failing(behind)]:
            kit.publish(paid, Paid(order))
        kit.advance("15m")
        kit.dead_letters(ship)

        assert set(GOOD) == done


def test_last_good_event_is_found_at_once_behind_many_failing_ones() -> None:
    done: list[str] = []

    @subscriber(paid, idempotent="yes", description="Ships.")
    async def ship(event: Received[Paid]) -> None:
        if event.data.order_id.startswith("failing"):
            raise ConnectionError("nobody is there")
        done.append(event.data.order_id)

    with SubscriberTester(ship) as kit:
        for order in [*failing(300), "good"]:
            kit.publish(paid, Paid(order))
        kit.advance("5s")

        assert ["good"] == done
