"""Where dead letters go back to, which of them can, and what is produced of one. It asks no server.

An event of a fold goes back into the partition it came from. A header tells the other folds of the source to skip it, see
:mod:`streams_app.folding.reading.replay_routing`. An event of a subscriber goes into a topic of its application, see
:mod:`streams_app.subscribers.original_position`, as the topic it came from has consumers that know nothing of such headers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from streams_app.delivery.batch import TP
from streams_app.delivery.outgoing import Outgoing
from streams_app.errors import BadEventError
from streams_app.events.headers import Headers
from streams_app.fold import Fold
from streams_app.folding.reading.by_functions import reader_of
from streams_app.folding.reading.replay_routing import REPLAY_HEADER, replay_target
from streams_app.operations.dead_letter import ListedDeadLetter
from streams_app.reasons import FOLLOWED, INTERRUPTED, Reason
from streams_app.settings import Limits, Settings
from streams_app.subscribers.decoding import decode_of
from streams_app.subscribers.original_position import OriginalPosition, addressed, again_topic, taken_apart
from streams_app.subscribers.subscription import Subscription


class Destination(Protocol):
    """Where the letters of a fold or a subscriber go.

    Attributes:
        letters: Its dead-letter topic.
        topic: The topic into which they are put back.
        address: Whom receipts name.
    """

    letters: str
    topic: str
    address: bytes

    def look(self, letter: ListedDeadLetter) -> None:
        """Shows it each of its letters once, before anything is put back."""

    def obstacle(self, letter: ListedDeadLetter, partitions: int) -> str:
        """Why a letter cannot be put back as the event it was, or should not; empty: it can.

        Args:
            letter: One of its letters.
            partitions: Number of partitions that :attr:`topic` has now.
        """

    def refusals(self, letter: ListedDeadLetter) -> Sequence[Reason]:
        """Reasons for which what is declared now would refuse the event again."""

    def event(self, letter: ListedDeadLetter) -> Outgoing:
        """What is produced of a letter without an obstacle."""


class _Event(NamedTuple):
    """A letter as a reader sees events."""

    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class FoldDestination(Destination):
    """The source of a fold."""

    def __init__(self, app_id: str, fold: Fold, limits: Limits) -> None:
        """Takes the fold as it is declared now."""
        self.letters, self.topic, self.address = fold.dead_letters, fold.source, replay_target(app_id, fold.name)
        self._fold = fold
        self._reader = reader_of(fold, limits)

    def look(self, letter: ListedDeadLetter) -> None:
        """No letter of a fold says anything of another."""

    def obstacle(self, letter: ListedDeadLetter, partitions: int) -> str:
        """See :meth:`Destination.obstacle`."""
        topic = letter.headers.get("source-topic")
        if not letter.is_event:
            return "a folded record that was too large for the broker: no event"
        if letter.lost:
            return f"the {letter.lost} was too large for {self.letters} and was not kept: without it, it would be another event"
        if letter.place is None:
            return "its headers do not say where the event was"
        if topic != self.topic:
            return f"it is an event of {topic}, and the fold reads {self.topic} now"
        if letter.place[0] >= partitions:
            return f"partition {letter.place[0]} of {self.topic} does not exist any more"
        return ""

    def refusals(self, letter: ListedDeadLetter) -> Sequence[Reason]:
        """See :meth:`Destination.refusals`."""
        read = self._reader.read([_Event(letter.offset, letter.timestamp_ms, letter.key, letter.value)])
        return [one.reason for one in read.refused]

    def event(self, letter: ListedDeadLetter) -> Outgoing:
        """See :meth:`Destination.event`."""
        headers = [(REPLAY_HEADER, self.address)]
        return Outgoing(self.topic, letter.key, letter.value, headers, partition=letter.place and letter.place[0])


@dataclass(frozen=True, slots=True)
class Insistence:
    """Which events go back although they may have happened.

    Attributes:
        interrupted: Whether all that were interrupted do.
        event_ids: Those that somebody names.
        is_exact: Whether their source or their place was named, too: an id is unique within a source only.
    """

    interrupted: bool = False
    event_ids: Collection[str] = ()
    is_exact: bool = False


class SubscriberDestination(Destination):
    """The topic of what was put back for the subscribers of an application."""

    def __init__(self, settings: Settings, subscription: Subscription, insistence: Insistence) -> None:
        """Takes the subscriber as it is declared now."""
        name = subscription.subscriber.name
        self.letters, self.topic = subscription.dead_letters, again_topic(settings.app_id)
        self.address = replay_target(settings.app_id, name)
        self._name = name
        self._source = subscription.topic
        self._insistence = insistence
        self._late: set[str] = set()
        self._sources: defaultdict[str, set[str]] = defaultdict(set)
        self._decode = decode_of(subscription.subscriber, settings.limits, None, self.topic)

    def look(self, letter: ListedDeadLetter) -> None:
        """Collects what has ended well after all, and the sources of which there are events with an id that was named."""
        if letter.is_late:
            self._late.add(letter.source)
        if (event_id := letter.headers.get("event-id", "")) in self._insistence.event_ids:
            self._sources[event_id].add(letter.event_source)

    def obstacle(self, letter: ListedDeadLetter, partitions: int) -> str:
        """See :meth:`Destination.obstacle`."""
        if why := self._unconfirmed(letter):
            return why
        if letter.lost:
            return f"{letter.lost} too large to be kept: without, it would be another event"
        topic = letter.headers.get("source-topic")
        if topic not in (self._source, self.topic):
            return f"it is an event of {topic}, and the subscriber reads {self._source} now"
        if self._origin(letter) is None:
            return "its headers do not say where the event was"
        return "" if self._read(letter) else "it is another event than the one the subscriber takes now"

    def _unconfirmed(self, letter: ListedDeadLetter) -> str:
        """Why an event that may have happened, or may not be the one that is meant, needs another word; empty: it does not."""
        event_id = letter.headers.get("event-id", "")
        if not self._insistence.is_exact and len(self._sources[event_id]) > 1:
            sources = ", ".join(repr(source) for source in sorted(self._sources[event_id]))
            return f"events of several sources have the id {event_id!r}: say which with --event-source, of {sources}"
        if event_id not in self._insistence.event_ids:
            if letter.reason == INTERRUPTED and not self._insistence.interrupted:
                return "interrupted, they may have happened: --interrupted puts them back, or --event-id one of them"
            if letter.reason in FOLLOWED and letter.source in self._late:
                return f"{letter.reason}, and finished late: they have happened; --event-id puts one back all the same"
        return ""

    def refusals(self, letter: ListedDeadLetter) -> Sequence[Reason]:
        """See :meth:`Destination.refusals`."""
        try:
            self._decoded(letter)
        except BadEventError as error:
            return [error.reason]
        return []

    def event(self, letter: ListedDeadLetter) -> Outgoing:
        """See :meth:`Destination.event`."""
        found = self._origin(letter)
        assert found is not None  # that would be an obstacle
        return Outgoing(self.topic, letter.key, letter.value, addressed(self._name, *found))

    def _origin(self, letter: ListedDeadLetter) -> tuple[OriginalPosition, Headers] | None:
        """Where the event was first, and its own headers."""
        if letter.headers.get("source-topic") == self.topic:
            return taken_apart(letter.received)
        timestamp = letter.headers.get("source-timestamp-ms", "")
        if letter.place is None or not timestamp.isdecimal():
            return None
        return OriginalPosition(TP(self._source, letter.place[0]), letter.place[1], int(timestamp)), letter.received

    def _read(self, letter: ListedDeadLetter) -> bool:
        try:
            return self._decoded(letter)
        except BadEventError:
            return True

    def _decoded(self, letter: ListedDeadLetter) -> bool:
        event = self.event(letter)
        record = _Event(letter.offset, letter.timestamp_ms, event.key, event.value, event.headers)
        return self._decode(TP(self.topic, 0), record, 1) is not None
