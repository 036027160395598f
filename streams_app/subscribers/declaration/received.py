"""The argument of a subscriber's function, and the exceptions by which the function retries or rejects its event (pure)."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Generic

import msgspec

from streams_app.events.declaration import Event, M, N, T, U
from streams_app.events.folded import FoldInfo
from streams_app.events.headers import CAUSATION_ID, CORRELATION_ID, TRACE_PARENT, Envelope, Headers, context_of, header, source_of
from streams_app.events.parent import Parent, Publisher
from streams_app.formatting import milliseconds, parse_duration


class Retry(Exception):
    """Raised by a function that had no effect: the event is retried under every delivery guarantee, until its attempts are used up.

    Attributes:
        after_ms: Delay before the next attempt, in ms; None: the delay of the subscriber's retry rule.
    """

    after_ms: int | None = None  # a class attribute, because subclasses of users may not call the constructor

    def __init__(self, after: str | timedelta | None = None) -> None:
        """Set the delay.

        Args:
            after: Delay such as ``30s``, at most ``1h``; None: the delay of the subscriber's retry rule.

        Raises:
            ValueError: The delay is not a valid duration, or longer than ``1h``.
        """
        self.after_ms = None if after is None else milliseconds(parse_duration(after))
        if self.after_ms is not None and not 0 <= self.after_ms <= milliseconds(timedelta(hours=1)):
            raise ValueError(f"after = {after!r} must be between 0s and 1h")
        super().__init__("again by its retries" if after is None else f"again after {after}")


class Reject(Exception):
    """Raised by a function to dead-letter its event without a retry; the message becomes the detail of the dead letter."""


class Received(msgspec.Struct, Generic[T, M], frozen=True, eq=False):
    """One event or folded record, as one attempt receives it. Headers are decoded only when they are accessed.

    A unit test of a function can construct it from ``data`` and ``id`` alone.
    """

    data: T
    id: str
    """Id of the event: the header ``ce_id``, which is unique within :attr:`source`; for a folded record, the fold id. If the
    publisher has set no id, it is ``topic:partition:offset``."""
    before: T | None = None
    """The payload before the change that the event reports; None if the publisher does not provide it."""
    metadata: M | None = None
    raw_key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int = 0
    topic: str = ""
    partition: int = 0
    offset: int = 0
    version: int = 0
    """A number that increases with each event of a key within a partition. The function can use it as a version guard in its
    database."""
    fold: FoldInfo | None = None
    """For a folded record: its fold id, the number and the times of its events, and the reason why the group was closed. None for
    an event."""
    attempt: int = 1
    deadline_ms: int | None = None
    subscriber: str = ""
    publisher: Publisher | None = None
    parent: Parent | None = None

    @property
    def key(self) -> str | None:
        """The record key as text, in which bytes that are not valid UTF-8 become surrogates; None if the record has no key."""
        return None if self.raw_key is None else self.raw_key.decode("utf-8", "surrogateescape")

    @property
    def timestamp(self) -> datetime:
        """Timestamp of the record in Kafka, in UTC."""
        return datetime.fromtimestamp(self.timestamp_ms / 1000, UTC)

    @property
    def deadline(self) -> datetime | None:
        """Time in UTC at which the attempt times out; None before the attempt starts."""
        return None if self.deadline_ms is None else datetime.fromtimestamp(self.deadline_ms / 1000, UTC)

    @property
    def context(self) -> Mapping[str, str]:
        """Key-value pairs that the publisher added; they are copied to events that the function publishes."""
        return context_of(self.headers)

    @property
    def correlation_id(self) -> str:
        """Id shared by all events of one causal chain: by a first event, and by all that it caused directly or indirectly.

        If the publisher set none, it is the id of this event.
        """
        return header(self.headers, CORRELATION_ID) or self.id

    @property
    def source(self) -> str | None:
        """The publisher of the event, from the header ``ce_source``; None if the header is missing, or for a folded record.

        The id of an event is unique only among the events of its source.
        """
        found = source_of(self.headers)
        return found.decode("utf-8", "surrogateescape") if found else None

    @property
    def causation_id(self) -> str | None:
        """Id of the event that caused this one; None if the publisher set none."""
        return header(self.headers, CAUSATION_ID)

    def publish(
        self,
        event: Event[U, N],
        data: U,
        *,
        before: U | None = None,
        metadata: N | None = None,
        context: Mapping[str, str] | None = None,
    ) -> Coroutine[Any, Any, str]:
        """Publish an event that this one causes, with an id that is the same in every attempt.

        Returns:
            An awaitable that returns the id when the broker has acknowledged the event.

        Raises:
            NotPublishedError: The broker has not acknowledged the event; it may or may not have stored it.
            BadEventError, ConfigurationError, RegistryUnavailableError: As for :meth:`.Events.publish`.
            RuntimeError: The function is not ``async`` and has to use :meth:`publish_sync`, or this event was constructed without a
                publisher.
        """
        publisher, parent = self._publishing()
        return publisher.publish_child(parent, event, data, before=before, metadata=metadata, context=context or {})

    def publish_sync(
        self,
        event: Event[U, N],
        data: U,
        *,
        before: U | None = None,
        metadata: N | None = None,
        context: Mapping[str, str] | None = None,
    ) -> str:
        """Publish an event like :meth:`publish`, from a function that is not ``async``.

        The call waits until the broker has acknowledged the event.

        Returns:
            The id of the event.

        Raises:
            NotPublishedError, BadEventError, ConfigurationError, RegistryUnavailableError: As for :meth:`publish`.
            RuntimeError: This event was constructed without a publisher.
        """
        publisher, parent = self._publishing()
        return publisher.publish_child_sync(parent, event, data, before=before, metadata=metadata, context=context or {})

    def _publishing(self) -> tuple[Publisher, Parent]:
        if self.publisher is None:
            raise RuntimeError("this event was constructed without a publisher, so it cannot publish")
        if self.parent is None:
            envelope = Envelope(self.correlation_id, self.causation_id, self.context, header(self.headers, TRACE_PARENT))
            # Created at the first publication, because most functions publish nothing. It counts the publications of the attempt.
            msgspec.structs.force_setattr(self, "parent", Parent(self.id, self.subscriber, envelope, self.source))
        assert self.parent is not None  # it was just made
        return self.publisher, self.parent
