"""Conversion of values (pure): from a record or a source to a value, and between a value and JSON.

A database that does not hold every JSON value has its own conversion in its folder, which keeps as much of a value as it can.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from math import isfinite, isnan
from typing import Any, Final, TypeVar

import orjson

from streams_app.exact_json import LONG_INTEGER, MAX_DIGITS, encode, number_text, shortest
from streams_app.read_store.core.merge import CarriedDecimal, CarriedJson, JsonText, Value

Key = TypeVar("Key", bound=tuple[str, ...])

MIN_INTEGER: Final = -(2**63)
MAX_INTEGER: Final = 2**63 - 1
NUL_IN_JSON: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def value_of(value: Any) -> Value:
    """Convert a value from a database client or a JSON parser; an object or a list becomes JSON text.

    A decimal number without a fraction becomes an integer if it has at most 64 bits, so that a sum has the same type in every
    database. NaN becomes None. A value without a counterpart in JSON, such as a date, becomes its text.

    Raises:
        orjson.JSONEncodeError: The value is nested too deeply.
    """
    if isinstance(value, Decimal):
        return _number(value)
    if isinstance(value, float) and isnan(value):
        return None
    if value is None or isinstance(value, (str, int, float, bytes)):
        return _plain(value)
    if isinstance(value, (dict, list)):
        return JsonText(encode(value, _inner).decode())
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def carried_value(value: Any) -> Value:
    """Convert a value of a folded record; decimals whose digits no double keeps are marked, so that no store rounds them.

    Raises:
        orjson.JSONEncodeError: The value is nested too deeply.
    """
    if isinstance(value, Decimal):
        near = shortest(value)
        if isinstance(near, float):
            return near
        return int(value) if value == value.to_integral_value() else CarriedDecimal(value)
    if not isinstance(value, (dict, list)):
        return value_of(value)
    decimals: list[Decimal] = []

    def inner(part: Any) -> Any:
        decimals.append(part)
        return number_text(part)

    text = encode(value, inner).decode()
    is_exact = any(isinstance(shortest(one), Decimal) and one != one.to_integral_value() for one in decimals)
    return CarriedJson(text) if is_exact else JsonText(text)


def json_text(value: Value) -> str | None:
    r"""Convert a value to JSON; bytes become hexadecimal text, ``\x00ff``. None remains None."""
    if value is None or isinstance(value, JsonText):
        return value
    if isinstance(value, bytes):
        return orjson.dumps(f"\\x{value.hex()}").decode()
    if isinstance(value, (int, Decimal)) and not isinstance(value, bool):
        return str(value)
    return orjson.dumps(value).decode()


def json_fault(value: Value) -> str | None:
    """Return the reason why a value can never be stored in a column of JSON, or None if it can."""
    # A decimal number is checked as such: as a float, 1e400 would be infinite.
    if (isinstance(value, float) and not isfinite(value)) or (isinstance(value, Decimal) and not value.is_finite()):
        return "is not a finite number"
    if isinstance(value, JsonText):
        return "holds U+0000" if NUL_IN_JSON.search(value) else surrogate_fault(value) or surrogate_fault(_unescaped(value))
    return text_fault(value) if isinstance(value, str) else integer_fault(value)


def integer_fault(value: Value) -> str | None:
    """Return the reason why an integer cannot be stored as JSON: it has more than :data:`MAX_DIGITS` digits. Otherwise None.

    The result is also None for a value that is not an integer.
    """
    is_long = isinstance(value, int) and not -LONG_INTEGER < value < LONG_INTEGER
    return f"is an integer of more than {MAX_DIGITS} digits" if is_long else None


def text_fault(text: str) -> str | None:
    """Return the reason why a text can never be stored in a column of texts or JSON, or None if it can."""
    return "holds U+0000" if "\0" in text else surrogate_fault(text)


def surrogate_fault(text: str) -> str | None:
    """Return the reason why no database can hold a text, or None if one can."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return "holds an unpaired surrogate"
    return None


def possible(keys: Iterable[Key], fault: Callable[[str], str | None]) -> list[Key]:
    """Select the keys that a database can hold. It cannot have rows of the other keys, and would reject a query that names them.

    Args:
        keys: Cells or groups.
        fault: :func:`surrogate_fault`, or :func:`text_fault` if the database also rejects U+0000.
    """
    return [key for key in keys if not any(map(fault, key))]


def _plain(value: str | int | float | bytes | None) -> Value:
    """Convert an instance of a subclass, such as a member of an enumeration, to its base type: drivers reject subclasses."""
    if isinstance(value, JsonText):
        return value
    if isinstance(value, str):
        return str.__str__(value)  # a subclass may return something else from str()
    if isinstance(value, int):
        return value if isinstance(value, bool) else int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    return value if value is None else memoryview(value).tobytes()


def _unescaped(text: JsonText) -> str:
    """Decode escaped surrogates in JSON, so that :func:`surrogate_fault` finds an unpaired one.

    JSON that has no escaped surrogates, or cannot be parsed, is returned unchanged.
    """
    if "\\ud" not in text.lower():
        return text
    try:
        return json.dumps(json.loads(text, parse_int=str, parse_float=str), ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def _number(value: Decimal) -> Value:
    if value.is_nan():
        return None
    is_whole = value.is_finite() and value == value.to_integral_value() and MIN_INTEGER <= value <= MAX_INTEGER
    return int(value) if is_whole else value


def _inner(value: Any) -> Any:
    """Convert an element that orjson cannot encode: a finite decimal number keeps its digits, anything else becomes text."""
    return orjson.Fragment(str(value)) if isinstance(value, Decimal) and value.is_finite() else str(value)


def json_value(text: str) -> Value:
    """Parse JSON from a database; numbers keep all digits, and a list or an object becomes its JSON without spaces.

    JSON that cannot be parsed, because it is nested too deeply or contains a lone surrogate, is returned unchanged.
    """
    if text[:1] in ("[", "{"):
        return JsonText(_compact(text))
    try:
        return json.loads(text, parse_int=_json_integer, parse_float=_json_number)
    except ValueError:
        return JsonText(text)


def _compact(text: str) -> str:
    try:
        found: Any = json.loads(text, parse_int=orjson.Fragment, parse_float=orjson.Fragment)
        return orjson.dumps(found).decode()
    except (ValueError, TypeError, RecursionError):
        return text


def _json_integer(text: str) -> int | Decimal:
    return int(text) if len(text) < MAX_DIGITS else Decimal(text)


def _json_number(text: str) -> float | Decimal:
    number = float(text)
    return number if isfinite(number) and Decimal(repr(number)) == Decimal(text) else Decimal(text)
