"""Builds folded records and events without a fold or a publisher, for tests of subscribers."""

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
    """Return a folded record with a given payload, as if a fold had made it from one event.

    ``number``, of earlier records of the fold, becomes the version of the record, and part of the fold id if that is None.

    Raises:
        BadEventError: JSON cannot represent the payload, or ``fold_id`` is an empty string.
    """
    if fold_id == "":
        raise BadEventError("not-valid", "event_id = '' must have 1 byte or more")
    info = FoldInfo(
        fold_id or f"{source.fold}:{source.fold}.source:0:{number}-{number}", source.fold, "quiet", 1, now_ms, now_ms, number
    )
    if source.is_list:
        data = source.value_type(events=data)
    _, value = encode(Event("test.record", source.value_type, description="A record.", keyed_by=None), data, None, None)
    separator = b"" if value == b"{}" else b","
    return FoldedRecord(
        info.id.encode(), (group or "").encode(), b'%b%b"fold":%b}' % (value[:-1], separator, msgspec.json.encode(info))
    )


def made_event(
    subscriber: Subscriber[Any, Any, Any], data: Any, attempt: int, now_ms: int, publisher: Publisher
) -> Received[Any, Any]:
    """Encode an event, decode it like a worker, and return it as the argument of a subscriber's function.

    Raises:
        BadEventError: The payload does not match the declaration.
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
    assert decoded is not None  # the payload has the type of the subscriber's event
    found: Received[Any, Any] = msgspec.structs.replace(decoded.event, deadline_ms=now_ms + subscriber.timeout_ms)
    return found
