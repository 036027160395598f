"""Decodes the JSON of events, and encodes group keys as canonical bytes.

If an event cannot be decoded, :class:`BadEventError` is raised, and the record of the event becomes a dead letter as received.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from itertools import repeat
from typing import Any, Final

import orjson

from streams_app.errors import BadEventError, BeyondDoubleError
from streams_app.exact_json import (
    SHALLOW_BYTES,
    UNDECODED,
    BeyondNumberError,
    decode,
    decode_shallow,
    has_long_integer,
    number_beyond,
    shortest,
    with_replaced_numbers,
)
from streams_app.unrepresentable import Unrepresentable, marked, restored

MAX_SAFE_INTEGER: Final = 2**53
"""Largest integer in a group key. Larger ones lose digits in Lua, JavaScript and other readers that decode numbers as doubles."""

TEXT_TAG: Final = b"s"
JSON_TAG: Final = b"j"


def decode_object(value: bytes) -> dict[str, Any]:
    """Decode the JSON object of one event.

    Integers of up to 4000 digits, and decimals that no double holds, keep their value; see :mod:`.exact_json`.

    Raises:
        BeyondDoubleError: The JSON is an object, but has a number that cannot be kept: it is too large for a double and not an
            integer, or it has too many digits (reason ``not-json``).
        BadEventError: The value is not JSON (reason ``not-json``), or not a JSON object (``not-an-object``).
    """
    if len(value) <= SHALLOW_BYTES:
        try:
            decoded = decode_shallow(value)
        except UNDECODED:
            pass  # decoded once more below, which determines the error
        else:
            if type(decoded) is dict:
                return decoded
    return _decoded_object(value)


def _decoded_object(value: bytes) -> dict[str, Any]:
    if has_long_integer(value) and (why := number_beyond(value)) is not None:
        raise _beyond_double(value, why)
    try:
        decoded = decode(value)
    except BeyondNumberError as error:
        raise _beyond_double(value, str(error)) from error
    except orjson.JSONDecodeError as error:
        raise BadEventError("not-json", str(error)) from error
    if type(decoded) is not dict:
        raise BadEventError("not-an-object", f"the value is a JSON {type(decoded).__name__}")
    return decoded


def _beyond_double(value: bytes, why: str) -> BadEventError:
    try:
        rest = restored(decode(with_replaced_numbers(value, marked)))
    except orjson.JSONDecodeError as error:
        return BadEventError("not-json", str(error))
    return BeyondDoubleError(why, rest) if type(rest) is dict else BadEventError("not-json", why)


def at_path(value: Any, path: Sequence[str]) -> Any:
    """Return the value at a dotted path, given as the parts between its dots; None if there is no value.

    If the object has a field whose name is the whole path, including the dots, the value of this field is returned instead.
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
    """Return the bytes that identify a group in Redis, called its member.

    They are a type tag, followed by the group key as text or JSON. Because of the tag, the groups ``1`` and ``"1"`` differ.

    Args:
        scalars: Values of the group fields in the declared order. Each is a string, an integer, a float or a boolean.
        fields: Names of the group fields, for messages; empty if a function returns the group key.

    Raises:
        BadEventError: A value is not a scalar, or an integer beyond 2^53 or another number that no double holds (reason
            ``no-group``), or a user's function has returned a value that JSON cannot represent (``user-error``).
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
    if type(value) is Decimal:
        value = shortest(value)
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
    if kind is Unrepresentable:
        raise BadEventError(value.reason, f"{field} is {value!r}")
    if kind is Decimal:
        raise BadEventError("no-group", f"{field} is a number that no double holds")
    found = "missing or null" if value is None else f"a JSON {kind.__name__}"
    raise BadEventError("no-group", f"{field} is {found}, not a string, a number or a boolean")


def keys_typed(text: str) -> list[bytes]:
    """Return the members of all groups that a group key on the command line may mean; for members, see :func:`member_of`.

    Text in quotes, as ``groups list`` prints it, means the text between the quotes. Other text means the group whose key is this
    text. If that text is JSON such as ``1`` or ``["a",1]``, it may also mean the group whose key is the JSON value.
    """
    typed = text.encode("utf-8", "surrogateescape")  # as Python decodes process arguments
    try:
        value = decode(typed)
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
    """Return the record key of a group, which is the member of the group without the type tag."""
    return member[1:]


def scalars_of(member: bytes) -> tuple[Any, ...]:
    """Return the values of the group fields that a member contains; this is the inverse of :func:`member_of`."""
    if member[:1] == TEXT_TAG:
        return (member[1:].decode(),)
    decoded = orjson.loads(member[1:])
    return tuple(decoded) if type(decoded) is list else (decoded,)
