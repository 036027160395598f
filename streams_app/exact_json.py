"""Decodes and encodes JSON without changing the value of a number (pure).

orjson decodes an integer beyond 64 bits, and every number with a point or an exponent, to the nearest double. This module decodes
each integer to an int. A number with a point or an exponent becomes a float only if it is short, or written as Python writes this
float; otherwise a Decimal, such as ``12345678901234567.89``. JSON that orjson rejects for another reason than its numbers is
rejected, too.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from math import inf, isfinite
from typing import Any, Final

import msgspec
import orjson

MAX_DIGITS: Final = 4_000
"""Maximum number of digits of a number; Python neither reads nor writes integers of more than 4,300 digits."""

MAX_TEXT: Final = 4_290
"""Maximum number of characters of a number that is written and not an integer, with its point, exponent and further zeros."""

SHALLOW: Final = 1_000
"""With at most this many brackets, the nesting needs no check: orjson rejects values that are nested deeper than 1 024 levels."""

SHALLOW_BYTES: Final = 2_000
"""JSON of at most this many bytes cannot be nested more deeply than :data:`SHALLOW`."""

LONG_INTEGER: Final = 10**MAX_DIGITS

TOKENS: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|-?\d[\d.eE+-]*+', re.DOTALL)
"""Matches each number and each string of JSON. Strings match as a whole, so that digits in a string do not match as a number.

The quantifiers are possessive: the time is proportional to the length of the text.
"""
_INTEGER: Final = re.compile(rb"-?(?:0|[1-9]\d*)")
_NUMBER: Final = re.compile(rb"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_DIGITS: Final = "0123456789"
_DIGIT: Final = re.compile(rb"\d").search
_LONG: Final = re.compile(rb"\d{%d}" % (MAX_DIGITS + 1)).search

_EXACT_CHARACTERS: Final = 16
"""A number of at most this many characters has at most 15 digits, which a double holds if its exponent is not extreme."""
_PLAIN_DIGITS: Final = 100
"""A number of fewer digits is written without an exponent."""

_MIN_EXACT: Final = 1e-300
_MAX_EXACT: Final = 1e300
_MIN_64_BITS: Final = -(2**63)
_MAX_64_BITS: Final = 2**64 - 1


class BeyondNumberError(orjson.JSONDecodeError):
    """JSON has a number that is too large for a double and not an integer, or that has too many digits."""

    def __init__(self, why: str) -> None:
        super().__init__(why, "", 0)
        self.why = why

    def __str__(self) -> str:
        return self.why


def number_of(text: str) -> float | Decimal:
    """Convert a JSON number with a point or an exponent: to a float if that keeps its digits, otherwise to a Decimal.

    A long number with zeros at the end becomes a Decimal, too, so that all numbers of a column with a fixed scale are decimals.

    Raises:
        BeyondNumberError: The number is too large for a double, or has too many digits.
    """
    if len(text) <= _EXACT_CHARACTERS:
        found = float(text)
        if _MIN_EXACT < found < _MAX_EXACT or -_MAX_EXACT < found < -_MIN_EXACT or text == "0.0":
            return found
    else:
        try:
            found = orjson.loads(text)  # much faster than float() for long numbers
        except orjson.JSONDecodeError:
            found = inf
    return found if orjson.dumps(found).decode() == text else _exact(text, found)


def _exact(text: str, found: float) -> float | Decimal:
    if not isfinite(found):
        raise BeyondNumberError("a number is beyond a double")
    try:
        exact = Decimal(text)
    except InvalidOperation:
        raise BeyondNumberError(_TOO_LONG) from None
    if not exact or ("e" in text.lower() and Decimal(repr(found)) == exact):
        return found
    if exact.adjusted() < -MAX_DIGITS or (len(text) > MAX_DIGITS and sum(map(text.count, _DIGITS)) > MAX_DIGITS):
        raise BeyondNumberError(_TOO_LONG)
    return exact


def shortest(value: Decimal) -> float | Decimal:
    """Return the float whose shortest text means a number; the number itself if there is none."""
    near = float(value)
    return near if isfinite(near) and Decimal(repr(near)) == value else value


_TOO_LONG: Final = f"a number has more than {MAX_DIGITS} digits"
decode_shallow: Final = msgspec.json.Decoder(float_hook=number_of).decode
"""Decodes JSON of at most :data:`SHALLOW_BYTES` like :func:`decode`, but raises other errors: :data:`UNDECODED`."""

UNDECODED: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def decode(value: bytes | str) -> Any:
    """Decode JSON; integers become int, and numbers that no double holds become Decimal.

    Raises:
        BeyondNumberError: A number is too large for a double and not an integer, or has too many digits.
        orjson.JSONDecodeError: The value is not JSON, or is nested too deeply.
    """
    try:
        if len(value) > SHALLOW_BYTES and not is_depth_guarded() and _has_many_brackets(value):
            orjson.loads(value)  # rejects what is nested too deeply
        return decode_shallow(value)
    except (*UNDECODED, orjson.JSONDecodeError) as error:
        return _decode_slowly(value.encode() if isinstance(value, str) else value, error)


def _has_many_brackets(value: bytes | str) -> bool:
    text = value.encode() if isinstance(value, str) else value
    return text.count(b"[") + text.count(b"{") > SHALLOW


def _decode_slowly(value: bytes, error: Exception) -> Any:
    """Decode JSON that msgspec rejects: orjson accepts deeper nesting, and its messages name the position of a fault."""
    if (why := number_beyond(value)) is not None:
        raise BeyondNumberError(why) from error
    found = orjson.loads(value)
    if any(_is_changed(token[0]) for token in TOKENS.finditer(value)):
        raise orjson.JSONDecodeError("nested too deeply to keep the digits of its numbers", "", 0) from error
    return found


def is_depth_guarded() -> bool:
    """Return whether msgspec rejects every value that is nested too deeply for orjson.

    It does if Python's recursion limit is low enough. From Python 3.12 on, that limit does not apply to C code such as msgspec.
    """
    return sys.version_info < (3, 12) and sys.getrecursionlimit() <= SHALLOW


def number_beyond(value: bytes) -> str | None:
    """Return why :func:`decode` cannot keep a number of a JSON text; None if it keeps all of them."""
    return next(filter(None, (_fault_of(found[0]) for found in TOKENS.finditer(value))), None)


def with_replaced_numbers(value: bytes, replacement: Callable[[bytes], bytes]) -> bytes:
    """Return JSON with a replacement for each number that makes :func:`decode` raise :class:`BeyondNumberError`."""
    return TOKENS.sub(lambda found: replacement(found[0]) if _fault_of(found[0]) else found[0], value)


def has_long_integer(value: bytes) -> bool:
    """Return whether JSON may have an integer of more than :data:`MAX_DIGITS` digits; usually, only a few bytes are looked at."""
    # So many digits cover a position that is a multiple of their number.
    return len(value) > MAX_DIGITS and _DIGIT(value[MAX_DIGITS::MAX_DIGITS]) is not None and _LONG(value) is not None


def _fault_of(token: bytes) -> str | None:
    if _INTEGER.fullmatch(token):
        return _TOO_LONG if len(token.lstrip(b"-")) > MAX_DIGITS else None
    if not _NUMBER.fullmatch(token):
        return None
    try:
        number_of(token.decode())
    except BeyondNumberError as error:
        return str(error)
    return None


def _is_changed(token: bytes) -> bool:
    """Return whether orjson decodes a number to another value."""
    if _INTEGER.fullmatch(token):
        return not _MIN_64_BITS <= int(token) <= _MAX_64_BITS
    return _NUMBER.fullmatch(token) is not None and isinstance(number_of(token.decode()), Decimal)


def number_text(value: Any) -> orjson.Fragment:
    """Return the JSON of a finite Decimal, for ``default`` of :func:`encode`; TypeError for other values, or too many digits."""
    if not isinstance(value, Decimal) or not value.is_finite():
        raise TypeError
    text = f"{value:f}" if abs(value.adjusted()) < _PLAIN_DIGITS else str(value)
    if len(text) > MAX_TEXT:
        raise TypeError
    return orjson.Fragment(text)


def encode(value: Any, default: Callable[[Any], Any] = number_text) -> bytes:
    """Encode a value as JSON; integers of any size and Decimals keep all digits.

    Args:
        default: Converts values of types that orjson does not encode; by default, only finite Decimals.

    Raises:
        orjson.JSONEncodeError: JSON cannot represent the value, it is nested too deeply, or a number has too many digits.
    """
    try:
        return orjson.dumps(value, default=default)
    except orjson.JSONEncodeError:
        try:
            wide = _with_wide_integers(value)
        except RecursionError as error:
            raise orjson.JSONEncodeError("the value is nested too deeply") from error
        return orjson.dumps(wide, default=default)


def _with_wide_integers(value: Any) -> Any:
    """Replace integers of more than 64 bits, which orjson rejects, by Decimals."""
    if isinstance(value, dict):
        return {name: _with_wide_integers(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_with_wide_integers(part) for part in value]
    if type(value) is not int or _MIN_64_BITS <= value <= _MAX_64_BITS:
        return value
    if not -LONG_INTEGER < value < LONG_INTEGER:
        raise orjson.JSONEncodeError(_TOO_LONG)
    return Decimal(value)
