"""User code that decodes runs where the subscriber's function runs, not on the worker's loop."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from pydantic import BaseModel

from streams_app import Event, Received, records_of, subscriber
from streams_app.delivery.batch import TP
from streams_app.errors import BadEventError, NotDecodedError
from streams_app.events.headers import ERASURE
from streams_app.events.payloads import has_hooks
from streams_app.settings import Limits
from streams_app.subscribers.declaration.retries import Retries
from streams_app.subscribers.execution.decoding import UndecodedValue, decode_of, function_of
from streams_app.subscribers.execution.in_flight_event import InFlightEvent
from streams_app.subscribers.execution.retry_decision import DeadLettering, after_failure, concerns_event_alone

LIMITS = Limits()
P = TP("orders", 0)


class Paid(msgspec.Struct, frozen=True):
    order_id: str


class Hooked(msgspec.Struct):
    account_id: str
    calls: list[str] = []

    def __post_init__(self) -> None:
        self.calls.append(self.account_id)
        if self.account_id == "bad":
            raise ValueError("no such account")


def record(value: bytes, **fields: Any) -> Any:
    return SimpleNamespace(**{"key": b"k", "value": value, "headers": [], "offset": 7, "timestamp": 5, **fields})


def paid_by(decode: Any) -> Event[Paid, None]:
    return Event("order.paid", Paid, description="Paid.", keyed_by=None, decode=decode)


def test_user_decoder_runs_in_the_call_and_not_before() -> None:
    calls: list[bytes] = []
    got: list[tuple[Paid, str]] = []

    def decode(value: bytes) -> Any:
        calls.append(value)
        return {"order_id": value.decode()}

    @subscriber(paid_by(decode), idempotent="yes", description="Ships.")
    def ship(event: Received[Paid]) -> None:
        got.append((event.data, event.id))

    made = decode_of(ship, LIMITS, None, is_late=True)(P, record(b"o1"), 1)
    assert made is not None
    before = list(calls)
    function_of(ship, LIMITS)(made.event)

    assert ([], [b"o1"]) == (before, calls)
    assert [(Paid("o1"), "orders:0:7")] == got


def test_folded_record_with_a_payload_hook_has_its_version_in_the_call() -> None:
    got: list[tuple[str, int]] = []

    @subscriber(records_of("f", Hooked), idempotent="yes", description="Recomputes.")
    async def recompute(event: Received[Hooked]) -> None:
        got.append((event.data.account_id, event.version))

    fold = {"id": "i", "name": "f", "reason": "quiet", "events": 1, "first_event_ms": 1, "last_event_ms": 2, "version": 42}
    value = msgspec.json.encode({"account_id": "a1", "fold": fold})
    made = decode_of(recompute, LIMITS, None, is_late=True)(P, record(value), 1)
    assert made is not None and isinstance(made.event.data, UndecodedValue)
    asyncio.run(function_of(recompute, LIMITS)(made.event))

    assert [("a1", 42)] == got


class Shown(BaseModel):
    order_id: str


@pytest.mark.parametrize("item", [Paid, Shown])
def test_function_receives_the_list_of_kept_events(item: Any) -> None:
    @subscriber(records_of("f", list[item]), idempotent="yes", description="Answers.")
    async def answer(event: Received[list[Any]]) -> None:
        """Do nothing."""

    fold = {"id": "i", "name": "f", "reason": "quiet", "events": 2, "first_event_ms": 1, "last_event_ms": 2, "version": 42}
    value = msgspec.json.encode({"chat": "c", "events": [{"order_id": "o1"}, {"order_id": "o2", "more": 1}], "fold": fold})
    made = decode_of(answer, LIMITS, None)(P, record(value), 1)
    assert made is not None

    assert [item(order_id="o1"), item(order_id="o2")] == made.event.data
    with pytest.raises(BadEventError) as caught:
        decode_of(answer, LIMITS, None)(P, record(msgspec.json.encode({"events": [{}], "fold": fold})), 1)
    assert "events" in caught.value.detail


@pytest.mark.parametrize("is_late", [True, False])
def test_tombstone_of_forget_is_skipped_by_a_subscriber_that_rejects_other_tombstones(is_late: bool) -> None:
    @subscriber(records_of("f", Paid), idempotent="yes", description="Ships.")
    def ship(event: Received[Paid]) -> None: ...

    decode = decode_of(ship, LIMITS, None, is_late=is_late)

    assert decode(P, record(cast("bytes", None), headers=[(ERASURE, b"1")]), 1) is None
    with pytest.raises(BadEventError):
        decode(P, record(cast("bytes", None), headers=[("other", b"1")]), 1)


def test_decoding_failure_in_the_call_is_a_dead_letter_at_once_and_no_sign_of_an_outage() -> None:
    event = Event("account.shown", Hooked, description="Shown.", keyed_by="account_id")

    @subscriber(event, idempotent="yes", description="Shows.")
    async def show(event: Received[Hooked]) -> None:
        raise AssertionError("it is not called")

    made = decode_of(show, LIMITS, None, is_late=True)(P, record(b'{"account_id": "bad"}'), 1)
    assert made is not None
    with pytest.raises(NotDecodedError) as raised:
        asyncio.run(function_of(show, LIMITS)(made.event))
    after = after_failure(InFlightEvent(record(b""), 0, attempts=1), raised.value, Retries(), is_timeout=False)

    assert isinstance(after, DeadLettering)
    assert ("not-valid", "no such account - at `$`") == (after.reason, after.detail)
    assert concerns_event_alone(raised.value, Retries())


@pytest.mark.parametrize("value", [b"", b"x" * (LIMITS.value_bytes + 1)])
def test_missing_or_oversized_value_is_rejected_before_the_call(value: bytes) -> None:
    @subscriber(paid_by(lambda value: {}), idempotent="yes", description="Ships.")
    def ship(event: Received[Paid]) -> None:
        """Do nothing."""

    with pytest.raises(BadEventError):
        decode_of(ship, LIMITS, None, is_late=True)(P, record(value), 1)


def test_plain_payload_is_decoded_by_the_worker_and_its_function_is_called_directly() -> None:
    event = Event("order.paid", Paid, description="Paid.", keyed_by="order_id")

    @subscriber(event, idempotent="yes", description="Ships.")
    def ship(event: Received[Paid]) -> None:
        """Do nothing."""

    made = decode_of(ship, LIMITS, None, is_late=True)(P, record(b'{"order_id": "o1"}'), 1)

    assert made is not None and made.event.data == Paid("o1")
    assert ship.function is function_of(ship, LIMITS)


class Colour(enum.Enum):
    RED = "red"


class Size(enum.Enum):
    SMALL = "small"

    @classmethod
    def _missing_(cls, value: object) -> Any:
        return cls.SMALL


class Model(BaseModel):
    name: str


class Plain(msgspec.Struct):
    name: str
    colour: Colour = Colour.RED
    tags: list[str] = msgspec.field(default_factory=list)
    again: Plain | None = None


@dataclasses.dataclass
class Deep:
    by_name: dict[str, tuple[Plain, Hooked | None]]


@dataclasses.dataclass
class Sized:
    size: Size


@dataclasses.dataclass
class Made:
    name: str = dataclasses.field(default_factory=lambda: "made")


@pytest.mark.parametrize(("kind", "expected"), [(Plain, False), (Model, True), (Deep, True), (Sized, True), (Made, True)])
def test_payload_hooks_are_found_at_any_depth(kind: type, expected: bool) -> None:
    assert expected == has_hooks(kind)


class Row(msgspec.Struct, frozen=True):
    order_id: str = ""


OURS = [("ce_type", b"order.paid")]


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("own_decode", [None, msgspec.json.decode])
@pytest.mark.parametrize(
    "before",
    [{"order_id": 7, "version": 3}, {"after": None}, {"order_id": "o0"}, "o0", 7, [1], None, True],
    ids=["another row", "an envelope", "a row that fits", "a text", "a number", "a list", "null", "a flag"],
)
def test_before_is_decoded_only_if_the_headers_name_the_event(before: Any, own_decode: Any, *, is_late: bool) -> None:
    got: list[Any] = []
    changed = Event("order.paid", Row, description="Changed.", keyed_by=None, decode=own_decode)

    @subscriber(changed, idempotent="yes", description="Ships.")
    def ship(event: Received[Row]) -> None:
        got.append((event.data, event.before))

    value = msgspec.json.encode({"order_id": "o1", "before": before, "op": "u", "ts_ms": 5})
    for headers in ([], [("ce_id", b"7")]):
        made = decode_of(ship, LIMITS, None, is_late=is_late)(P, record(value, headers=headers), 1)
        assert made is not None
        (function_of(ship, LIMITS) if is_late else ship)(made.event)

    assert [(Row("o1"), None)] * 2 == got


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("own_decode", [None, msgspec.json.decode])
def test_before_of_a_named_event_is_validated(own_decode: Any, *, is_late: bool) -> None:
    got: list[Any] = []
    changed = Event("order.paid", Row, description="Changed.", keyed_by=None, decode=own_decode)

    @subscriber(changed, idempotent="yes", description="Ships.")
    def ship(event: Received[Row]) -> None:
        got.append(event.before)

    def run(before: Any) -> None:
        value = msgspec.json.encode({"order_id": "o1", "before": before})
        made = decode_of(ship, LIMITS, None, is_late=is_late)(P, record(value, headers=OURS), 1)
        assert made is not None
        (function_of(ship, LIMITS) if is_late else ship)(made.event)

    run({"order_id": "o0"})
    with pytest.raises((BadEventError, NotDecodedError), match=r"before\.order_id"):
        run({"order_id": 7})

    assert [Row("o0")] == got
