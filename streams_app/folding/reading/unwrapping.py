"""Unwraps events in other formats than plain JSON, before their fields are read (pure).

The records are not changed, so a dead letter has the bytes that were received.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import orjson

from streams_app.codec import at_path, canonical_bytes, decode_object, member_of
from streams_app.delivery.batch import SourceRecord
from streams_app.envelopes import key_columns, view_of
from streams_app.errors import BadEventError, BeyondDoubleError
from streams_app.exact_json import decode, encode
from streams_app.fold import RECORD_KEY, Fold
from streams_app.folding.core.event import FoldInput
from streams_app.folding.reading.reader import EventReader, RangeFaults, decode_all
from streams_app.schemas.cache import SchemaCache
from streams_app.schemas.values import KeyedValue, ValueReader
from streams_app.settings import Limits


class FormatReader(EventReader):
    """Unwraps Debezium or CloudEvents envelopes and schema-registry frames, and passes the events to another reader."""

    def __init__(self, fold: Fold, limits: Limits, reader: EventReader, schemas: SchemaCache | None = None) -> None:
        super().__init__(fold, limits)
        self.reads_frames = schemas is not None
        self._values = ValueReader(fold.format, schemas)
        self._reader = reader
        view = view_of(fold.format, fold.unavailable_value)
        assert view is not None  # plain JSON needs no unwrapping
        self._view_of = view
        self._is_of_rows = fold.format == "debezium"
        self._is_by_key = fold.group_key == RECORD_KEY
        self._has_fields = not callable(fold.group_key) and not self._is_by_key

    def framed_parts(self, records: Sequence[KeyedValue]) -> Iterator[bytes | None]:
        """Keys are included with every format, because a key may be the group key, and is compared with it."""
        return chain((record.key for record in records), self._values.framed_parts(records)) if self.reads_frames else iter(())

    def events(self, records: Sequence[SourceRecord], decoded: Sequence[Any] | None, faults: RangeFaults) -> Iterator[FoldInput]:
        """Heartbeats, transaction metadata and tombstones of Debezium are skipped without a dead letter.

        The schemas of all framed keys and values must have been fetched before.
        """
        if decoded is None:
            decoded = [None if self._values.is_framed(one.value) else decode_all([one], self._limits)[0] for one in records]
        kept: list[SourceRecord] = []
        views: list[Any] = []
        found: dict[int, tuple[bytes | None, bytes | None, Any]] = {}
        for record, value in zip(records, decoded, strict=True):
            key = self._values.key_json(record.key)
            view = self._view(record, key, value)
            if view is not None or not self._is_of_rows:
                kept.append(record)
                views.append(view)
                found[record.offset] = record.key, key, view.rest if isinstance(view, BeyondDoubleError) else view
        for event in self._reader.events(kept, views, RangeFaults(rejected=faults.rejected)):
            if not self._is_keyed(*found[event[0]], event[2]):
                faults.count_misrouted(event[0])
            yield event

    def _view(self, record: SourceRecord, key: bytes | None, value: Any) -> Any:
        """Unwrap the event of a record; return an error if it must be rejected, and None if it is empty or to be skipped."""
        if not record.value:
            return None
        try:
            if self._values.is_framed(record.value):
                value = self._unframed(record.value)
            if isinstance(value, BeyondDoubleError):
                view = self._keyed(key, self._view_of(key, value.rest))
                return None if view is None else BeyondDoubleError(value.detail, view)
            return self._keyed(key, self._view_of(key, value if type(value) is dict else self._rest_of(value)))
        except BeyondDoubleError as error:
            return BeyondDoubleError(error.detail, self._keyed(key, error.rest) or {})
        except BadEventError as error:
            return error
        except RecursionError:
            return BadEventError("wrong-format", "columns are nested too deeply to be compared")

    def _keyed(self, key: bytes | None, view: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return an unwrapped event; if the record key is the group key, with this key as a field."""
        return {**view, RECORD_KEY: self._text_of_key(key)} if self._is_by_key and view is not None else view

    def _text_of_key(self, key: bytes | None) -> str:
        """Return a record key as text, without the schema that Kafka Connect may have added."""
        text = canonical_bytes(self._member_of_key(key)).decode()
        columns = key_columns(key) if text.startswith('{"schema"') else {}
        try:
            return encode(columns).decode() if columns else text
        except orjson.JSONEncodeError as error:
            raise BadEventError("no-group", f"the record key cannot be read: {error}") from error

    def _unframed(self, value: bytes) -> dict[str, Any] | BadEventError:
        if len(value) > self._limits.value_bytes:
            raise BadEventError("too-large", f"the value has {len(value)} bytes, the limit is {self._limits.value_bytes}")
        try:
            return decode_object(self._values.json(value))
        except BeyondDoubleError as error:
            return error

    def _is_keyed(self, key: bytes | None, json: bytes | None, view: Any, member: bytes) -> bool:
        """Return whether the record key of an event is the group key, or an object of group fields with the values of the event.

        The result is also True for rows whose group keys are computed by a function of the user: those cannot be checked.
        """
        if self._is_by_key or key == canonical_bytes(member) or (self._is_of_rows and not self._has_fields):
            return True
        if json is not key and not (json or b"").startswith(b"{"):
            return _member_of(json) == member
        fields = self._fold.group_fields
        columns = key_columns(json) if self._has_fields else {}
        return bool(columns) and all(name in fields and at_path(view, [name]) == value for name, value in columns.items())


def _member_of(json: bytes | None) -> bytes | None:
    """Return the bytes of the group whose key is this JSON scalar; None if the JSON is no scalar."""
    try:
        return member_of((decode(json or b""),))
    except (orjson.JSONDecodeError, BadEventError):
        return None
