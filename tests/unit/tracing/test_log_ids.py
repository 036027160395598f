"""Log lines of a traced call contain the ids of its span."""

from __future__ import annotations

import json
import logging

import pytest
from opentelemetry import trace

from streams_app.logs import JsonFormatter, LineFormatter
from streams_app.tracing.log_ids import TraceIds, add_trace_ids
from tests.spans import Spans


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
