"""From a record of Kafka to what a subscriber's function is called with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streams_app.delivery.batch import TP
from streams_app.events.codec import Decoder, decoder_of, event_id, is_of
from streams_app.events.declaration import Event
from streams_app.events.parent import Publisher
from streams_app.settings import Limits
from streams_app.subscribers.around import Decode, Decoded
from streams_app.subscribers.declaration import Subscriber
from streams_app.subscribers.received import Received


def decode_of(
    subscriber: Subscriber[Any, Any, Any], limits: Limits, publisher: Publisher | None, now_ms: Callable[[], int]
) -> Decode:
    """What makes events of the records of a subscriber's topic.

    Args:
        subscriber: As it is declared.
        limits: What is too large is refused before it is decoded.
        publisher: Publishes what its function wants published.
        now_ms: Wall clock, for the deadline of an attempt.
    """
    source, name, timeout_ms = subscriber.source, subscriber.name, subscriber.timeout_ms
    event = source if isinstance(source, Event) else None
    read: Decoder[Any, Any] = (
        decoder_of(source, limits) if isinstance(source, Event) else Decoder(source.payload, limits, is_folded=True)
    )

    def decode(tp: TP, record: Any, attempt: int) -> Decoded | None:
        headers = record.headers
        if event is not None and not is_of(event, headers):
            return None
        found_id = event_id(headers, limits, *tp, record.offset)
        found = read(record.key, record.value)
        received: Received[Any, Any] = Received(
            data=found.data, id=found_id, before=found.before, metadata=found.metadata, raw_key=record.key, headers=headers,
            timestamp_ms=record.timestamp, topic=tp.topic, partition=tp.partition, offset=record.offset,
            version=record.offset if found.fold is None else found.fold.version, fold=found.fold, attempt=attempt,
            deadline_ms=now_ms() + timeout_ms, subscriber=name, publisher=publisher,
        )  # fmt: skip
        return Decoded(found_id, received)

    return decode
