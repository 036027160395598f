"""The effect of a record on a live view: it puts an item, removes an item, does nothing, or becomes a dead letter (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple

import orjson

from streams_app.codec import at_path
from streams_app.conditions import conditions_of, is_accepted
from streams_app.delivery.batch import SourceRecordWithHeaders
from streams_app.depth import TooDeepError, check_json_depth
from streams_app.envelopes import BESIDE, UNAVAILABLE
from streams_app.errors import BadEventError, BeyondDoubleError
from streams_app.exact_json import encode, shortest
from streams_app.live.core.state import Item
from streams_app.reasons import Reason
from streams_app.schemas.cache import SchemaCache
from streams_app.schemas.values import ValueReader
from streams_app.settings.live import TYPE_HEADER, LiveView
from streams_app.unrepresentable import Unrepresentable, require_representable

NAME_BYTES: Final = 512
"""Maximum bytes of the name of a page or an item."""

PAYLOAD_BYTES: Final = 1_024
"""Maximum bytes of the payload of an item. Each message to a browser contains the payloads of all shown items."""

TYPE_RECORD_HEADER: Final = "ce_type"
FOLD: Final = ("fold",)
ID: Final = ("id",)


class Put(NamedTuple):
    """Effect of a record that adds an item to a page, or moves the time of the item forward."""

    page: str
    item: Item


class Removal(NamedTuple):
    """Effect of a record that removes an item from a page."""

    page: str
    item: str


class ViewRule:
    """Determines the effect of each record on one view; ``values`` decodes the values of the records."""

    def __init__(self, view: LiveView, value_bytes: int, schemas: SchemaCache | None = None) -> None:
        """Parse the paths and conditions of the view; without ``schemas``, values have no frame."""
        self.values = ValueReader(view.format, schemas, view.unavailable_value)
        self._page = view.page.split(".")
        self._item = view.item.split(".") if view.item else None
        self._payload = [(path, path.split(".")) for path in view.payload]
        self._has_payload = view.kind == "list"
        self._is_plain = view.format == "json"
        has_type_header = view.format != "cloudevents"  # in structured mode the type is in the value
        self._only = _conditions(view.only, has_type_header=has_type_header)
        self._remove = _conditions(view.remove, has_type_header=has_type_header)
        self._needs_event = any(path is not None for path, _ in (*self._only, *self._remove))
        self._value_bytes = value_bytes

    def effect_of(self, partition: int, record: SourceRecordWithHeaders, now_ms: int) -> Put | Removal | None:
        """Return the effect of a record on the view; None if its value is empty, no event, or does not match the conditions.

        A missing timestamp, or one in the future, counts as ``now_ms``.

        Raises:
            NotFetchedError: The schema of the value is not cached; it has to be fetched first.
            BadEventError: The record matches the conditions of the view but cannot be shown, or it cannot be decoded to evaluate
                them.
        """
        value = record.value
        if not value:
            return None
        type_name = _type_of(record)
        event: dict[str, Any] | None = None
        if self._needs_event and (event := self._decoded(record.key, value)) is None:
            return None
        is_removal = bool(self._remove) and _matches(self._remove, type_name, event)
        if not is_removal and not _matches(self._only, type_name, event):
            return None
        if event is None and (event := self._decoded(record.key, value)) is None:
            return None
        page = _name(at_path(event, self._page), "no-page", "page")
        item = self._item_of(event, partition, record.offset)
        if is_removal:
            return Removal(page, item)
        stamp = record.timestamp
        time_ms = now_ms if stamp is None or stamp < 0 else min(stamp, now_ms)
        return Put(page, Item(item, time_ms, self._payload_of(event) if self._has_payload else b""))

    def _decoded(self, key: bytes | None, value: bytes) -> dict[str, Any] | None:
        if len(value) > self._value_bytes:
            raise BadEventError("too-large", f"the value has {len(value)} bytes, the limit is {self._value_bytes}")
        try:
            return self.values.event(key, value)
        except BeyondDoubleError as error:
            return error.rest  # only a value that the view reads makes a dead letter

    def _item_of(self, event: dict[str, Any], partition: int, offset: int) -> str:
        if self._item is not None:
            return _name(at_path(event, self._item), "no-item", "item")
        fold_id = at_path(at_path(event, FOLD), ID)
        return _name(fold_id, "no-item", "fold.id") if type(fold_id) is str and fold_id else f"{partition}-{offset}"

    def _payload_of(self, event: dict[str, Any]) -> bytes:
        shown = event
        if self._payload:
            shown = {name: at_path(event, path) for name, path in self._payload}
        elif not self._is_plain:
            shown = {name: part for name, part in event.items() if not name.startswith(BESIDE)}
        try:
            payload = encode(shown)
            check_json_depth(payload, shown)
        except (orjson.JSONEncodeError, TooDeepError) as error:
            require_representable(shown, "")
            raise BadEventError("too-large", f"the payload cannot be written as JSON: {error}") from error
        if len(payload) > PAYLOAD_BYTES:
            what = "set payload to the fields that are shown" if not self._payload else "show fewer or shorter fields"
            raise BadEventError("too-large", f"the payload has {len(payload)} bytes, the limit is {PAYLOAD_BYTES}: {what}")
        return payload


def definition_of(view: LiveView) -> str:
    """Return, as JSON, the settings of a view that determine its stored state. If they change, the state is rebuilt."""
    stored = {
        "kind": view.kind, "page": view.page, "item": view.item, "expiry_ms": view.expiry_ms, "only": view.only,
        "remove": view.remove, "payload": view.payload, "keeps": view.keeps,
    }  # fmt: skip
    if view.format != "json":
        stored["format"] = view.format
    if view.unavailable_value != UNAVAILABLE:
        stored["unavailable_value"] = view.unavailable_value
    return orjson.dumps(stored, option=orjson.OPT_SORT_KEYS).decode()


_Condition = tuple[list[str] | None, frozenset[tuple[bool, Any]]]
"""Path of a field, or None for the type header, and the accepted values."""


def _conditions(given: Mapping[str, Sequence[Any]], *, has_type_header: bool) -> list[_Condition]:
    return [(None if has_type_header and path == [TYPE_HEADER] else path, values) for path, values in conditions_of(given)]


def _matches(conditions: Sequence[_Condition], type_name: str | None, event: dict[str, Any] | None) -> bool:
    return all(is_accepted(type_name if path is None else at_path(event, path), values) for path, values in conditions)


def _type_of(record: SourceRecordWithHeaders) -> str | None:
    for name, value in record.headers:
        if name == TYPE_RECORD_HEADER and value is not None:
            return value.decode(errors="replace")
    return None


def _name(value: Any, reason: Reason, what: str) -> str:
    """Convert the value of a field to the name of a page or an item. The number 7 and the text "7" give the same name."""
    if type(value) is Decimal:
        value = shortest(value)
    if type(value) is int or (type(value) is float and value.is_integer()):
        value = str(int(value))
    if type(value) is Unrepresentable:
        raise BadEventError(value.reason, f"the field of {what} is {value!r}")
    if value is None or value == "" or isinstance(value, dict | list):
        found = "missing, null or empty" if not value and not isinstance(value, dict | list) else f"a JSON {type(value).__name__}"
        raise BadEventError(reason, f"the field of {what} is {found}, not a string, a number or a boolean")
    name = value if type(value) is str else encode(value).decode()
    if len(name.encode()) > NAME_BYTES:
        raise BadEventError(reason, f"the field of {what} has {len(name.encode())} bytes, the limit is {NAME_BYTES}")
    return name
