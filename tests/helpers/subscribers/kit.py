"""Events, and a subscriber of a given function, for tests of the subscriber tester."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from streams_app import Event, Received, subscriber
from streams_app.testing import SubscriberTester


class Paid(msgspec.Struct, frozen=True):
    order_id: str
    cents: int = 1


class Sent(msgspec.Struct, frozen=True):
    order_id: str


class AccountChanged(msgspec.Struct, frozen=True):
    account_id: str
    metrics: list[str]


paid = Event("order.paid", Paid, description="Paid.", keyed_by="order_id")
sent = Event("parcel.sent", Sent, description="Sent.", keyed_by="order_id")


def subscribed(function: Callable[[Received[Any]], Any], source: Any = paid, **options: Any) -> Any:
    """Return a subscriber of a function, with the name ``ship``."""
    function.__name__ = options.pop("name", "ship")
    return subscriber(source, **({"idempotent": "yes", "description": "Under test."} | options))(function)


def seen_by(kit: SubscriberTester, one: Any) -> list[tuple[int, str]]:
    return [(run.attempt, run.outcome) for run in kit.runs(one)]
