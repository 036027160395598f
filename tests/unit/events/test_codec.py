"""Payloads are encoded and decoded; a value of a wrong type is rejected with its path, and never converted."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams_app import Event
from streams_app.errors import BadEventError
from streams_app.events.codec import DecodedValue, Decoder, decoder_of, encode, event_id, names
from streams_app.settings import Limits
from tests.helpers.events.shop import (
    AccountChanged,
    AddressChanged,
    OrderPaid,
    PaidBy,
    ParcelSent,
    address_changed,
    order_paid,
    parcel_sent,
    stock_counted,
)

LIMITS = Limits()


def decoded(value: Any, event: Event[Any, Any] = order_paid) -> DecodedValue[Any, Any]:
    return decoder_of(event, LIMITS)(None, value if isinstance(value, bytes) else json.dumps(value).encode())


def rejection(value: Any, event: Event[Any, Any] = order_paid) -> tuple[str, str]:
    with pytest.raises(BadEventError) as caught:
        decoded(value, event)
    return caught.value.reason, caught.value.detail


class Rejecting(msgspec.Struct):
    cents: int

    def __post_init__(self) -> None:
        if self.cents < 0:
            raise LookupError("no such money")


def evaluated(value: bytes) -> Any:
    return eval(value)


rejecting = Event("order.refused", Rejecting, description="Never.", keyed_by=None)
by_hand = Event(
    "order.by_hand",
    OrderPaid,
    description="In a format of its own.",
    keyed_by=None,
    metadata=PaidBy,
    decode=evaluated,
)


@pytest.mark.parametrize(
    ("event", "data", "key"),
    [
        (order_paid, OrderPaid("o1", 500), b"o1"),
        (parcel_sent, ParcelSent("o1"), b"o1"),
        (stock_counted, {"article": 7, "pieces": 3}, b"7"),
        (address_changed, AddressChanged(customer="anna", city="Köln"), None),
    ],
)
def test_encoded_event_decodes_to_the_same_data(event: Event[Any, Any], data: Any, key: bytes | None) -> None:
    found, value = encode(event, data, None, None)

    assert (key, data) == (found, decoded(value, event).data)


def test_payload_fields_are_at_the_top_level_with_the_envelope_beside_them() -> None:
    _, value = encode(order_paid, OrderPaid("o1", 500), OrderPaid("o1", 0), PaidBy("card"))

    assert {
        "order_id": "o1",
        "cents": 500,
        "before": {"order_id": "o1", "cents": 0},
        "metadata": {"method": "card"},
    } == json.loads(value)
    assert DecodedValue(OrderPaid("o1", 500), OrderPaid("o1", 0), PaidBy("card")) == decoded(value)


def test_metadata_beside_an_empty_payload_is_valid_json() -> None:
    class Nothing(msgspec.Struct, omit_defaults=True):
        note: str = ""

    event = Event("nothing.told", Nothing, description="Says nothing.", keyed_by=None, metadata=PaidBy)
    _, value = encode(event, Nothing(), None, PaidBy("card"))

    assert {"metadata": {"method": "card"}} == json.loads(value)


def test_pydantic_payload_has_a_state_before_it() -> None:
    here, there = AddressChanged(customer="anna", city="Bonn"), AddressChanged(customer="anna", city="Köln")
    _, value = encode(address_changed, here, there, None)
    found = decoded(value, address_changed)

    assert (here, there) == (found.data, found.before)


def test_undeclared_fields_are_ignored() -> None:
    assert OrderPaid("o1", 5) == decoded({"order_id": "o1", "cents": 5, "new": {"deep": [1]}, "metadata": None}).data


def test_field_names_may_contain_escapes() -> None:
    value = rb'{"order_id": "o1", "cents": 5, "\u0062efore": {"order_id": "o1", "cents": 4}, "m\u0065tadata": {"method": "card"}}'
    found = decoded(value)

    assert (OrderPaid("o1", 4), PaidBy("card")) == (found.before, found.metadata)


def test_undeclared_metadata_is_not_decoded() -> None:
    assert None is decoded({"order_id": "o1", "metadata": 3}, parcel_sent).metadata


@pytest.mark.parametrize(
    ("value", "detail"),
    [
        ({"order_id": "o1", "cents": "1"}, "Expected `int`, got `str` - at `$.cents`"),
        ({"order_id": "o1"}, "Object missing required field `cents`"),
        (
            {"order_id": "o1", "cents": 5, "before": {"order_id": 1, "cents": 4}},
            "Expected `str`, got `int` - at `$.before.order_id`",
        ),
        ({"order_id": "o1", "cents": 5, "metadata": {"method": 3}}, "Expected `str`, got `int` - at `$.metadata.method`"),
        ({"order_id": "o1", "cents": 5, "before": 7}, "Expected `object`, got `int` - at `$.before`"),
        ({"order_id": "o1", "cents": 5, "metadata": "card"}, "Expected `object`, got `str` - at `$.metadata`"),
        ([], "Expected `object`, got `array`"),
        (b"{", "Input data was truncated"),
        (b"", "the value is empty"),
        (b"\xff", "JSON is malformed: invalid character (byte 0)"),
        (b'{"order_id": "\xff", "cents": 5}', "utf-8"),
    ],
)
def test_invalid_value_is_rejected_with_its_path(value: Any, detail: str) -> None:
    reason, message = rejection(value)

    assert "not-valid" == reason
    assert detail in message


def test_invalid_pydantic_value_is_rejected_with_its_path() -> None:
    reason, message = rejection({"customer": "anna", "city": 5}, address_changed)

    assert ("not-valid", "Input should be a valid string - at `$.city`") == (reason, message)


def test_event_without_a_value_is_rejected() -> None:
    with pytest.raises(BadEventError, match="the value is empty"):
        decoder_of(order_paid, LIMITS)(b"o1", None)


def test_endlessly_nested_event_is_rejected() -> None:
    deep = b'{"order_id": "o1", "cents": 5, "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"

    assert "not-valid" == rejection(deep)[0]


def test_any_error_of_a_payload_hook_rejects_the_event() -> None:
    assert ("not-valid", "LookupError('no such money') - at `$`") == rejection({"cents": -1}, rejecting)


@pytest.mark.parametrize(("key", "value"), [(None, b" " * 1_000_001), (b"k" * 513, b"{}")])
def test_oversized_value_is_rejected_before_it_is_decoded(key: bytes | None, value: bytes) -> None:
    with pytest.raises(BadEventError) as caught:
        decoder_of(order_paid, LIMITS)(key, value)

    assert "too-large" == caught.value.reason


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"{'order_id': 'o1', 'cents': 5}", (OrderPaid("o1", 5), None, None)),
        (b"OrderPaid('o1', 5)", (OrderPaid("o1", 5), None, None)),
        (
            b"{'order_id': 'o1', 'cents': 5, 'before': {'order_id': 'o1', 'cents': 4}, 'metadata': {'method': 'card'}}",
            (OrderPaid("o1", 5), OrderPaid("o1", 4), PaidBy("card")),
        ),
    ],
)
def test_user_function_decodes(value: bytes, expected: tuple[Any, ...]) -> None:
    found = decoded(value, by_hand)

    assert expected == (found.data, found.before, found.metadata)


@pytest.mark.parametrize(
    ("value", "detail"),
    [
        (b"1 / 0", "ZeroDivisionError('division by zero') - at `decode=`"),
        (b"{'order_id': 'o1', 'cents': '5'}", "Expected `int`, got `str` - at `$.cents`"),
        (b"7", "Expected `object`, got `int` - at `$`"),
    ],
)
def test_result_of_a_user_decoder_is_validated(value: bytes, detail: str) -> None:
    assert ("not-valid", detail) == rejection(value, by_hand)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), BaseException("a panic")])
def test_decoder_that_raises_system_exit_rejects_only_the_event(error: BaseException) -> None:
    def decode(value: bytes) -> Any:
        raise error

    event = Event("order.paid", OrderPaid, description="Decoded otherwise.", keyed_by=None, decode=decode)
    with pytest.raises(BadEventError, match=type(error).__name__):
        decoder_of(event, LIMITS)(None, b"{}")


def test_payload_hook_that_raises_system_exit_rejects_only_the_event() -> None:
    class Exits(msgspec.Struct, frozen=True):
        number: int

        def __post_init__(self) -> None:
            raise SystemExit(3)

    event = Event("order.paid", Exits, description="Its hook exits.", keyed_by=None)
    with pytest.raises(BadEventError, match="SystemExit"):
        decoder_of(event, LIMITS)(None, b'{"number": 1}')


def test_folded_record_names_its_fold() -> None:
    fold = {"id": "f:t:0:1-2", "name": "f", "reason": "quiet", "events": 2, "first_event_ms": 1, "last_event_ms": 2, "version": 9}
    value = {"account_id": "a1", "metrics": ["likes"], "fold": fold}
    found = Decoder(AccountChanged, LIMITS, is_folded=True)(b"a1", json.dumps(value).encode())

    assert AccountChanged("a1", ["likes"]) == found.data
    assert found.fold is not None
    assert fold == msgspec.structs.asdict(found.fold)


def test_unfolded_record_is_rejected() -> None:
    with pytest.raises(BadEventError, match="missing required field `fold`"):
        Decoder(AccountChanged, LIMITS, is_folded=True)(b"a1", b'{"account_id": "a1", "metrics": []}')


@pytest.mark.parametrize(
    ("data", "detail"),
    [
        ({"article": None, "pieces": 1}, "keyed_by: article is missing or null"),
        ({"article": [1], "pieces": 1}, "keyed_by: article is a JSON list"),
        ({"article": object(), "pieces": 1}, "stock.counted cannot be written as JSON: TypeError"),
        ({"pieces": 1}, "stock.counted cannot be written as JSON: KeyError"),
    ],
)
def test_unpublishable_value_is_reported(data: Any, detail: str) -> None:
    with pytest.raises(BadEventError) as caught:
        encode(stock_counted, data, None, None)

    assert "not-valid" == caught.value.reason
    assert caught.value.detail.startswith(detail)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], "orders:3:17"),
        ([("ce_id", b"")], "orders:3:17"),
        ([("ce_id", b"e1")], "e1"),
        ([("ce_id", b"e1"), ("fold-id", b"f:orders:3:1-2")], "f:orders:3:1-2"),
    ],
)
def test_event_of_any_producer_has_an_id(headers: list[tuple[str, bytes]], expected: str) -> None:
    assert expected == event_id(headers, LIMITS, "orders", 3, 17)


@pytest.mark.parametrize(("value", "reason"), [(b"e\xff", "not-valid"), (b"e" * 513, "too-large")])
def test_id_that_cannot_be_stored_unchanged_is_rejected(value: bytes, reason: str) -> None:
    with pytest.raises(BadEventError) as caught:
        event_id([("ce_id", value)], LIMITS, "orders", 3, 17)

    assert reason == caught.value.reason


@pytest.mark.parametrize(
    ("headers", "expected"), [([], None), ([("ce_type", b"order.paid")], True), ([("ce_type", b"x.y")], False)]
)
def test_type_header_identifies_the_event(headers: list[tuple[str, bytes]], expected: bool | None) -> None:
    assert expected is names(order_paid, headers)


@given(st.binary(max_size=300))
def test_any_bytes_are_decoded_or_rejected(value: bytes) -> None:
    for event in (order_paid, address_changed, stock_counted):
        try:
            assert decoded(value, event).data is not None
        except BadEventError as error:
            assert error.reason == "not-valid"
