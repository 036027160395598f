"""Values on their way to a store (pure): as a record carries them or a source knows them, and as each kind of store holds them.

Nothing is made poorer than the store makes it: PostgreSQL holds every JSON value as it is; SQLite knows numbers, text and bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from math import inf, isfinite, isnan
from typing import Any, Final, TypeVar

import orjson

from streams_app.read_store.core.merge import JsonText, Value

Key = TypeVar("Key", bound=tuple[str, ...])

MIN_INTEGER: Final = -(2**63)
MAX_INTEGER: Final = 2**63 - 1
MOST_DIGITS: Final = 4_000
"""Of an integer; Python neither reads nor writes one of more than 4,300 digits."""

LONG_INTEGER: Final = 10**MOST_DIGITS
NUL_IN_JSON: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def value_of(value: Any) -> Value:
    """What a database client or a JSON parser returned, as a value: an object or a list becomes the text of its JSON.

    A decimal number without a fraction is an integer, so that a sum is one whatever type a database adds in. What is no number
    (NaN) is nothing, as in SQLite. What has no counterpart in JSON, as a date, is its text.

    Raises:
        orjson.JSONEncodeError: It is nested too deeply.
    """
    if isinstance(value, Decimal):
        return _number(value)
    if isinstance(value, float) and isnan(value):
        return None
    if value is None or isinstance(value, (str, int, float, bytes)):
        return _plain(value)
    if isinstance(value, (dict, list)):
        return JsonText(orjson.dumps(value, default=_inner).decode())
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def sqlite_value(value: Value) -> Value:
    """As SQLite holds it: true and false as 1 and 0, JSON as text, decimals as the nearest float.

    The same choices as SQLite's own JSON functions make, so that a value carried equals a value read by SQL.
    """
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, JsonText):
        return str(value)
    is_whole = isinstance(value, int) and MIN_INTEGER <= value <= MAX_INTEGER
    return _float(value) if isinstance(value, (int, Decimal)) and not is_whole else value


def _float(value: int | Decimal) -> float:
    try:
        return float(value)
    except OverflowError:  # only of an integer; a decimal number becomes infinite by itself
        return inf if value > 0 else -inf


def json_text(value: Value) -> str | None:
    r"""As JSON; bytes as PostgreSQL writes them in text, ``\x00ff``."""
    if value is None or isinstance(value, JsonText):
        return value
    if isinstance(value, bytes):
        return orjson.dumps(f"\\x{value.hex()}").decode()
    if isinstance(value, (int, Decimal)) and not isinstance(value, bool):
        return str(value)
    return orjson.dumps(value).decode()


def json_fault(value: Value) -> str | None:
    """Why a value can never be held as JSON by PostgreSQL; None: it can."""
    # A decimal number has a range of its own: as a float, 1e400 would be infinite.
    if (isinstance(value, float) and not isfinite(value)) or (isinstance(value, Decimal) and not value.is_finite()):
        return "is not a finite number"
    if isinstance(value, JsonText):
        return "holds U+0000" if NUL_IN_JSON.search(value) else surrogate_fault(value) or surrogate_fault(_unescaped(value))
    return text_fault(value) if isinstance(value, str) else integer_fault(value)


def integer_fault(value: Value) -> str | None:
    """Why a value has no JSON; None: it has. Only an integer may be too long to be written."""
    is_long = isinstance(value, int) and not -LONG_INTEGER < value < LONG_INTEGER
    return f"is an integer of more than {MOST_DIGITS} digits" if is_long else None


def text_fault(text: str) -> str | None:
    """Why PostgreSQL can never hold a text; None: it can."""
    return "holds U+0000" if "\0" in text else surrogate_fault(text)


def surrogate_fault(text: str) -> str | None:
    """Why no database can hold a text; None: one can."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return "holds an unpaired surrogate"
    return None


def possible(keys: Iterable[Key], fault: Callable[[str], str | None]) -> list[Key]:
    """Keys of texts that a database takes; it has nothing under another one, and must not be asked for it.

    Args:
        keys: Cells or groups.
        fault: :func:`text_fault` of PostgreSQL, :func:`surrogate_fault` of others.
    """
    return [key for key in keys if not any(map(fault, key))]


def _plain(value: str | int | float | bytes | None) -> Value:
    """The same without the type that somebody has derived, as a member of an enumeration: drivers take none of those."""
    if isinstance(value, JsonText):
        return value
    if isinstance(value, str):
        return str.__str__(value)  # what a derived type makes of str() may be its name
    if isinstance(value, int):
        return value if isinstance(value, bool) else int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    return value if value is None else memoryview(value).tobytes()


def _unescaped(text: JsonText) -> str:
    """The same JSON without escapes; as it is where it has none of surrogates, or cannot be read."""
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
    """What is within a list or an object and no JSON: a number as it is, anything else as text."""
    return orjson.Fragment(str(value)) if isinstance(value, Decimal) and value.is_finite() else str(value)


def json_value(text: str) -> Value:
    """A number, true or false, a text; a list or an object becomes its JSON without spaces.

    What cannot be read, as it is nested too deeply or holds half a surrogate pair, stays the text that it was.
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
    return int(text) if len(text) < MOST_DIGITS else Decimal(text)


def _json_number(text: str) -> float | Decimal:
    number = float(text)
    return number if isfinite(number) and Decimal(repr(number)) == Decimal(text) else Decimal(text)
