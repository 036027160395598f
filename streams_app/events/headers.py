"""CloudEvents 1.0 in binary mode: what stands in the headers of an event (pure).

`ce_type`, `ce_id` and the like are attributes of every event; each further `ce_<name>` is an entry of its context, which follows an
event to those that are published because of it.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from streams_app.errors import BadEventError

Headers = Sequence[tuple[str, bytes]]

PREFIX: Final = "ce_"
ID: Final = "ce_id"
TYPE: Final = "ce_type"
SOURCE: Final = "ce_source"
FOLD_ID: Final = "fold-id"
TIME: Final = "ce_time"
CORRELATION_ID: Final = "ce_correlationid"
CAUSATION_ID: Final = "ce_causationid"
TRACE_PARENT: Final = "traceparent"

ATTRIBUTES: Final = frozenset(
    {ID, TYPE, SOURCE, TIME, CORRELATION_ID, CAUSATION_ID}
    | {"ce_specversion", "ce_datacontenttype", "ce_dataschema", "ce_subject", "ce_traceparent", "ce_tracestate"}
)
"""What CloudEvents and this project give a meaning; not context."""

SOURCE_BYTES: Final = 12
"""Of the digest of a source in an identity: sources may be long, and stand beside each id that is remembered."""
SOURCE_CHARACTERS: Final = SOURCE_BYTES * 4 // 3
"""Those with which an identity begins; ``subscribers/state/lua/shared/identities.lua`` knows their number, too."""

CONTEXT_NAME: Final = re.compile(r"^[a-z0-9]{1,20}$")
"""As CloudEvents wants the names of extensions."""
CONTEXT_NAMES: Final = 16
CONTEXT_BYTES: Final = 1_000


class Envelope(NamedTuple):
    """What the headers of an event say beside its id, type and time.

    Attributes:
        correlation_id: Shared by all that goes back to one first event.
        causation_id: Id of the event because of which this one was published.
        context: What its publisher said about the circumstances.
        traceparent: Where it belongs in a trace, as W3C Trace Context writes it.
    """

    correlation_id: str
    causation_id: str | None = None
    context: Mapping[str, str] = {}
    traceparent: str | None = None


def header(headers: Headers, name: str) -> str | None:
    """The last header of that name; bytes that are not UTF-8 are replaced, as nothing but people depends on them."""
    for key, value in reversed(headers):
        if key == name and value is not None:
            return value.decode("utf-8", "replace")
    return None


def source_of(headers: Headers) -> bytes:
    """The source within which the id of an event is unique; empty where none is given, and for folded records.

    A fold id names its fold and the offsets it was made of. Of several headers with one name the first counts, as of ids.
    """
    found = b""
    for name, value in headers:
        if name == FOLD_ID and value:
            return b""
        if name == SOURCE and value and not found:
            found = value
    return found


def identity_of(event_id: str, headers: Headers) -> str:
    """By which a record is known to be the same event as another one: ids of CloudEvents are unique within a source only."""
    return _digest(source_of(headers)) + event_id


@lru_cache(maxsize=1_000)
def _digest(source: bytes) -> str:
    return urlsafe_b64encode(blake2b(source, digest_size=SOURCE_BYTES).digest()).decode()


def header_bytes(headers: Headers) -> int:
    """Bytes of all names and values; whoever else has written them may have left out a value."""
    size = 0
    # Not by sum() over the pairs, which takes twice the time: this is done for each event that has headers.
    for name, value in headers:
        size += len(name) + (len(value) if value else 0)
    return size


def context_of(headers: Headers) -> dict[str, str]:
    """The context of an event, whoever has published it."""
    return {
        key.removeprefix(PREFIX): value.decode("utf-8", "replace")
        for key, value in headers
        if key.startswith(PREFIX) and key not in ATTRIBUTES and value is not None
    }


def followed(inherited: Mapping[str, str], said: Mapping[str, str]) -> dict[str, str]:
    """The context of what is published because of an event.

    What is said anew comes first. Of what others have put into the headers of the event no more follows than may be published:
    otherwise no function could publish anything because of it.

    Args:
        inherited: Context of the event, whoever has published it.
        said: Context of the publication, within bounds.
    """
    found = dict(said)
    size = sum(_size(*entry) for entry in said.items())
    for name, value in inherited.items():
        if name in found or len(found) == CONTEXT_NAMES or not CONTEXT_NAME.fullmatch(name):
            continue
        if size + _size(name, value) <= CONTEXT_BYTES:
            found[name] = value
            size += _size(name, value)
    return found


def follows(value: str) -> bool:
    """Whether a single value that others have put into the headers of an event is passed on to those published because of it.

    It may have as many bytes as a whole context: each event of a long chain would carry it.
    """
    return len(value.encode()) <= CONTEXT_BYTES


def _size(name: str, value: str) -> int:
    return len(name) + len(value.encode())


def context_faults(context: Any) -> list[str]:
    """What keeps a context from being published, a sentence each."""
    if not isinstance(context, Mapping):
        return [f"context = {context!r} is no mapping of names to text"]
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


def require_id(event_id: str, most_bytes: int) -> None:
    """Raises a :class:`BadEventError` where a text cannot be the id of an event."""
    if not 1 <= len(event_id.encode()) <= most_bytes:
        raise BadEventError("not-valid", f"event_id = {event_id[:40]!r} must have 1 to {most_bytes} bytes")


def headers_for(event_key: str, event_id: str, source: str, time_ms: int, envelope: Envelope) -> list[tuple[str, bytes]]:
    """The headers of an event that is published.

    Args:
        event_key: Becomes its type.
        event_id: Tells it from all others of its source.
        source: Who publishes.
        time_ms: When.
        envelope: What else is said; its context is within the bounds of :func:`context_faults`.
    """
    time = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    texts = {
        "content-type": "application/json",
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
