"""What a journal keeps of a record: the key it is filed under, and its bytes (pure)."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Protocol

import orjson

from streams_app.codec import decode_object, member_of
from streams_app.errors import BadEventError, BeyondDoubleError
from streams_app.settings import Limits

UNKEYED: Final = b""
"""The key of events that have none: not JSON, not an object, no key, or a key beyond the limits."""

MOST_VALUE_BYTES: Final = 1_000_000
"""No larger value is kept, whatever ``[limits]`` allow: one script writes it, and all who use Redis wait for that script."""

TOO_LARGE_HEADER: Final = "streams_app_too_large"
"""Only header of an entry whose value and headers are beyond the limits; it holds their bytes, as text."""

MOST_SIZE_DIGITS: Final = 12
"""Digits of that text, at most."""


class Row(NamedTuple):
    """One event of a key.

    Attributes:
        key: ``codec.member_of`` of the key fields; with ``@key`` the key of the record; or :data:`UNKEYED`.
        offset: In its partition.
        time_ms: Time of the record; -1 if it has none.
        value: As produced; None of a tombstone.
        headers: As produced, in their order.
    """

    key: bytes
    offset: int
    time_ms: int
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class SourceRecord(Protocol):
    """The attributes of a consumer record that are used."""

    @property
    def offset(self) -> int:
        """In its partition."""

    @property
    def timestamp(self) -> int | None:
        """Time of the record, ms."""

    @property
    def key(self) -> bytes | None:
        """As produced."""

    @property
    def value(self) -> bytes | None:
        """As produced."""

    @property
    def headers(self) -> Any:
        """Pairs of name and bytes."""


class Keyed(Protocol):
    """What is used of a journal's settings."""

    @property
    def is_by_record_key(self) -> bool:
        """Whether the key is that of the record, so that its value is not decoded."""

    @property
    def key_fields(self) -> tuple[str, ...]:
        """Fields or dotted paths of the key."""


class _NoKeyError(Exception):
    """An event has no key; its text is the reason."""


def row_of(record: SourceRecord, journal: Keyed, limits: Limits) -> tuple[Row, str | None]:
    """What is kept of a record, and why it is unkeyed: ``not-json``, ``not-an-object``, ``no-key`` or ``key-too-large``.

    A value beyond the limits is still read for its key, and replaced by what says how large it was, see :func:`too_large`.
    """
    stamp = record.timestamp
    value, headers = record.value, tuple((name, content) for name, content in record.headers or ())
    try:
        key, reason = _key_of(record, journal, limits.key_bytes), None
    except _NoKeyError as error:
        key, reason = UNKEYED, str(error)
    size = len(value or b"")
    size_of_headers = sum(len(name.encode()) + len(content or b"") for name, content in headers)
    if max(size, size_of_headers) > min(limits.value_bytes, MOST_VALUE_BYTES):
        size += size_of_headers
        value, headers = _value_of_size(size), ((TOO_LARGE_HEADER, b"%d" % size),)
    return Row(key, record.offset, -1 if stamp is None else stamp, value, headers), reason


def too_large(row: Row) -> int | None:
    """Bytes that the value and headers of an entry had where they were too large to be kept; None where they are kept."""
    if len(row.headers) != 1 or row.headers[0][0] != TOO_LARGE_HEADER:
        return None
    content = row.headers[0][1] or b""
    # Producers name their headers as they like: only together with the value that goes with it, it is ours.
    is_size = len(content) <= MOST_SIZE_DIGITS and content.isdigit()
    return int(content) if is_size and row.value == _value_of_size(int(content)) else None


def _value_of_size(size: int) -> bytes:
    return orjson.dumps({"too_large": size})


def _key_of(record: SourceRecord, journal: Keyed, key_bytes: int) -> bytes:
    if journal.is_by_record_key:
        key, most = record.key or b"", key_bytes
    else:
        key, most = _member_of(record.value, journal.key_fields), key_bytes + 1  # with the mark of its type
    if not key:
        raise _NoKeyError("no-key")
    if len(key) > most:
        raise _NoKeyError("key-too-large")
    return key


def _member_of(value: bytes | None, fields: tuple[str, ...]) -> bytes:
    if value is None:
        raise _NoKeyError("no-key")
    try:
        event = decode_object(value)
    except BeyondDoubleError as error:
        event = error.rest
    except BadEventError as error:
        raise _NoKeyError(error.reason) from error
    try:
        return member_of(tuple(_at_path(event, field) for field in fields), fields)
    except BadEventError as error:
        raise _NoKeyError("no-key") from error


def _at_path(event: Any, path: str) -> Any:
    for step in path.split("."):
        event = event.get(step) if type(event) is dict else None
    return event
