"""Reads the formats of events other than plain JSON: change events of Debezium, and CloudEvents in structured mode (pure).

To a fold, the row or the data of such a value is the event; the other fields of the envelope are added with the prefix ``@``
(:func:`row_event`, :func:`cloud_event`). A subscriber receives the same as payload, see :mod:`streams_app.events.formats`.

Source: the documentation of Debezium 3 (``connectors/postgresql``, "Data change events", "Transaction metadata") and CloudEvents
1.0.2, "JSON Event Format".
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Literal

import orjson

from streams_app.codec import decode_object
from streams_app.errors import BadEventError

Format = Literal["json", "debezium", "cloudevents", "avro", "protobuf", "json-schema"]

REGISTERED: Final[tuple[Format, ...]] = ("avro", "protobuf", "json-schema")
"""Formats whose values are framed by a schema registry. Values with an envelope may be framed as well."""

COLUMNS: Final = "@columns"
"""Path of the changed columns of a change event, with their new values."""

BESIDE: Final = "@"
"""Prefix of the names of envelope fields."""

DELETE: Final = "d"
OPERATIONS_WITHOUT_COMPARISON: Final = ("c", "r", DELETE)
"""Create, read (by a snapshot) and delete: every column counts as changed."""

UNAVAILABLE: Final = ("__debezium_unavailable_value", "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==")
"""Placeholder of Debezium for a large value that an update did not change: as text, and as bytes in Base64."""

_TIMES: Final = frozenset({"ts_ms", "ts_us", "ts_ns"})
_MISSING: Final = object()


def is_beside_changes(names: Collection[str], status: Any) -> bool:
    """Return whether a record of Debezium is a heartbeat, or the beginning or end of a transaction.

    Args:
        names: Fields of its value.
        status: Value of the field ``status``.
    """
    if names and _TIMES.issuperset(names):
        return True
    return status in ("BEGIN", "END") and "id" in names and "op" not in names


def without_row(op: Any) -> BadEventError:
    """Return the error for a change event without a row, or for a value that is no change event."""
    if type(op) is not str:
        return BadEventError("wrong-format", "no change event of Debezium: it has no op")
    side = "before, and a deleted row is" if op == DELETE else "after, and the row is"
    return BadEventError("wrong-format", f"a change event of Debezium with op {op!r} and no row: {side} null or missing")


def unwrapped(value: Any) -> Any:
    """Return the payload of a value that Kafka Connect wrote together with its schema; other values as they are."""
    return value["payload"] if type(value) is dict and value.keys() == {"schema", "payload"} else value


def row_event(key: bytes | None, value: dict[str, Any]) -> dict[str, Any] | None:
    """Return the event of a change event of Debezium: its row, and the fields of the envelope as ``@op``, ``@source`` and so on.

    The row is ``after``, or ``before`` for a delete. Missing columns are taken from the record key.

    Args:
        key: Key of the record.
        value: Its value.

    Returns:
        The event, with the changed columns under ``@columns``; None for heartbeats, transaction metadata and tombstones with
        a schema, which no fold reads.

    Raises:
        BadEventError: ``wrong-format``: it is no change event, or has no row.
    """
    change = unwrapped(value)
    if change is None:
        return None  # a tombstone that Kafka Connect wrote with a schema
    if type(change) is not dict:
        raise without_row(None)
    if is_beside_changes(change.keys(), change.get("status")):
        return None
    op, before, after = change.get("op"), _row(change.get("before")), _row(change.get("after"))
    row = before if op == DELETE else after
    if type(op) is not str or row is None:
        raise without_row(op)
    beside = {f"{BESIDE}{name}": part for name, part in change.items()}
    return {**key_columns(key), **row, **beside, COLUMNS: _changed_columns(op, before, after, row)}


def key_columns(key: bytes | None) -> dict[str, Any]:
    """Return the columns of a record key that is a JSON object, with its schema or without; empty for other keys."""
    if not key or key[:1] != b"{":
        return {}
    try:
        columns = unwrapped(orjson.loads(key))
    except orjson.JSONDecodeError:
        return {}
    return columns if type(columns) is dict else {}


def cloud_event(value: dict[str, Any]) -> dict[str, Any]:
    """Return the event of a CloudEvent in structured mode: the fields of ``data``, with its attributes under ``@type`` and so on.

    Raises:
        BadEventError: ``wrong-format``: it has no ``specversion``, or its ``data_base64`` is not Base64. ``not-json``,
            ``not-an-object``: its data is not a JSON object.
    """
    if type(value.get("specversion")) is not str:
        raise BadEventError("wrong-format", "no CloudEvent in structured mode: it has no specversion")
    attributes = {f"{BESIDE}{name}": part for name, part in value.items() if name not in ("data", "data_base64")}
    data = value.get("data")
    if data is None and type(encoded := value.get("data_base64")) is str:
        data = decode_object(bytes_of(encoded))
    if data is None:
        return attributes
    if type(data) is not dict:
        raise BadEventError("not-an-object", f"data is a JSON {type(data).__name__}")
    return {**data, **attributes}


def bytes_of(encoded: str) -> bytes:
    """Decode the attribute ``data_base64`` of a CloudEvent.

    Raises:
        BadEventError: ``wrong-format``: the text is not Base64.
    """
    try:
        return base64.b64decode(encoded, validate=True)
    except binascii.Error as error:
        raise BadEventError("wrong-format", f"data_base64 is not Base64: {error}") from error


def _row(side: Any) -> dict[str, Any] | None:
    """Return one side of a change; the connector for MongoDB writes documents as text."""
    if type(side) is str:
        try:
            side = orjson.loads(side)
        except orjson.JSONDecodeError:
            return None
    return side if type(side) is dict else None


def _changed_columns(
    op: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, row: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the changed columns with their new values; those of a deleted row have none."""
    new = after if op != DELETE and after is not None else {}
    if before is None or op in OPERATIONS_WITHOUT_COMPARISON:
        return {name: new.get(name) for name, value in row.items() if not _is_unavailable(value)}
    changed: dict[str, Any] = dict.fromkeys(name for name in before if name not in new)
    differing = ((name, value) for name, value in new.items() if _differs(before.get(name, _MISSING), value))
    changed.update((name, value) for name, value in differing if not _is_unavailable(value))
    return changed


def _differs(before: Any, after: Any) -> bool:
    return bool(before != after) or type(before) is not type(after)


def _is_unavailable(value: Any) -> bool:
    return type(value) is str and value in UNAVAILABLE


ViewOf = Callable[[bytes | None, dict[str, Any]], dict[str, Any] | None]

VIEWS: Final[Mapping[Format, ViewOf]] = {
    "debezium": row_event,
    "cloudevents": lambda _, value: cloud_event(value),
    **dict.fromkeys(REGISTERED, lambda _, value: value),
}
"""Format → function from the key and value of a record to the event; None for a record that is skipped."""
