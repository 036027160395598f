"""Decodes and encodes Avro values with the optional package ``fastavro``."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import fastavro
import orjson

from streams_app.schemas.schema import SchemaDefinition


class AvroSchema:
    """Decodes and encodes the values of one Avro schema."""

    def __init__(self, definition: SchemaDefinition) -> None:
        """Parse the schema and the schemas that it refers to."""
        named: dict[str, Any] = {}
        for text in definition.references.values():
            fastavro.parse_schema(orjson.loads(text), named_schemas=named)
        self._parsed = fastavro.parse_schema(orjson.loads(definition.text), named_schemas=named)

    def decode(self, body: bytes) -> Any:
        """Decode the bytes after the frame. Times, decimals and UUIDs become objects of the corresponding Python classes."""
        stream = BytesIO(body)
        value = fastavro.schemaless_reader(stream, self._parsed, None)
        if (rest := len(body) - stream.tell()) > 0:
            raise ValueError(f"{rest} bytes follow the value")
        return value

    def encode(self, event: Any) -> bytes:
        """Encode an event without a frame. Unknown fields, and missing fields without a default, are errors."""
        stream = BytesIO()
        fastavro.schemaless_writer(stream, self._parsed, event, strict_allow_default=True)
        return stream.getvalue()


def schema_of(definition: SchemaDefinition) -> AvroSchema:
    """Parse an Avro schema, for decoding and encoding."""
    return AvroSchema(definition)
