"""Converts records of a source topic to rows, the form in which a journal stores events: finds the journal key of each (pure)."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

import orjson

from streams_app.codec import at_path, member_of
from streams_app.delivery.batch import SourceRecordWithHeaders
from streams_app.errors import BadEventError, BeyondDoubleError
from streams_app.events.headers import is_erasure
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

MAX_RECORD_KEY_BYTES: Final = 10_000
"""Record keys with more bytes are not stored with an event."""

_KEY_HEADER: Final = "\0"
"""Name of the last stored header of an event whose record key is not its key in the journal; its value is the record key."""

SAME_KEY: Final = (("\0=", None),)
"""The only stored header of an event without headers whose record key is the text of its key in the journal."""

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
        headers: Headers as produced, in their order; only :data:`TOO_LARGE_HEADER` if the value or the headers are too large. In a
            stored row, the record key may follow, see :func:`headers_with_key`.
    """

    key: bytes
    offset: int
    time_ms: int
    value: bytes | None
    headers: Headers = ()


class KeySettings(Protocol):
    """The settings of a journal that determine the key of an event."""

    @property
    def is_by_record_key(self) -> bool:
        """Whether the key of an event is the key of its record (``@key``), so that values are not decoded."""

    @property
    def key_fields(self) -> tuple[str, ...]:
        """Names or dotted paths of the fields that form the key."""


Headers = tuple[tuple[str, bytes | None], ...]


class _NoKeyError(Exception):
    """An event has no usable key; the text is the reason."""


class _KeylessRecord(NamedTuple):
    offset: int
    timestamp: int | None
    value: bytes | None
    headers: Headers
    key: bytes | None = None


def without_erased_key(record: SourceRecordWithHeaders) -> SourceRecordWithHeaders:
    """Return the record to be stored: without its key if it is a tombstone by which ``streams-app forget`` erases this key."""
    return _KeylessRecord(record.offset, record.timestamp, None, tuple(record.headers)) if is_erasure(record) else record


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


def max_key_bytes(journal: KeySettings, key_bytes: int) -> int:
    """Return the maximum size of a key as the journal stores it, in bytes; events with a larger one are stored without a key."""
    return key_bytes if journal.is_by_record_key else key_bytes + 1  # with its type tag


def headers_with_key(key: bytes, headers: Headers, record_key: bytes | None, *, is_by_record_key: bool) -> Headers:
    """Return the headers to be stored with an event: its own ones, and its record key as a last one.

    Workers of former versions read such a row, and return the record key as a header. Nothing is added if the key in the journal is
    the record key, or if the record key has more than :data:`MAX_RECORD_KEY_BYTES`.
    """
    if is_by_record_key and key:
        return headers
    if key and record_key == key[1:]:
        return headers + SAME_KEY
    if record_key is not None and len(record_key) > MAX_RECORD_KEY_BYTES:
        return headers
    return (*headers, (_KEY_HEADER, record_key))


def record_key_of(row: Row, *, is_by_record_key: bool) -> tuple[bytes | None, Headers]:
    """Return the record key of a stored event, and its own headers.

    The record key is None if the record has none, or if it was not stored: it was too large, or a former version stored the event.
    """
    headers = row.headers
    if is_by_record_key and row.key:
        return row.key, headers
    if headers and headers[-1] == SAME_KEY[0]:
        return row.key[1:], headers[:-1]
    if headers and headers[-1][0] == _KEY_HEADER:
        return headers[-1][1], headers[:-1]
    return None, headers


def too_large(row: Row) -> int | None:
    """Return the size of an event's value and headers in bytes if they were too large to be stored; None if they are stored."""
    _, headers = record_key_of(row, is_by_record_key=False)
    if len(headers) != 1 or headers[0][0] != TOO_LARGE_HEADER:
        return None
    content = headers[0][1] or b""
    # A producer may use the same header name: the value must match, too.
    is_size = len(content) <= MAX_SIZE_DIGITS and content.isdigit()
    return int(content) if is_size and row.value == _value_of_size(int(content)) else None


def _value_of_size(size: int) -> bytes:
    return orjson.dumps({"too_large": size})


def _key_of(record: SourceRecordWithHeaders, journal: KeySettings, key_bytes: int, values: ValueReader) -> bytes:
    if journal.is_by_record_key:
        key = record.key or b""
    else:
        key = _member_of(record, journal.key_fields, values)
    if not key:
        raise _NoKeyError("no-key")
    if len(key) > max_key_bytes(journal, key_bytes):
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
