"""Adds the ids of the current span to log lines: those of a subscriber's function show in which trace it was called."""

from __future__ import annotations

import logging

from opentelemetry import trace


class TraceIds(logging.Filter):
    """Gives log records that are written within a span ``trace_id`` and ``span_id``, as hexadecimal text."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the ids; every record is written."""
        context = trace.get_current_span().get_span_context()
        if context.is_valid:
            record.trace_id = trace.format_trace_id(context.trace_id)
            record.span_id = trace.format_span_id(context.span_id)
        return True


def add_trace_ids() -> None:
    """Add the ids in every handler of this process."""
    # It logs each header of an event that is not valid, and such headers are ignored here.
    logging.getLogger("opentelemetry.trace").setLevel(logging.ERROR)
    for handler in logging.getLogger().handlers:
        if not any(isinstance(each, TraceIds) for each in handler.filters):
            handler.addFilter(TraceIds())
