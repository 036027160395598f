"""Values on their way to a store: from a record or a client, and as SQLite and PostgreSQL store them."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any
from uuid import UUID

import pytest

from streams_app.read_store.core.merge import CarriedDecimal, JsonText, Value
from streams_app.read_store.core.values import json_fault, json_text, text_fault, value_of
from streams_app.read_store.sqlite.values import sqlite_value


class Number(int, Enum):
    """An old-style enumeration of numbers."""

    ONE = 1


class Whole(IntEnum):
    """A subclass of int."""

    TWO = 2


class Text(str, Enum):  # noqa: UP042 - the older kind of enumeration is what is tested
    """A string whose str() is not its value."""

    RED = "red"


class Word(StrEnum):
    """A subclass of str."""

    BLUE = "blue"


class Fraction(float, Enum):
    """A subclass of float."""

    HALF = 0.5


class Raw(bytes):
    """A subclass of bytes."""


@pytest.mark.parametrize(
    ("given", "expected"),
    [(Number.ONE, 1), (Whole.TWO, 2), (Text.RED, "red"), (Word.BLUE, "blue"), (Fraction.HALF, 0.5), (Raw(b"\x00"), b"\x00"),
     (JsonText("[1]"), JsonText("[1]"))],
)  # fmt: skip
def test_value_of_a_derived_type_becomes_the_plain_one(given: Any, expected: Value) -> None:
    found = value_of(given)

    assert (type(expected), expected) == (type(found), found)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, None), (0, 0), (2**64, 2**64), (1.0, 1.0), ("text", "text"), ("[1]", "[1]"), (True, True), (b"\x00", b"\x00"),
        (float("nan"), None), (Decimal("NaN"), None), (Decimal(7), 7), (Decimal("7.00"), 7), (Decimal("7.10"), Decimal("7.10")),
        (Decimal(2**70), Decimal(2**70)), (date(2026, 11, 23), "2026-11-23"), (UUID(int=1), str(UUID(int=1))),
        ([1, None], JsonText("[1,null]")), ({"a": {"b": True}}, JsonText('{"a":{"b":true}}')), ([], JsonText("[]")),
        ([Decimal("0.10"), Decimal("NaN")], JsonText('[0.10,"NaN"]')),
    ],
)  # fmt: skip
def test_client_result_is_converted_to_a_value(given: Any, expected: Value) -> None:
    found = value_of(given)

    assert (type(expected), expected) == (type(found), found)


@pytest.mark.parametrize(
    ("value", "in_sqlite", "as_json"),
    [
        (None, None, None), (1, 1, "1"), (1.0, 1.0, "1.0"), ("1", "1", '"1"'), (True, 1, "true"), (False, 0, "false"),
        (2**63 - 1, 2**63 - 1, str(2**63 - 1)), (-(2**63), -(2**63), str(-(2**63))), (2**63, str(2**63), str(2**63)),
        (10**400, str(10**400), str(10**400)), (-(10**400), str(-(10**400)), str(-(10**400))),
        (CarriedDecimal("12345678901234567.89"), "12345678901234567.89", "12345678901234567.89"),
        (Decimal("0.10"), 0.1, "0.10"), (JsonText('["ä"]'), '["ä"]', '["ä"]'), (b"\x00\xff", b"\x00\xff", '"\\\\x00ff"'),
    ],
)  # fmt: skip
def test_value_is_converted_with_minimal_change(value: Value, in_sqlite: Value, as_json: str | None) -> None:
    found = sqlite_value(value)

    assert (type(in_sqlite), in_sqlite) == (type(found), found)
    assert as_json == json_text(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a\x00b", "holds U+0000"), ("\ud800", "holds an unpaired surrogate"), (JsonText('{"a":"\\u0000"}'), "holds U+0000"),
        (JsonText('{"a":"\\\\u0000"}'), None), (JsonText('{"a":"\\\\\\u0000"}'), "holds U+0000"), ("\\u0000", None),
        (float("inf"), "is not a finite number"), (Decimal("-Infinity"), "is not a finite number"), (1.5, None), (None, None),
        (Decimal("1e400"), None), (Decimal("NaN"), "is not a finite number"),
        (b"\x00", None), ("Zoë", None), (10**3999, None), (-(10**3999), None), (True, None),
        pytest.param(10**5000, "is an integer of more than 4000 digits", id="long"),
        pytest.param(-(10**5000), "is an integer of more than 4000 digits", id="long and negative"),
        (JsonText('{"a":"\\ud800"}'), "holds an unpaired surrogate"),
        (JsonText('["\\uDC00\\ud83d"]'), "holds an unpaired surrogate"),
        (JsonText('["\\ud83d\\ude00"]'), None), (JsonText('["\\\\ud800"]'), None),
    ],
)  # fmt: skip
def test_value_postgresql_cannot_store_is_reported(value: Value, expected: str | None) -> None:
    assert expected == json_fault(value)


def test_valid_text_has_no_fault() -> None:
    assert [None, "holds U+0000"] == [text_fault("漢"), text_fault("\0")]
