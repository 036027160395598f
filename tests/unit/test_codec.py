"""Bytes to JSON and back, and the bytes that identify a group."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams_app.codec import MAX_SAFE_INTEGER, canonical_bytes, decode_object, member_of, scalars_of
from streams_app.errors import BadEventError

scalars = (
    st.text(max_size=20)
    | st.booleans()
    | st.integers(-MAX_SAFE_INTEGER, MAX_SAFE_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False).filter(lambda value: abs(value) <= MAX_SAFE_INTEGER)
)
groups = st.lists(scalars, min_size=1, max_size=4).map(tuple)


def typed(group: tuple[Any, ...]) -> list[tuple[str, Any]]:
    """Add the JSON type to each value, because in Python 1 == True."""
    names = {str: "string", bool: "boolean", int: "number", float: "number"}
    return [(names[type(value)], value) for value in group]


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        pytest.param(("account_1",), b"account_1", id="one string is its UTF-8 as is"),
        pytest.param(("Zoë",), "Zoë".encode(), id="beyond ASCII"),
        pytest.param(("",), b"", id="an empty string"),
        pytest.param(("{a}\n\x00b",), b"{a}\n\x00b", id="braces, newline and NUL"),
        pytest.param(('"',), b'"', id="a quote is not escaped"),
        pytest.param((1,), b"1", id="an integer"),
        pytest.param((-7,), b"-7", id="a negative integer"),
        pytest.param((1.5,), b"1.5", id="a fraction"),
        pytest.param((True,), b"true", id="true"),
        pytest.param((False,), b"false", id="false"),
        pytest.param((-0.0,), b"0", id="minus zero"),
        pytest.param(("a", 1), b'["a",1]', id="several fields are an array"),
        pytest.param((1, True, "1", 2.0), b'[1,true,"1",2]', id="several fields keep their types"),
        pytest.param(('a"b', "\n"), b'["a\\"b","\\n"]', id="strings among several are escaped"),
        pytest.param((MAX_SAFE_INTEGER,), b"9007199254740992", id="the greatest integer allowed"),
        pytest.param((-MAX_SAFE_INTEGER,), b"-9007199254740992", id="the least integer allowed"),
    ],
)
def test_group_key_has_canonical_bytes(group: tuple[Any, ...], expected: bytes) -> None:
    assert expected == canonical_bytes(member_of(group))


def test_number_text_and_boolean_are_three_groups() -> None:
    members = {member_of((1,)), member_of(("1",)), member_of((True,)), member_of(("true",))}

    assert 4 == len(members)


def test_text_resembling_several_fields_is_a_different_group() -> None:
    assert member_of(('["a",1]',)) != member_of(("a", 1))


@pytest.mark.parametrize(("left", "right"), [(1.0, 1), (-3.0, -3), (1e3, 1000), (-0.0, 0)])
def test_equal_json_numbers_are_one_group_in_any_notation(left: float, right: int) -> None:
    assert member_of((left,)) == member_of((right,))
    assert member_of(("a", left)) == member_of(("a", right))


@pytest.mark.parametrize(
    "group",
    [
        pytest.param((MAX_SAFE_INTEGER + 1,), id="one beyond 2^53"),
        pytest.param((-MAX_SAFE_INTEGER - 1,), id="one below -2^53"),
        pytest.param((1e17,), id="a whole float beyond 2^53"),
        pytest.param((2**70,), id="beyond 64 bits"),
        pytest.param((None,), id="null"),
        pytest.param(([],), id="an array"),
        pytest.param(({},), id="an object"),
        pytest.param(("a", None), id="null among several"),
        pytest.param(("a", ["b"]), id="an array among several"),
        pytest.param(("a", MAX_SAFE_INTEGER + 1), id="too great among several"),
    ],
)
def test_group_that_is_no_safe_scalar_is_rejected(group: tuple[Any, ...]) -> None:
    with pytest.raises(BadEventError) as caught:
        member_of(group)

    assert "no-group" == caught.value.reason


@given(groups)
def test_scalars_survive_a_round_trip_through_a_member(group: tuple[Any, ...]) -> None:
    assert typed(group) == typed(scalars_of(member_of(group)))


@given(groups, groups)
def test_two_groups_are_one_member_only_if_they_are_equal_json(left: tuple[Any, ...], right: tuple[Any, ...]) -> None:
    assert (typed(left) == typed(right)) == (member_of(left) == member_of(right))


@given(groups.filter(lambda group: not (len(group) == 1 and type(group[0]) is str)))
def test_group_key_other_than_a_single_string_is_json(group: tuple[Any, ...]) -> None:
    decoded = json.loads(canonical_bytes(member_of(group)))

    assert typed(group) == typed(tuple(decoded) if len(group) > 1 else (decoded,))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"{}", {}),
        (b' {"a": 1}\n', {"a": 1}),
        (b'{"a": {"b": [1, null, true, 1.5]}}', {"a": {"b": [1, None, True, 1.5]}}),
        ('{"ä": "\\u0000{}\\n"}'.encode(), {"ä": "\x00{}\n"}),
        (b'{"a": 1, "a": 2}', {"a": 2}),
    ],
)
def test_object_is_decoded(value: bytes, expected: dict[str, Any]) -> None:
    assert expected == decode_object(value)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "not-json"),
        (b"{", "not-json"),
        (b"{'a': 1}", "not-json"),
        (b'{"a": NaN}', "not-json"),
        (b'{"a": 1} {}', "not-json"),
        (b'{"a": "\xff"}', "not-json"),
        (b'\xef\xbb\xbf{"a": 1}', "not-json"),
        (b'{"a": "\\ud800"}', "not-json"),
        (b'{"a": "\x00"}', "not-json"),
        (b"\x00\x01\x02", "not-json"),
        (b"[" * 100_000, "not-json"),
        (b"[]", "not-an-object"),
        (b'"text"', "not-an-object"),
        (b"1", "not-an-object"),
        (b"true", "not-an-object"),
        (b"null", "not-an-object"),
    ],
)
def test_value_that_is_no_json_object_is_rejected_with_its_reason(value: bytes, reason: str) -> None:
    with pytest.raises(BadEventError) as caught:
        decode_object(value)

    assert reason == caught.value.reason


@given(st.dictionaries(st.text(), scalars | st.none() | st.lists(scalars, max_size=3), max_size=5))
def test_encoded_object_is_decoded_unchanged(value: dict[str, Any]) -> None:
    assert value == decode_object(orjson.dumps(value))
