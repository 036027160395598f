"""Decodes the event in a record value of any format (pure).

Live views and journals use this module to read single fields of events. Folds use only its handling of frames, see
:mod:`streams_app.folding.reading.unwrapping`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from streams_app.codec import decode_object
from streams_app.envelopes import REGISTERED, UNAVAILABLE, Format, view_of
from streams_app.errors import BadEventError, BeyondDoubleError
from streams_app.schemas.cache import SchemaCache
from streams_app.schemas.framing import is_framed


class KeyedValue(Protocol):
    """Key and value of a consumer record in bytes, as produced; the value of a tombstone is None."""

    @property
    def key(self) -> bytes | None: ...

    @property
    def value(self) -> bytes | None: ...


class ValueReader:
    """Decodes the events in records of one topic, whose values have one format."""

    def __init__(self, declared: Format, schemas: SchemaCache | None = None, unavailable: str = UNAVAILABLE) -> None:
        """Create a reader for one format.

        Args:
            schemas: Schemas of framed values; None means that values are JSON without frames, as in a test.
            unavailable: With ``debezium``, the placeholder for values that an update did not change.
        """
        self._format = declared
        self._schemas = schemas
        self._view_of = view_of(declared, unavailable)
        self._is_of_rows = declared == "debezium"
        self._is_registered = declared in REGISTERED

    def framed_parts(self, records: Iterable[KeyedValue]) -> Iterator[bytes | None]:
        """Yield the record values whose schemas must be fetched before :meth:`event`; for ``debezium``, also the record keys.

        Values without a frame are yielded, too; nothing is yielded for ``json`` and ``json-schema``, which need no schemas.
        """
        if self._format in ("json", "json-schema"):
            return
        for record in records:
            yield record.value
            if self._is_of_rows:
                yield record.key

    def is_framed(self, value: bytes | None) -> bool:
        """Return whether a value has a frame, or the format requires one. Always False without schemas."""
        return self._schemas is not None and (self._is_registered or is_framed(value))

    def json(self, value: bytes) -> bytes:
        """Return a framed value as JSON, see :meth:`.SchemaCache.json`, and any other value as it is."""
        return self._schemas.json(value, self._format) if self._schemas is not None and self.is_framed(value) else value

    def key_json(self, key: bytes | None) -> bytes | None:
        """Return a framed record key as JSON; its schema may be of any type, whatever the format of the values.

        A key without a frame, or one that cannot be decoded, is returned as it is; NotFetchedError if its schema was not fetched.
        """
        if self._schemas is None or key is None or not is_framed(key):
            return key
        try:
            return self._schemas.json(key, "debezium")
        except BadEventError:
            return key

    def event(self, key: bytes | None, value: bytes) -> dict[str, Any] | None:
        """Return the event in a record; None if the record contains none, for example a heartbeat of Debezium.

        With ``debezium`` and ``cloudevents``, the event also has the fields of its envelope, such as ``@op`` and ``@type``.

        Raises:
            NotFetchedError: The schema of the key or the value was not fetched yet.
            BeyondDoubleError: The reason is ``not-json``, but only because a number is too large for a double.
            BadEventError: The reason is ``not-json``, ``not-an-object``, ``unknown-schema`` or ``wrong-format``.
        """
        if self._view_of is None:
            return decode_object(value)
        json = self.json(value)
        if self._is_of_rows:
            key = self.key_json(key)
        try:
            event = decode_object(json)
        except BeyondDoubleError as error:
            view = self._view(key, error.rest)
            if view is None:
                return None
            raise BeyondDoubleError(error.detail, view) from error
        return self._view(key, event)

    def _view(self, key: bytes | None, value: dict[str, Any]) -> dict[str, Any] | None:
        assert self._view_of is not None  # checked by the caller
        try:
            return self._view_of(key, value)
        except RecursionError as error:
            raise BadEventError("wrong-format", "columns are nested too deeply to be compared") from error
