"""Limits the nesting of Avro values before they are decoded (pure).

The decoder of fastavro calls itself for each level, and ends the process when the stack is full. A value can only be nested more
deeply than its schema if the schema is recursive, so the values of other schemas need no check.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from streams_app.depth import MAX_DEPTH, TooDeepError
from streams_app.schemas.framing import zigzag

MAX_EMPTY_ITEMS: Final = 100_000
"""Maximum number of items without bytes, such as nulls, in an array: three bytes could make a billion of them."""

LONG_BYTES: Final = 10
_SIZES: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_NUMBERS: Final = ("int", "long", "enum")
_CONTAINERS: Final = ("record", "error", "array", "map")


class DepthChecker:
    """Reads values of one schema, which fastavro has parsed, only to count their levels."""

    def __init__(self, schema: Any, named: Mapping[str, Any]) -> None:
        self._schema = schema
        self._named = named

    def check(self, body: bytes) -> None:
        """Check that a value has at most :data:`.MAX_DEPTH` levels of records, arrays and maps.

        Raises:
            TooDeepError: It has more.
            ValueError: It does not fit its schema.
        """
        self._after(self._schema, body, 0, 0)

    def _after(self, schema: Any, body: bytes, at: int, depth: int) -> int:
        """Return the position after a value that begins at a position."""
        schema = _resolved(schema, self._named)
        while type(schema) is list:
            index, at = _long(body, at)
            if not 0 <= index < len(schema):
                raise ValueError(f"a union has no type {index}")
            schema = _resolved(schema[index], self._named)
        kind = schema["type"] if type(schema) is dict else schema
        if kind in _CONTAINERS:
            if depth >= MAX_DEPTH:
                raise TooDeepError
            if kind not in ("array", "map"):
                for field in schema["fields"]:
                    at = self._after(field["type"], body, at, depth + 1)
                return at
            return self._after_blocks(schema, body, at, depth)
        if kind in _SIZES:
            return at + _SIZES[kind]
        if kind == "fixed":
            return at + int(schema["size"])
        number, at = _long(body, at)
        return at if kind in _NUMBERS else at + _size(number)

    def _after_blocks(self, schema: Any, body: bytes, at: int, depth: int) -> int:
        is_map = schema["type"] == "map"
        items, empty = schema["values" if is_map else "items"], 0
        while True:
            count, at = _long(body, at)
            if count == 0:
                return at
            if count < 0:
                _, at = _long(body, at)  # size of the block in bytes
            for _ in range(abs(count)):
                begin = at
                if is_map:
                    length, at = _long(body, at)
                    at += _size(length)
                at = self._after(items, body, at, depth + 1)
                if at == begin:  # so all items of the block are without bytes
                    empty += abs(count)
                    break
            if empty > MAX_EMPTY_ITEMS:
                raise ValueError(f"an array of {empty} items without bytes")


def depth_checker(schema: Any, named: Mapping[str, Any]) -> DepthChecker | None:
    """Return a checker for the values of a schema that fastavro has parsed; None if they need no check.

    Values of a recursive schema need a check, and those of a schema with more than :data:`.MAX_DEPTH` levels, or with arrays whose
    items have no bytes.
    """
    level = {id(schema): schema}
    for _ in range(MAX_DEPTH):
        parts = [part for one in level.values() for part in _parts_of(_resolved(one, named))]
        if any(_has_empty_items(one, named) for one in parts) or _has_empty_items(schema, named):
            return DepthChecker(schema, named)
        level = {id(part): part for part in (_resolved(part, named) for part in parts) if type(part) is not str}
        if not level:
            return None
    return DepthChecker(schema, named)


def _resolved(schema: Any, named: Mapping[str, Any]) -> Any:
    """Return the definition of a named type, and the inner schema of one whose type is a schema; others as they are."""
    while True:
        if type(schema) is str and schema in named:
            schema = named[schema]
        elif type(schema) is dict and (type(kind := schema["type"]) is not str or kind in named):
            schema = kind
        else:
            return schema


def _parts_of(schema: Any) -> list[Any]:
    if type(schema) is list:
        return schema
    if type(schema) is not dict:
        return []
    return [field["type"] for field in schema.get("fields", ())] + [schema[name] for name in ("items", "values") if name in schema]


def _has_empty_items(schema: Any, named: Mapping[str, Any]) -> bool:
    array = _resolved(schema, named)
    return type(array) is dict and array["type"] == "array" and _is_empty(array["items"], named)


def _is_empty(schema: Any, named: Mapping[str, Any], depth: int = 0) -> bool:
    """Return whether the values of a schema have no bytes; also True for records that are nested too deeply to know it."""
    one = _resolved(schema, named)
    kind = one["type"] if type(one) is dict else one
    if type(one) is dict and "fields" in one:
        return depth > MAX_DEPTH or all(_is_empty(field["type"], named, depth + 1) for field in one["fields"])
    return kind == "null" or (kind == "fixed" and int(one["size"]) == 0)


def _long(body: bytes, at: int) -> tuple[int, int]:
    return zigzag(body, at, LONG_BYTES, "the value ends early, or a number has too many bytes")


def _size(length: int) -> int:
    if length < 0:
        raise ValueError(f"a length of {length} bytes")
    return length
