"""Offsets of a subscriber's group set by a Kafka tool: everything from there on is called again, once."""

from __future__ import annotations

from streams_app import Received
from streams_app.delivery.batch import TP
from streams_app.delivery.group_consumer import PartitionCommit
from streams_app.testing import SubscriberTester
from tests.helpers.subscribers.kit import Paid, paid, subscribed


def test_events_below_the_former_offset_are_repeated_even_if_the_next_owner_dies_at_once() -> None:
    calls: list[str] = []

    def ship(event: Received[Paid]) -> None:
        calls.append(event.data.order_id)

    one = subscribed(ship, idempotent="unknown", concurrency=1)
    with SubscriberTester(one) as kit:
        for order in ("o1", "o2", "o3"):
            kit.publish(paid, Paid(order))
        kit.crash()
        (group,) = kit._workers.broker.groups.values()
        group.committed[TP(paid.key, 0)] = PartitionCommit(0, "")
        kit.crash(at="begun")
        kit.rebalance()
        kit.rebalance()

        assert [("interrupted", b"o1")] == [(dead_letter.reason, dead_letter.key) for dead_letter in kit.dead_letters(one)]
    assert ["o1", "o2", "o3", "o2", "o3"] == calls
