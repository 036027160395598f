"""Publishes events and waits until the broker has acknowledged them; after an error, an event can be resent with the same id."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, Self, get_args
from uuid import uuid4

from prometheus_client import CollectorRegistry, Counter, Histogram

from streams_app.clock import Clock, SystemClock
from streams_app.envelopes import REGISTERED
from streams_app.errors import BadEventError, ConfigurationError, NotPublishedError, text_of
from streams_app.events.codec import check_sizes, decoder_of, encode, native_of
from streams_app.events.declaration import Event, M, T, formats_of
from streams_app.events.headers import CONTENT_TYPES, Envelope, Headers, context_faults, headers_for, require_id
from streams_app.events.own_loop import OwnLoop, waited_for
from streams_app.events.parent import UNAWAITED, Parent
from streams_app.formatting import suggestion
from streams_app.health.metric_table import METRICS
from streams_app.health.metrics import Metrics, made
from streams_app.schemas.framing import framed
from streams_app.settings import Settings
from streams_app.tracing import tracing_of

if TYPE_CHECKING:
    from streams_app.delivery.producer import Producer
    from streams_app.schemas.registry import SchemaRegistry

    class ClosingProducer(Producer, Protocol):
        """A producer that can be closed."""

        async def stop(self) -> None: ...


SEND_SECONDS: Final = 25.0
"""Maximum wait for an acknowledgement; longer than the time for which a partition has no leader after its broker was killed."""

_TABLE: Final = {metric.attribute: metric for metric in METRICS}

Result = Literal["acknowledged", "unknown", "refused"]


class EventDeclarations(Protocol):
    """The part of a catalogue that publishing uses."""

    @property
    def events(self) -> tuple[Event[Any, Any], ...]: ...


class _ReadyEvent(NamedTuple):
    """A validated event that is ready to be sent."""

    event_id: str
    key: bytes | None
    value: bytes
    headers: Headers
    native: Any = None
    """The payload, to be encoded by a schema, see :func:`.native_of`; None: the event is published as plain JSON."""


class PublishingMetrics(NamedTuple):
    """Metrics of published events.

    Attributes:
        published: Counter of events by their key and outcome: acknowledged, unknown or refused.
        publish_seconds: Histogram of the time until the broker has acknowledged events, by their key.
    """

    published: Counter
    publish_seconds: Histogram

    @classmethod
    def in_registry(cls, where: Metrics | CollectorRegistry | None) -> PublishingMetrics:
        """Return the counter and the histogram of a worker, or create them in a registry.

        Args:
            where: The metrics of a worker, which contain them, or a registry in which to create them. None: a new registry, which
                is not exposed.
        """
        if isinstance(where, Metrics):
            return cls(where.published, where.publish_seconds)
        registry = where or CollectorRegistry()
        counter, histogram = (made(_TABLE[name], registry) for name in ("published", "publish_seconds"))
        assert isinstance(counter, Counter)
        assert isinstance(histogram, Histogram)
        return cls(counter, histogram)

    def begin(self, event_keys: Iterable[str]) -> None:
        """Create the time series of these event keys with the value 0, so that ``rate`` and alerts include the first event."""
        for event_key in event_keys:
            for result in get_args(Result):
                self.published.labels(event=event_key, result=result)

    def add(self, event_key: str, result: Result, events: int = 1) -> None:
        self.published.labels(event=event_key, result=result).inc(events)


class Events:
    """Publishes the events of a catalogue.

    On a running event loop, use ``async with Events(settings, catalogue) as events``. A program without an event loop calls
    ``publish_sync`` and ``close``, or uses ``with``. All threads of a process, and processes forked from it, can share one object.
    """

    def __init__(
        self,
        settings: Settings,
        catalogue: EventDeclarations,
        *,
        metrics: Metrics | CollectorRegistry | None = None,
        clock: Clock | None = None,
        send_seconds: float = SEND_SECONDS,
    ) -> None:
        """Create a publisher, without connecting.

        Args:
            settings: Settings of the application, with the connection and the limits.
            catalogue: The events that may be published.
            metrics: The registry in which ``streams_app_published_total`` and ``streams_app_publish_seconds`` are created, such as
                ``prometheus_client.REGISTRY``, or the metrics of a worker. None: the metrics are not exposed.
            clock: Clock for the times in headers; None: the system clock.
            send_seconds: Maximum wait for an acknowledgement.

        Raises:
            ConfigurationError: Tracing is on, and ``opentelemetry-api`` is not installed; or an event has a format whose package is
                not installed, or which needs a schema registry that the settings do not name.
        """
        self._settings = settings
        self._events = {event.key: event for event in catalogue.events}
        self._publishing_metrics = PublishingMetrics.in_registry(metrics)
        if isinstance(metrics, CollectorRegistry):
            # Not with the metrics of a worker, because a worker may never publish the events of its catalogue.
            self._publishing_metrics.begin(self._events)
        self._clock = clock or SystemClock()
        self._send_seconds = send_seconds
        self._tracing = tracing_of(settings)
        self._decoders = {event.key: decoder_of(event, settings.limits) for event in catalogue.events}
        self._schemas = self._new_schemas()
        self._producer: ClosingProducer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._own: OwnLoop | None = None
        self._lock = threading.Lock()

    async def __aenter__(self) -> Self:
        """Create the producer on the running event loop.

        Raises:
            RuntimeError: The object was entered before, or ``publish_sync`` has started an event loop for it.
        """
        if self._producer is not None:
            raise RuntimeError("it is open already: use one Events for each event loop")
        self._loop = asyncio.get_running_loop()
        self._producer = self._new_producer()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the connections."""
        producer, self._producer, self._loop = self._producer, None, None
        if producer is not None:
            await producer.stop()

    def __enter__(self) -> Self:
        """Return the object itself; ``publish_sync`` connects when it is first called."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the connections."""
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
        """Publish one event, and return its id when every in-sync replica has it.

        Args:
            event: Declaration of the event.
            data: The payload.
            before: The previous payload; None: the event has none.
            metadata: Metadata of the type that the event declares; None: the event has none.
            context: Text entries that subscribers copy to the events that they publish: at most 16 names and 1 kB.
            event_id: Id of an event with unknown outcome, to resend it; None: a new id.

        Returns:
            The id of the event.

        Raises:
            NotPublishedError: The event was not acknowledged; the log may or may not contain it. Resend it with the id in the
                error.
            BadEventError: The event does not match its declaration, or is too large. It was not sent.
            ConfigurationError: The catalogue does not declare the event, the context exceeds its limits, or the schema registry has
                no schema for the event. The event was not sent.
            TryAgainError: The schema registry does not answer. The event was not sent. This is also the base of NotPublishedError.
            RuntimeError: The object was not entered with ``async with`` on this event loop.
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
        """Publish many events of one kind together, in order for each key.

        Args:
            event: Declaration of the events.
            payloads: The payloads. All are validated before the first one is sent.
            context: The same for each event, see :meth:`publish`.
            event_ids: Ids of events with unknown outcome, to resend them, one for each payload. None: new ids.

        Returns:
            The ids of the events, in the order of the payloads.

        Raises:
            NotPublishedError: Not all events were acknowledged. Resend all of them with the ids in the error.
            BadEventError: At least one event does not match its declaration, or is too large. None was sent.
            ConfigurationError: As for :meth:`publish`, or ``event_ids`` are not as many as payloads. None was sent.
            TryAgainError: The schema registry does not answer. None was sent. This is also the base of NotPublishedError.
            RuntimeError: The object was not entered with ``async with`` on this event loop.
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
        """Publish one event from code without ``async``; for the arguments and the result, see :meth:`publish`.

        A thread that runs an event loop must not call this, because the call would block the loop.
        """
        return self._waited_for(
            lambda: self.publish(event, data, before=before, metadata=metadata, context=context, event_id=event_id)
        )

    def publish_child(
        self, parent: Parent, event: Event[T, M], data: T, *, before: T | None, metadata: M | None, context: Mapping[str, str]
    ) -> Coroutine[Any, Any, str]:
        """Publish an event of a subscriber, with an id derived from that of its parent, see :class:`Parent`.

        Raises:
            RuntimeError: No event loop runs in this thread, so the coroutine could not be awaited.
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
        return self._waited_for(lambda: self._publish_child(parent, event, data, before, metadata, context))

    def close(self) -> None:
        """Close the connections that ``publish_sync`` has opened; do nothing if it was not called."""
        own, self._own = self._own, None
        if own is None:
            return
        atexit.unregister(self.close)
        if own.is_mine:
            own.run(self.__aexit__(None, None, None))
            own.close()

    def _new_producer(self) -> ClosingProducer:
        # Imported here, because aiokafka takes half a second to import, and a program that never publishes does not need it.
        from streams_app.kafka.coalescing_producer import CoalescingProducer
        from streams_app.kafka.producer import AckedProducer

        # No linger time, because each event of a sequence would wait for it.
        client_id = f"{self._settings.app_id}-events"
        producer = AckedProducer(self._settings.kafka, client_id=client_id, send_seconds=self._send_seconds, linger_ms=0)
        return CoalescingProducer(producer, self._send_seconds)

    def _new_schemas(self) -> SchemaRegistry | None:
        """Return the registry whose schemas encode the events; None if no event has a format that needs one."""
        formats = formats_of(self._events.values())
        if not set(formats) & set(REGISTERED):
            return None
        from streams_app.schemas.registry import registry_of  # aiohttp takes a while to import

        return registry_of(self._settings, formats, self._clock)

    def _waited_for(self, publish: Callable[[], Coroutine[Any, Any, str]]) -> str:
        if self._loop is not None and self._own is None:
            return waited_for(publish(), self._loop)
        with self._lock:
            own = self._own
            if own is None or not own.is_mine:
                # Connections inherited by a fork belong to the parent process: they are neither used nor closed here.
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
    ) -> _ReadyEvent:
        """Encode an event, and validate it by decoding it as consumers do: msgspec does not validate objects at construction."""
        if not isinstance(event, Event):
            raise ConfigurationError([f"{event!r} is not an Event: pass a declared event, then its payload"])
        if faults := self._faults(event, metadata, context, event_id):
            raise ConfigurationError([f"{event.key}: {fault}" for fault in faults])
        if event.format in ("avro", "protobuf") and not (before is None and metadata is None):
            raise ConfigurationError([f"{event.key}: format = {event.format!r} has no place for before and metadata"])
        try:
            require_id(event_id, self._settings.limits.key_bytes)
            key, value = encode(event, data, before, metadata)
            check_sizes(key, value, self._settings.limits)
            self._decoders[event.key](key, value)
        except BadEventError:
            self._publishing_metrics.add(event.key, "refused")
            raise
        envelope = Envelope(event_id, context=context) if parent is None else parent.envelope(context)
        content_type = "application/json" if self._schemas is None else CONTENT_TYPES.get(event.format, "application/json")
        headers = headers_for(event.key, event_id, self._settings.app_id, self._clock.now_ms(), envelope, content_type)
        native = native_of(data) if event.format in REGISTERED and self._schemas is not None else None
        return _ReadyEvent(event_id, key, value, headers, native)

    def _faults(self, event: Event[Any, Any], metadata: Any, context: Mapping[str, str], event_id: Any) -> list[str]:
        if self._events.get(event.key) is not event:
            near = suggestion(event.key, [key for key in self._events if key != event.key])
            return [f"the catalogue has no such event{near or '; its `events` have to name it'}"]
        if event.decode is not None:
            return ["events with decode= are published by other programs: this project writes JSON"]
        if event.format in ("debezium", "cloudevents"):
            return [f"what has format = {event.format!r} is published by others: this project writes no such envelope"]
        faults = context_faults(context)
        if not isinstance(event_id, str):
            faults.append(f"event_id = {event_id!r} is not a string")
        if metadata is not None and event.metadata is None:
            faults.append("the event declares no metadata, so no subscriber could read it")
        return faults

    async def _send(self, event: Event[Any, Any], ready: Sequence[_ReadyEvent]) -> None:
        if event.format in REGISTERED and self._schemas is not None:
            ready = await self._framed(event, ready, self._schemas)
        if self._tracing is None or not ready:
            await self._produce(event, ready)
            return
        from streams_app.tracing.spans import with_trace_headers  # its package is optional

        with self._tracing.publishing(event.topic, ready[0].headers, _attributes(event, ready)) as added:
            await self._produce(event, [one._replace(headers=with_trace_headers(one.headers, added)) for one in ready])

    async def _framed(self, event: Event[Any, Any], ready: Sequence[_ReadyEvent], schemas: SchemaRegistry) -> list[_ReadyEvent]:
        """Encode events by the latest schema of the subject ``<topic>-value``. Nothing is sent if one of them fails."""
        latest = await schemas.latest(f"{event.topic}-value", event.format)
        found = []
        for one in ready:
            try:
                # In JSON, `before` and `metadata` are added to the payload, so the encoded value is used.
                body = one.value if event.format == "json-schema" else latest.schema.encode(one.native)
            except Exception as error:  # whatever a library raises for an event that does not fit
                self._publishing_metrics.add(event.key, "refused")
                text = f"{event.key} does not fit schema {latest.id}, the latest of {event.topic}-value: {text_of(error)}"
                raise BadEventError("not-valid", text) from error
            value = framed(latest.id, body)
            check_sizes(one.key, value, self._settings.limits)
            found.append(one._replace(value=value))
        return found

    async def _produce(self, event: Event[Any, Any], ready: Sequence[_ReadyEvent]) -> None:
        from streams_app.delivery.producer import TOO_LARGE, OutgoingRecord  # with aiokafka, see above

        if self._producer is None or asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("nothing is published outside of `async with Events(...)`; where no loop runs, call publish_sync")
        begun_ms = self._clock.monotonic_ms()
        outcomes = await self._producer.send([OutgoingRecord(event.topic, one.key, one.value, list(one.headers)) for one in ready])
        self._publishing_metrics.publish_seconds.labels(event=event.key).observe((self._clock.monotonic_ms() - begun_ms) / 1000)
        failed = [outcome for outcome in outcomes if outcome is not None]
        self._publishing_metrics.add(event.key, "acknowledged", len(ready) - len(failed))
        if not failed:
            return
        self._publishing_metrics.add(event.key, "unknown", len(failed))
        if len(ready) == 1 and isinstance(failed[0], TOO_LARGE):
            raise BadEventError(
                "too-large", f"the topic {event.topic} does not accept a record of {len(ready[0].value)} bytes"
            ) from failed[0]
        raise NotPublishedError(event.key, [one.event_id for one in ready], len(failed), str(failed[0])) from failed[0]


def _attributes(event: Event[Any, Any], ready: Sequence[_ReadyEvent]) -> dict[str, str | int]:
    if len(ready) > 1:
        return {"streams_app.event": event.key, "messaging.batch.message_count": len(ready)}
    of_key = {} if ready[0].key is None else {"messaging.kafka.message.key": ready[0].key.decode("utf-8", "backslashreplace")}
    return {"streams_app.event": event.key, "messaging.message.id": ready[0].event_id, **of_key}
