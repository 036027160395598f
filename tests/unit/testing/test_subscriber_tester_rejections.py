"""What the test kit of subscribers rejects, and which errors it raises for its user."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from streams_app import Catalogue, EventsSettings, Received, Reject, Retries, Settings, SubscriberSettings
from streams_app.errors import BadEventError, ConfigurationError
from streams_app.testing import SubscriberTester, UnseenDeadLettersError
from tests.helpers.subscribers.kit import Paid, Sent, paid, sent, subscribed


def test_uninspected_dead_letter_fails_the_test_with_its_cause() -> None:
    def ship(event: Received[Paid]) -> None:
        raise Reject("nobody lives there")

    def leave() -> None:
        with SubscriberTester(subscribed(ship)) as kit:
            kit.publish(paid, Paid("o1"))

    with pytest.raises(UnseenDeadLettersError, match=r"(?s)ship: .*, rejected: nobody lives there.*in ship"):
        leave()


def test_dead_letter_after_an_inspection_fails_the_test_too() -> None:
    def ship(event: Received[Paid]) -> None:
        raise Reject("nobody lives there")

    def leave() -> None:
        with SubscriberTester(one := subscribed(ship)) as kit:
            kit.publish(paid, Paid("o1"))
            assert 1 == len(kit.dead_letters(one))
            kit.publish(paid, Paid("o2"))

    with pytest.raises(UnseenDeadLettersError):
        leave()


def test_error_of_the_test_itself_is_not_hidden_by_dead_letters() -> None:
    def ship(event: Received[Paid]) -> None:
        raise Reject("nobody lives there")

    def leave() -> None:
        with SubscriberTester(subscribed(ship)) as kit:
            kit.publish(paid, Paid("o1"))
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        leave()


def test_retry_and_dead_letter_report_their_error() -> None:
    def ship(event: Received[Paid]) -> None:
        raise ConnectionError("the carrier is away")

    one = subscribed(ship, retry=Retries(attempts=2, first="1s"))
    with SubscriberTester(one) as kit:
        event_id = kit.publish(paid, Paid("o1"))
        kit.advance("10s")
        (dead_letter,) = kit.dead_letters(one)

    assert ("failed", event_id, 2, "ConnectionError", b"o1", b'{"order_id":"o1","cents":1}') == (
        dead_letter.reason, dead_letter.event_id, dead_letter.attempts, dead_letter.exception, dead_letter.key, dead_letter.value,
    )  # fmt: skip
    assert [ConnectionError, ConnectionError] == [type(run.error) for run in kit.runs(one)]


def test_events_are_encoded_and_decoded() -> None:
    one = subscribed(lambda event: None)
    with SubscriberTester(one) as kit:
        with pytest.raises(BadEventError, match=r"\$\.cents"):
            kit.publish(paid, Paid("o1", "500"))  # type: ignore[arg-type]  # the fault under test
        kit.produce(paid, b'{"order_id": "o1", "cents": "500"}')
        kit.produce(paid, b'{"order_id": "o2"}', headers=[("ce_type", b"another.event")])

        assert [("not-valid", "$.cents")] == [
            (dead_letter.reason, dead_letter.detail[-8:-1]) for dead_letter in kit.dead_letters(one)
        ]
        assert [] == kit.runs(one)


def test_catalogue_restricts_published_events_and_its_lifespan_is_entered() -> None:
    life = []

    @asynccontextmanager
    async def resources() -> AsyncIterator[None]:
        life.append("open")
        yield
        life.append("closed")

    async def ship(event: Received[Paid]) -> None:
        await event.publish(sent, Sent("o1"))

    one = subscribed(ship, retry=Retries(attempts=1))
    with SubscriberTester(Catalogue(events=(paid,), subscribers=(one,), lifespan=resources)) as kit:
        assert ["open"] == life
        kit.publish(paid, Paid("o1"))

        assert [ConfigurationError] == [type(run.error) for run in kit.runs(one)]
        assert ["failed"] == [dead_letter.reason for dead_letter in kit.dead_letters(one)]
    assert ["open", "closed"] == life


def test_failed_lifespan_is_raised_by_the_block() -> None:
    @asynccontextmanager
    async def resources() -> AsyncIterator[None]:
        if life:
            raise ConnectionError("no database")
        yield

    life = ["fails"]
    catalogue = Catalogue(events=(paid,), subscribers=(subscribed(lambda event: None),), lifespan=resources)
    with pytest.raises(ConnectionError, match="no database"), SubscriberTester(catalogue):
        raise NotImplementedError


async def test_tester_in_a_running_loop_explains_that_it_has_its_own() -> None:
    with pytest.raises(RuntimeError, match="test without async"), SubscriberTester(subscribed(lambda event: None)):
        raise NotImplementedError


def test_subscriber_of_another_tester_is_named() -> None:
    another = subscribed(lambda event: None, name="tell")
    with (
        SubscriberTester(subscribed(lambda event: None)) as kit,
        pytest.raises(ValueError, match=r"'tell' is not a subscriber .* ship"),
    ):
        kit.runs(another)


@pytest.mark.parametrize(
    ("declared", "settings", "fault"),
    [
        ((), None, "takes subscribers, or one catalogue"),
        ((len,), None, "<built-in function len> is neither a subscriber nor a Catalogue"),
        ((Catalogue(), Catalogue()), None, "takes subscribers, or one catalogue"),
        ((Catalogue(),), {"rate": "1/s"}, r"settings = \{'rate': '1/s'\} is not a Settings object"),
    ],
)
def test_unsupported_subscriber_is_named(declared: tuple[Any, ...], settings: Any, fault: str) -> None:
    with pytest.raises(ConfigurationError, match=fault):
        SubscriberTester(*declared, settings=settings)


def test_settings_override_the_declaration_as_in_production() -> None:
    def ship(event: Received[Paid]) -> None:
        raise ValueError("no carrier")

    settings = Settings(
        app_id="shop",
        events=EventsSettings(catalogue="shop:catalogue"),
        subscribers=(SubscriberSettings(name="ship", attempts=1),),
    )
    shipping = subscribed(ship)
    with SubscriberTester(shipping, settings=settings) as kit:
        kit.publish(paid, Paid("o1"))
        dead_letters = kit.dead_letters(shipping)

    assert [("failed", 1)] == [(dead_letter.reason, dead_letter.attempts) for dead_letter in dead_letters]


def test_crash_at_an_unknown_moment_is_rejected() -> None:
    with SubscriberTester(subscribed(lambda event: None)) as kit, pytest.raises(ValueError, match="at = 'begin' must be"):
        kit.crash(at="begin")  # type: ignore[arg-type]  # the fault under test


def test_non_event_is_not_published() -> None:
    one = subscribed(lambda event: None)
    with SubscriberTester(one) as kit, pytest.raises(ConfigurationError, match="<Subscriber ship> is not an Event"):
        kit.publish(one, Paid("o1"))


def test_sync_function_with_an_unawaited_publish_fails() -> None:
    def ship(event: Received[Paid]) -> None:
        event.publish(sent, Sent(event.data.order_id))  # type: ignore[unused-coroutine]  # the fault under test

    one = subscribed(ship, retry=Retries(attempts=1))
    with SubscriberTester(one) as kit:
        kit.publish(paid, Paid("o1"))
        (dead_letter,) = kit.dead_letters(one)

        assert "RuntimeError: a function without async cannot await publish: call publish_sync" == dead_letter.detail


def test_tester_used_outside_its_block_says_where_it_runs() -> None:
    kit = SubscriberTester(subscribed(lambda event: None))
    with pytest.raises(RuntimeError, match="only within its block"):
        kit.publish(paid, Paid("o1"))
    with kit:
        kit.publish(paid, Paid("o1"))
    for act in (lambda: kit.advance("1s"), kit.crash, lambda: kit.publish(paid, Paid("o1"))):
        with pytest.raises(RuntimeError, match="only within its block"):
            act()
