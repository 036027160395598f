"""Converts records of a source topic to rows, the form in which a journal stores events: finds the journal key of each (pure)."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

import orjson

from streams_app.codec import at_path, member_of
from streams_app.delivery.batch import SourceRecordWithHeaders
from streams_app.errors import BadEventError, BeyondDoubleError
from streams_app.schemas.values import ValueReader
from streams_app.settings import Limits

UNKEYED: Final = b""
"""Key of events without a usable key: the value is not a JSON object of the right format, or its key is missing or too large."""

MAX_VALUE_BYTES: Final = 1_000_000
"""Maximum bytes of a stored value, and of stored headers, even if ``[limits]`` allow more.

While a script writes an event, Redis serves no other client.
"""

TOO_LARGE_HEADER: Final = "streams_app_too_large"
"""Name of the only header of an entry whose value or headers were too large to be stored. It contains their size, as text."""

MAX_SIZE_DIGITS: Final = 12
"""Maximum number of digits of the size in :data:`TOO_LARGE_HEADER`."""


class Row(NamedTuple):
    """One stored event.

    Attributes:
        key: The key fields, as ``codec.member_of`` encodes them; with ``@key``, the key of the record. It is :data:`UNKEYED` if the
            event has no usable key.
        offset: Offset in its partition.
        time_ms: Time of the record; -1 if it has none.
        value: Value as produced; None for a tombstone. If the value or the headers are too large to be stored, it is a JSON object
            with their size.
        headers: Headers as produced, in their order; only :data:`TOO_LARGE_HEADER` if the value or the headers are too large.
    """

    key: bytes
    offset: int
    time_ms: int
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class KeySettings(Protocol):
    """The settings of a journal that determine the key of an event."""

    @property
    def is_by_record_key(self) -> bool:
        """Whether the key of an event is the key of its record (``@key``), so that values are not decoded."""

    @property
    def key_fields(self) -> tuple[str, ...]:
        """Names or dotted paths of the fields that form the key."""


class _NoKeyError(Exception):
    """An event has no usable key; the text is the reason."""


PLAIN: Final = ValueReader("json")


def row_of(
    record: SourceRecordWithHeaders, journal: KeySettings, limits: Limits, values: ValueReader = PLAIN
) -> tuple[Row, str | None]:
    """Convert a record to the row to be stored; also return the reason why it has no usable key, or None if it has one.

    Reasons are ``not-json``, ``not-an-object``, ``unknown-schema``, ``wrong-format``, ``no-key`` and ``key-too-large``. If the
    value or the headers exceed the limits, the row has their size in place of both, see :func:`too_large`; its key is still that of
    the original value.

    Raises:
        NotFetchedError: A schema that the value needs is not cached. Fetch the schemas of :meth:`.ValueReader.framed_parts` first.
    """
    stamp = record.timestamp
    value, headers = record.value, tuple((name, content) for name, content in record.headers or ())
    try:
        key, reason = _key_of(record, journal, limits.key_bytes, values), None
    except _NoKeyError as error:
        key, reason = UNKEYED, str(error)
    size = len(value or b"")
    size_of_headers = sum(len(name.encode()) + len(content or b"") for name, content in headers)
    if max(size, size_of_headers) > min(limits.value_bytes, MAX_VALUE_BYTES):
        size += size_of_headers
        value, headers = _value_of_size(size), ((TOO_LARGE_HEADER, b"%d" % size),)
    return Row(key, record.offset, -1 if stamp is None else stamp, value, headers), reason


def too_large(row: Row) -> int | None:
    """Return the size of an event's value and headers in bytes if they were too large to be stored; None if they are stored."""
    if len(row.headers) != 1 or row.headers[0][0] != TOO_LARGE_HEADER:
        return None
    content = row.headers[0][1] or b""
    # A producer may use the same header name: the value must match, too.
    is_size = len(content) <= MAX_SIZE_DIGITS and content.isdigit()
    return int(content) if is_size and row.value == _value_of_size(int(content)) else None


def _value_of_size(size: int) -> bytes:
    return orjson.dumps({"too_large": size})


def _key_of(record: SourceRecordWithHeaders, journal: KeySettings, key_bytes: int, values: ValueReader) -> bytes:
    if journal.is_by_record_key:
        key, most = record.key or b"", key_bytes
    else:
        key, most = _member_of(record, journal.key_fields, values), key_bytes + 1  # with its type tag
    if not key:
        raise _NoKeyError("no-key")
    if len(key) > most:
        raise _NoKeyError("key-too-large")
    return key


def _member_of(record: SourceRecordWithHeaders, fields: tuple[str, ...], values: ValueReader) -> bytes:
    if record.value is None:
        raise _NoKeyError("no-key")
    try:
        event = values.event(record.key, record.value)
    except BeyondDoubleError as error:
        event = error.rest
    except BadEventError as error:
        raise _NoKeyError(error.reason) from error
    try:
        return member_of(tuple(at_path(event, field.split(".")) for field in fields), fields)
    except BadEventError as error:
        raise _NoKeyError("no-key") from error
