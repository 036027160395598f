"""Schemas of a registry, and the conversion of decoded values to JSON (pure)."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from decimal import Decimal
from importlib import import_module
from typing import Any, Final, NamedTuple, Protocol, cast

import orjson

from streams_app.envelopes import Format
from streams_app.errors import ConfigurationError
from streams_app.exact_json import decode
from streams_app.unrepresentable import Unrepresentable


class SchemaDefinition(NamedTuple):
    """A schema as the registry returns it; its type is ``AVRO``, ``PROTOBUF`` or ``JSON``.

    Attributes:
        references: The texts of the schemas that this schema refers to, by name. Each comes after the schemas that it refers to.
    """

    type: str
    text: str
    references: Mapping[str, str] = {}


class Schema(Protocol):
    """Decodes and encodes the bodies of values with one schema; a body is the part of a value after its schema id.

    If a body or an event does not fit the schema, both methods may raise exceptions of any type.
    """

    def decode(self, body: bytes) -> Any:
        """Decode a body to Python objects, usually a dict of the fields by their names."""

    def encode(self, event: Any) -> bytes:
        """Encode an event, which is a dict from :func:`.publishable`, as a body."""


class _Module(Protocol):
    @staticmethod
    def schema_of(definition: SchemaDefinition) -> Schema: ...


TYPES: Final[Mapping[Format, str]] = {"avro": "AVRO", "protobuf": "PROTOBUF", "json-schema": "JSON"}
"""The type that schemas of a format have in a registry, by format."""

_PACKAGES: Final = {"AVRO": ("fastavro", "avro"), "PROTOBUF": ("grpc_tools", "protobuf"), "JSON": ("orjson", "")}
"""For each type of schema: the package that decodes it, and the extra that installs this package; "" if it is always installed."""


class JsonSchema:
    """Decodes and encodes JSON. Does not validate it by its schema, because producers have validated it."""

    def decode(self, body: bytes) -> Any:
        return decode(body)

    def encode(self, event: Any) -> bytes:
        return json_of(event)


def parsed(definition: SchemaDefinition) -> Schema:
    """Parse a schema; this may take several milliseconds.

    Raises:
        ConfigurationError: The package that decodes schemas of this type is not installed.
        Exception: The schema is not valid, or its type is not supported. The type of the exception depends on the package.
    """
    if definition.type == "JSON":
        return JsonSchema()
    if definition.type not in _PACKAGES:
        raise ValueError(f"schemas of type {definition.type} are not supported")
    require_package(definition.type)
    name = "avro" if definition.type == "AVRO" else "protobuf"
    return cast("_Module", import_module(f"streams_app.schemas.{name}")).schema_of(definition)


def require_package(schema_type: str) -> None:
    """Check that the package that decodes a type of schema is installed; the error names the extra that installs it."""
    package, extra = _PACKAGES[schema_type]
    try:
        import_module(package)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in (package, "google", "grpc"):
            raise
        raise ConfigurationError([f"schemas of type {schema_type} need {package}; pip install 'streams_app[{extra}]'"]) from error


def json_of(value: Any) -> bytes:
    """Return the JSON of a decoded value: times in ISO 8601, decimals as text, bytes in Base64."""
    return orjson.dumps(value, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, Unrepresentable):
        return orjson.Fragment(value.text)
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    raise TypeError(f"a value of type {type(value).__name__}")
