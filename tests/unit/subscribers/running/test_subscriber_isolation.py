"""Subscribers of one process do not affect each other."""

from __future__ import annotations

import asyncio
import threading

import msgspec

from streams_app import Catalogue, Event, Received, subscriber
from streams_app.local import LocalEvents
from tests.helpers.waiting import wait_until

LIMIT_SECONDS = 60
SOON_SECONDS = 5
"""How long a test waits for a call that a broken variant never makes."""


class Paid(msgspec.Struct, frozen=True):
    order_id: str


paid = Event("order.paid", Paid, description="Paid.", keyed_by="order_id")


def test_function_that_occupies_all_threads_does_not_delay_another_subscriber() -> None:
    blocked: list[str] = []
    is_over, was_called = threading.Event(), threading.Event()

    @subscriber(paid, idempotent="yes", description="Hangs.", concurrency=2)
    def hang(event: Received[Paid]) -> None:
        blocked.append(event.data.order_id)
        is_over.wait(LIMIT_SECONDS)

    @subscriber(paid, idempotent="yes", description="Goes on.", concurrency=2)
    def thank(event: Received[Paid]) -> None:
        if event.data.order_id == "o3":
            was_called.set()

    async def schedule() -> bool:
        async with LocalEvents(Catalogue(events=(paid,), subscribers=(hang, thank))) as events:
            try:
                for order in ("o1", "o2"):
                    await events.publish(paid, Paid(order))
                await wait_until(lambda: len(blocked) == 2, LIMIT_SECONDS, "all threads of one are occupied")
                await events.publish(paid, Paid("o3"))
                return await asyncio.to_thread(was_called.wait, SOON_SECONDS)
            finally:
                is_over.set()

    assert asyncio.run(schedule())
    assert {"o1", "o2"} == set(blocked[:2])
