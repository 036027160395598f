"""A subscriber is a function with its guarantees, validated at its declaration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from datetime import timedelta
from typing import Any

import pytest

from streams_app import Received, Reject, Retries, Retry, records_of, subscriber
from streams_app.errors import ConfigurationError
from streams_app.formatting import duration_text
from streams_app.subscribers.declaration.subscriber import Rate
from tests.helpers.events.shop import AccountChanged, OrderPaid, RateLimited, UnknownAccount, order_paid, recompute, ship

HOUR_MS = 3_600_000
PAID = Received(data=OrderPaid("o1", 500), id="e1")


def handle(event: Received[Any]) -> None:
    pass


def declared(function: Callable[..., Any] = handle, source: Any = order_paid, **options: Any) -> Any:
    return subscriber(source, **{"idempotent": "yes", "description": "Does something."} | options)(function)


def faults(function: Callable[..., Any] = handle, **options: Any) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        declared(function, **options)
    return caught.value.faults


def test_defaults_match_the_documentation() -> None:
    one = declared()

    assert (16, timedelta(seconds=30), None, None) == (one.concurrency, one.timeout, one.ordered, one.rate)
    assert (timedelta(hours=1), timedelta(hours=1), "earliest", True) == (one.remember, one.patience, one.start, one.is_enabled)
    assert (8, 1_000, 3, 300_000) == (one.retry.attempts, one.retry.first_ms, one.retry.factor, one.retry.longest_ms)


def test_default_retries_take_about_eleven_minutes() -> None:
    assert 11 == round(Retries().total_ms / 60_000)


def test_declared_function_is_called_like_any_other() -> None:
    seen = []

    def record(event: Received[OrderPaid]) -> None:
        seen.append(event.data)

    declared(record)(PAID)

    assert [OrderPaid("o1", 500)] == seen


async def test_declared_async_function_is_awaited_like_any_other() -> None:
    with pytest.raises(Retry):
        await ship(Received(data=OrderPaid("o1", 0), id="e1"))


def test_subscriber_is_called_like_its_function() -> None:
    assert ("ship", True) == (ship.name, ship.is_async)
    assert ("recompute", False) == (recompute.name, recompute.is_async)


def test_declaration_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        ship.concurrency = 9  # type: ignore[misc]  # the assignment is the fault under test


@pytest.mark.parametrize("missing", ["description", "idempotent"])
def test_arguments_without_a_default_are_required(missing: str) -> None:
    options: dict[str, Any] = {"idempotent": "yes", "description": "Does something."}
    del options[missing]

    with pytest.raises(TypeError, match=missing):
        subscriber(order_paid, **options)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"idempotent": "maybe"}, "idempotent = 'maybe' must be 'yes' or 'no' or 'unknown'"),
        ({"ordered": True}, "ordered = True must be None or 'key'"),
        ({"start": "now"}, "start = 'now' must be"),
        ({"description": ""}, "description is empty"),
        ({"concurrency": 0}, "concurrency = 0 must be"),
        ({"concurrency": True}, "concurrency = True must be"),
        ({"concurrency": 1001}, "concurrency = 1001 must be"),
        ({"timeout": "20"}, "timeout: '20' is not a duration"),
        ({"timeout": "2h"}, "timeout must be between 10ms and 1h"),
        ({"timeout": "0s"}, "timeout must be between"),
        ({"timeout": "6m", "idempotent": "no"}, "timeout must not be longer than 5m"),
        ({"remember": "1s"}, "remember must be between 1m and 7d"),
        ({"patience": "2d"}, "patience must be between 0ms and 1d"),
        ({"rate": "50"}, "rate = '50' is not a number"),
        ({"rate": "0/s"}, "rate = '0/s' is not a number"),
        ({"retry": 3}, "retry = 3 is not a Retries"),
        ({"forget": "erase"}, "forget = 'erase' is not a function"),
        ({"forget": lambda: None}, "the function forget does not take exactly one argument, the key"),
        ({"forget": lambda key: (yield key)}, "the function forget is a generator"),
        ({"source": OrderPaid}, "is neither an Event nor records_of"),
        ({"idempotent": "no", "retry": Retries(never=(ValueError,))}, "never and by have no effect with idempotent = 'no'"),
    ],
)
def test_invalid_subscriber_option_is_reported(options: dict[str, Any], fault: str) -> None:
    (reported,) = faults(**options)

    assert reported.startswith("subscriber 'handle': ")
    assert fault in reported


def test_all_faults_are_reported_together() -> None:
    reported = faults(idempotent="", description="", concurrency=0, timeout="x", rate="y", start="z")

    assert 6 == len(reported)


@pytest.mark.parametrize(
    ("function", "fault"),
    [
        (lambda event: None, "the name of the function"),
        (lambda: None, "the name of the function"),
        (type("handle", (), {}), "it is not a function"),
        (ship, "it is not a function"),
    ],
)
def test_function_that_cannot_be_called_with_an_event_is_reported(function: Any, fault: str) -> None:
    assert fault in faults(function)[0]


def test_function_takes_exactly_one_argument() -> None:
    def two(event: Any, other: Any) -> None:
        pass

    assert ["subscriber 'two': the function does not take exactly one argument, the event"] == faults(two)


def test_generator_function_is_rejected() -> None:
    def give(event: Any) -> Any:
        yield event

    assert ["subscriber 'give': the function is a generator, whose values would be discarded"] == faults(give)


@pytest.mark.parametrize(("text", "rate"), [("50/s", Rate(50, 1_000)), ("100 / m", Rate(100, 60_000)), ("9/h", Rate(9, 3_600_000))])
def test_rate_is_a_number_and_a_unit(text: str, rate: Rate) -> None:
    assert rate == declared(rate=text).rate


def test_fold_records_have_a_fold_and_a_payload() -> None:
    with pytest.raises(ConfigurationError) as caught:
        records_of("No Fold", int)

    assert 2 == len(caught.value.faults)
    assert ("account-metrics", AccountChanged) == (recompute.source.fold, recompute.source.payload)  # type: ignore[union-attr]  # it is not an Event


def test_all_faults_of_retries_are_reported_together_including_invalid_durations() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Retries(attempts=0, first="soon", factor=0.5, longest="later", never=(int,))  # type: ignore[arg-type]  # the fault under test

    assert ["first", "longest", "attempts", "factor", "never"] == [
        fault.removeprefix("retries: ").split(" ")[0].strip(":") for fault in caught.value.faults
    ]


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"attempts": 0}, "attempts = 0 must be"),
        ({"factor": 0.5}, "factor = 0.5 must be"),
        ({"first": "10m"}, "first must be at least 1ms and not longer than longest"),
        ({"first": "soon"}, "first: 'soon' is not a duration"),
        ({"attempts": 5, "first": "20m", "longest": "20m"}, "all 5 attempts take at least 1 h 20 min"),
        ({"never": (3,)}, "never: 3 is not an exception class"),
        ({"never": 3}, "never: 3 is not an exception class"),
        ({"by": {ValueError: 3}}, "has no Retries"),
        ({"by": ValueError}, "by: <class 'ValueError'> is not a mapping from exception classes to Retries"),
        ({"never": (ValueError,), "by": {ValueError: Retries()}}, "ValueError is in never and in by"),
        ({"by": {ValueError: Retries(never=(KeyError,))}}, "cannot have never or by of their own"),
    ],
)
def test_invalid_retries_are_reported(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Retries(**options)

    (reported,) = caught.value.faults
    assert fault in reported


@pytest.mark.parametrize(
    ("options", "longest"),
    [
        ({}, "5m"),
        ({"attempts": 20}, "248s"),
        ({"attempts": 20, "longest": "1m"}, "1m"),
        ({"attempts": 1_000, "factor": 1}, "5m"),
        ({"attempts": 4, "first": "20m", "longest": "1h"}, "20m"),
        ({"attempts": 3, "first": "15m", "longest": "1h"}, "1h"),
        ({"attempts": 4, "first": "15m", "longest": "1h"}, "1350s"),
        ({"attempts": 1_000, "first": "3.5s"}, "3.5s"),
    ],
)
def test_delays_are_shortened_to_an_hour_in_total(options: dict[str, Any], longest: str) -> None:
    rule = Retries(**options)

    assert longest == duration_text(rule.longest_ms)
    assert rule.total_ms <= HOUR_MS


class Throttled(RateLimited):
    pass


@pytest.mark.parametrize(
    ("error", "attempts"), [(ValueError(), 8), (UnknownAccount(), None), (RateLimited(), 20), (Throttled(), 20)]
)
def test_retry_rule_is_that_of_the_nearest_error_class(error: Exception, attempts: int | None) -> None:
    rule = recompute.retry.rule_for(error)

    assert attempts == (rule and rule.attempts)


class Busy(Retry):
    """An exception class of the user."""


@pytest.mark.parametrize(
    ("error", "rule", "attempts"),
    [
        (Retry(), Retries(never=(Exception,)), 8),
        (Busy(), Retries(never=(BaseException,)), 8),
        (Retry(), Retries(by={Exception: Retries(attempts=2)}), 8),
        (Busy(), Retries(never=(Busy,)), None),
        (Busy(), Retries(by={Retry: Retries(attempts=3)}, never=(Exception,)), 3),
        (ValueError(), Retries(never=(Exception,)), None),
    ],
)
def test_default_retry_rule_does_not_apply_to_retry(error: Exception, rule: Retries, attempts: int | None) -> None:
    found = rule.rule_for(error)

    assert attempts == (found and found.attempts)


def test_retry_carries_the_delay_requested_by_the_function() -> None:
    assert (30_000, None) == (Retry(after="30s").after_ms, Retry().after_ms)
    assert "why" == str(Reject("why"))


@pytest.mark.parametrize("after", ["2h", "soon", 5])
def test_retry_cannot_request_more_than_an_hour(after: Any) -> None:
    with pytest.raises(ValueError, match=r"after|duration"):
        Retry(after=after)


def test_headers_are_parsed_on_first_access() -> None:
    headers = [("ce_correlationid", b"c1"), ("ce_causationid", b"p1"), ("ce_type", b"order.paid"), ("ce_userid", b"u\xff7")]
    event = Received(data=None, id="e1", headers=headers, raw_key=b"\xffk")

    assert ("c1", "p1", {"userid": "u�7"}) == (event.correlation_id, event.causation_id, event.context)
    assert event.key is not None
    assert b"\xffk" == event.key.encode("utf-8", "surrogateescape")


def test_root_event_correlates_with_itself() -> None:
    assert ("e1", None, {}) == (PAID.correlation_id, PAID.causation_id, PAID.context)


async def test_manually_created_event_publishes_nothing() -> None:
    with pytest.raises(RuntimeError, match="constructed without a publisher"):
        await PAID.publish(order_paid, PAID.data)
