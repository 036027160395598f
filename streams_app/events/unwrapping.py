"""Unwraps events that arrive in another format than plain JSON, for subscribers (pure).

The result has the form of an event that this project publishes, so that later code needs no case for each format. The fields of the
payload are at the top level of the value. The value of a change event has two more fields: ``before``, the row before the change,
and ``metadata``, the other fields of the envelope. The attributes of a CloudEvent become headers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from streams_app.envelopes import DELETE, REGISTERED, Format, bytes_of, is_beside_changes, without_row
from streams_app.errors import BadEventError
from streams_app.events.headers import PREFIX, TRACE_PARENT, Headers
from streams_app.schemas.cache import SchemaCache
from streams_app.schemas.framing import is_framed

Unwrap = Callable[[Headers, bytes], tuple[Headers, bytes] | None]
"""Function that converts headers and value of a record to those of an event, or returns None if the record is no event."""

_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NULL: Final = b"null"
_TRACE: Final = (TRACE_PARENT, "tracestate")


def of_change(headers: Headers, value: bytes) -> tuple[Headers, bytes] | None:
    """Unwrap a change event of Debezium: its row becomes the payload, and the rest of the envelope the metadata.

    Returns:
        Headers and value of the event. None for records that are no changes: heartbeats, transaction metadata, and values whose
        ``payload`` is null.

    Raises:
        BadEventError: ``not-valid``: the value is not JSON. ``wrong-format``: the value is not a change event, or has no row.
    """
    parts = _parts(value)
    if parts.keys() == {"schema", "payload"}:
        if bytes(parts["payload"]) == _NULL:
            return None
        parts = _parts(bytes(parts["payload"]))
    op = _plain(parts.get("op"))
    if is_beside_changes(parts.keys(), _plain(parts.get("status"))):
        return None
    before, after = _row(parts.pop("before", None)), _row(parts.pop("after", None))
    row = before if op == DELETE else after
    if row is None or type(op) is not str:
        raise without_row(op)
    separator = b"" if row == b"{}" else b","
    beside = b'"before":%b,"metadata":%b' % (before or _NULL, msgspec.json.encode(parts))
    return headers, b"%b%b%b}" % (row.rstrip()[:-1], separator, beside)


def of_cloud_event(headers: Headers, value: bytes) -> tuple[Headers, bytes]:
    """Unwrap a CloudEvent in structured mode: its data becomes the value, and its attributes become headers.

    Raises:
        BadEventError: ``not-valid``: the value is not JSON. ``wrong-format``: the value has no ``specversion``, or no data.
    """
    parts = _parts(value)
    if type(_plain(parts.get("specversion"))) is not str:
        raise BadEventError("wrong-format", "no CloudEvent in structured mode: it has no specversion")
    data, encoded = parts.pop("data", None), _plain(parts.pop("data_base64", None))
    found = bytes_of(encoded) if data is None and type(encoded) is str else bytes(data or b"")
    if not found:
        raise BadEventError("wrong-format", "a CloudEvent without data")
    # In this mode the attributes are in the value, so headers with their names are not attributes and are dropped.
    kept = [(name, content) for name, content in headers if not name.startswith(PREFIX)]
    return [*kept, *_attributes(parts, {name for name, _ in kept})], found


_ENVELOPES: Final[Mapping[Format, Unwrap]] = {"debezium": of_change, "cloudevents": of_cloud_event}


def unwrap_of(declared: Format, schemas: SchemaCache | None) -> Unwrap | None:
    """Return the function that unwraps the events of a format; None if they are plain JSON.

    If the schema of a framed value is not cached, the returned function raises NotFetchedError.

    Args:
        schemas: Cache of schemas, which decodes framed values; None: values have no frame.
    """
    envelope = _ENVELOPES.get(declared)
    if schemas is None or declared == "json":
        return envelope

    def unwrap(headers: Headers, value: bytes) -> tuple[Headers, bytes] | None:
        if declared in REGISTERED or is_framed(value):
            value = schemas.json(value, declared)
        return (headers, value) if envelope is None else envelope(headers, value)

    return unwrap


def attributes_of(declared: Format, headers: Headers, value: bytes | None) -> Headers:
    """Return the headers of an event; the attributes of a valid CloudEvent in structured mode replace the headers ``ce_<name>``."""
    if declared != "cloudevents" or not value:
        return headers
    try:
        return of_cloud_event(headers, value)[0]
    except BadEventError:
        return headers


def _attributes(parts: Mapping[str, msgspec.Raw], given: set[str]) -> list[tuple[str, bytes]]:
    """Return attributes of a CloudEvent as headers with the prefix ``ce_``; only ``traceparent`` and ``tracestate`` get no prefix.

    Args:
        given: Names of headers that the record has, for which no header is returned.
    """
    found = []
    for name, raw in parts.items():
        value = _plain(raw)
        text = value if type(value) is str else bytes(raw).decode() if type(value) in (bool, int) else None
        header = name if name in _TRACE else PREFIX + name
        if text is not None and header not in given:
            found.append((header, text.encode()))
    return found


def _parts(value: bytes) -> dict[str, msgspec.Raw]:
    try:
        return _fields.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadEventError("not-valid", f"{error} - at `$`") from error


def _plain(raw: msgspec.Raw | None) -> Any:
    return None if raw is None else msgspec.json.decode(raw)


def _row(side: msgspec.Raw | None) -> bytes | None:
    """Return the row before or after a change as JSON; None if there is none. The MongoDB connector writes rows as JSON strings."""
    row = b"" if side is None else bytes(side)
    if row[:1] == b'"':
        row = msgspec.json.decode(row, type=str).encode()
    return row if row[:1] == b"{" else None
