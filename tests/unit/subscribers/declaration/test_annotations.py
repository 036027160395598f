"""The annotated parameter of a function is compared with the type of its events, as far as it is known."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol

import msgspec
import pytest

from streams_app import Received, subscriber
from streams_app.errors import ConfigurationError
from tests.helpers.events.shop import OrderPaid, ParcelSent, order_paid


class HasId(Protocol):
    id: str


def annotated(hint: Any) -> Callable[[Any], None]:
    def handle(event: Any) -> None:
        pass

    handle.__annotations__["event"] = hint
    return handle


def declare(function: Callable[[Any], None]) -> None:
    subscriber(order_paid, idempotent="yes", description="Under test.")(function)


@pytest.mark.parametrize(
    ("hint", "fault"),
    [
        (OrderPaid, "takes OrderPaid, and is given Received[OrderPaid], whose .data that is"),
        (ParcelSent, "takes ParcelSent, and is given Received[OrderPaid]"),
        (Received[ParcelSent], "takes Received[ParcelSent], and is given Received[OrderPaid]"),
        ("OrderPaid", "takes OrderPaid, and is given Received[OrderPaid], whose .data that is"),
        ("Received[ParcelSent]", "takes Received[ParcelSent], and is given Received[OrderPaid]"),
        (dict, "takes dict, and is given Received[OrderPaid]"),
    ],
)
def test_function_with_an_incompatible_parameter_type_is_reported(hint: Any, fault: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        declare(annotated(hint))

    assert [f"subscriber 'handle': the function {fault}"] == caught.value.faults


@pytest.mark.parametrize(
    "hint",
    [
        Any, object, HasId, Received, Received[Any], Received[object], Received[msgspec.Struct], Received[OrderPaid],
        Received[OrderPaid] | None, "Received[OrderPaid]", "Unknown", "Received[Unknown]",
    ],
)  # fmt: skip
def test_function_that_may_accept_the_event_is_valid(hint: Any) -> None:
    declare(annotated(hint))


def test_decorator_may_change_the_argument_of_its_function() -> None:
    def unpacked(function: Callable[[OrderPaid], None]) -> Callable[[Received[OrderPaid]], None]:
        @wraps(function)
        def call(event: Received[OrderPaid]) -> None:
            function(event.data)

        return call

    @unpacked
    def handle(paid: OrderPaid) -> None:
        pass

    declare(handle)
