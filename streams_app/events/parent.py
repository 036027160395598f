"""What an event inherits from the one because of which it is published, and its id, derived from that one's (pure).

A function that is called again for the same event publishes the same ids again, so that whoever remembers ids takes what it
publishes for one event.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Coroutine, Mapping
from itertools import count
from typing import Any, Final, Protocol
from uuid import UUID, uuid5

from streams_app.events.declaration import Event, M, T
from streams_app.events.headers import Envelope, followed, follows

NAMESPACE: Final = UUID("3c1a4f0e-6c1b-5d5a-9a51-6f0a1f2b7c3d")
"""Of all ids that are derived here. With another one every repeated attempt would publish new ids across an upgrade."""


class Parent:
    """One attempt of a subscriber's function, as what it publishes sees it."""

    def __init__(self, event_id: str, subscriber: str, envelope: Envelope, source: str | None = None) -> None:
        """Nothing was published yet.

        Args:
            event_id: Id of the event the function is called with.
            subscriber: Name of the subscriber: two of one event publish different ids.
            envelope: What the headers of that event say.
            source: Within which its id is unique; None: it names none.
        """
        self._event_id = event_id
        self._source = source
        self._subscriber = subscriber
        self._envelope = envelope
        self._ordinals: defaultdict[str, count[int]] = defaultdict(count)

    def child_id(self, event_key: str, app_id: str = "") -> str:
        """The id of what is published next under an event key: the first, the second, … of the attempt.

        Args:
            event_key: Of what is published.
            app_id: The application that publishes it. The source of a parent that is its own, or names none, is left out: otherwise
                every repeated attempt would publish new ids across the upgrade from a version that knew no sources.
        """
        # Counted by key: functions that publish several kinds at once, in no fixed order, derive the same ids each time.
        ordinal = next(self._ordinals[event_key])
        foreign = [] if self._source in (None, app_id) else [self._source]
        return str(uuid5(NAMESPACE, json.dumps([*foreign, self._event_id, self._subscriber, event_key, ordinal])))

    def envelope(self, context: Mapping[str, str]) -> Envelope:
        """What a child's headers say: correlation and context follow, what is said anew about the latter counts.

        A correlation id or a trace that is too long does not follow; the chain of events is correlated by the id of this one then.
        """
        correlation_id, traceparent = self._envelope.correlation_id, self._envelope.traceparent
        return Envelope(
            correlation_id if follows(correlation_id) else self._event_id,
            self._event_id,
            followed(self._envelope.context, context),
            traceparent if traceparent and follows(traceparent) else None,
        )


UNAWAITED: Final = "a function without async cannot await publish: call publish_sync"


class Publisher(Protocol):
    """Publishes what a subscriber's function wants published."""

    def publish_child(
        self, parent: Parent, event: Event[T, M], data: T, *, before: T | None, metadata: M | None, context: Mapping[str, str]
    ) -> Coroutine[Any, Any, str]:
        """Returns the id of the event once the broker has acknowledged it."""

    def publish_child_sync(
        self, parent: Parent, event: Event[T, M], data: T, *, before: T | None, metadata: M | None, context: Mapping[str, str]
    ) -> str:
        """The same for functions without ``async``, which run in a thread of a pool."""
