"""Starts OpenTelemetry spans, propagates their contexts in the headers of records, and adds their ids to log lines.

The headers are always ``traceparent`` and ``tracestate`` of W3C Trace Context. ``OTEL_PROPAGATORS`` has no effect, because events
had these headers before tracing was supported. Invalid headers are ignored. Spans are exported by the SDK that the user
configures; without an SDK, contexts are passed on, but no span is recorded.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, TypeAlias

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from streams_app.errors import text_of

logger = logging.getLogger(__name__)

TRACE_PARENT: Final = "traceparent"
TRACE_STATE: Final = "tracestate"
FIELDS: Final = frozenset({TRACE_PARENT, TRACE_STATE})

MAX_HEADER_BYTES: Final = 512
"""A longer trace header is ignored. W3C Trace Context requires that a ``tracestate`` of up to 512 bytes is passed on; a
``traceparent`` has 55 bytes."""

FLUSH_SECONDS: Final = 2.0
"""Maximum time that a stopping worker waits for the export of finished spans."""

Attributes: TypeAlias = Mapping[str, str | int]
Headers: TypeAlias = Sequence[tuple[str, bytes]]

_PROPAGATOR: Final = TraceContextTextMapPropagator()


class Tracing:
    """Starts the spans of consumed and published records, with the tracer named ``streams_app``."""

    def __init__(self) -> None:
        """Create the tracer. If the application sets its tracer provider only later, the tracer uses it from then on."""
        self._tracer = trace.get_tracer("streams_app")

    @contextmanager
    def processing(
        self,
        topic: str,
        headers: Headers,
        attributes: Attributes,
        failure_of: Callable[[BaseException | None], BaseException | None],
    ) -> Iterator[None]:
        """Run the block within a CONSUMER span of one record, whose parent is the trace context in the headers of the record.

        Args:
            failure_of: Called with the exception that the block has raised, or None. Returns the exception that the span records as
                its failure; None if the span counts as successful.
        """
        parent = trace_context_of(headers)
        with self._span(
            f"process {topic}", SpanKind.CONSUMER, parent, _messaging(topic, "process", "process", attributes), failure_of
        ):
            yield

    @contextmanager
    def publishing(self, topic: str, headers: Headers, attributes: Attributes) -> Iterator[Headers]:
        """Run the block within a PRODUCER span.

        The parent of the span is the current span; if there is none, it is the trace context in ``headers``.

        Args:
            headers: Headers of the first record, before tracing adds its own.

        Yields:
            Trace headers with the context of the span; empty if there is neither an SDK nor a parent.
        """
        parent = None if trace.get_current_span().get_span_context().is_valid else trace_context_of(headers)
        with self._span(f"publish {topic}", SpanKind.PRODUCER, parent, _messaging(topic, "publish", "send", attributes)) as span:
            yield headers_of(span)

    @contextmanager
    def processing_batch(self, topic: str, attributes: Attributes) -> Iterator[Span]:
        """Run the block within a CONSUMER span of several records, the root of a trace; :meth:`link` links it to their contexts."""
        messaging = _messaging(topic, "process", "process", attributes)
        with self._span(f"process {topic}", SpanKind.CONSUMER, Context(), messaging) as span:
            yield span

    @staticmethod
    def link(span: Span, contexts: Iterable[bytes]) -> None:
        """Link a span to trace contexts, given as valid values of ``traceparent``."""
        for one in contexts:
            span.add_link(_span_context(one))

    def begin_record(self, topic: str, contexts: Iterable[bytes], attributes: Attributes) -> Span:
        """Begin and return a PRODUCER span for a folded record, the root of a trace, linked to valid values of ``traceparent``."""
        return self._tracer.start_span(
            f"publish {topic}",
            Context(),
            SpanKind.PRODUCER,
            _messaging(topic, "publish", "send", attributes),
            [Link(_span_context(one)) for one in contexts],
        )

    def end_record(self, span: Span, error: BaseException | None) -> None:
        """End a span that :meth:`begin_record` returned; if publishing failed, the span records the error."""
        if error is not None:
            record_failure(span, error)
        span.end()

    def warn_if_unrecorded(self) -> None:
        """Log a warning if no tracer provider is set, because spans are not recorded without one."""
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            logger.warning(
                "tracing is on, and no tracer provider is set: nothing is recorded unless the lifespan of the catalogue sets one; "
                "run the worker by opentelemetry-instrument"
            )

    async def flush(self) -> None:
        """Export finished spans, for at most :data:`FLUSH_SECONDS`.

        An SDK would export them in an exit hook, but a worker exits without running exit hooks.
        """
        flush = getattr(trace.get_tracer_provider(), "force_flush", None)
        if flush is not None:
            # A daemon thread does not keep the process alive if the exporter still waits for its collector.
            thread = threading.Thread(target=flush, name="flush spans", daemon=True)
            thread.start()
            await asyncio.to_thread(thread.join, FLUSH_SECONDS)

    @contextmanager
    def _span(
        self,
        name: str,
        kind: SpanKind,
        parent: Context | None,
        attributes: Attributes,
        failure_of: Callable[[BaseException | None], BaseException | None] = lambda error: error,
    ) -> Iterator[Span]:
        span = self._tracer.start_span(name, parent, kind, attributes)
        raised: BaseException | None = None
        try:
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                yield span
        except BaseException as error:
            raised = error
            raise
        finally:
            failure = failure_of(raised)
            if failure is not None:
                record_failure(span, failure)
            span.end()


def trace_context_of(headers: Headers) -> Context:
    """Return the trace context in the headers of a record; an empty context if it is missing or invalid."""
    found = {
        name: value.decode("ascii")
        for name, value in headers
        if name in FIELDS and value and len(value) <= MAX_HEADER_BYTES and value.isascii()
    }
    return _PROPAGATOR.extract(found, Context()) if TRACE_PARENT in found else Context()


def _span_context(value: bytes) -> SpanContext:
    """Parse a ``traceparent`` that is known to be valid.

    This takes a tenth of the time of OpenTelemetry's propagator, which matters because a folded record has up to 32 links.
    """
    _, trace_id, span_id, flags = value.split(b"-")
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))


def headers_of(span: Span) -> Headers:
    """Return the trace headers that contain the context of a span; empty if the span has no valid context."""
    found: dict[str, str] = {}
    _PROPAGATOR.inject(found, trace.set_span_in_context(span, Context()))
    return [(name, value.encode()) for name, value in found.items()]


def with_trace_headers(headers: Headers, added: Headers) -> list[tuple[str, bytes]]:
    """Return ``headers`` with their trace headers replaced by ``added``; unchanged if ``added`` is empty."""
    return [*(one for one in headers if not added or one[0] not in FIELDS), *added]


def record_failure(span: Span, error: BaseException) -> None:
    """Set the status of a span to ERROR, and record the exception."""
    # span.record_exception() is not safe: the __str__ of a user's exception may raise, or return text that cannot be encoded.
    kind = type(error).__qualname__
    stack = "".join(traceback.format_exception(error))
    message = text_of(error)
    span.add_event(
        "exception",
        {"exception.type": kind, "exception.message": encodable(message), "exception.stacktrace": encodable(stack)},
    )
    span.set_attribute("error.type", kind)
    span.set_status(StatusCode.ERROR, encodable(message))


def encodable(text: str) -> str:
    """Return a text with its lone surrogates escaped. A single lone surrogate would cause an exporter to drop a batch of spans."""
    return text.encode("utf-8", "backslashreplace").decode()


class TraceIds(logging.Filter):
    """Logging filter that adds ``trace_id`` and ``span_id``, as hexadecimal text, to log records written within a span."""

    def filter(self, record: logging.LogRecord) -> bool:
        context = trace.get_current_span().get_span_context()
        if context.is_valid:
            record.trace_id = trace.format_trace_id(context.trace_id)
            record.span_id = trace.format_span_id(context.span_id)
        return True


def add_trace_ids() -> None:
    """Add a :class:`TraceIds` filter to each handler of the root logger that has none.

    Warnings of OpenTelemetry about invalid trace headers are no longer logged.
    """
    # Invalid trace headers of events are ignored on purpose; this logger would warn of each.
    logging.getLogger("opentelemetry.trace").setLevel(logging.ERROR)
    for handler in logging.getLogger().handlers:
        if not any(isinstance(each, TraceIds) for each in handler.filters):
            handler.addFilter(TraceIds())


def _messaging(topic: str, operation: str, kind: str, attributes: Attributes) -> Attributes:
    """Return ``attributes`` with the span attributes for messaging that OpenTelemetry defines: system, operation and topic."""
    return {
        "messaging.system": "kafka",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": topic,
        **{name: encodable(value) if isinstance(value, str) else value for name, value in attributes.items()},
    }
