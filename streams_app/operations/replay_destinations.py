"""Destinations of a replay: which dead letters can be replayed, into which topic, and as which record. Connects to no server.

An event of a fold is replayed into the partition from which it came. A header names the fold, so that the other folds of the source
skip the event, see :mod:`streams_app.folding.reading.replay_routing`. An event of a subscriber is replayed into the replay topic of
the application, see :mod:`streams_app.subscribers.declaration.replayed_event`: in the original topic, consumers that do not know
such headers would process the event a second time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from streams_app.delivery.batch import TP
from streams_app.delivery.producer import OutgoingRecord
from streams_app.errors import BadEventError
from streams_app.events.headers import Headers
from streams_app.fold import Fold
from streams_app.folding.reading.readers import reader_of
from streams_app.folding.reading.replay_routing import REPLAY_HEADER, replay_target
from streams_app.operations.dead_letter import ListedDeadLetter
from streams_app.reasons import FOLLOWED, INTERRUPTED, Reason
from streams_app.schemas.cache import NotFetchedError, SchemaCache
from streams_app.settings import Limits, Settings
from streams_app.subscribers.declaration.replayed_event import OriginalPosition, parse_replay, replay_headers, replay_topic
from streams_app.subscribers.declaration.subscription import Subscription
from streams_app.subscribers.execution.decoding import decode_of


class Destination(Protocol):
    """Decides which dead letters of one fold or subscriber can be replayed, and as which record of which topic.

    Attributes:
        topic: The topic into which events are replayed.
        address: Name of the fold or subscriber in receipts, ``app_id/name``.
    """

    dead_letters: str
    topic: str
    address: bytes

    def observe(self, dead_letter: ListedDeadLetter) -> None:
        """Take a dead letter into account for the decisions of :meth:`obstacle`, which may depend on other dead letters.

        Call this once for each dead letter of the component, before any of them is replayed.
        """

    def obstacle(self, dead_letter: ListedDeadLetter, partitions: int) -> str:
        """Return why a dead letter cannot or should not be replayed; empty if it can be.

        Possible reasons: the dead letter does not have the complete event, the fold or subscriber does not read such events any
        more, or the event may have been handled already. ``partitions`` is the current partition count of :attr:`topic`.
        """

    def rejections(self, dead_letter: ListedDeadLetter) -> Sequence[Reason]:
        """Return the reasons for which the fold or subscriber, as it is declared now, would reject the event again.

        The result is empty if no reason is known, for example because the schema of the event is not available here.
        """

    def event(self, dead_letter: ListedDeadLetter) -> OutgoingRecord:
        """Return the record that replays a dead letter. Call it only if :meth:`obstacle` has returned an empty text."""


class _Event(NamedTuple):
    """A dead letter with the attributes of a consumed record."""

    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class FoldDestination(Destination):
    """Replays the dead letters of a fold into the source topic of the fold."""

    def __init__(self, app_id: str, fold: Fold, limits: Limits, schemas: SchemaCache | None = None) -> None:
        self.dead_letters, self.topic, self.address = fold.dead_letters, fold.source, replay_target(app_id, fold.name)
        self._fold = fold
        self._reader = reader_of(fold, limits, schemas)

    def observe(self, dead_letter: ListedDeadLetter) -> None:
        """Do nothing, because the dead letters of a fold are independent of each other."""

    def obstacle(self, dead_letter: ListedDeadLetter, partitions: int) -> str:
        topic = dead_letter.headers.get("source-topic")
        if not dead_letter.is_event:
            return "a folded record that was too large for the broker: no event"
        if dead_letter.dropped_part:
            lost = f"the {dead_letter.dropped_part} was too large for {self.dead_letters} and was not kept"
            return f"{lost}: without it, it would be another event"
        if dead_letter.position is None:
            return "its headers do not say where the event was"
        if topic != self.topic:
            return f"it is an event of {topic}, and the fold reads {self.topic} now"
        if dead_letter.position[0] >= partitions:
            return f"partition {dead_letter.position[0]} of {self.topic} does not exist any more"
        return ""

    def rejections(self, dead_letter: ListedDeadLetter) -> Sequence[Reason]:
        record = _Event(dead_letter.offset, dead_letter.timestamp_ms, dead_letter.key, dead_letter.value)
        try:
            return [one.reason for one in self._reader.read([record]).rejected]
        except NotFetchedError:
            return []  # only workers query the schema registry

    def event(self, dead_letter: ListedDeadLetter) -> OutgoingRecord:
        headers = [(REPLAY_HEADER, self.address)]
        return OutgoingRecord(
            self.topic, dead_letter.key, dead_letter.value, headers, partition=dead_letter.position and dead_letter.position[0]
        )


def empty_cache(settings: Settings) -> SchemaCache | None:
    """Return an empty cache of schemas; None if the settings name no schema registry."""
    return None if settings.schema_registry.url is None else SchemaCache(0)


@dataclass(frozen=True, slots=True)
class ReplayOverride:
    """Which events an operator wants to replay although they may have been handled.

    Attributes:
        interrupted: Whether interrupted events are replayed, except those that finished late.
        event_ids: Ids of events that are replayed even if they were interrupted or finished late.
        is_exact: Whether the operator has also given the source or position of the events. Otherwise an id that several sources
            use is rejected as ambiguous.
    """

    interrupted: bool = False
    event_ids: Collection[str] = ()
    is_exact: bool = False


class SubscriberDestination(Destination):
    """Replays the dead letters of a subscriber into the replay topic, which only subscribers of the application read."""

    def __init__(self, settings: Settings, subscription: Subscription, override: ReplayOverride) -> None:
        name = subscription.subscriber.name
        self.dead_letters, self.topic = subscription.dead_letters, replay_topic(settings.app_id)
        self.address = replay_target(settings.app_id, name)
        self._name = name
        self._source = subscription.topic
        self._override = override
        self._late: set[str] = set()
        self._sources: defaultdict[str, set[str]] = defaultdict(set)
        self._decode = decode_of(subscription.subscriber, settings.limits, None, self.topic, schemas=empty_cache(settings))

    def observe(self, dead_letter: ListedDeadLetter) -> None:
        if dead_letter.is_late:
            self._late.add(dead_letter.source)
        if (event_id := dead_letter.headers.get("event-id", "")) in self._override.event_ids:
            self._sources[event_id].add(dead_letter.event_source)

    def obstacle(self, dead_letter: ListedDeadLetter, partitions: int) -> str:
        if why := self._unconfirmed(dead_letter):
            return why
        if dead_letter.dropped_part:
            return f"{dead_letter.dropped_part} too large to be kept: without that it would be another event"
        topic = dead_letter.headers.get("source-topic")
        if topic not in (self._source, self.topic):
            return f"it is an event of {topic}, and the subscriber reads {self._source} now"
        if self._origin(dead_letter) is None:
            return "its headers do not say where the event was"
        return "" if self._read(dead_letter) else "it is another event than the one the subscriber takes now"

    def _unconfirmed(self, dead_letter: ListedDeadLetter) -> str:
        """Return why the operator must confirm the replay, or "": the event may have been handled, or its id is ambiguous."""
        event_id = dead_letter.headers.get("event-id", "")
        if not self._override.is_exact and len(self._sources[event_id]) > 1:
            sources = ", ".join(repr(source) for source in sorted(self._sources[event_id]))
            return f"events of several sources have the id {event_id!r}: say which with --event-source, of {sources}"
        if event_id not in self._override.event_ids:
            if dead_letter.reason == INTERRUPTED and not self._override.interrupted:
                return "interrupted, they may have been handled: --interrupted replays them, or --event-id one of them"
            if dead_letter.reason in FOLLOWED and dead_letter.source in self._late:
                return f"{dead_letter.reason}, and finished late: they were handled; --event-id replays one nevertheless"
        return ""

    def rejections(self, dead_letter: ListedDeadLetter) -> Sequence[Reason]:
        try:
            self._decoded(dead_letter)
        except BadEventError as error:
            return [error.reason]
        except NotFetchedError:
            return []  # only workers query the schema registry
        return []

    def event(self, dead_letter: ListedDeadLetter) -> OutgoingRecord:
        found = self._origin(dead_letter)
        assert found is not None  # otherwise `obstacle` is not empty
        return OutgoingRecord(self.topic, dead_letter.key, dead_letter.value, replay_headers(self._name, *found))

    def _origin(self, dead_letter: ListedDeadLetter) -> tuple[OriginalPosition, Headers] | None:
        """Return the original position and the headers of the event; None if the dead letter does not have the position."""
        if dead_letter.headers.get("source-topic") == self.topic:
            return parse_replay(dead_letter.received)
        timestamp = dead_letter.headers.get("source-timestamp-ms", "")
        if dead_letter.position is None or not timestamp.isdecimal():
            return None
        return OriginalPosition(
            TP(self._source, dead_letter.position[0]), dead_letter.position[1], int(timestamp)
        ), dead_letter.received

    def _read(self, dead_letter: ListedDeadLetter) -> bool:
        try:
            return self._decoded(dead_letter)
        except (BadEventError, NotFetchedError):
            return True

    def _decoded(self, dead_letter: ListedDeadLetter) -> bool:
        event = self.event(dead_letter)
        record = _Event(dead_letter.offset, dead_letter.timestamp_ms, event.key, event.value, event.headers)
        return self._decode(TP(self.topic, 0), record, 1) is not None
