"""Adds the ids of the current span to log lines, so that the log lines of a subscriber's function can be found by trace."""

from __future__ import annotations

import logging

from opentelemetry import trace


class TraceIds(logging.Filter):
    """Logging filter that adds ``trace_id`` and ``span_id``, as hexadecimal text, to log records written within a span."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the ids of the current span, if there is one; return True, so that no log record is dropped."""
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
