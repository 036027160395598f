"""Publishing: an event is in the log once the broker has acknowledged it, and has an id by which it can be published again."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self
from uuid import uuid4

from prometheus_client import CollectorRegistry

from streams_app.clock import Clock, SystemClock
from streams_app.errors import BadEventError, ConfigurationError, NotPublishedError
from streams_app.events.codec import decoder_of, encode, size_faults
from streams_app.events.declaration import Event, M, T
from streams_app.events.figures import PublishingFigures
from streams_app.events.headers import Envelope, Headers, context_faults, headers_for, require_id
from streams_app.events.own_loop import OwnLoop, waited_for
from streams_app.events.parent import UNAWAITED, Parent
from streams_app.health.metrics import Metrics
from streams_app.settings import Settings
from streams_app.settings.base import suggestion

if TYPE_CHECKING:
    from streams_app.delivery.producer import Producer

    class ClosingProducer(Producer, Protocol):
        """Sends, and closes its connections."""

        async def stop(self) -> None:
            """Closes its connections."""


SEND_SECONDS: Final = 25.0
"""Longer than a partition is without a leader when its broker is killed."""


class Declares(Protocol):
    """A catalogue, as far as publishing knows it."""

    @property
    def events(self) -> tuple[Event[Any, Any], ...]:
        """The events that may be published."""


class _Ready(NamedTuple):
    """An event that was checked and only has to be sent."""

    event_id: str
    key: bytes | None
    value: bytes
    headers: Headers


class Events:
    """Publishes the events of a catalogue.

    ``async with Events(settings, catalogue) as events`` where a loop runs. A program without one calls ``publish_sync`` and
    ``close``, or uses ``with``; it may keep one for each process, forked or not.
    """

    def __init__(
        self,
        settings: Settings,
        catalogue: Declares,
        *,
        metrics: Metrics | CollectorRegistry | None = None,
        clock: Clock | None = None,
        send_seconds: float = SEND_SECONDS,
    ) -> None:
        """Connects nothing yet.

        Args:
            settings: How to connect, and what is too large.
            catalogue: The events that may be published.
            metrics: The registry in which ``streams_app_published_total`` and ``streams_app_publish_seconds`` are made, such as
                ``prometheus_client.REGISTRY``, or the metrics of a worker; None: nobody reads them.
            clock: Read for the times in headers.
            send_seconds: So long the broker has for its acknowledgement.
        """
        self._settings = settings
        self._events = {event.key: event for event in catalogue.events}
        self._figures = PublishingFigures.in_registry(metrics)
        if isinstance(metrics, CollectorRegistry):
            # A worker may never publish what is in its catalogue; a program that is asked for these figures is there for that.
            self._figures.begin(self._events)
        self._clock = clock or SystemClock()
        self._send_seconds = send_seconds
        self._decoders = {event.key: decoder_of(event, settings.limits) for event in catalogue.events}
        self._producer: ClosingProducer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._own: OwnLoop | None = None
        self._lock = threading.Lock()

    async def __aenter__(self) -> Self:
        """Publishes by the loop that runs.

        Raises:
            RuntimeError: It was entered already, or ``publish_sync`` has started a loop for it.
        """
        if self._producer is not None:
            raise RuntimeError("it publishes already: one Events for each loop")
        self._loop = asyncio.get_running_loop()
        self._producer = self._new_producer()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Closes the connections."""
        producer, self._producer, self._loop = self._producer, None, None
        if producer is not None:
            await producer.stop()

    def __enter__(self) -> Self:
        """For programs without a loop."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Closes the connections."""
        self.close()

    async def publish(
        self,
        event: Event[T, M],
        data: T,
        *,
        before: T | None = None,
        metadata: M | None = None,
        context: Mapping[str, str] | None = None,
        event_id: str | None = None,
    ) -> str:
        """Publishes one event; returns once every replica that is in sync has it.

        Args:
            event: Its declaration.
            data: Its payload.
            before: The payload as it was before.
            metadata: What stands beside the payload, of the type the event declares.
            context: Text that follows the event to all that is published because of it: at most 16 names, 1 kB.
            event_id: The id of an event whose outcome is unknown and that is published again; None: a new one.

        Returns:
            The id.

        Raises:
            NotPublishedError: It was not acknowledged: nobody knows whether the log has it. Publish it again with the id in it.
            BadEventError: It does not fit its declaration, or is too large. It was not sent.
            ConfigurationError: The catalogue does not declare the event, or its context is beyond bounds. It was not sent.
        """
        ready = self._ready(event, data, before, metadata, context or {}, str(uuid4()) if event_id is None else event_id, None)
        await self._send(event, [ready])
        return ready.event_id

    async def publish_many(
        self,
        event: Event[T, M],
        payloads: Iterable[T],
        *,
        context: Mapping[str, str] | None = None,
        event_ids: Sequence[str] | None = None,
    ) -> list[str]:
        """Publishes many events of one kind together: in their order, as far as they have one key.

        Args:
            event: Their declaration.
            payloads: Their payloads. All are checked before the first is sent.
            context: The context of each.
            event_ids: The ids of events whose outcome is unknown and that are published again, as many as payloads.

        Returns:
            Their ids, in the order of the payloads.

        Raises:
            NotPublishedError: Not all were acknowledged. Publish them all again with the ids in it.
            BadEventError: One does not fit. None was sent.
            ConfigurationError: As for one. None was sent.
        """
        data = list(payloads)
        ids = [str(uuid4()) for _ in data] if event_ids is None else list(event_ids)
        if len(ids) != len(data):
            raise ConfigurationError([f"{event.key}: there are {len(ids)} event_ids for {len(data)} payloads"])
        ready = [
            self._ready(event, one, None, None, context or {}, event_id, None) for one, event_id in zip(data, ids, strict=True)
        ]
        await self._send(event, ready)
        return ids

    def publish_sync(
        self,
        event: Event[T, M],
        data: T,
        *,
        before: T | None = None,
        metadata: M | None = None,
        context: Mapping[str, str] | None = None,
        event_id: str | None = None,
    ) -> str:
        """The same as :meth:`publish` for code without ``async``: from any thread but that of the loop."""
        return self._waited_for(
            lambda: self.publish(event, data, before=before, metadata=metadata, context=context, event_id=event_id)
        )

    def publish_child(
        self, parent: Parent, event: Event[T, M], data: T, *, before: T | None, metadata: M | None, context: Mapping[str, str]
    ) -> Coroutine[Any, Any, str]:
        """Publishes what follows from an event, under an id that follows from its id; see :class:`Parent`.

        Raises:
            RuntimeError: No loop runs, so that nobody can await it, and nothing would ever be published.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError(UNAWAITED) from None
        return self._publish_child(parent, event, data, before, metadata, context)

    async def _publish_child(
        self, parent: Parent, event: Event[Any, Any], data: Any, before: Any, metadata: Any, context: Mapping[str, str]
    ) -> str:
        child_id = parent.child_id(event.key, self._settings.app_id)
        ready = self._ready(event, data, before, metadata, context, child_id, parent)
        await self._send(event, [ready])
        return ready.event_id

    def publish_child_sync(
        self, parent: Parent, event: Event[T, M], data: T, *, before: T | None, metadata: M | None, context: Mapping[str, str]
    ) -> str:
        """The same for code without ``async``."""
        return self._waited_for(lambda: self._publish_child(parent, event, data, before, metadata, context))

    def close(self) -> None:
        """Closes the connections that ``publish_sync`` has opened by itself."""
        own, self._own = self._own, None
        if own is None:
            return
        atexit.unregister(self.close)
        if own.is_mine:
            own.run(self.__aexit__(None, None, None))
            own.close()

    def _new_producer(self) -> ClosingProducer:
        # aiokafka takes half a second to import; who only declares events, or never publishes, need not wait for it.
        from streams_app.kafka.coalescing_producer import CoalescingProducer
        from streams_app.kafka.producer import AckedProducer

        # Without lingering: what is published one by one would wait for it each time.
        client_id = f"{self._settings.app_id}-events"
        producer = AckedProducer(self._settings.kafka, client_id=client_id, send_seconds=self._send_seconds, linger_ms=0)
        return CoalescingProducer(producer, self._send_seconds)

    def _waited_for(self, publish: Callable[[], Coroutine[Any, Any, str]]) -> str:
        if self._loop is not None and self._own is None:
            return waited_for(publish(), self._loop)
        with self._lock:
            own = self._own
            if own is None or not own.is_mine:
                # What was inherited by a fork belongs to the parent: its connections are neither used nor closed here.
                self._producer = None
                own = OwnLoop(f"{self._settings.app_id}-events")
                own.run(self.__aenter__())
                self._own = own
                atexit.register(self.close)
        return own.run(publish())

    def _ready(
        self,
        event: Event[Any, Any],
        data: Any,
        before: Any,
        metadata: Any,
        context: Mapping[str, str],
        event_id: str,
        parent: Parent | None,
    ) -> _Ready:
        """Checks an event as whoever receives it will; a payload of msgspec is not checked when it is made."""
        if not isinstance(event, Event):
            raise ConfigurationError([f"{event!r} is no Event: what is published is a declared event, and then its payload"])
        if faults := self._faults(event, metadata, context, event_id):
            raise ConfigurationError([f"{event.key}: {fault}" for fault in faults])
        try:
            require_id(event_id, self._settings.limits.key_bytes)
            key, value = encode(event, data, before, metadata)
            size_faults(key, value, self._settings.limits)
            self._decoders[event.key](key, value)
        except BadEventError:
            self._figures.add(event.key, "refused")
            raise
        envelope = Envelope(event_id, context=context) if parent is None else parent.envelope(context)
        return _Ready(event_id, key, value, headers_for(event.key, event_id, self._settings.app_id, self._clock.now_ms(), envelope))

    def _faults(self, event: Event[Any, Any], metadata: Any, context: Mapping[str, str], event_id: Any) -> list[str]:
        if self._events.get(event.key) is not event:
            near = suggestion(event.key, [key for key in self._events if key != event.key])
            return [f"the catalogue has no such event{near or '; its `events` have to name it'}"]
        if event.decode is not None:
            return ["what has decode= is published by others: this project writes JSON"]
        faults = context_faults(context)
        if not isinstance(event_id, str):
            faults.append(f"event_id = {event_id!r} is not a string")
        if metadata is not None and event.metadata is None:
            faults.append("the event declares no metadata, and nobody would read it")
        return faults

    async def _send(self, event: Event[Any, Any], ready: Sequence[_Ready]) -> None:
        from streams_app.delivery.producer import TOO_LARGE, Outgoing  # with aiokafka, see above

        if self._producer is None or asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("nothing is published outside of `async with Events(...)`; where no loop runs, call publish_sync")
        begun_ms = self._clock.monotonic_ms()
        outcomes = await self._producer.send([Outgoing(event.topic, one.key, one.value, list(one.headers)) for one in ready])
        self._figures.publish_seconds.labels(event=event.key).observe((self._clock.monotonic_ms() - begun_ms) / 1000)
        failed = [outcome for outcome in outcomes if outcome is not None]
        self._figures.add(event.key, "acknowledged", len(ready) - len(failed))
        if not failed:
            return
        self._figures.add(event.key, "unknown", len(failed))
        if len(ready) == 1 and isinstance(failed[0], TOO_LARGE):
            raise BadEventError("too-large", f"the topic {event.topic} takes no record of {len(ready[0].value)} bytes") from failed[
                0
            ]
        raise NotPublishedError(event.key, [one.event_id for one in ready], len(failed), str(failed[0])) from failed[0]
