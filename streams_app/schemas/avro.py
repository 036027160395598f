"""Decodes and encodes Avro values with the optional package ``fastavro``."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cached_property
from io import BytesIO
from typing import Any, Final

import fastavro
import orjson

from streams_app.depth import check_depth
from streams_app.schemas.avro_depth import DepthChecker, depth_checker
from streams_app.schemas.schema import SchemaDefinition
from streams_app.unrepresentable import Unrepresentable

_PREFIX: Final = "streams-app-"
"""Prefix of the logical types whose values this module converts, in place of those that fastavro would convert."""

_DAY_MS: Final = 86_400_000
_DAYS: Final = {"time-millis": _DAY_MS, "time-micros": 1_000 * _DAY_MS}
"""Length of a day in the unit of each logical type of a time of day. fastavro converts -1 to a time before midnight."""

_CONVERTED: Final = frozenset(name.partition("-")[2] for name in fastavro.read.LOGICAL_READERS)


class AvroSchema:
    """Decodes and encodes the values of one Avro schema."""

    def __init__(self, definition: SchemaDefinition) -> None:
        self._definition = definition
        self._parsed, named = _parsed(definition, _DAYS)
        self._depth: DepthChecker | None = depth_checker(self._parsed, named)

    def decode(self, body: bytes) -> Any:
        """Decode the bytes after the frame. Times, decimals and UUIDs become objects of the corresponding Python classes.

        A value that its logical type does not allow, or for which Python has no object, such as a date before year 1, becomes an
        :class:`.Unrepresentable`.
        """
        if self._depth is not None:
            self._depth.check(body)
        stream = BytesIO(body)
        try:
            value = fastavro.schemaless_reader(stream, self._parsed, None)
        except (ValueError, ArithmeticError, TypeError):  # usually a date or time that Python cannot represent
            stream.seek(0)
            value = fastavro.schemaless_reader(stream, self._lenient, None)
        if (rest := len(body) - stream.tell()) > 0:
            raise ValueError(f"{rest} bytes follow the value")
        return value

    def encode(self, event: Any) -> bytes:
        """Encode an event without a frame. Unknown fields, and missing fields without a default, are errors."""
        if self._depth is not None:
            check_depth(event)  # fastavro would end the process
        stream = BytesIO()
        fastavro.schemaless_writer(stream, self._written, event, strict_allow_default=True)
        return stream.getvalue()

    @cached_property
    def _lenient(self) -> Any:
        """The schema for values that fastavro alone cannot convert; slower, because functions in Python convert all times."""
        return _parsed(self._definition, _CONVERTED)[0]

    @cached_property
    def _written(self) -> Any:
        return _parsed(self._definition, ())[0]


def schema_of(definition: SchemaDefinition) -> AvroSchema:
    """Parse an Avro schema, for decoding and encoding."""
    return AvroSchema(definition)


def _parsed(definition: SchemaDefinition, checked: Collection[str]) -> tuple[Any, dict[str, Any]]:
    """Parse a schema and those that it refers to; return it, and all named types by their full names.

    Values of the logical types in ``checked`` are converted by functions of this module.
    """
    named: dict[str, Any] = {}
    for text in definition.references.values():
        fastavro.parse_schema(_renamed(orjson.loads(text), checked), named_schemas=named)
    return fastavro.parse_schema(_renamed(orjson.loads(definition.text), checked), named_schemas=named), named


def _renamed(schema: Any, checked: Collection[str]) -> Any:
    """Add the prefix to some logical types of a schema, in place; return the schema."""
    unseen = [schema]
    while unseen:
        one = unseen.pop()
        if type(one) is list:
            unseen += one
        elif type(one) is dict:
            if one.get("logicalType") in checked:
                one["logicalType"] = _PREFIX + one["logicalType"]
            unseen += [one.get("type"), one.get("items"), one.get("values")]
            if type(fields := one.get("fields")) is list:
                unseen += [field.get("type") for field in fields if type(field) is dict]
    return schema


def _checked(logical_type: str, convert: Callable[..., Any]) -> Callable[..., Any]:
    day = _DAYS.get(logical_type)

    def converted(data: Any, writer_schema: Any = None, reader_schema: Any = None) -> Any:
        if day is not None and not 0 <= data < day:
            return Unrepresentable.of(data)
        try:
            return convert(data, writer_schema, reader_schema)
        except (ValueError, ArithmeticError, TypeError):
            return Unrepresentable.of(data)

    return converted


def _register() -> None:
    """Add functions for logical types with the prefix; schemas of other users of fastavro in this process are not affected."""
    for name, convert in list(fastavro.read.LOGICAL_READERS.items()):
        base, _, logical_type = name.partition("-")
        if not logical_type.startswith(_PREFIX):
            fastavro.read.LOGICAL_READERS[f"{base}-{_PREFIX}{logical_type}"] = _checked(logical_type, convert)


_register()
