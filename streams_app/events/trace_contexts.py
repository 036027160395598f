"""Reads the trace contexts in the headers of records, for links of spans, without importing OpenTelemetry (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from streams_app.events.headers import TRACE_PARENT

MAX_LINKS: Final = 32
"""Maximum number of links of a span. If there are more trace contexts, only the newest are linked."""

CONTEXT_BYTES: Final = 55
SAMPLED: Final = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f][13579bdf]")
"""Matches the beginning of a ``traceparent`` whose trace is recorded. A link to another trace would have no target."""


def sampled_context(headers: Sequence[tuple[str, bytes | None]]) -> bytes | None:
    """Return the ``traceparent`` in the headers of an event; None if it is missing or invalid, or its trace is not recorded."""
    for name, value in headers:
        if name == TRACE_PARENT and value and SAMPLED.match(value):
            rest = value[CONTEXT_BYTES:]
            # Later versions of the format may append something.
            return None if rest and (value.startswith(b"00") or not rest.startswith(b"-")) else value[:CONTEXT_BYTES]
    return None


def newest_contexts(records: Iterable[Any]) -> list[bytes]:
    """Return the distinct trace contexts of the newest records, at most :data:`MAX_LINKS`, in the order of the records."""
    found: dict[bytes, None] = {}
    for record in records:
        if record.headers and (context := sampled_context(record.headers)) is not None:
            found.pop(context, None)
            found[context] = None
    return list(found)[-MAX_LINKS:]
