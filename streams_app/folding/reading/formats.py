"""Reads folds whose events come in another format than plain JSON (pure): a step before the fields are looked up.

The records stay as they are, so that a dead letter has the bytes that were received.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from streams_app.codec import at_path
from streams_app.errors import BadEventError, BeyondDoubleError
from streams_app.fold import RECORD_KEY, Fold
from streams_app.folding.core.event import Event
from streams_app.folding.reading.reader import DecodedRange, EventReader, RawRecord, decode_all
from streams_app.formats import VIEWS, key_columns
from streams_app.settings import Limits


class FormatReader(EventReader):
    """Unwraps the events of a format, and lets another reader read them."""

    def __init__(self, fold: Fold, limits: Limits, reader: EventReader) -> None:
        super().__init__(fold, limits)
        self._reader = reader
        self._view_of = VIEWS[fold.format]
        self._is_of_rows = fold.format == "debezium"
        self._fields = () if callable(fold.group_key) or fold.group_key == RECORD_KEY else fold.group_fields

    def events(self, records: Sequence[RawRecord], decoded: Sequence[Any] | None, reading: DecodedRange) -> Iterator[Event]:
        """Iterate over the events of a range; see :meth:`EventReader.events`.

        Heartbeats, transaction metadata and tombstones of Debezium are skipped without a dead letter.
        """
        if decoded is None:
            decoded = decode_all(records, self._limits)
        kept: list[RawRecord] = []
        views: list[Any] = []
        for record, value in zip(records, decoded, strict=True):
            view = self._view(record, value)
            if view is not None or not self._is_of_rows:
                kept.append(record)
                views.append(view)
        if not self._is_of_rows:
            yield from self._reader.events(kept, views, reading)
            return
        keyed = {record.offset: self._is_keyed(record, view) for record, view in zip(kept, views, strict=True)}
        for event in self._reader.events(kept, views, DecodedRange(refused=reading.refused)):
            if not keyed[event[0]]:
                reading.misrouted += 1
                reading.misrouted_example = event[0]
            yield event

    def _view(self, record: RawRecord, value: Any) -> Any:
        """Return the event within a decoded value, an error to report, or None for an empty value or a skipped record."""
        if value is None:
            return None
        if self._is_of_rows and isinstance(value, BeyondDoubleError):
            return BadEventError(value.reason, value.detail)  # its numbers would have to be compared
        try:
            return self._view_of(record.key, value if type(value) is dict else self._rest_of(value))
        except BadEventError as error:
            return error

    def _is_keyed(self, record: RawRecord, view: Any) -> bool:
        """Return whether all events of a group have the same record key: each of its columns is a group field."""
        if self._fields == ():
            return True
        columns = key_columns(record.key)
        return bool(columns) and all(name in self._fields and at_path(view, [name]) == value for name, value in columns.items())
