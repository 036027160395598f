"""Decodes the JSON of events, and encodes group keys as canonical bytes.

An event that cannot be decoded raises :class:`BadEventError`, and its record goes to the dead-letter topic as received.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import repeat
from typing import Any, Final

import orjson

from streams_app.errors import BadEventError, BeyondDoubleError

MAX_SAFE_INTEGER: Final = 2**53
"""Largest integer: larger JSON numbers lose digits in Lua, JavaScript and other readers that use doubles."""

TEXT_TAG: Final = b"s"
JSON_TAG: Final = b"j"

_TOKENS: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|-?\d[\d.eE+-]*+', re.DOTALL)
"""Matches numbers, and whole strings, so that digits within a string do not match. No byte is matched twice."""
_NUMBER: Final = re.compile(rb"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")


def decode_object(value: bytes) -> dict[str, Any]:
    """Decode the JSON object of one event.

    Raises:
        BeyondDoubleError: ``not-json``, only because of a number beyond a double.
        BadEventError: ``not-json`` or ``not-an-object``.
    """
    try:
        decoded = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        rest = _without_numbers_beyond(value)
        if type(rest) is dict:
            raise BeyondDoubleError(str(error), rest) from error
        raise BadEventError("not-json", str(error)) from error
    if type(decoded) is not dict:
        raise BadEventError("not-an-object", f"the value is a JSON {type(decoded).__name__}")
    return decoded


def _without_numbers_beyond(value: bytes) -> Any:
    """Decode JSON with null instead of each number beyond a double; None if the JSON has another fault."""
    mended = _TOKENS.sub(_null_if_beyond, value)
    if mended == value:
        return None
    try:
        return orjson.loads(mended)
    except orjson.JSONDecodeError:
        return None  # the caller reports the fault of the original event


def _null_if_beyond(found: re.Match[bytes]) -> bytes:
    token = found[0]
    return b"null" if _NUMBER.fullmatch(token) and math.isinf(float(token)) else token


def at_path(value: Any, path: Sequence[str]) -> Any:
    """Return the value at a dotted path, split at its dots; None if there is none.

    A field whose name is the whole path, dots included, precedes the path.
    """
    if len(path) > 1 and type(value) is dict and (name := ".".join(path)) in value:
        return value[name]
    found: Any = value
    for step in path:
        if type(found) is not dict:
            return None
        found = found.get(step)
    return found


def member_of(scalars: tuple[Any, ...], fields: tuple[str, ...] = ()) -> bytes:
    """Return the bytes that identify a group in Redis (its member): a type tag and JSON or text, so that ``1`` and ``"1"`` differ.

    Args:
        scalars: Values of the group fields in the declared order; each a string, an integer, a float or a boolean.
        fields: Names of the group fields, for messages.

    Raises:
        BadEventError: ``no-group``: a field is not a scalar, or an integer beyond 2^53. ``user-error``: a user's function has
            returned a value that JSON cannot represent.
    """
    try:
        if len(scalars) == 1 and type(scalars[0]) is str:
            return TEXT_TAG + scalars[0].encode()
        checked = [_checked_scalar(value, field) for value, field in zip(scalars, fields or repeat("the group key"), strict=False)]
        return JSON_TAG + orjson.dumps(checked[0] if len(checked) == 1 else checked)
    except (UnicodeEncodeError, orjson.JSONEncodeError) as error:
        label = ", ".join(fields) or "the group key"
        raise BadEventError("user-error", f"{label}: text that UTF-8 does not have: {scalars!r}") from error


def _checked_scalar(value: Any, field: str) -> str | int | float | bool:
    kind = type(value)
    if kind is str or kind is bool:
        return value
    if kind is float and value.is_integer():
        value, kind = int(value), int  # 1.0 and 1 are the same JSON number (RFC 8785)
    if kind is int and abs(value) <= MAX_SAFE_INTEGER:
        return value
    if kind is float:
        if not math.isfinite(value):
            raise BadEventError("user-error", f"{field} is {value}, which is not a group")
        return value
    if kind is int:
        raise BadEventError("no-group", f"{field} is an integer beyond 2^53")
    found = "missing or null" if value is None else f"a JSON {kind.__name__}"
    raise BadEventError("no-group", f"{field} is {found}, not a string, a number or a boolean")


def keys_typed(text: str) -> list[bytes]:
    """Return the Redis members of all group keys that an argument on the command line may mean.

    Text in quotes means the text within them, as ``groups list`` prints it. Other text means itself, or the JSON value that it
    represents (``1``, ``["a",1]``).
    """
    typed = text.encode("utf-8", "surrogateescape")  # as Python decodes process arguments
    try:
        value = orjson.loads(typed)
    except orjson.JSONDecodeError:
        return [TEXT_TAG + typed]
    if type(value) is str:
        return [member_of((value,))]
    members = [TEXT_TAG + typed]
    if type(value) in (int, float, bool) or (type(value) is list and len(value) > 1):
        with suppress(BadEventError):  # no group has this key
            members.append(member_of(tuple(value) if type(value) is list else (value,)))
    return members


def canonical_bytes(member: bytes) -> bytes:
    """Return the record key of a group: its member without the type tag."""
    return member[1:]


def scalars_of(member: bytes) -> tuple[Any, ...]:
    """Return the values of the group fields of a member, the inverse of :func:`member_of`."""
    if member[:1] == TEXT_TAG:
        return (member[1:].decode(),)
    decoded = orjson.loads(member[1:])
    return tuple(decoded) if type(decoded) is list else (decoded,)
