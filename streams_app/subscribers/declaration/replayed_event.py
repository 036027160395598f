"""Replay of events for one subscriber: the replay topic, and the headers that contain the original position (pure).

Replayed events are written to a separate topic that only the subscribers of the application read, because in their own topic all
other consumers would receive them a second time. A replay puts two headers before those of the event: ``streams-app-replay`` names
the subscriber, and ``streams-app-origin`` has the original position, as ``<topic>:<partition>:<offset>:<timestamp in ms>``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from streams_app.delivery.batch import TP
from streams_app.events.headers import Headers

REPLAY_HEADER: Final = "streams-app-replay"
ORIGIN_HEADER: Final = "streams-app-origin"
ADDED: Final = 2
"""Number of headers that a replay puts before those of the event."""

RECEIVED_HEADER: Final = "received-headers"
"""Header of a dead letter whose value is the number of original event headers that follow it."""

RECEIVED_BYTES: Final = 16_384
"""Maximum total size of event headers that are copied into a dead letter. With larger headers, the dead letter might become too
large for the broker, and would have to omit the value."""

_ORIGIN: Final = re.compile(rb"([a-zA-Z0-9._-]{1,249}):(\d{1,9}):(\d{1,18}):(\d{1,15})")


class OriginalPosition(NamedTuple):
    """The position of an event in its own topic."""

    tp: TP
    offset: int
    timestamp_ms: int

    def __str__(self) -> str:
        return f"{self.tp.topic}:{self.tp.partition}:{self.offset}:{self.timestamp_ms}"


def replay_topic(app_id: str) -> str:
    """Return the name of the topic for events that are replayed for the subscribers of an application."""
    return f"{app_id}.again"


def replay_headers(subscriber: str, origin: OriginalPosition, headers: Headers) -> list[tuple[str, bytes]]:
    """Return the headers of a replayed event, which ``subscriber`` will process."""
    return [(REPLAY_HEADER, subscriber.encode()), (ORIGIN_HEADER, str(origin).encode()), *headers]


def is_replay_for(subscriber: str, headers: Headers) -> bool:
    """Return whether the headers of a record from the replay topic name this subscriber as its destination."""
    return bool(headers) and headers[0] == (REPLAY_HEADER, subscriber.encode())


def parse_replay(headers: Headers) -> tuple[OriginalPosition, Headers] | None:
    """Return the original position and the original headers of a replayed event; None if the position is missing or not valid."""
    if len(headers) < ADDED or headers[1][0] != ORIGIN_HEADER:
        return None
    found = _ORIGIN.fullmatch(headers[1][1] or b"")
    if found is None:
        return None
    return OriginalPosition(TP(found[1].decode(), int(found[2])), int(found[3]), int(found[4])), headers[ADDED:]


def received_headers(headers: Sequence[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """Return the headers by which a dead letter preserves the headers of its event, so that a replay can restore them.

    The result is :data:`RECEIVED_HEADER`, whose value is the number of the event's headers, followed by these headers. If they are
    larger than :data:`RECEIVED_BYTES` together, the result is one other header with their total size.
    """
    size = sum(len(name.encode()) + len(value or b"") for name, value in headers)
    if size > RECEIVED_BYTES:
        return [("header-bytes-not-kept", str(size).encode())]
    return [(RECEIVED_HEADER, str(len(headers)).encode()), *headers]
