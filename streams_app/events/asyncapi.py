"""Describes the events of an application as an AsyncAPI 3.0 document (pure).

The document has a channel for each topic, and a message for each event and for each fold whose records a subscriber handles. It has
an operation ``send`` for each event that this application may publish, and an operation ``receive`` for each subscriber.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from streams_app.events.declaration import Event
from streams_app.events.folded import FoldInfo
from streams_app.events.headers import CONTENT_TYPES
from streams_app.events.payloads import schema_of

CORRELATION: Final = {
    "description": "Shared by all events that were caused by the same first event.",
    "location": "$message.header#/ce_correlationid",
}
_TEXT: Final = {"type": "string"}
HEADERS: Final = {
    "type": "object",
    "properties": {
        "ce_specversion": {"type": "string", "const": "1.0"},
        "ce_id": {"type": "string", "description": "Unique within its ce_source; the same where an event is published again."},
        "ce_type": _TEXT,
        "ce_source": {"type": "string", "description": "The application that has published it."},
        "ce_time": {"type": "string", "format": "date-time"},
        "ce_correlationid": _TEXT,
        "ce_causationid": {"type": "string", "description": "Id of the event because of which this one was published."},
        "traceparent": {"type": "string", "description": "As W3C Trace Context writes it."},
    },
    "required": ["ce_specversion", "ce_id", "ce_type", "ce_source", "ce_time", "ce_correlationid"],
    "additionalProperties": {"type": "string", "description": "ce_<name>: context."},
}
FOLD_HEADERS: Final = {"type": "object", "properties": {"fold-id": _TEXT}, "required": ["fold-id"]}


@dataclass(frozen=True, slots=True)
class Receiver:
    """A subscriber, as the AsyncAPI document describes it.

    Attributes:
        message: Key of the event that it handles, or name of the fold whose records it handles.
        extensions: Further properties of its operation in the document; their names begin with ``x-``.
    """

    name: str
    description: str
    message: str
    topic: str
    extensions: dict[str, Any]


@dataclass(frozen=True, slots=True)
class FoldRecords:
    """A fold whose records a subscriber handles, as the AsyncAPI document describes them."""

    fold: str
    topic: str
    payload: Any


def document(
    app_id: str, events: Sequence[Event[Any, Any]], records: Sequence[FoldRecords], receivers: Sequence[Receiver]
) -> dict[str, Any]:
    """Return the AsyncAPI document of an application, as JSON values."""
    schemas: dict[str, Any] = {}
    messages = {event.key: _message(event, schemas) for event in events}
    messages |= {one.fold: _record(one, schemas) for one in records}
    at = [(event.topic, event.key) for event in events] + [(one.topic, one.fold) for one in records]
    sent = {f"send.{event.key}": _operation("send", event.topic, event.key) for event in events if _is_published(event)}
    received = {
        one.name: _operation("receive", one.topic, one.message) | {"description": one.description} | one.extensions
        for one in receivers
    }
    return {
        "asyncapi": "3.0.0",
        "info": {"title": app_id, "version": "1.0.0"},
        "defaultContentType": "application/json",
        "channels": {topic: _channel(topic, [key for of, key in at if of == topic]) for topic in dict.fromkeys(of for of, _ in at)},
        "operations": sent | received,
        "components": {"messages": messages, "schemas": schemas, "correlationIds": {"correlation": CORRELATION}},
    }


def _is_published(event: Event[Any, Any]) -> bool:
    """Return whether this project can publish an event: not with ``decode=``, or in the format of Debezium or CloudEvents."""
    return event.decode is None and event.format not in ("debezium", "cloudevents")


def _channel(topic: str, keys: Iterable[str]) -> dict[str, Any]:
    return {"address": topic, "messages": {key: {"$ref": f"#/components/messages/{key}"} for key in keys}}


def _operation(action: str, topic: str, message: str) -> dict[str, Any]:
    channel = f"#/channels/{topic}"
    return {"action": action, "channel": {"$ref": channel}, "messages": [{"$ref": f"{channel}/messages/{message}"}]}


def _message(event: Event[Any, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    payload = _kept(event.key, event.payload, schemas)
    if event.format in ("debezium", "cloudevents"):
        return _message_in_format(event, payload)
    beside = {"before": {"anyOf": [payload, {"type": "null"}]}}
    if event.metadata is not None:
        beside["metadata"] = {"anyOf": [_kept(f"{event.key}.metadata", event.metadata, schemas), {"type": "null"}]}
    key = {"kafka": {"key": {"description": f"The field {event.keyed_by} of the payload."}}} if event.keyed_by else None
    return {
        "name": event.key,
        "description": event.description,
        "headers": HEADERS,
        "payload": {"type": "object", "allOf": [payload], "properties": beside},
        "correlationId": {"$ref": "#/components/correlationIds/correlation"},
        # Only a user's function `decode=` knows the format of its values.
        "contentType": "application/octet-stream" if event.decode else CONTENT_TYPES.get(event.format, "application/json"),
        # For programs; the binding below only describes the key for people.
        "x-keyed-by": event.keyed_by,
    } | ({"bindings": key} if key else {})


def _message_in_format(event: Event[Any, Any], payload: dict[str, str]) -> dict[str, Any]:
    """Return the message of an event that other programs publish in an envelope, of which only the payload is described."""
    row = {"anyOf": [payload, {"type": "null"}]}
    fields = {"before": row, "after": row} if event.format == "debezium" else {"data": payload}
    return {
        "name": event.key,
        "description": event.description,
        "payload": {"type": "object", "properties": fields},
        "contentType": "application/cloudevents+json" if event.format == "cloudevents" else "application/json",
    }


def _record(records: FoldRecords, schemas: dict[str, Any]) -> dict[str, Any]:
    payload = _kept(records.fold, records.payload, schemas)
    fold = _kept(records.fold, FoldInfo, schemas)
    return {
        "name": records.fold,
        "description": f"What the fold {records.fold} emits for a group.",
        "headers": FOLD_HEADERS,
        "payload": {"type": "object", "allOf": [payload], "properties": {"fold": fold}, "required": ["fold"]},
    }


def _kept(owner: str, kind: Any, schemas: dict[str, Any]) -> dict[str, str]:
    """Add the JSON Schema of a type, and the schemas that it references, to ``schemas``; return a ``$ref`` to the type."""
    schema, definitions = schema_of(kind)
    # Prefixed with the key of the event, because two events may have different types with the same name.
    named = {_name(owner, name): definition for name, definition in definitions.items()}
    own = _name(owner, getattr(kind, "__name__", "payload"))
    for name, definition in {**named, own: schema}.items():
        schemas[name] = _moved(definition, owner)
    return {"$ref": f"#/components/schemas/{own}"}


def _name(owner: str, name: str) -> str:
    return f"{owner}.{re.sub(r'[^A-Za-z0-9._-]', '_', name)}"


def _is_of_openapi(key: str, part: Any) -> bool:
    """Return whether a keyword of a schema is the discriminator of OpenAPI, which AsyncAPI does not allow in this form.

    The value of the keyword is examined as well, because a field of an event may also be named ``discriminator``.
    """
    return key == "discriminator" and isinstance(part, dict) and "propertyName" in part


def _moved(schema: Any, owner: str) -> Any:
    """Return a copy of a schema for the document: its references point into the document, and it has no OpenAPI discriminator."""
    if isinstance(schema, list):
        return [_moved(part, owner) for part in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _moved(part, owner) for key, part in schema.items() if not _is_of_openapi(key, part)}
    if isinstance(reference := schema.get("$ref"), str):
        moved["$ref"] = f"#/components/schemas/{_name(owner, reference.removeprefix('#/$defs/'))}"
    return moved
