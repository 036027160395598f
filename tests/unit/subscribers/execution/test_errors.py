"""Exceptions of functions whose classes behave unusually."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from streams_app import Received, Retries, Retry
from streams_app.testing import SubscriberTester
from tests.helpers.subscribers.kit import Paid, paid, seen_by, subscribed


class TextlessError(Exception):
    """Has no text: its str() raises."""

    def __str__(self) -> str:
        raise RuntimeError("nothing to say")


class FalsyError(Exception):
    """Is false in a boolean context."""

    def __len__(self) -> int:
        return 0


class RetryWithReason(Retry):
    """Has a constructor of its own."""

    def __init__(self, why: str) -> None:
        self.why = why


class RetryAfterText(Retry):
    """Has an `after` of an unexpected type."""

    def __init__(self, after: str) -> None:
        self.after_ms = after  # type: ignore[assignment]  # the fault under test


@pytest.mark.parametrize("idempotent", ["yes", "unknown", "no"])
def test_error_whose_text_raises_is_a_dead_letter_of_its_event_only(idempotent: str) -> None:
    async def ship(event: Received[Paid]) -> None:
        if event.data.order_id == "o1":
            raise TextlessError

    one = subscribed(ship, idempotent=idempotent, concurrency=1, retry=Retries(attempts=2))
    with SubscriberTester(one) as kit:
        for number in range(1, 4):
            kit.publish(paid, Paid(f"o{number}"))
        kit.advance("1m")
        (dead_letter,) = kit.dead_letters(one)

        assert ("failed", 2 if idempotent == "yes" else 1) == (dead_letter.reason, dead_letter.attempts)
        assert "TextlessError, whose state is unknown: RuntimeError('nothing to say')" == dead_letter.detail
        assert 2 == [outcome for _, outcome in seen_by(kit, one)].count("done")


@pytest.mark.parametrize("kind", [RetryWithReason, RetryAfterText])
def test_retry_subclass_with_its_own_constructor_is_a_retry(kind: Callable[[str], Retry]) -> None:
    async def ship(event: Received[Paid]) -> None:
        if event.attempt == 1:
            raise kind("30s")

    one = subscribed(ship, idempotent="no")
    with SubscriberTester(one) as kit:
        kit.publish(paid, Paid("o1"))
        kit.advance("1m")

        assert [(1, "retry"), (2, "done")] == seen_by(kit, one)


def test_falsy_error_is_reported_as_itself() -> None:
    async def ship(event: Received[Paid]) -> None:
        raise FalsyError("at all")

    one = subscribed(ship, idempotent="no")
    with SubscriberTester(one) as kit:
        kit.publish(paid, Paid("o1"))
        (dead_letter,) = kit.dead_letters(one)

        assert ("failed", "FalsyError: at all") == (dead_letter.reason, dead_letter.detail)


def test_unexpected_error_at_the_end_of_a_call_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object, **__: object) -> None:
        raise RuntimeError("unexpected")

    async def ship(event: Received[Paid]) -> None:
        raise ValueError

    monkeypatch.setattr("streams_app.subscribers.running.processor.after_failure", breaks)
    with pytest.raises(RuntimeError, match="unexpected"), SubscriberTester(subscribed(ship)) as kit:
        kit.publish(paid, Paid("o1"))
        kit.advance("1s")


def test_event_deferred_by_its_function_for_more_than_an_hour_is_a_dead_letter() -> None:
    async def ship(event: Received[Paid]) -> None:
        raise Retry(after="25m")

    one = subscribed(ship, retry=Retries(attempts=8))
    with SubscriberTester(one) as kit:
        kit.publish(paid, Paid("o1"))
        kit.advance("3h")
        (dead_letter,) = kit.dead_letters(one)

        assert ("failed", 3) == (dead_letter.reason, dead_letter.attempts)
        assert "Retry: again after 25m, and it would have waited for more than 1 h in all" == dead_letter.detail


def test_event_deferred_by_two_rules_for_more_than_an_hour_is_a_dead_letter() -> None:
    async def ship(event: Received[Paid]) -> None:
        raise Retry(after="59m") if event.attempt == 1 else ValueError("no such article")

    one = subscribed(ship, retry=Retries(attempts=7, first="10m", factor=1, longest="10m"))
    with SubscriberTester(one) as kit:
        kit.publish(paid, Paid("o1"))
        kit.advance("61m")
        (dead_letter,) = kit.dead_letters(one)

        assert ("failed", 2) == (dead_letter.reason, dead_letter.attempts)
        assert "ValueError: no such article, and it would have waited for more than 1 h in all" == dead_letter.detail
