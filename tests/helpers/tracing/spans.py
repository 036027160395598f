"""Spans of this process, from the in-memory exporter of the SDK."""

from __future__ import annotations

from functools import cache

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

GARBAGE = {
    "empty": b"",
    "too long": b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01" + b"-x" * 500,
    "a megabyte": b"0" * 1_000_000,
    "wrong hex": b"00-" + b"g" * 32 + b"-" + b"2" * 16 + b"-01",
    "capitals": b"00-" + b"A" * 32 + b"-" + b"2" * 16 + b"-01",
    "no trace": b"00-" + b"0" * 32 + b"-" + b"2" * 16 + b"-01",
    "no span": b"00-" + b"1" * 32 + b"-" + b"0" * 16 + b"-01",
    "not ascii": "00-é".encode() + b"1" * 32,
    "not utf-8": b"\xff\xfe\x00",
    "version ff": b"ff-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01",
    "more behind version 00": b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01-more",
    "cut": b"00-" + b"1" * 32 + b"-" + b"2" * 16,
}
"""Invalid values of ``traceparent``."""


def trace_parent(trace_id: int, span_id: int, *, is_sampled: bool = True) -> bytes:
    return b"00-%032x-%016x-%02x" % (trace_id, span_id, is_sampled)


@cache
def exporter() -> InMemorySpanExporter:
    """Return the exporter of this process, whose provider can be set only once."""
    found = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(found))
    trace.set_tracer_provider(provider)
    return found


class Spans:
    """Finished spans since the beginning of a test."""

    def __init__(self) -> None:
        exporter().clear()

    def all(self) -> list[ReadableSpan]:
        return list(exporter().get_finished_spans())

    def one(self) -> ReadableSpan:
        (span,) = self.all()
        return span


def ids_of(span: ReadableSpan) -> tuple[int, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def parent_of(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)
