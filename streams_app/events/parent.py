"""Headers that a published event inherits from its parent event, and its id, derived from that of the parent (pure).

A function that is called again for the same event publishes the same ids again, so that consumers can deduplicate.
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
"""Namespace of derived ids. If it changed, repeated attempts would publish new ids across an upgrade."""


class Parent:
    """One attempt of a subscriber's function, as the parent of the events that it publishes."""

    def __init__(self, event_id: str, subscriber: str, envelope: Envelope, source: str | None = None) -> None:
        """Create the parent of an attempt.

        Args:
            event_id: Id of the event with which the function is called.
            subscriber: Name of the subscriber: two subscribers of one event publish different ids.
            envelope: Headers of that event.
            source: Source within which its id is unique; None: it has none.
        """
        self._event_id = event_id
        self._source = source
        self._subscriber = subscriber
        self._envelope = envelope
        self._ordinals: defaultdict[str, count[int]] = defaultdict(count)

    def child_id(self, event_key: str, app_id: str = "") -> str:
        """Return the id of the next event of a key in this attempt.

        Args:
            event_key: Key of the published event.
            app_id: The publishing application. The source of the parent is left out if it is this application or missing: otherwise
                repeated attempts would publish new ids across an upgrade from a version without sources.
        """
        # Counted by key: functions that publish several kinds concurrently, in any order, derive the same ids each time.
        ordinal = next(self._ordinals[event_key])
        foreign = [] if self._source in (None, app_id) else [self._source]
        return str(uuid5(NAMESPACE, json.dumps([*foreign, self._event_id, self._subscriber, event_key, ordinal])))

    def envelope(self, context: Mapping[str, str]) -> Envelope:
        """Return the headers of a child: correlation and context are inherited, and new context entries take precedence.

        A correlation id or a trace that is too long is not inherited; then the id of the parent correlates the chain.
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
    """Publishes the events of a subscriber's function."""

    def publish_child(
        self, parent: Parent, event: Event[T, M], data: T, *, before: T | None, metadata: M | None, context: Mapping[str, str]
    ) -> Coroutine[Any, Any, str]:
        """Publish an event; return its id once the broker has acknowledged it."""

    def publish_child_sync(
        self, parent: Parent, event: Event[T, M], data: T, *, before: T | None, metadata: M | None, context: Mapping[str, str]
    ) -> str:
        """Publish an event from a function without ``async``, which runs in a thread pool."""
