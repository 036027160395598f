"""Numbers in JSON keep their value, whatever their size and their digits."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streams_app.codec import decode_object
from streams_app.errors import BadEventError, BeyondDoubleError
from streams_app.exact_json import MAX_DIGITS, BeyondNumberError, decode, encode
from streams_app.unrepresentable import Unrepresentable

DIGITS = st.text("0123456789", min_size=1, max_size=40)
whole = st.one_of(st.integers(0, 2**70).map(str), st.integers(0, 10**60).map(str))
fractions = st.one_of(st.just(""), DIGITS.map(lambda digits: f".{digits}"))
exponents = st.one_of(st.just(""), st.integers(-240, 240).map(lambda exponent: f"e{exponent}"))
numbers = st.tuples(st.sampled_from(["", "-"]), whole, fractions, exponents).map("".join)
"""JSON numbers as text, of any size and with any digits."""


@given(numbers)
@example("18446744073709551615")
@example("18446744073709551616")
@example("-9223372036854775809")
@example("12345678901234567.89")
@example("9007199254740993.0")
@example("1.00000000000000000001")
@example("1.2345e-320")
@example("1e-400")
@example("0.0")
@example("-0.0")
@example("1e23")
def test_number_has_the_value_that_is_written(text: str) -> None:
    found = decode(text)

    assert Decimal(text) == Decimal(repr(found) if type(found) is float else found)
    assert Decimal(text) == json.loads(encode({"x": [found]}), parse_int=Decimal, parse_float=Decimal)["x"][0]


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_number_that_a_double_keeps_is_a_float(value: float) -> None:
    found = decode(repr(value))

    assert (float, value) == (type(found), found)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(json_values)
def test_other_json_is_decoded_and_encoded_as_by_orjson(value: Any) -> None:
    raw = orjson.dumps(value)

    assert orjson.loads(raw) == decode(raw)
    assert raw == encode(decode(raw))


@given(st.text('[]{}",:0123456789eE+-.\\u ntrfals\x00é', max_size=30).map(str.encode) | st.binary(max_size=10))
def test_value_is_json_if_orjson_decodes_it_without_regard_to_numbers(raw: bytes) -> None:
    try:
        orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        if "infinity" not in str(error):
            with pytest.raises(orjson.JSONDecodeError):
                decode(raw)
    else:
        decode(raw)


@pytest.mark.parametrize("number", ["1e309", "-1e999", "9" * 400 + ".5"])
def test_number_beyond_a_double_that_is_not_an_integer_is_refused(number: str) -> None:
    with pytest.raises(BeyondDoubleError, match="beyond a double") as caught:
        decode_object(f'{{"a": 1, "x": {number}}}'.encode())

    assert {"a": 1, "x": Unrepresentable(number)} == caught.value.rest


@pytest.mark.parametrize(
    "number",
    ["9" * (MAX_DIGITS + 1), "-" + "1" * 100_000, "0." + "1" * MAX_DIGITS, "1e-5000", "1e-99999999999999999999"],
    ids=["integer", "long integer", "decimal", "small", "smaller"],
)
def test_number_with_too_many_digits_is_refused_with_the_limit(number: str) -> None:
    with pytest.raises(BeyondDoubleError, match="more than 4000 digits") as caught:
        decode_object(f'{{"a": "{"1" * 5_000}", "x": [{number}]}}'.encode())

    assert {"a": "1" * 5_000, "x": [Unrepresentable(number)]} == caught.value.rest


def test_longest_integer_is_exact() -> None:
    number = "9" * MAX_DIGITS

    assert int(number) == decode_object(f'{{"x": {number}}}'.encode())["x"]
    assert number.encode() == encode(int(number))


@pytest.mark.parametrize("number", ["0." + "1" * (MAX_DIGITS - 1), "-" + "1" * 300 + "." + "2" * 3_700, "1" * 3_990 + "e-3990"])
def test_longest_decimal_is_exact_and_can_be_encoded(number: str) -> None:
    found = decode_object(f'{{"x": {number}}}'.encode())["x"]

    assert Decimal(number) == found == decode(encode(found))


def test_digits_in_text_are_no_number() -> None:
    text = "1" * 5_000 + '\\"' + "2" * 5_000

    assert {"x": text.replace("\\", "")} == decode_object(f'{{"x": "{text}"}}'.encode())


@pytest.mark.parametrize("value", [Decimal("NaN"), Decimal("Infinity"), 10**MAX_DIGITS, [[-(10**5_000)]], object()], ids=type)
def test_value_that_json_cannot_represent_is_refused(value: Any) -> None:
    with pytest.raises(orjson.JSONEncodeError):
        encode({"x": value})


@pytest.mark.parametrize("depth", [200, 1_000, 1_024])
def test_json_as_deep_as_orjson_decodes_is_decoded(depth: int) -> None:
    raw = b"[" * depth + b"1" + b"]" * depth

    assert [] != decode(raw)


def test_deep_json_never_changes_a_number() -> None:
    raw = b'{"x": 12345678901234567.89, "y": %b}' % (b"[" * 1_020 + b"]" * 1_020)
    try:
        found = decode_object(raw)["x"]
    except BadEventError as error:
        assert "nested too deeply" in error.detail
    else:
        assert Decimal("12345678901234567.89") == found


@pytest.mark.parametrize("depth", [1_025, 50_000])
def test_json_nested_too_deeply_is_refused(depth: int) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        decode(b"[" * depth + b"12345678901234567.89" + b"]" * depth)


def test_error_has_no_part_of_the_json() -> None:
    with pytest.raises(BeyondNumberError) as caught:
        decode(b'{"secret": 1e999}')

    assert "a number is beyond a double" == str(caught.value)
