"""The virtual clock jumps to the next possible event; records without a value; invalid ids."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from streams_app import Catalogue, Event, Received, records_of, subscriber
from streams_app.errors import BadEventError
from streams_app.testing import SubscriberTester


class Paid(msgspec.Struct, frozen=True):
    order_id: str


paid = Event("order.paid", Paid, description="Paid.", keyed_by="order_id")


@pytest.mark.timeout(60)  # minute by minute it would take hours
def test_idle_years_pass_at_once() -> None:
    @subscriber(paid, idempotent="no", description="Ships.")
    async def ship(event: Received[Paid]) -> None:
        """Ship the order."""

    with SubscriberTester(ship) as kit:
        kit.publish(paid, Paid("o1"))
        kit.advance("10000d")
        kit.publish(paid, Paid("o2"))
        kit.advance("1m")

        assert ["done", "done"] == [run.outcome for run in kit.runs(ship)]


@pytest.mark.parametrize("is_beside", [False, True], ids=["lifespan", "task of an attempt"])
def test_user_timers_fire_at_their_time_while_no_event_is_unfinished(is_beside: bool) -> None:
    seen: list[datetime] = []
    tasks: list[asyncio.Task[None]] = []

    async def poll() -> None:
        for _ in range(5):
            await asyncio.sleep(3_600)
            seen.append(kit.now)

    @asynccontextmanager
    async def resources() -> AsyncIterator[None]:
        if not is_beside:
            tasks.append(asyncio.create_task(poll()))
        yield
        for task in tasks:
            task.cancel()

    @subscriber(paid, idempotent="yes", description="Ships.")
    async def ship(event: Received[Paid]) -> None:
        if is_beside:
            tasks.append(asyncio.create_task(poll()))

    with SubscriberTester(Catalogue(events=(paid,), subscribers=(ship,), lifespan=resources)) as kit:
        begin = kit.now
        kit.publish(paid, Paid("o1"))
        kit.advance("1d")

    assert [1, 2, 3, 4, 5] == [round((at - begin) / timedelta(hours=1), 2) for at in seen]


@pytest.mark.parametrize("tombstones", ["dead-letter", "ignore"])
def test_record_without_a_value_is_a_dead_letter_or_ignored(tombstones: Any) -> None:
    @subscriber(paid, idempotent="unknown", description="Ships.", tombstones=tombstones)
    async def ship(event: Received[Paid]) -> None:
        """Ship the order."""

    with SubscriberTester(ship) as kit:
        kit.produce(paid, None, key=b"o1")
        kit.publish(paid, Paid("o2"))
        kit.advance("1m")
        dead_letters = kit.dead_letters(ship)

        assert ["o2"] == [run.data.order_id for run in kit.runs(ship)]
    assert (0 if tombstones == "ignore" else 1) == len(dead_letters)


@pytest.mark.parametrize("source", [paid, records_of("f", Paid)], ids=["event", "record"])
def test_empty_event_id_is_a_bad_event(source: Any) -> None:
    @subscriber(source, idempotent="yes", description="Ships.")
    async def ship(event: Received[Paid]) -> None:
        """Ship the order."""

    with SubscriberTester(ship) as kit, pytest.raises(BadEventError, match="event_id = ''"):
        kit.publish(source, Paid("o1"), event_id="")
