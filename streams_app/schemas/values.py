"""Reads the event in a value of any format (pure).

Live views and journals read single fields of events by it. Folds use only its handling of frames, see
:mod:`streams_app.folding.reading.formats`.
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
    """Key and value of a consumer record, the parts that a :class:`ValueReader` decodes."""

    @property
    def key(self) -> bytes | None:
        """Key as produced."""

    @property
    def value(self) -> bytes | None:
        """Value as produced."""


class ValueReader:
    """Reads events from record values of one format."""

    def __init__(self, declared: Format, schemas: SchemaCache | None = None) -> None:
        """Create a reader for one format.

        Args:
            declared: The format.
            schemas: Schemas of framed values; None: values are plain JSON without frames, as in a test.
        """
        self._format = declared
        self._schemas = schemas
        self._view_of = VIEWS.get(declared)
        self._is_of_rows = declared == "debezium"
        self._is_registered = declared in REGISTERED

    def framed_parts(self, records: Iterable[KeyedValue]) -> Iterator[bytes | None]:
        """Yield the keys and values whose schemas :meth:`event` needs; none for ``json`` and ``json-schema``."""
        if self._format in ("json", "json-schema"):
            return
        for record in records:
            yield record.value
            if self._is_of_rows:
                yield record.key

    def is_framed(self, value: bytes | None) -> bool:
        """Return whether a value has a frame, or its format requires one."""
        return self._schemas is not None and (self._is_registered or is_framed(value))

    def json(self, value: bytes) -> bytes:
        """Return a framed value as JSON; other values as they are.

        Raises:
            NotFetchedError, BadEventError: As :meth:`.SchemaCache.json`.
        """
        return self._schemas.json(value, self._format) if self._schemas is not None and self.is_framed(value) else value

    def key_json(self, key: bytes | None) -> bytes | None:
        """Return a framed record key as JSON, for a schema of any type; other keys as they are."""
        if self._schemas is None or key is None or not is_framed(key):
            return key
        try:
            return self._schemas.json(key, "debezium")
        except BadEventError:
            return key

    def event(self, key: bytes | None, value: bytes) -> dict[str, Any] | None:
        """Return the event, with the rest of its envelope as fields ``@op``, ``@type`` and so on; None if the record is no event.

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
            if self._is_of_rows:  # all numbers of a row are compared, so this one is needed
                raise BadEventError(error.reason, error.detail) from error
            raise BeyondDoubleError(error.detail, self._view_of(key, error.rest) or {}) from error
