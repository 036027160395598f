"""Reads the formats of events other than plain JSON: change events of Debezium, and CloudEvents in structured mode (pure).

A fold reads the row of a change event, or the data of a CloudEvent, as the event; the fields of the envelope are added with the
prefix ``@`` (:func:`row_event`, :func:`cloud_event`). For subscribers, the envelope is not added to the payload, see
:mod:`streams_app.events.unwrapping`.

Source: the documentation of Debezium 3 (``connectors/postgresql``, "Data change events", "Transaction metadata") and CloudEvents
1.0.2, "JSON Event Format".
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Final, Literal
from uuid import UUID

import orjson

from streams_app.codec import decode_object
from streams_app.errors import BadEventError, BeyondDoubleError
from streams_app.exact_json import decode

Format = Literal["json", "debezium", "cloudevents", "avro", "protobuf", "json-schema"]

REGISTERED: Final[tuple[Format, ...]] = ("avro", "protobuf", "json-schema")
"""Formats whose values begin with a frame that names a schema. Values of ``debezium`` and ``cloudevents`` may also have one."""

COLUMNS: Final = "@columns"
"""Name of the field, in the event that a fold reads, that contains the changed columns with their new values."""

BESIDE: Final = "@"
"""Prefix of the names of envelope fields, in the event that a fold reads."""

HEADER: Final = "header:"
"""Prefix of a path that names a record header, and not a field of the event."""

DELETE: Final = "d"
OPERATIONS_WITHOUT_COMPARISON: Final = ("c", "r", DELETE)
"""Operations of a change event after which every column counts as changed: create, read (by a snapshot) and delete."""

UNAVAILABLE: Final = "__debezium_unavailable_value"
"""Default of the property ``unavailable.value.placeholder`` of Debezium."""

HEX: Final = "hex:"
"""Prefix of a placeholder that is given as hexadecimal digits, as in the property of Debezium."""

_TIMES: Final = frozenset({"ts_ms", "ts_us", "ts_ns"})
_MISSING: Final = object()


class Placeholder:
    """Debezium's placeholder for a large value that an update did not change, in the forms that it has in columns.

    An array of booleans is not recognized: its placeholder is a valid value.

    Source: ``UnchangedToastedPlaceholder`` and ``ReselectColumnsPostProcessor`` of Debezium.
    """

    def __init__(self, text: str = UNAVAILABLE) -> None:
        """Compute the forms of the property ``unavailable.value.placeholder``: a text, or ``hex:`` and hexadecimal digits.

        Raises:
            ValueError: The digits after ``hex:`` are not hexadecimal, or there is no text.
        """
        octets = bytes.fromhex(text.removeprefix(HEX)) if text.startswith(HEX) else text.encode()
        if not octets:
            raise ValueError("a placeholder has at least one character")
        plain, encoded = octets.decode(errors="replace"), base64.b64encode(octets).decode()
        uuid = UUID(bytes=hashlib.md5(octets, usedforsecurity=False).digest(), version=3)
        self._map = {plain: plain}
        self._texts = frozenset((
            plain, encoded, base64.urlsafe_b64encode(octets).decode(), octets.hex(), octets.hex().upper(), str(uuid),
            f'{{"{plain}":"{plain}"}}',
        ))  # fmt: skip
        decimals = [base64.b64encode(bytes((octet,))).decode() for octet in octets]
        self._arrays = [
            [octet - 256 if octet > 127 else octet for octet in octets],  # noqa: PLR2004  # bytes of Java have a sign
            decimals,
            [{"scale": 0, "value": decimal} for decimal in decimals],
        ]

    def is_in(self, value: Any) -> bool:
        """Return whether the value of a column is the placeholder, or an array with it."""
        kind = type(value)
        if kind is str:
            return value in self._texts
        if kind is dict:
            return bool(value == self._map)
        return kind is list and (value in self._arrays or any(type(one) is not list and self.is_in(one) for one in value))

    def without(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return a row without the columns whose value is the placeholder."""
        try:
            if self._texts.isdisjoint(row.values()):
                return row
        except TypeError:
            pass  # a value cannot be hashed: an array or an object
        return {name: value for name, value in row.items() if not self.is_in(value)}


_DEFAULT: Final = Placeholder()


def is_beside_changes(names: Collection[str], status: Any) -> bool:
    """Return whether a record of Debezium with these fields is a heartbeat, or the beginning or end of a transaction.

    ``status`` is the value of its field ``status``; None if there is no such field.
    """
    if names and _TIMES.issuperset(names):
        return True
    return status in ("BEGIN", "END") and "id" in names and "op" not in names


def without_row(op: Any) -> BadEventError:
    """Return the error for a change event of Debezium without a row, or for a value that is none because ``op`` is not text."""
    if type(op) is not str:
        return BadEventError("wrong-format", "no change event of Debezium: it has no op")
    side = "before, and a deleted row is" if op == DELETE else "after, and the row is"
    return BadEventError("wrong-format", f"a change event of Debezium with op {op!r} and no row: {side} null or missing")


def unwrapped(value: Any) -> Any:
    """Return the payload of a value that Kafka Connect wrote together with its schema; return other values unchanged."""
    return value["payload"] if type(value) is dict and value.keys() == {"schema", "payload"} else value


def row_event(key: bytes | None, value: dict[str, Any], placeholder: Placeholder = _DEFAULT) -> dict[str, Any] | None:
    """Convert a change event of Debezium to the event that a fold reads.

    The event consists of the columns of the row, and of the fields of the envelope as ``@op``, ``@source`` and so on. The row is
    ``after``, or ``before`` for a delete. Missing columns are taken from the record key, and so is the whole row of a delete with
    neither ``before`` nor ``after``, as the connector for MongoDB writes it. Columns with the placeholder are left out.

    Returns:
        The event, with the changed columns under ``@columns``. None for heartbeats, transaction metadata, and tombstones that Kafka
        Connect wrote with a schema; no fold reads these.

    Raises:
        BadEventError: The value is not a change event, or has no row (reason ``wrong-format``).
    """
    change = unwrapped(value)
    if change is None:
        return None  # a tombstone that Kafka Connect wrote with a schema
    if type(change) is not dict:
        raise without_row(None)
    if is_beside_changes(change.keys(), change.get("status")):
        return None
    op, before, after = change.get("op"), _row(change.get("before")), _row(change.get("after"))
    row, columns = before if op == DELETE else after, key_columns(key)
    if op == DELETE and key and change.get("before") is None and change.get("after") is None:
        row = columns
    if type(op) is not str or row is None:
        raise without_row(op)
    beside = {f"{BESIDE}{name}": part for name, part in change.items()}
    changed = _changed_columns(op, before, after, row, placeholder)
    return {**columns, **placeholder.without(row), **beside, COLUMNS: changed}


def key_columns(key: bytes | None) -> dict[str, Any]:
    """Return the columns of a record key that is a JSON object, with or without a schema of Kafka Connect; empty for other keys."""
    if not key or key[:1] != b"{":
        return {}
    try:
        columns = unwrapped(decode(key))
    except orjson.JSONDecodeError:
        return {}
    return columns if type(columns) is dict else {}


def cloud_event(value: dict[str, Any]) -> dict[str, Any]:
    """Convert a CloudEvent in structured mode to the event that a fold reads.

    The event consists of the fields of ``data``, and of the attributes of the CloudEvent as ``@type``, ``@source`` and so on.

    Raises:
        BeyondDoubleError: The data in Base64 has a number that is too large for a double.
        BadEventError: The value has no ``specversion``, or its ``data_base64`` is not Base64 (reason ``wrong-format``). Or the data
            is not a JSON object (``not-json``, ``not-an-object``).
    """
    if type(value.get("specversion")) is not str:
        raise BadEventError("wrong-format", "no CloudEvent in structured mode: it has no specversion")
    attributes = {f"{BESIDE}{name}": part for name, part in value.items() if name not in ("data", "data_base64")}
    data = value.get("data")
    if data is None and type(encoded := value.get("data_base64")) is str:
        try:
            data = decode_object(bytes_of(encoded))
        except BeyondDoubleError as error:
            raise BeyondDoubleError(error.detail, {**error.rest, **attributes}) from error
    if data is None:
        return attributes
    if type(data) is not dict:
        raise BadEventError("not-an-object", f"data is a JSON {type(data).__name__}")
    return {**data, **attributes}


def bytes_of(encoded: str) -> bytes:
    """Decode the attribute ``data_base64`` of a CloudEvent; BadEventError (``wrong-format``) if it is not Base64."""
    try:
        return base64.b64decode(encoded, validate=True)
    except binascii.Error as error:
        raise BadEventError("wrong-format", f"data_base64 is not Base64: {error}") from error


def _row(side: Any) -> dict[str, Any] | None:
    """Return ``before`` or ``after`` as a row, None if it is none. The connector for MongoDB writes documents as text of JSON."""
    if type(side) is str:
        try:
            side = decode(side)
        except orjson.JSONDecodeError:
            return None
    return side if type(side) is dict else None


def _changed_columns(
    op: str,
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any] | None,
    row: Mapping[str, Any],
    placeholder: Placeholder,
) -> dict[str, Any]:
    """Return the changed columns with their new values.

    Columns of a deleted row, and columns that are missing in ``after``, have the value None. Columns with the placeholder for a
    value that did not change are left out.
    """
    new = after if op != DELETE and after is not None else {}
    if before is None or op in OPERATIONS_WITHOUT_COMPARISON:
        return {name: new.get(name) for name, value in row.items() if not placeholder.is_in(value)}
    changed: dict[str, Any] = dict.fromkeys(name for name in before if name not in new)
    differing = ((name, value) for name, value in new.items() if _differs(before.get(name, _MISSING), value))
    changed.update((name, value) for name, value in differing if not placeholder.is_in(value))
    return changed


def _differs(before: Any, after: Any) -> bool:
    return bool(before != after) or type(before) is not type(after)


ViewOf = Callable[[bytes | None, dict[str, Any]], dict[str, Any] | None]


def view_of(declared: Format, unavailable: str = UNAVAILABLE) -> ViewOf | None:
    """Return the function that converts the key and the decoded value of a record to an event; None for plain JSON.

    The function returns None for a record that is skipped. ``unavailable`` is the placeholder of ``debezium``.
    """
    if declared == "debezium":
        return partial(row_event, placeholder=Placeholder(unavailable))
    if declared == "cloudevents":
        return lambda _, value: cloud_event(value)
    return (lambda _, value: value) if declared in REGISTERED else None


def id_path_faults(declared: Format, path: str) -> list[str]:
    """Check the path in the setting ``dedupe_by``; return its faults for messages, empty if there are none."""
    if path == HEADER or not (path.startswith(HEADER) or all(path.split("."))):
        return [f"dedupe_by = {path!r} names no field or header"]
    if path.startswith(BESIDE) and declared == "json":
        return [f"dedupe_by: {path!r} begins with @, which no field of plain JSON may: name a field, or {HEADER}NAME"]
    return []


def placeholder_faults(declared: Format, unavailable: str) -> list[str]:
    """Check the setting ``unavailable_value``; return its faults for messages, empty if there are none."""
    if unavailable == UNAVAILABLE:
        return []
    if declared != "debezium":
        return ['unavailable_value is only for format = "debezium"']
    try:
        Placeholder(unavailable)
    except ValueError as error:
        return [f"unavailable_value = {unavailable!r}: {error}"]
    return []
