"""Bytes to JSON and back at the edge, and the canonical bytes of a group key.

A decode error never loses the bytes: it becomes a :class:`BadEventError`, and the record goes to the dead-letter topic as
it was received.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from streams_app.errors import BadEventError

MAX_SAFE_INTEGER: Final = 2**53
"""Beyond it JSON numbers lose digits in Lua, JavaScript and every other reader that uses doubles."""

TEXT_MARK: Final = b"s"
JSON_MARK: Final = b"j"


def decode_object(value: bytes) -> dict[str, Any]:
    """Decodes one event.

    Raises:
        BadEventError: ``not-json`` or ``not-an-object``.
    """
    try:
        decoded = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise BadEventError("not-json", str(error)) from error
    if type(decoded) is not dict:
        raise BadEventError("not-an-object", f"the value is a JSON {type(decoded).__name__}")
    return decoded


def encode(value: Any) -> bytes:
    """Compact JSON, UTF-8."""
    return orjson.dumps(value)


def member_of(scalars: tuple[Any, ...]) -> bytes:
    """What a group is called in Redis: its canonical bytes behind a mark of their type, so that ``1`` and ``"1"`` differ.

    Args:
        scalars: The group fields in the declared order; each a string, an integer, a float or a boolean.

    Raises:
        BadEventError: ``no-group``: a field is not a scalar, or an integer beyond 2^53.
    """
    if len(scalars) == 1 and type(scalars[0]) is str:
        return TEXT_MARK + scalars[0].encode()
    checked = [_checked_scalar(value) for value in scalars]
    return JSON_MARK + orjson.dumps(checked[0] if len(checked) == 1 else checked)


def _checked_scalar(value: Any) -> str | int | float | bool:
    kind = type(value)
    if kind is str or kind is bool:
        return value
    if kind is float and value.is_integer():
        value, kind = int(value), int  # 1.0 and 1 are the same JSON number (RFC 8785)
    if kind is int and abs(value) <= MAX_SAFE_INTEGER:
        return value
    if kind is float:
        return value
    if kind is int:
        raise BadEventError("no-group", "an integer of the group key is beyond 2^53")
    raise BadEventError("no-group", f"a group field holds {'null' if value is None else kind.__name__}, not a scalar")


def canonical_bytes(member: bytes) -> bytes:
    """The record key of a group: its member without the mark."""
    return member[1:]


def scalars_of(member: bytes) -> tuple[Any, ...]:
    """The group fields of a member, the inverse of :func:`member_of`."""
    if member[:1] == TEXT_MARK:
        return (member[1:].decode(),)
    decoded = orjson.loads(member[1:])
    return tuple(decoded) if type(decoded) is list else (decoded,)
