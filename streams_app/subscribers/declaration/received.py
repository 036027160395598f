"""What a subscriber's function is called with, and what it may raise to say what becomes of the event (pure)."""

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
    """The author's word that nothing was done: the event is tried again, whatever the promise of its subscriber.

    Attributes:
        after_ms: When; None: as the retries of the subscriber say.
    """

    after_ms: int | None = None  # also of a class of the user's that does not call the constructor

    def __init__(self, after: str | timedelta | None = None) -> None:
        """Says when.

        Args:
            after: ``30s``, at most ``1h``; None: as the retries of the subscriber say.

        Raises:
            ValueError: It is no duration, or too long a one.
        """
        self.after_ms = None if after is None else milliseconds(parse_duration(after))
        if self.after_ms is not None and not 0 <= self.after_ms <= milliseconds(timedelta(hours=1)):
            raise ValueError(f"after = {after!r} must be between 0s and 1h")
        super().__init__("again by its retries" if after is None else f"again after {after}")


class Reject(Exception):
    """The event becomes a dead letter at once, with what is said here as its reason in words."""


class Received(msgspec.Struct, Generic[T, M], frozen=True, eq=False):
    """One event, or one folded record, in one attempt. Headers are read when they are asked for.

    A test of a function alone makes one of ``data`` and ``id``.
    """

    data: T
    id: str
    """``ce_id``, which is unique within :attr:`source`; of folded records the fold id; of what others publish without an id
    ``topic:partition:offset``."""
    before: T | None = None
    """The payload as it was before, where the publisher says so."""
    metadata: M | None = None
    raw_key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int = 0
    topic: str = ""
    partition: int = 0
    offset: int = 0
    version: int = 0
    """Orders the events of a key in one partition: a guard for the database of the function."""
    fold: FoldInfo | None = None
    """Of folded records: what they say of their fold."""
    attempt: int = 1
    deadline_ms: int | None = None
    subscriber: str = ""
    publisher: Publisher | None = None
    parent: Parent | None = None

    @property
    def key(self) -> str | None:
        """The record key; bytes that are not UTF-8 survive as surrogates."""
        return None if self.raw_key is None else self.raw_key.decode("utf-8", "surrogateescape")

    @property
    def timestamp(self) -> datetime:
        """The time of the record."""
        return datetime.fromtimestamp(self.timestamp_ms / 1000, UTC)

    @property
    def deadline(self) -> datetime | None:
        """When the attempt is timed out."""
        return None if self.deadline_ms is None else datetime.fromtimestamp(self.deadline_ms / 1000, UTC)

    @property
    def context(self) -> Mapping[str, str]:
        """What the publisher said about the circumstances; it follows to what the function publishes."""
        return context_of(self.headers)

    @property
    def correlation_id(self) -> str:
        """Shared by all events that go back to one first event; of a first event its own id."""
        return header(self.headers, CORRELATION_ID) or self.id

    @property
    def source(self) -> str | None:
        """Who has published it (``ce_source``), within which its id is unique; None where it names none, and of folded records."""
        found = source_of(self.headers)
        return found.decode("utf-8", "surrogateescape") if found else None

    @property
    def causation_id(self) -> str | None:
        """Id of the event because of which this one was published."""
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
        """Publishes what follows from this event, under an id that is the same in each attempt.

        Returns:
            What is awaited for the id: the broker has acknowledged the event then.

        Raises:
            NotPublishedError: The broker has not acknowledged it; nobody knows whether it has it.
            RuntimeError: The function is not ``async``: nobody would await it.
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
        """The same for functions without ``async``."""
        publisher, parent = self._publishing()
        return publisher.publish_child_sync(parent, event, data, before=before, metadata=metadata, context=context or {})

    def _publishing(self) -> tuple[Publisher, Parent]:
        if self.publisher is None:
            raise RuntimeError("this event was made by hand: nobody publishes what follows from it")
        if self.parent is None:
            envelope = Envelope(self.correlation_id, self.causation_id, self.context, header(self.headers, TRACE_PARENT))
            # Made by the first publication, as most functions publish nothing; it counts what the attempt publishes.
            msgspec.structs.force_setattr(self, "parent", Parent(self.id, self.subscriber, envelope, self.source))
        assert self.parent is not None  # it was just made
        return self.publisher, self.parent
