"""Reads the event within a value, whatever its format: for live views and journals, which need single fields of it (pure)."""

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
        json = self._json(value, must_be_framed=self._is_registered)
        if self._is_of_rows and key is not None:
            key = self._key_json(key)
        try:
            return self._view_of(key, decode_object(json))
        except BeyondDoubleError as error:
            if self._is_of_rows:  # its numbers would have to be compared
                raise BadEventError(error.reason, error.detail) from error
            raise BeyondDoubleError(error.detail, self._view_of(key, error.rest) or {}) from error

    def _json(self, part: bytes, *, must_be_framed: bool) -> bytes:
        if self._schemas is not None and (must_be_framed or is_framed(part)):
            return self._schemas.json(part, self._format)
        return part

    def _key_json(self, key: bytes) -> bytes:
        try:
            return self._json(key, must_be_framed=False)
        except BadEventError:
            return key
