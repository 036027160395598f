"""A function that succeeds after its event was dead-lettered is reported in a second dead letter, also after its claim."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Literal, cast

import msgspec
import pytest

from streams_app import Catalogue, Event, Received, Retries, subscriber
from streams_app.delivery.batch import TP
from streams_app.local import LocalEvents
from streams_app.local.member import LocalMember
from streams_app.subscribers.declaration.subscriber import Subscriber
from streams_app.subscribers.running.processor import SubscriberProcessor
from tests.helpers.subscribers.local_mode import quick_settings
from tests.helpers.waiting import wait_until

LIMIT_SECONDS = 60


class Paid(msgspec.Struct, frozen=True):
    order_id: str


paid = Event("order.paid", Paid, description="Paid.", keyed_by="order_id")


def reasons_of_dead_letters(events: LocalEvents) -> list[str]:
    return [dict(record.headers)["reason"].decode() for record in events._broker.records("order.paid.ship.dead")]


async def run_on_member(events: LocalEvents, act: Callable[[LocalMember], Awaitable[None] | None]) -> None:
    """Run a function on the member of the only subscriber, on its loop."""
    worker = events._worker
    assert worker is not None and worker._process is not None
    ((member, _),) = worker._process._served

    async def acted() -> None:
        if (awaited := act(member)) is not None:
            await awaited

    await worker._there(acted())


@pytest.mark.parametrize("idempotent", ["yes", "unknown", "no"])
async def test_timed_out_thread_that_succeeds_under_another_claim_is_reported(
    idempotent: Literal["yes", "unknown", "no"],
) -> None:
    may_end = threading.Event()

    @subscriber(paid, idempotent=idempotent, description="Hangs.", timeout="200ms", retry=Retries(attempts=1))
    def ship(event: Received[Paid]) -> None:
        may_end.wait(LIMIT_SECONDS)

    catalogue = Catalogue(events=(paid,), subscribers=(ship,))
    async with LocalEvents(catalogue, quick_settings(catalogue)) as events:
        try:
            await events.publish(paid, Paid("o1"))
            await wait_until(lambda: is_committed(events), LIMIT_SECONDS, "it is finished with its dead letter")
            await run_on_member(events, lambda member: member.assign())
            await wait_until(lambda: claimed(events), LIMIT_SECONDS, "it is claimed again")
            may_end.set()
            await wait_until(lambda: len(reasons_of_dead_letters(events)) == 2, LIMIT_SECONDS, "its late end is reported")
        finally:
            may_end.set()

        assert ["timed-out", "finished-late"] == reasons_of_dead_letters(events)


@pytest.mark.parametrize("idempotent", ["unknown", "no"])
async def test_interrupted_thread_that_succeeds_under_another_claim_is_reported(idempotent: Literal["unknown", "no"]) -> None:
    begun, may_end = threading.Event(), threading.Event()

    @subscriber(paid, idempotent=idempotent, description="Hangs.")
    def ship(event: Received[Paid]) -> None:
        begun.set()
        may_end.wait(LIMIT_SECONDS)

    assert ["interrupted", "finished-late"] == await dead_letters_of_interrupted(ship, begun, may_end)


@pytest.mark.parametrize("idempotent", ["unknown", "no"])
async def test_function_that_blocks_the_loop_past_its_claim_and_succeeds_is_reported(
    idempotent: Literal["unknown", "no"],
) -> None:
    begun, may_end = threading.Event(), threading.Event()

    @subscriber(paid, idempotent=idempotent, description="Blocks.")
    async def ship(event: Received[Paid]) -> None:
        begun.set()
        may_end.wait(LIMIT_SECONDS)

    assert ["interrupted", "finished-late"] == await dead_letters_of_interrupted(ship, begun, may_end)


async def test_dead_letter_of_an_interrupted_attempt_does_not_wait_for_an_outage() -> None:
    begun, may_end = threading.Event(), threading.Event()

    @subscriber(paid, idempotent="no", description="Hangs.")
    def ship(event: Received[Paid]) -> None:
        begun.set()
        may_end.wait(LIMIT_SECONDS)

    catalogue = Catalogue(events=(paid,), subscribers=(ship,))
    async with LocalEvents(catalogue, quick_settings(catalogue)) as events:
        try:
            await events.publish(paid, Paid("o1"))
            await asyncio.to_thread(begun.wait, LIMIT_SECONDS)
            await run_on_member(events, suspend)
            await run_on_member(events, revoke_at_once)
            await wait_until(lambda: reasons_of_dead_letters(events), LIMIT_SECONDS, "it is claimed again")
        finally:
            may_end.set()

        assert ["interrupted"] == reasons_of_dead_letters(events)[:1]


async def dead_letters_of_interrupted(
    ship: Subscriber[Any, Any, Any], begun: threading.Event, may_end: threading.Event
) -> list[str]:
    """Interrupt a function that has begun, and let it end once its event has a dead letter."""
    catalogue = Catalogue(events=(paid,), subscribers=(ship,))
    async with LocalEvents(catalogue, quick_settings(catalogue)) as events:
        try:
            await events.publish(paid, Paid("o1"))
            await asyncio.to_thread(begun.wait, LIMIT_SECONDS)
            await run_on_member(events, revoke_at_once)
            await wait_until(lambda: reasons_of_dead_letters(events), LIMIT_SECONDS, "it is claimed again")
            may_end.set()
            await wait_until(lambda: len(reasons_of_dead_letters(events)) == 2, LIMIT_SECONDS, "its late end is reported")
        finally:
            may_end.set()
        return reasons_of_dead_letters(events)


async def revoke_at_once(member: LocalMember) -> None:
    """Revoke the partitions of the member without a grace period, and assign them again."""
    assert member._ownership is not None
    await member._ownership.stop(1.5)
    member.assign()


def suspend(member: LocalMember) -> None:
    """Suspend the subscriber by an outage, with the next attempt far in the future."""
    assert member._ownership is not None
    for partition in member._ownership.partitions.values():
        for served in partition.ranges.served.values():
            circuit_breaker = cast("SubscriberProcessor", served.processor)._context.dispatcher.circuit_breaker
            circuit_breaker.is_suspended, circuit_breaker._next_ms = True, 2**62


def is_committed(events: LocalEvents) -> bool:
    committed = events._broker.groups["local.ship"].committed.get(TP("order.paid", 0))
    return committed is not None and committed.offset == 1


def claimed(events: LocalEvents) -> Any:
    assert events._worker is not None and events._worker._process is not None
    ((member, _),) = events._worker._process._served
    assert member._ownership is not None
    return member._ownership.partitions and not member._ownership._claims
