"""Declaration of an event: its key, payload type, record key and topic (pure).

A declaration is immutable. It is validated when it is created, and one error lists all of its faults.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Generic, get_args, overload

from typing_extensions import TypeVar

from streams_app.envelopes import Format
from streams_app.errors import ConfigurationError
from streams_app.events.payloads import RESERVED, key_faults, payload_faults
from streams_app.fold import TOPIC_NAME

EVENT_KEY: Final = re.compile(r"^[a-z0-9][a-z0-9_-]*(\.[a-z0-9][a-z0-9_-]*)+$")
KEY_CHARACTERS: Final = 128
DESCRIPTION_CHARACTERS: Final = 1_000

T = TypeVar("T")
"""Type of the payload."""
M = TypeVar("M", default=None)
"""Type of the metadata; None unless the event declares one."""
U = TypeVar("U")
"""Type of the payload of a second event, such as one that a subscriber publishes."""
N = TypeVar("N", default=None)
"""Type of the metadata of a second event."""


@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class Event(Generic[T, M]):
    """Declaration of one kind of event.

    Attributes:
        key: Type of the event as ``domain.action``, which is in its header ``ce_type``.
        payload: Type of the payload: a msgspec Struct, a dataclass, a TypedDict or a pydantic model.
        description: What has happened, for readers of the catalogue and of the AsyncAPI document.
        keyed_by: JSON name of the field whose value becomes the record key; None: the record has no key.
        metadata: Type of the field ``metadata`` of the value; None: the event has no metadata.
        topic: The topic to which the event is published; by default, its key.
        decode: Function that converts the bytes of the value to the payload, or to a mapping of its fields, for formats that this
            project does not know. An event with this function cannot be published. None: ``format`` determines how the value is
            decoded.
        format: ``json`` for plain JSON. ``debezium`` for change events, whose row is the payload, and ``cloudevents`` for
            CloudEvents in structured mode, whose ``data`` is the payload; events in these two formats cannot be published.
            ``avro``, ``protobuf`` and ``json-schema`` for values that are framed by a schema registry.
    """

    key: str
    payload: type[T]
    description: str
    keyed_by: str | None
    metadata: type[M] | None
    topic: str
    decode: Callable[[bytes], Any] | None
    format: Format

    @overload
    def __init__(
        self: Event[T, None],
        key: str,
        payload: type[T],
        *,
        description: str,
        keyed_by: str | None,
        metadata: None = None,
        topic: str | None = None,
        decode: Callable[[bytes], Any] | None = None,
        format: Format = "json",
    ) -> None: ...
    @overload
    def __init__(
        self,
        key: str,
        payload: type[T],
        *,
        description: str,
        keyed_by: str | None,
        metadata: type[M],
        topic: str | None = None,
        decode: Callable[[bytes], Any] | None = None,
        format: Format = "json",
    ) -> None: ...
    def __init__(
        self,
        key: str,
        payload: type[T],
        *,
        description: str,
        keyed_by: str | None,
        metadata: type[M] | None = None,
        topic: str | None = None,
        decode: Callable[[bytes], Any] | None = None,
        format: Format = "json",
    ) -> None:
        """Declare an event.

        Raises:
            ConfigurationError: The declaration is invalid; the message lists all faults.
        """
        topic = key if topic is None else topic
        given = locals()
        for name in self.__slots__:
            object.__setattr__(self, name, given[name])
        if faults := _faults(self):
            raise ConfigurationError([f"event {key!r}: {fault}" for fault in faults])

    def __repr__(self) -> str:
        return f"<Event {self.key}>"


def formats_of(events: Iterable[Event[Any, Any]]) -> list[Format]:
    """Return the distinct formats of events, such as ``json`` and ``avro``, in the order of the events."""
    return list(dict.fromkeys(event.format for event in events))


def description_faults(description: Any) -> list[str]:
    """Return a list with one sentence if a description is empty or too long; otherwise, an empty list."""
    if not isinstance(description, str) or not description.strip():
        return ["description is empty: say what it is, in words"]
    if len(description) > DESCRIPTION_CHARACTERS:
        return [f"description has more than {DESCRIPTION_CHARACTERS} characters"]
    return []


def _faults(event: Any) -> list[str]:
    faults = []
    if not isinstance(event.key, str) or not EVENT_KEY.fullmatch(event.key) or len(event.key) > KEY_CHARACTERS:
        faults.append(f"the key is not domain.action, of a-z, 0-9, _ and -, at most {KEY_CHARACTERS} characters")
    faults += description_faults(event.description)
    faults += payload_faults("the payload", event.payload, RESERVED)
    faults += key_faults(event.payload, event.keyed_by)
    if event.metadata is not None:
        faults += payload_faults("the metadata", event.metadata)
    if not isinstance(event.topic, str) or not TOPIC_NAME.fullmatch(event.topic) or event.topic in (".", ".."):
        faults.append(f"topic = {event.topic!r} is not a Kafka topic name (a-z A-Z 0-9 . _ -, at most 249)")
    if event.decode is not None and not callable(event.decode):
        faults.append("decode is not a function")
    if event.format not in get_args(Format):
        faults.append(f"format = {event.format!r} must be {' or '.join(map(repr, get_args(Format)))}")
    elif event.format != "json" and event.decode is not None:
        faults.append(f"format = {event.format!r} and decode= exclude each other: both say how the value is read")
    return faults
