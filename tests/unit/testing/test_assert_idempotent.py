"""The test kit calls a function once, twice and interrupted, and compares the results."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from streams_app import Received
from streams_app.testing import SubscriberTester
from tests.helpers.subscribers.kit import Paid, Sent, sent, subscribed


class Table:
    """What functions write to instead of a database."""

    def __init__(self) -> None:
        self.rows: list[str] = []

    async def write(self, row: str) -> None:
        self.rows.append(row)

    def clear(self) -> None:
        self.rows.clear()

    def dump(self) -> list[str]:
        return list(self.rows)


def writing(table: Table) -> Callable[[Received[Paid]], Coroutine[Any, Any, None]]:
    """A function that may be called twice."""

    async def write(event: Received[Paid]) -> None:
        table.rows[:] = [event.data.order_id]

    return write


def checked(function: Callable[[Received[Any]], Any], table: Table, **options: Any) -> None:
    one = subscribed(function)
    with SubscriberTester(one) as kit:
        kit.assert_idempotent(one, Paid("o1"), observe=table.dump, **options)


def test_function_with_the_same_result_is_idempotent() -> None:
    table = Table()

    async def ship(event: Received[Paid]) -> None:
        for row in ("a", "b"):
            await asyncio.sleep(1)  # virtual time
            if row not in table.rows:
                await table.write(row)
        await event.publish(sent, Sent(event.data.order_id))

    checked(ship, table)
    checked(ship, table, reset=table.clear)

    assert ["a", "b"] == table.rows


def test_function_that_appends_is_reported_by_a_diff() -> None:
    table = Table()

    async def ship(event: Received[Paid]) -> None:
        await table.write(event.data.order_id)

    with pytest.raises(AssertionError, match=r"(?s)ship is not idempotent: called twice .*\+ \['o1', 'o1'\]"):
        checked(ship, table)


def test_function_that_skips_work_after_an_interruption_is_reported_with_the_position() -> None:
    table = Table()

    async def ship(event: Received[Paid]) -> None:
        if not table.rows:
            await table.write("order")
            await table.write("position")

    checked(ship, table)
    with pytest.raises(AssertionError, match=r"cut off at an await of ship, line \d+, and called again it leaves another state"):
        checked(ship, table, reset=table.clear)


def test_sync_function_is_interrupted_where_it_publishes() -> None:
    table = Table()

    def ship(event: Received[Paid]) -> None:
        if not table.rows:
            event.publish_sync(sent, Sent("o1"))
            table.rows.append("sent")
            event.publish_sync(sent, Sent("o2"))

    with pytest.raises(
        AssertionError, match=r"cut off before parcel\.sent was published, and called again it leaves other publications"
    ):
        checked(ship, table, reset=table.clear)


def test_function_whose_second_call_publishes_a_different_event_under_the_same_id_is_not_idempotent() -> None:
    table = Table()

    def ship(event: Received[Paid]) -> None:
        table.rows.append("x")
        event.publish_sync(sent, Sent(str(len(table.rows))))
        table.rows[:] = ["x"]

    with pytest.raises(AssertionError, match="called twice it leaves other publications"):
        checked(ship, table)


def test_function_error_is_raised_by_the_check() -> None:
    def ship(event: Received[Paid]) -> None:
        raise ConnectionError("the carrier is away")

    with pytest.raises(ConnectionError):
        checked(ship, Table())


def test_observed_value_may_be_the_list_that_the_function_mutates() -> None:
    rows: list[str] = []

    def ship(event: Received[Paid]) -> None:
        rows.append(event.data.order_id)

    one = subscribed(ship)
    with SubscriberTester(one) as kit, pytest.raises(AssertionError, match="ship is not idempotent: called twice"):
        kit.assert_idempotent(one, Paid("o1"), observe=lambda: rows, reset=rows.clear)


def test_uncopyable_value_is_compared_as_it_is() -> None:
    rows: list[str] = []
    lock = threading.Lock()

    def ship(event: Received[Paid]) -> None:
        rows.append(event.data.order_id)

    one = subscribed(ship)
    with SubscriberTester(one) as kit, pytest.raises(AssertionError, match="ship is not idempotent: called twice"):
        kit.assert_idempotent(one, Paid("o1"), observe=lambda: (lock, *rows), reset=rows.clear)


def test_check_that_could_not_fail_is_reported() -> None:
    table = Table()

    def ship(event: Received[Paid]) -> None:
        pass

    with pytest.raises(AssertionError, match=r"ship publishes nothing and changes nothing that observe\(\) returns"):
        checked(ship, table, reset=table.clear)


def test_event_may_be_given_instead_of_its_payload() -> None:
    table = Table()
    one = subscribed(writing(table))
    with SubscriberTester(one) as kit:
        kit.assert_idempotent(one, Received(data=Paid("o1"), id="e1"), observe=table.dump, reset=table.clear)

    assert ["o1"] == table.rows


def test_function_may_be_checked_after_the_block_of_its_tester() -> None:
    table = Table()
    one = subscribed(writing(table))
    with SubscriberTester(one) as kit:
        kit.advance("1m")

    kit.assert_idempotent(one, Paid("o1"), observe=table.dump, reset=table.clear)
    assert ["o1"] == table.rows


def test_value_without_equality_is_not_taken_for_a_change() -> None:
    table = Table()

    def ship(event: Received[Paid]) -> None:
        table.rows = [event.data.order_id]

    one = subscribed(ship)
    with SubscriberTester(one) as kit:
        kit.assert_idempotent(one, Paid("o1"), observe=lambda: table)
        with pytest.raises(AssertionError, match=r"ship .* changes nothing that observe\(\) returns"):
            kit.assert_idempotent(one, Paid("o1"), observe=lambda: table, reset=table.clear)


def test_function_that_could_not_await_what_it_publishes_fails_as_in_a_worker() -> None:
    def ship(event: Received[Paid]) -> None:
        event.publish(sent, Sent(event.data.order_id))  # type: ignore[unused-coroutine]  # the fault under test

    with pytest.raises(RuntimeError, match="a function without async cannot await publish: call publish_sync"):
        checked(ship, Table())
