"""Attempts that fail are told in the log, with the line of the function that has failed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from streams_app import Received, Reject, Retries, Retry, subscriber
from streams_app.testing import SubscriberTester
from tests.kit import Paid, paid


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if "have failed" in message]


@subscriber(paid, idempotent="yes", description="Ships.", retry=Retries(attempts=3))
async def ship(event: Received[Any]) -> None:
    raise ConnectionError("the carrier is away")


@subscriber(paid, idempotent="yes", description="Counts.", retry=Retries(attempts=3))
def count(event: Received[Any]) -> None:
    raise ConnectionError("no database")


@pytest.mark.parametrize(("one", "error"), [(ship, "the carrier is away"), (count, "no database")])
def test_the_first_attempt_that_fails_is_told_at_once_with_its_line(one: Any, error: str, caplog: pytest.LogCaptureFixture) -> None:
    with SubscriberTester(one) as kit:
        event_id = kit.publish(paid, Paid("o1"))
        lines = told(caplog)
        kit.advance("30s")
        kit.dead_letters(one)
        later = told(caplog)

    assert lines == later
    (line,) = lines
    assert line.startswith(
        f"attempts have failed count=1 subscriber={one.name} event={event_id} error=ConnectionError({error!r}) at={__file__}:"
    )


def test_later_ones_are_told_together_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    with SubscriberTester(ship) as kit:
        for order in ("o1", "o2"):
            kit.publish(paid, Paid(order))
        kit.advance("1m")
        kit.publish(paid, Paid("o3"))
        kit.dead_letters(ship)
        kit.advance("1m")
        kit.dead_letters(ship)

    assert ["count=1", "count=5", "count=3"] == [line.split()[3] for line in told(caplog)]


def test_what_was_held_back_is_told_at_the_end_of_its_minute_though_nothing_fails_then(caplog: pytest.LogCaptureFixture) -> None:
    with SubscriberTester(ship) as kit:
        for order in ("o1", "o2"):
            kit.publish(paid, Paid(order))
        kit.advance("30s")
        early = told(caplog)
        kit.advance("1m")
        kit.dead_letters(ship)
        late = told(caplog)
        kit.advance("10m")

    assert ["count=1", "count=5"] == [line.split()[3] for line in late]
    assert (late[:1], late) == (early, told(caplog))
    assert " error=ConnectionError('the carrier is away') at=" in late[1]


def test_what_was_held_back_is_told_where_the_last_partition_is_let_go(caplog: pytest.LogCaptureFixture) -> None:
    with SubscriberTester(ship) as kit:
        kit.publish(paid, Paid("o1"))
        kit.advance("30s")
        kit.dead_letters(ship)

    assert ["count=1", "count=2"] == [line.split()[3] for line in told(caplog)]


def test_what_the_function_has_said_itself_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    @subscriber(paid, idempotent="yes", description="Ships.")
    async def picky(event: Received[Any]) -> None:
        if event.attempt == 1:
            raise Retry(after="1s")
        raise Reject("nobody lives there")

    with SubscriberTester(picky) as kit:
        kit.publish(paid, Paid("o1"))
        kit.advance("1m")
        kit.dead_letters(picky)

    assert [] == told(caplog)


def test_an_attempt_that_takes_too_long_is_told(caplog: pytest.LogCaptureFixture) -> None:
    @subscriber(paid, idempotent="yes", description="Ships.", timeout="1s", retry=Retries(attempts=1))
    async def slow(event: Received[Any]) -> None:
        await asyncio.sleep(60)  # virtual time

    with SubscriberTester(slow) as kit:
        kit.publish(paid, Paid("o1"))
        kit.advance("1m")
        kit.dead_letters(slow)

    (line,) = told(caplog)
    assert line.endswith(" error=timed out")
