"""Records and events that nobody has folded or published: for tests of whoever takes them."""

from __future__ import annotations

from typing import Any

import msgspec

from streams_app.delivery.batch import TP
from streams_app.errors import BadEventError
from streams_app.events.codec import encode
from streams_app.events.declaration import Event
from streams_app.events.folded import FoldInfo
from streams_app.events.headers import FOLD_ID, Envelope, headers_for
from streams_app.events.parent import Publisher
from streams_app.folding.core.record import FoldedRecord
from streams_app.local.broker import LocalRecord
from streams_app.settings import Limits
from streams_app.subscribers.declaration.received import Received
from streams_app.subscribers.declaration.subscriber import Records, Subscriber
from streams_app.subscribers.execution.decoding import decode_of


def record_of(source: Records[Any], data: Any, number: int, now_ms: int, fold_id: str | None, group: str | None) -> FoldedRecord:
    """A record as if it had been folded of one event.

    Args:
        source: Whose record.
        data: Its payload.
        number: Orders it among those of the fold.
        now_ms: When its event was.
        fold_id: None: made of the number.
        group: Its key; None: it is empty.

    Raises:
        BadEventError: The payload cannot be written as JSON, or the id is empty.
    """
    if fold_id == "":
        raise BadEventError("not-valid", "event_id = '' must have 1 byte or more")
    told = FoldInfo(
        fold_id or f"{source.fold}:{source.fold}.source:0:{number}-{number}", source.fold, "quiet", 1, now_ms, now_ms, number
    )
    _, value = encode(Event("test.record", source.payload, description="A record.", keyed_by=None), data, None, None)
    separator = b"" if value == b"{}" else b","
    return FoldedRecord(
        told.id.encode(), (group or "").encode(), b'%b%b"fold":%b}' % (value[:-1], separator, msgspec.json.encode(told))
    )


def made_event(
    subscriber: Subscriber[Any, Any, Any], data: Any, attempt: int, now_ms: int, publisher: Publisher
) -> Received[Any, Any]:
    """What a function is called with, once it has gone through bytes.

    Args:
        subscriber: Whose function.
        data: The payload.
        attempt: Number of the attempt.
        now_ms: When it is.
        publisher: Takes what the function publishes.

    Raises:
        BadEventError: The payload does not fit.
    """
    source = subscriber.source
    if isinstance(source, Records):
        folded = record_of(source, data, 0, now_ms, None, None)
        record = LocalRecord(0, now_ms, folded.key, folded.value, ((FOLD_ID, folded.fold_id),))
        topic = source.fold
    else:
        key, value = encode(source, data, None, None)
        headers = headers_for(source.key, "made-by-the-test", "test", now_ms, Envelope("made-by-the-test"))
        record, topic = LocalRecord(0, now_ms, key, value, headers), source.topic
    decoded = decode_of(subscriber, Limits(), publisher)(TP(topic, 0), record, attempt)
    assert decoded is not None  # it is of the event that the subscriber takes
    found: Received[Any, Any] = msgspec.structs.replace(decoded.event, deadline_ms=now_ms + subscriber.timeout_ms)
    return found
