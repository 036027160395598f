"""The dead letter shown in docs/reference/subscribers.md has the format of a real one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec

from streams_app import Event, Received, Retries, subscriber
from streams_app.operations.dead_letter import ListedDeadLetter, split_headers
from streams_app.testing import SubscriberTester

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "subscribers.md").read_text("utf-8")
TRACE = "Traceback (most recent call last): ..."
"""The page's abbreviation of a trace, whose lines depend on the file."""


class OrderPaid(msgspec.Struct, frozen=True):
    order_id: str
    cents: int


order_paid = Event("order.paid", OrderPaid, description="Paid.", keyed_by="order_id")


@subscriber(order_paid, idempotent="yes", description="Ships.", retry=Retries(attempts=2, first="4s"))
async def ship(event: Received[OrderPaid]) -> None:
    raise ConnectionError("the carrier is away")


def dead_letter_row() -> dict[str, Any]:
    with SubscriberTester(ship, clock="2026-01-01") as kit:
        kit.publish(order_paid, OrderPaid("o1", 500), event_id="e1173")
        kit.advance("1m")
        kit.dead_letters(ship)
        (record,) = kit._workers.broker.records("order.paid.ship.dead")
    headers, received = split_headers(record.headers)
    return ListedDeadLetter(0, record.offset, record.key, record.value, record.timestamp, headers, received).row()


def test_documented_dead_letter_matches_the_json_of_list() -> None:
    (example,) = re.findall(r'^\{"partition".*\}$', PAGE, re.MULTILINE)
    shown, row = json.loads(example), dead_letter_row()

    assert row["trace"].startswith("Traceback")
    assert row | {"trace": TRACE} == shown
    assert list(row) == list(shown)
