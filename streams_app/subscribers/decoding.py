"""From a record of Kafka to what a subscriber's function is called with."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from streams_app.clock import Clock
from streams_app.delivery.batch import TP
from streams_app.errors import BadEventError
from streams_app.events.codec import Decoder, decoder_of, event_id, is_of
from streams_app.events.declaration import Event
from streams_app.events.parent import Publisher
from streams_app.settings import Limits
from streams_app.subscribers.around import Decode, Decoded
from streams_app.subscribers.declaration import Subscriber
from streams_app.subscribers.put_back import is_for, taken_apart
from streams_app.subscribers.received import Received

logger = logging.getLogger(__name__)

SLOW_MS: Final = 1_000
"""A ``decode=`` that takes so long is told: it runs on the loop of the worker, where it holds up everything."""


def decode_of(
    subscriber: Subscriber[Any, Any, Any],
    limits: Limits,
    publisher: Publisher | None,
    again: str = "",
    clock: Clock | None = None,
) -> Decode:
    """What makes events of the records that a subscriber reads.

    Args:
        subscriber: As it is declared.
        limits: What is too large is refused before it is decoded.
        publisher: Publishes what its function wants published.
        again: The topic of what was put back: its records stand for those that they were.
        clock: Its monotonic clock times ``decode=``; None: nobody wants to know how long that takes.
    """
    source, name = subscriber.source, subscriber.name
    is_repeatable = subscriber.idempotent == "yes"
    event = source if isinstance(source, Event) else None
    read: Decoder[Any, Any] = (
        decoder_of(source, limits) if isinstance(source, Event) else Decoder(source.payload, limits, is_folded=True)
    )
    parts = read.parts if read.decode is None or clock is None else _timed(read.parts, name, clock)

    last, before_offset = TP("", 0), ""
    """The partition of the last record, and what the places of its records begin with: most records are of the same one."""

    def decode(tp: TP, record: Any, attempt: int) -> Decoded | None:
        nonlocal last, before_offset
        headers, offset, timestamp_ms = record.headers, record.offset, record.timestamp
        is_put_back = tp.topic == again
        if is_put_back:
            if not is_for(name, headers):
                return None
            found_origin = taken_apart(headers)
            if found_origin is None:
                raise BadEventError("not-valid", "it was put back, and its headers do not say where it was")
            (tp, offset, timestamp_ms), headers = found_origin
        if headers and event is not None and not is_of(event, headers):
            return None
        topic, partition = tp
        if tp is not last:
            last, before_offset = tp, f"{topic}:{partition}:"
        place = f"{before_offset}{offset}"
        found_id = event_id(headers, limits, topic, partition, offset) if headers else place
        key = record.key
        data, before, metadata, fold = parts(key, record.value)
        version = offset if fold is None else fold.version
        # By position, which takes a quarter of the time that names take.
        received: Received[Any, Any] = Received(
            data, found_id, before, metadata, key, headers, timestamp_ms, topic, partition, offset,
            version, fold, attempt, None, name, publisher,
        )  # fmt: skip
        if is_repeatable or is_put_back or found_id == place:
            return Decoded(found_id, received)
        return Decoded(found_id, received, found_id)

    return decode


def _timed(
    parts: Callable[[bytes | None, bytes | None], Any], name: str, clock: Clock
) -> Callable[[bytes | None, bytes | None], Any]:
    def timed(key: bytes | None, value: bytes | None) -> Any:
        begun_ms = clock.monotonic_ms()
        try:
            return parts(key, value)
        finally:
            if (passed_ms := clock.monotonic_ms() - begun_ms) >= SLOW_MS:
                logger.warning(
                    "decode= of an event has held up the whole worker subscriber=%s seconds=%.1f", name, passed_ms / 1000
                )

    return timed
