"""Headers of an event, as CloudEvents 1.0 in binary mode (pure).

Every event has attributes such as ``ce_type`` and ``ce_id``. All other headers ``ce_<name>`` are the context of the event: entries
that subscribers copy to the events that they publish.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from streams_app.envelopes import Format
from streams_app.errors import BadEventError

Headers = Sequence[tuple[str, bytes]]

PREFIX: Final = "ce_"
ID: Final = "ce_id"
TYPE: Final = "ce_type"
SOURCE: Final = "ce_source"
FOLD_ID: Final = "fold-id"
ERASURE: Final = "streams-app-erasure"
"""Header of a tombstone that ``streams-app forget`` has produced. Every component skips it, so nothing of its key is stored."""
TIME: Final = "ce_time"
CORRELATION_ID: Final = "ce_correlationid"
CAUSATION_ID: Final = "ce_causationid"
TRACE_PARENT: Final = "traceparent"

CONTENT_TYPES: Final[Mapping[Format, str]] = {"avro": "application/vnd.apache.avro", "protobuf": "application/x-protobuf"}
"""Media types of values by format; formats that are missing here have the media type of JSON."""

ATTRIBUTES: Final = frozenset(
    {ID, TYPE, SOURCE, TIME, CORRELATION_ID, CAUSATION_ID}
    | {"ce_specversion", "ce_datacontenttype", "ce_dataschema", "ce_subject", "ce_traceparent", "ce_tracestate"}
)
"""Headers that CloudEvents or this project defines; they are not entries of the context."""

SOURCE_BYTES: Final = 12
"""Size of the digest of a source in bytes. A stored id begins with this digest instead of the source, which may be long."""
SOURCE_CHARACTERS: Final = SOURCE_BYTES * 4 // 3
"""Length of the digest of a source as text; ``subscribers/state/lua/shared/identities.lua`` relies on this length."""

CONTEXT_NAME: Final = re.compile(r"^[a-z0-9]{1,20}$")
"""Pattern of the names of context entries, as CloudEvents defines it for extension attributes."""
CONTEXT_NAMES: Final = 16
"""Maximum number of entries in a published context."""

CONTEXT_BYTES: Final = 1_000
"""Maximum size of a published context: the names in characters plus the values in bytes of UTF-8."""


class Envelope(NamedTuple):
    """Headers of an event besides id, type, source and time.

    Attributes:
        correlation_id: Id shared by all events that the same first event caused, directly or indirectly.
        causation_id: Id of the event whose subscriber published this one; None if no subscriber did.
        context: Context entries by name: those that the publisher set, and inherited ones.
        traceparent: Position in a trace, in the format of W3C Trace Context; None if there is none.
    """

    correlation_id: str
    causation_id: str | None = None
    context: Mapping[str, str] = {}
    traceparent: str | None = None


def header(headers: Headers, name: str) -> str | None:
    """Return the text of the last header with a name; None if there is none. Invalid UTF-8 is replaced."""
    for key, value in reversed(headers):
        if key == name and value is not None:
            return value.decode("utf-8", "replace")
    return None


def is_erasure(record: Any) -> bool:
    """Return whether a record is a tombstone of ``streams-app forget``."""
    return record.value is None and any(name == ERASURE for name, _ in getattr(record, "headers", None) or ())


def source_of(headers: Headers) -> bytes:
    """Return the first non-empty header ``ce_source``. Ids of events are unique only among events with the same source.

    Empty if there is no such header, or the record has a fold id: a fold id contains fold and offsets, and so is unique by itself.
    """
    found = b""
    for name, value in headers:
        if name == FOLD_ID and value:
            return b""
        if name == SOURCE and value and not found:
            found = value
    return found


def identity_of(event_id: str, headers: Headers) -> str:
    """Return an identity for deduplication: a digest of the source, then the id, which is unique only within its source."""
    return _digest(source_of(headers)) + event_id


@lru_cache(maxsize=1_000)
def _digest(source: bytes) -> str:
    return urlsafe_b64encode(blake2b(source, digest_size=SOURCE_BYTES).digest()).decode()


def header_bytes(headers: Headers) -> int:
    """Return the total size of all header names and values, in bytes. Values may be None, as other producers may send them."""
    size = 0
    # A loop, because sum() over the pairs takes twice the time, and this runs for each event with headers.
    for name, value in headers:
        size += len(name) + (len(value) if value else 0)
    return size


def context_of(headers: Headers) -> dict[str, str]:
    """Return the context entries in headers by name: each header ``ce_<name>`` that is not one of :data:`ATTRIBUTES`."""
    return {
        key.removeprefix(PREFIX): value.decode("utf-8", "replace")
        for key, value in headers
        if key.startswith(PREFIX) and key not in ATTRIBUTES and value is not None
    }


def followed(inherited: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Return the context of an event that a subscriber publishes: new entries, and entries inherited from the handled event.

    A new entry replaces an inherited one of the same name. An inherited entry is left out if the context would otherwise exceed
    :data:`CONTEXT_NAMES` or :data:`CONTEXT_BYTES`, or if publishers may not use its name. So an event with a large context does not
    prevent its subscribers from publishing.

    Args:
        own: New context, within the limits.
    """
    found = dict(own)
    size = sum(_size(*entry) for entry in own.items())
    for name, value in inherited.items():
        if name in found or len(found) == CONTEXT_NAMES or not CONTEXT_NAME.fullmatch(name):
            continue
        if size + _size(name, value) <= CONTEXT_BYTES:
            found[name] = value
            size += _size(name, value)
    return found


def follows(value: str) -> bool:
    """Return whether a header value is short enough to be copied to the events that subscribers publish.

    The maximum is that of a whole context. Without a maximum, each subscriber in a chain would copy a long value to its events.
    """
    return len(value.encode()) <= CONTEXT_BYTES


def _size(name: str, value: str) -> int:
    return len(name) + len(value.encode())


def context_faults(context: Any) -> list[str]:
    """Return the reasons why a publisher cannot set this context, one text for each; empty if it is valid."""
    if not isinstance(context, Mapping):
        return [f"context = {context!r} is not a mapping of names to text"]
    faults = []
    for name, value in context.items():
        if not isinstance(name, str) or not CONTEXT_NAME.fullmatch(name):
            faults.append(f"context {name!r}: a name has a-z and 0-9, at most 20")
        elif PREFIX + name in ATTRIBUTES:
            faults.append(f"context {name!r}: CloudEvents gives this name a meaning of its own")
        if not isinstance(value, str):
            faults.append(f"context {name!r} is not a string")
    if len(context) > CONTEXT_NAMES:
        faults.append(f"context has {len(context)} names, at most {CONTEXT_NAMES}")
    if not faults and (size := sum(_size(*entry) for entry in context.items())) > CONTEXT_BYTES:
        faults.append(f"context has {size} bytes, at most {CONTEXT_BYTES}")
    return faults


def require_id(event_id: str, max_bytes: int) -> None:
    """Check that an event id is neither empty nor too long."""
    if not 1 <= len(event_id.encode()) <= max_bytes:
        raise BadEventError("not-valid", f"event_id = {event_id[:40]!r} must have 1 to {max_bytes} bytes")


def headers_for(
    event_key: str, event_id: str, source: str, time_ms: int, envelope: Envelope, content_type: str = "application/json"
) -> list[tuple[str, bytes]]:
    """Return the headers of an event to publish.

    Args:
        event_id: Id of the event, unique within the source.
        envelope: Further headers; the context is within the limits of :func:`context_faults`.
    """
    time = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    texts = {
        "content-type": content_type,
        "ce_specversion": "1.0",
        ID: event_id,
        TYPE: event_key,
        SOURCE: source,
        TIME: time,
        CORRELATION_ID: envelope.correlation_id,
        CAUSATION_ID: envelope.causation_id,
        TRACE_PARENT: envelope.traceparent,
    } | {PREFIX + name: value for name, value in envelope.context.items()}
    return [(name, text.encode()) for name, text in texts.items() if text is not None]
