"""Caches fetched schemas, and decodes values with them (pure)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from streams_app.envelopes import Format
from streams_app.errors import BadEventError, InternalError, text_of
from streams_app.reasons import Reason
from streams_app.schemas.framing import unframed
from streams_app.schemas.schema import TYPES, Schema, json_of


class NotFetchedError(InternalError):
    """The schema of a value was not fetched yet."""

    def __init__(self, schema_id: int) -> None:
        super().__init__(f"schema {schema_id} is not fetched")
        self.schema_id = schema_id


class SchemaEntry(NamedTuple):
    """The registry's answer for one schema id: the parsed schema, or that there is none.

    If there is none, ``type`` is empty, and events with this id become dead letters with this reason and detail.
    """

    type: str
    schema: Schema | None
    reason: Reason = "unknown-schema"
    detail: str = ""


class SchemaCache:
    """Least-recently-used cache of schemas. Decoding never waits: a missing schema raises :class:`NotFetchedError`.

    It has at most ``most`` schemas, or as many as a single batch needs if these are more.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: dict[int, SchemaEntry] = {}

    def missing(self, ids: Iterable[int]) -> list[int]:
        """Return those of the ids whose schemas are not cached; mark the schemas of the others as recently used."""
        missing = []
        for number in ids:
            entry = self._entries.pop(number, None)
            if entry is None:
                missing.append(number)
            else:
                self._entries[number] = entry
        return missing

    def keep(self, number: int, entry: SchemaEntry, wanted: Collection[int] = ()) -> None:
        """Add the entry of a schema; if the cache is full, drop the least recently used schema that is not in ``wanted``."""
        self._entries[number] = entry
        if len(self._entries) > self._most:
            oldest = next((one for one in self._entries if one != number and one not in wanted), None)
            if oldest is not None:
                del self._entries[oldest]

    def forget(self, number: int) -> None:
        """Remove a schema, so that it is fetched again."""
        self._entries.pop(number, None)

    def json(self, value: bytes, declared: Format) -> bytes:
        """Return a framed value as JSON. A JSON body is returned as it is, without validation.

        Formats with an envelope accept schemas of any type.

        Raises:
            NotFetchedError: The schema of the value was not fetched yet.
            BadEventError: The reason is ``unknown-schema`` if the registry has no such schema. It is ``wrong-format`` if the value
                has no frame or does not fit its schema, or if the schema is of another type.
        """
        number, body = unframed(value)
        if declared == "json-schema":
            return body
        if (entry := self._entries.get(number)) is None:
            raise NotFetchedError(number)
        if entry.schema is None:
            raise BadEventError(entry.reason, entry.detail)
        if declared in TYPES and TYPES[declared] != entry.type:
            raise BadEventError("wrong-format", f"schema {number} is of type {entry.type}, and the format is {declared}")
        if entry.type == "JSON":
            return body
        try:
            return json_of(entry.schema.decode(body))
        except Exception as error:  # libraries raise many types for bytes that do not fit
            raise BadEventError("wrong-format", f"the body cannot be decoded by schema {number}: {text_of(error)}") from error
