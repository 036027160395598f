"""Decodes Kafka records into the argument of a subscriber's function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from streams_app.delivery.batch import TP
from streams_app.errors import BadEventError, NotDecodedError
from streams_app.events.codec import Decoder, decoder_of, event_id, names, runs_users_code
from streams_app.events.declaration import Event
from streams_app.events.headers import identity_of, is_erasure
from streams_app.events.parent import Publisher
from streams_app.events.unwrapping import unwrap_of
from streams_app.schemas.cache import SchemaCache
from streams_app.settings import Limits
from streams_app.subscribers.declaration.received import Received
from streams_app.subscribers.declaration.replayed_event import is_replay_for, parse_replay
from streams_app.subscribers.declaration.subscriber import Subscriber


class DecodedRecord(msgspec.Struct, frozen=True, gc=False):
    """A record decoded as an event. The struct is not garbage-collected, so its values must not refer to it.

    Attributes:
        event: Argument of the function.
        own_id: Identity for deduplication, see :func:`.identity_of`. It is "" if the subscriber has no deduplication, or if the
            publisher has set no id. It is also "" if the record was replayed: its event must run although its id was seen before.
    """

    event_id: str
    event: Any
    own_id: str = ""


Decode = Callable[[TP, Any, int], DecodedRecord | None]
"""Function that decodes a record, given the partition, the record and the number of the attempt. It returns None if the subscriber
skips the record. It raises :class:`streams_app.errors.BadEventError` if the record is not a valid event, and
:class:`.NotFetchedError` if the schema of the record has to be fetched first."""


class UndecodedValue(msgspec.Struct, frozen=True, gc=False):
    """Placeholder in ``Received.data`` for a value that is decoded only when the function is called.

    Decoding that runs code of users may take long or hang, so it runs in the executor slot.
    """

    key: bytes | None
    value: bytes
    names_type: bool


def decode_of(
    subscriber: Subscriber[Any, Any, Any],
    limits: Limits,
    publisher: Publisher | None,
    replays_topic: str = "",
    *,
    is_late: bool = False,
    schemas: SchemaCache | None = None,
) -> Decode:
    """Return the function that decodes the records of a subscriber.

    Args:
        limits: Maximum sizes of events, from the settings; a larger record is rejected before it is decoded.
        publisher: Publishes the events that the function passes to :meth:`.Received.publish`; None: the function cannot publish.
        replays_topic: The topic of replayed events, which are decoded with their original positions; "" if there is none.
        is_late: Whether decoding that runs code of users is left to :func:`function_of`, outside the event loop of the worker.
        schemas: Decodes framed values, and raises :class:`.NotFetchedError` for a schema that has to be fetched first. None: no
            value is framed.
    """
    source, name = subscriber.source, subscriber.name
    is_repeatable = subscriber.is_repeatable
    ignores_tombstones = subscriber.tombstones == "ignore"
    event = source if isinstance(source, Event) else None
    read = _decoder(subscriber, limits)
    unwrap = None if event is None else unwrap_of(event.format, schemas)
    is_of_rows = event is not None and event.format == "debezium"
    ignores_tombstones = ignores_tombstones or is_of_rows  # Debezium sends a tombstone after each delete
    parts = _left_for_later(read) if is_late and runs_users_code(read) else read.parts

    last, before_offset = TP("", 0), ""
    """The partition of the last record, and the prefix of its positions: most records are from the same partition."""

    def decode(tp: TP, record: Any, attempt: int) -> DecodedRecord | None:
        nonlocal last, before_offset
        headers, offset, timestamp_ms = record.headers, record.offset, record.timestamp
        is_replayed = tp.topic == replays_topic
        if is_replayed:
            if not is_replay_for(name, headers):
                return None
            found_origin = parse_replay(headers)
            if found_origin is None:
                raise BadEventError("not-valid", "it was replayed, but its headers do not contain its original position")
            (tp, offset, timestamp_ms), headers = found_origin
        value = record.value
        if unwrap is not None and value and len(value) <= limits.value_bytes:
            found_event = unwrap(headers, value)
            if found_event is None:
                return None
            headers, value = found_event
        is_named = names(event, headers) if headers and event is not None else None
        if is_named is False or (record.value is None and (ignores_tombstones or is_erasure(record))):
            return None
        topic, partition = tp
        if tp is not last:
            last, before_offset = tp, f"{topic}:{partition}:"
        position = f"{before_offset}{offset}"
        found_id = event_id(headers, limits, topic, partition, offset) if headers else position
        key = record.key
        data, before, metadata, fold = parts(key, value, names_type=is_named is True or is_of_rows)
        version = offset if fold is None else fold.version
        # Positional, because keyword arguments take four times as long.
        received: Received[Any, Any] = Received(
            data, found_id, before, metadata, key, headers, timestamp_ms, topic, partition, offset,
            version, fold, attempt, None, name, publisher,
        )  # fmt: skip
        if is_repeatable or is_replayed or found_id == position:
            return DecodedRecord(found_id, received)
        return DecodedRecord(found_id, received, identity_of(found_id, headers))

    return decode


def function_of(subscriber: Subscriber[Any, Any, Any], limits: Limits) -> Callable[[Any], Any]:
    """Return the function that an executor calls with each event, usually the function of the subscriber itself.

    If decoding runs code of users, the returned function first decodes the value, which :func:`decode_of` has left undecoded with
    ``is_late``, and then calls the function of the subscriber. So the decoding runs within the time-out of the attempt and in its
    executor slot, and never blocks the event loop of the worker.

    Raises:
        NotDecodedError: Raised by the returned function if the event cannot be decoded.
    """
    function = subscriber.function
    read = _decoder(subscriber, limits)
    if not runs_users_code(read):
        return function
    parts = read.parts

    def decode_in_place(event: Received[Any, Any]) -> None:
        raw = event.data
        assert isinstance(raw, UndecodedValue)
        try:
            data, before, metadata, fold = parts(raw.key, raw.value, names_type=raw.names_type)
        except BadEventError as error:
            raise NotDecodedError(error) from error
        found = {"data": data, "before": before, "metadata": metadata, "fold": fold}
        for name, part in found.items():
            force_setattr(event, name, part)
        if fold is not None:
            force_setattr(event, "version", fold.version)

    async def decode_and_await(event: Received[Any, Any]) -> None:
        decode_in_place(event)
        await function(event)

    def decode_and_call(event: Received[Any, Any]) -> Any:
        decode_in_place(event)
        return function(event)

    return decode_and_await if subscriber.is_async else decode_and_call


def _decoder(subscriber: Subscriber[Any, Any, Any], limits: Limits) -> Decoder[Any, Any]:
    source = subscriber.source
    return (
        decoder_of(source, limits)
        if isinstance(source, Event)
        else Decoder(source.value_type, limits, is_folded=True, is_list=source.is_list)
    )


def _left_for_later(read: Decoder[Any, Any]) -> Callable[..., Any]:
    def parts(key: bytes | None, value: bytes | None, *, names_type: bool) -> Any:
        return UndecodedValue(key, read.require_size(key, value), names_type), None, None, None

    return parts
