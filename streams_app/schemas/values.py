"""Reads the event within a value, whatever its format (pure).

Live views and journals need single fields of it. Folds share what concerns frames, see :mod:`streams_app.folding.reading.formats`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from streams_app.codec import decode_object
from streams_app.errors import BadEventError, BeyondDoubleError
from streams_app.formats import REGISTERED, VIEWS, Format
from streams_app.schemas.cache import SchemaCache
from streams_app.schemas.framing import is_framed


class KeyedValue(Protocol):
    """The attributes of a consumer record that are decoded."""

    @property
    def key(self) -> bytes | None:
        """Key as produced."""

    @property
    def value(self) -> bytes | None:
        """Value as produced."""


class ValueReader:
    """Reads values of one format."""

    def __init__(self, declared: Format, schemas: SchemaCache | None = None) -> None:
        """Create a reader.

        Args:
            declared: The format.
            schemas: Decodes framed values; None: what a frame would contain comes as plain JSON, as in a test.
        """
        self._format = declared
        self._schemas = schemas
        self._view_of = VIEWS.get(declared)
        self._is_of_rows = declared == "debezium"
        self._is_registered = declared in REGISTERED

    def framed_parts(self, records: Iterable[KeyedValue]) -> Iterator[bytes | None]:
        """Yield the keys and values whose schemas :meth:`event` needs; none for plain JSON, and for JSON by a schema."""
        if self._format in ("json", "json-schema"):
            return
        for record in records:
            yield record.value
            if self._is_of_rows:
                yield record.key

    def is_framed(self, value: bytes | None) -> bool:
        """Return whether a value is decoded by a schema; the values of some formats must be."""
        return self._schemas is not None and (self._is_registered or is_framed(value))

    def json(self, value: bytes) -> bytes:
        """Return a framed value as JSON; other values as they are.

        Raises:
            NotFetchedError, BadEventError: As :meth:`.SchemaCache.json`.
        """
        return self._schemas.json(value, self._format) if self._schemas is not None and self.is_framed(value) else value

    def key_json(self, key: bytes | None) -> bytes | None:
        """Return a framed record key as JSON, by a schema of any type; other keys as they are."""
        if self._schemas is None or key is None or not is_framed(key):
            return key
        try:
            return self._schemas.json(key, "debezium")
        except BadEventError:
            return key

    def event(self, key: bytes | None, value: bytes) -> dict[str, Any] | None:
        """Return the event, with what stands beside it under ``@op``, ``@type`` and so on; None for a record that is no event.

        Args:
            key: Key of the record.
            value: Its value.

        Raises:
            NotFetchedError: A schema was not fetched yet.
            BeyondDoubleError: ``not-json``, only because of a number beyond a double.
            BadEventError: ``not-json``, ``not-an-object``, ``unknown-schema`` or ``wrong-format``.
        """
        if self._view_of is None:
            return decode_object(value)
        json = self.json(value)
        if self._is_of_rows:
            key = self.key_json(key)
        try:
            return self._view_of(key, decode_object(json))
        except BeyondDoubleError as error:
            if self._is_of_rows:  # its numbers would have to be compared
                raise BadEventError(error.reason, error.detail) from error
            raise BeyondDoubleError(error.detail, self._view_of(key, error.rest) or {}) from error
