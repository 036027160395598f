"""Failed attempts are logged, with the line of the function that failed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from streams_app import Received, Reject, Retries, Retry, subscriber
from streams_app.formatting import compact_duration
from streams_app.subscribers.execution.retry_decision import delay_ms
from streams_app.testing import SubscriberTester
from tests.helpers.subscribers.kit import Paid, paid


def failure_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if "have failed" in message]


@subscriber(paid, idempotent="yes", description="Ships.", retry=Retries(attempts=3))
async def ship(event: Received[Any]) -> None:
    raise ConnectionError("the carrier is away")


@subscriber(paid, idempotent="yes", description="Counts.", retry=Retries(attempts=3))
def count(event: Received[Any]) -> None:
    raise ConnectionError("no database")


@pytest.mark.parametrize(("one", "error"), [(ship, "the carrier is away"), (count, "no database")])
def test_first_failed_attempt_is_logged_at_once_with_its_line(one: Any, error: str, caplog: pytest.LogCaptureFixture) -> None:
    with SubscriberTester(one) as kit:
        event_id = kit.publish(paid, Paid("o1"))
        lines = failure_lines(caplog)
        kit.advance("30s")
        kit.dead_letters(one)
        later = failure_lines(caplog)

    assert lines == later
    (line,) = lines
    assert line.startswith(
        f"attempts have failed count=1 subscriber={one.name} event={event_id} error=ConnectionError({error!r}) at={__file__}:"
    )


def test_time_of_the_next_attempt_is_logged_unless_the_event_is_a_dead_letter(caplog: pytest.LogCaptureFixture) -> None:
    with SubscriberTester(ship) as kit:
        event_id = kit.publish(paid, Paid("o1"))
        expected = compact_duration(delay_ms(Retries(attempts=3), event_id, 1))
        kit.advance("2m")
        kit.dead_letters(ship)
        kit.publish(paid, Paid("o2"))
        kit.advance("2m")
        kit.dead_letters(ship)
    first, last, *_ = failure_lines(caplog)

    assert first.endswith(f" attempt=1/3 next_in={expected}")
    assert "next_in" not in last


def test_later_failures_are_summarized_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    with SubscriberTester(ship) as kit:
        for order in ("o1", "o2"):
            kit.publish(paid, Paid(order))
        kit.advance("1m")
        kit.publish(paid, Paid("o3"))
        kit.dead_letters(ship)
        kit.advance("1m")
        kit.dead_letters(ship)

    assert ["count=1", "count=5", "count=3"] == [line.split()[3] for line in failure_lines(caplog)]


def test_suppressed_failures_are_logged_at_the_end_of_their_minute_without_new_failures(caplog: pytest.LogCaptureFixture) -> None:
    with SubscriberTester(ship) as kit:
        for order in ("o1", "o2"):
            kit.publish(paid, Paid(order))
        kit.advance("30s")
        early = failure_lines(caplog)
        kit.advance("1m")
        kit.dead_letters(ship)
        late = failure_lines(caplog)
        kit.advance("10m")

    assert ["count=1", "count=5"] == [line.split()[3] for line in late]
    assert (late[:1], late) == (early, failure_lines(caplog))
    assert " error=ConnectionError('the carrier is away') at=" in late[1]


def test_suppressed_failures_are_logged_when_the_last_partition_is_released(caplog: pytest.LogCaptureFixture) -> None:
    with SubscriberTester(ship) as kit:
        kit.publish(paid, Paid("o1"))
        kit.advance("30s")
        kit.dead_letters(ship)

    assert ["count=1", "count=2"] == [line.split()[3] for line in failure_lines(caplog)]


def test_retry_and_reject_are_not_logged_as_failures(caplog: pytest.LogCaptureFixture) -> None:
    @subscriber(paid, idempotent="yes", description="Ships.")
    async def selective(event: Received[Any]) -> None:
        if event.attempt == 1:
            raise Retry(after="1s")
        raise Reject("nobody lives there")

    with SubscriberTester(selective) as kit:
        kit.publish(paid, Paid("o1"))
        kit.advance("1m")
        kit.dead_letters(selective)

    assert [] == failure_lines(caplog)


def test_timed_out_attempt_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    @subscriber(paid, idempotent="yes", description="Ships.", timeout="1s", retry=Retries(attempts=1))
    async def slow(event: Received[Any]) -> None:
        await asyncio.sleep(60)  # virtual time

    with SubscriberTester(slow) as kit:
        kit.publish(paid, Paid("o1"))
        kit.advance("1m")
        kit.dead_letters(slow)

    (line,) = failure_lines(caplog)
    assert line.endswith(" error=timed out")
