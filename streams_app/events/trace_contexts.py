"""The trace contexts in the headers of records, as links of spans need them; nothing of OpenTelemetry is imported (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from streams_app.events.headers import TRACE_PARENT

MAX_LINKS: Final = 32
"""Maximum number of links of a span: to the newest contexts."""

CONTEXT_BYTES: Final = 55
SAMPLED: Final = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f][13579bdf]")
"""The beginning of a ``traceparent`` whose trace is recorded; a link to another one leads nowhere."""


def sampled_context(headers: Sequence[tuple[str, bytes | None]]) -> bytes | None:
    """Return the context in the headers of an event if its trace is recorded; None without one, or if it is not valid."""
    for name, value in headers:
        if name == TRACE_PARENT and value and SAMPLED.match(value):
            rest = value[CONTEXT_BYTES:]
            # Later versions of the format may append something.
            return None if rest and (value.startswith(b"00") or not rest.startswith(b"-")) else value[:CONTEXT_BYTES]
    return None


def newest_contexts(records: Iterable[Any]) -> list[bytes]:
    """Return the distinct contexts of the newest records, at most :data:`MAX_LINKS`, in the order of the records."""
    found: dict[bytes, None] = {}
    for record in records:
        if record.headers and (context := sampled_context(record.headers)) is not None:
            found.pop(context, None)
            found[context] = None
    return list(found)[-MAX_LINKS:]
