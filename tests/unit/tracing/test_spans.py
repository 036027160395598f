"""Spans, the headers that contain their contexts, and the ids of spans in log lines."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from streams_app.logs import JsonFormatter, LineFormatter
from streams_app.tracing.spans import (
    TraceIds,
    Tracing,
    add_trace_ids,
    headers_of,
    record_failure,
    trace_context_of,
    with_trace_headers,
)
from tests.checkout.imports import ROOT
from tests.helpers.tracing.spans import GARBAGE, Spans, ids_of, parent_of, trace_parent

PARENT = [("ce_id", b"e1"), ("traceparent", trace_parent(1, 2))]


def context_in(headers: Any) -> trace.SpanContext:
    return trace.get_current_span(trace_context_of(headers)).get_span_context()


@pytest.mark.parametrize("value", GARBAGE.values(), ids=GARBAGE)
def test_invalid_trace_context_is_ignored(value: bytes, caplog: pytest.LogCaptureFixture) -> None:
    add_trace_ids()

    assert not context_in([("traceparent", value)]).is_valid
    assert [] == caplog.records


def test_trace_context_without_a_value_is_ignored() -> None:
    headers: Any = [("traceparent", None)]

    assert not context_in(headers).is_valid


@pytest.mark.parametrize("value", [b"x" * 600, b"\xff", b"=,=,=", b"a=1,a=2", "a=é".encode()])
def test_invalid_trace_state_keeps_the_trace_parent(value: bytes, caplog: pytest.LogCaptureFixture) -> None:
    add_trace_ids()
    found = context_in([*PARENT, ("tracestate", value)])

    assert (1, 2) == (found.trace_id, found.span_id)
    assert [] == caplog.records


def test_trace_state_is_passed_on(spans: Spans) -> None:
    with Tracing().publishing("orders", [*PARENT, ("tracestate", b"vendor=abc")], {}) as added:
        assert b"vendor=abc" == dict(added)["tracestate"]


def test_publishing_is_a_child_of_the_headers_without_a_current_span(spans: Spans) -> None:
    with Tracing().publishing("orders", PARENT, {"messaging.message.id": "e1"}) as added:
        pass
    span = spans.one()

    assert (("publish orders", SpanKind.PRODUCER, (1, 2))) == (span.name, span.kind, parent_of(span))
    assert [("traceparent", trace_parent(*ids_of(span)))] == added
    assert {
        "messaging.system": "kafka",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.message.id": "e1",
    } == dict(span.attributes or {})


def test_publishing_is_a_child_of_the_current_span(spans: Spans) -> None:
    with trace.get_tracer("request").start_as_current_span("request") as request, Tracing().publishing("orders", PARENT, {}):
        pass
    (publish, _) = spans.all()

    assert request.get_span_context().span_id == (publish.parent and publish.parent.span_id)


def test_failed_publishing_records_the_error(spans: Spans) -> None:
    with pytest.raises(ConnectionError), Tracing().publishing("orders", [], {}):
        raise ConnectionError("away")
    span = spans.one()

    assert (StatusCode.ERROR, "ConnectionError('away')") == (span.status.status_code, span.status.description)
    assert ["exception"] == [event.name for event in span.events]


def test_trace_headers_replace_former_ones() -> None:
    headers = [*PARENT, ("tracestate", b"a=1")]

    assert [("ce_id", b"e1"), ("traceparent", b"new")] == with_trace_headers(headers, [("traceparent", b"new")])
    assert headers == with_trace_headers(headers, [])


class TextlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "error", [TextlessError(), ValueError("\udcff"), ExceptionGroup("two", [ValueError("\udcff")]), KeyboardInterrupt()]
)
def test_failure_of_any_error_can_be_exported(error: BaseException, spans: Spans) -> None:
    span = trace.get_tracer("test").start_span("failing")
    record_failure(span, error)
    span.end()

    found = spans.one()
    assert StatusCode.ERROR is found.status.status_code
    assert found.to_json().encode()
    assert all(isinstance(value, str) and value.encode() for value in (found.events[0].attributes or {}).values())


def test_attributes_that_utf8_cannot_encode_are_escaped(spans: Spans) -> None:
    with Tracing().publishing("orders", [], {"messaging.kafka.message.key": "\udcff"}):
        pass

    assert "\\udcff" == (spans.one().attributes or {})["messaging.kafka.message.key"]


WITHOUT_SDK = """
import asyncio, logging
from streams_app.tracing.spans import Tracing, with_trace_headers
logging.basicConfig(format="%(message)s")
tracing = Tracing()
tracing.warn_if_unrecorded()
header = ("traceparent", b"00-0000000000000000000000000000000a-000000000000000b-01")
with tracing.publishing("orders", [header], {}) as added:
    assert [header] == with_trace_headers([header], added), added  # before 1.40 of the API, `added` is empty
with tracing.publishing("orders", [], {}) as added:
    assert [] == added, added
with tracing.processing("orders", [header], {}, lambda error: error):
    pass
asyncio.run(tracing.flush())
"""


def test_contexts_are_passed_on_with_a_warning_if_no_sdk_is_installed() -> None:
    ran = subprocess.run([sys.executable, "-c", WITHOUT_SDK], cwd=ROOT, check=True, capture_output=True, text=True)

    assert ran.stderr.startswith("tracing is on, and no tracer provider is set")


def test_headers_of_a_span_without_a_context_are_empty() -> None:
    assert [] == headers_of(trace.INVALID_SPAN)


async def test_configured_provider_causes_no_warning_and_is_flushed(spans: Spans, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Tracing().warn_if_unrecorded()
    await Tracing().flush()

    assert [] == caplog.records


def written(formatter: logging.Formatter) -> tuple[str, str, str]:
    """Return a line that is written within a span, and the ids of the span."""
    record = logging.LogRecord("shop", logging.INFO, __file__, 1, "shipped order=%s", ("o1",), None)
    with trace.get_tracer("test").start_as_current_span("call") as span:
        assert TraceIds().filter(record)
    context = span.get_span_context()
    return formatter.format(record), f"{context.trace_id:032x}", f"{context.span_id:016x}"


def test_text_line_ends_with_the_ids(spans: Spans) -> None:
    line, trace_id, span_id = written(LineFormatter())

    assert line.endswith(f"INFO    shop shipped order=o1 trace_id={trace_id} span_id={span_id}")


def test_json_line_has_the_ids_as_fields(spans: Spans) -> None:
    line, trace_id, span_id = written(JsonFormatter())

    assert {"message": "shipped order=o1", "trace_id": trace_id, "span_id": span_id}.items() <= json.loads(line).items()


@pytest.mark.parametrize("formatter", [LineFormatter(), JsonFormatter()])
def test_line_outside_a_span_has_no_ids(formatter: logging.Formatter) -> None:
    record = logging.LogRecord("shop", logging.INFO, __file__, 1, "shipped", (), None)

    assert TraceIds().filter(record)
    assert "trace_id" not in formatter.format(record)


def test_every_handler_of_the_process_adds_the_ids_once(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = logging.NullHandler()
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    add_trace_ids()
    add_trace_ids()

    assert [TraceIds] == [type(each) for each in handler.filters]
