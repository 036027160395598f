"""Derives id and headers of an event that a subscriber publishes from its parent, the event that the subscriber handles (pure).

Every attempt for the same parent publishes the same ids, so that consumers can deduplicate.
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
"""Namespace of derived ids. It must never change: attempts before and after an upgrade have to publish the same ids."""


class Parent:
    """The event that a subscriber handles. Ids and headers of the events that one attempt publishes are derived from it."""

    def __init__(self, event_id: str, subscriber: str, envelope: Envelope, source: str | None = None) -> None:
        """Create the parent of an attempt.

        Args:
            subscriber: Name of the subscriber, so that two subscribers of one event publish different ids.
            source: Source within which the id of that event is unique; None if it has no source.
        """
        self._event_id = event_id
        self._source = source
        self._subscriber = subscriber
        self._envelope = envelope
        self._ordinals: defaultdict[str, count[int]] = defaultdict(count)

    def child_id(self, event_key: str, app_id: str = "") -> str:
        """Return the id of the next event that this attempt publishes.

        The id is derived from the id of the parent, the subscriber, the event key, and how many events with this key the attempt
        has published before. If another application published the parent (its ``ce_source`` is not ``app_id``), the id is also
        derived from that ``ce_source``, because event ids are unique only within one publisher.
        """
        # Counted by key, so that functions that publish several kinds concurrently, in any order, derive the same ids each time.
        ordinal = next(self._ordinals[event_key])
        # Without the own source: versions that knew no sources derived the ids without it, and an upgrade must not change them.
        foreign = [] if self._source in (None, app_id) else [self._source]
        return str(uuid5(NAMESPACE, json.dumps([*foreign, self._event_id, self._subscriber, event_key, ordinal])))

    def envelope(self, context: Mapping[str, str]) -> Envelope:
        """Return headers of an event that this attempt publishes. They inherit correlation, trace and context of the parent.

        New context has priority over inherited context. A trace context that is too long is not inherited. A correlation id that is
        too long is replaced by the id of the parent.
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
    """Port through which a subscriber's function publishes events, with ids derived from the event that it handles."""

    def publish_child(
        self, parent: Parent, event: Event[T, M], data: T, *, before: T | None, metadata: M | None, context: Mapping[str, str]
    ) -> Coroutine[Any, Any, str]:
        """Publish an event; return its id when the broker has acknowledged it."""

    def publish_child_sync(
        self, parent: Parent, event: Event[T, M], data: T, *, before: T | None, metadata: M | None, context: Mapping[str, str]
    ) -> str:
        """Publish an event from a function without ``async``, in its thread; return its id when the broker has acknowledged it."""
