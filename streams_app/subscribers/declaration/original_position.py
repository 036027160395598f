"""Events that were put back for one subscriber: where they stand, and what their headers say (pure).

They stand in a topic that every subscriber of the application reads, and nobody else: what was put into the topic of the event
itself would reach its other consumers once more. Two headers go before those that the event had: ``streams-app-replay`` names the
subscriber that is meant, ``streams-app-origin`` is ``<topic>:<partition>:<offset>:<timestamp in ms>`` of the event itself.
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
"""So many headers were put before those of the event."""

RECEIVED_HEADER: Final = "received-headers"
"""Of a dead letter: so many headers, those that follow this one, are the event's own."""

RECEIVED_BYTES: Final = 16_384
"""Headers that have more bytes together are not kept in a dead letter: it may have to leave out its value, and not them."""

_ORIGIN: Final = re.compile(rb"([a-zA-Z0-9._-]{1,249}):(\d{1,9}):(\d{1,18}):(\d{1,15})")


class OriginalPosition(NamedTuple):
    """Where an event stood, or stands, in its own topic.

    Attributes:
        tp: The partition.
        offset: Its offset there.
        timestamp_ms: Of its record.
    """

    tp: TP
    offset: int
    timestamp_ms: int

    def __str__(self) -> str:
        return f"{self.tp.topic}:{self.tp.partition}:{self.offset}:{self.timestamp_ms}"


def again_topic(app_id: str) -> str:
    """The topic of what was put back for the subscribers of an application."""
    return f"{app_id}.again"


def addressed(subscriber: str, origin: OriginalPosition, headers: Headers) -> list[tuple[str, bytes]]:
    """The headers of an event that is put back.

    Args:
        subscriber: For whom.
        origin: Where it stood.
        headers: Those that it had.
    """
    return [(REPLAY_HEADER, subscriber.encode()), (ORIGIN_HEADER, str(origin).encode()), *headers]


def is_for(subscriber: str, headers: Headers) -> bool:
    """Whether a record of that topic is meant for a subscriber."""
    return bool(headers) and headers[0] == (REPLAY_HEADER, subscriber.encode())


def taken_apart(headers: Headers) -> tuple[OriginalPosition, Headers] | None:
    """The origin of an event that was put back, and the headers that it had; None where they do not tell."""
    if len(headers) < ADDED or headers[1][0] != ORIGIN_HEADER:
        return None
    found = _ORIGIN.fullmatch(headers[1][1] or b"")
    if found is None:
        return None
    return OriginalPosition(TP(found[1].decode(), int(found[2])), int(found[3]), int(found[4])), headers[ADDED:]


def kept(headers: Sequence[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """What a dead letter says of the headers of its event, so that it can be put back as it was: behind all its own headers."""
    size = sum(len(name.encode()) + len(value or b"") for name, value in headers)
    if size > RECEIVED_BYTES:
        return [("header-bytes-not-kept", str(size).encode())]
    return [(RECEIVED_HEADER, str(len(headers)).encode()), *headers]
