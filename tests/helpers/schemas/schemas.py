"""Schemas for tests without a registry, and values framed by them."""

from __future__ import annotations

import json
from typing import Any

from streams_app.schemas.cache import SchemaCache, SchemaEntry
from streams_app.schemas.framing import framed
from streams_app.schemas.schema import SchemaDefinition, parsed

CHANGED = {
    "type": "record",
    "name": "Changed",
    "fields": [{"name": "id", "type": "string"}, {"name": "m", "type": {"type": "map", "values": "long"}}],
}
ROW = {
    "type": "record",
    "name": "Row",
    "fields": [{"name": "id", "type": "long"}, {"name": "cents", "type": ["null", "long"], "default": None}],
}
CHANGE = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {"name": "before", "type": ["null", ROW], "default": None},
        {"name": "after", "type": ["null", "Row"], "default": None},
        {"name": "op", "type": "string"},
    ],
}
KEY = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}
TEXT = "string"

ALL = {1: CHANGED, 2: CHANGE, 3: KEY, 4: TEXT}
_PARSED = {number: parsed(SchemaDefinition("AVRO", json.dumps(schema))) for number, schema in ALL.items()}


def schema_cache(*numbers: int) -> SchemaCache:
    """Return a cache of some of these schemas; of all schemas without arguments."""
    made = SchemaCache(10)
    for number in numbers or ALL:
        made.keep(number, SchemaEntry("AVRO", _PARSED[number]))
    return made


def avro(number: int, event: Any) -> bytes:
    """Return an event framed by one of these schemas."""
    return framed(number, _PARSED[number].encode(event))
