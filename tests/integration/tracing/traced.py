"""A worker whose spans are written to a file, a line of JSON each, when they are flushed: a batch is not full before its end.

Run as ``python -m tests.integration.tracing.traced worker ...``.
"""

from __future__ import annotations

import os
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

SPANS = "TRACED_SPANS"
"""Environment variable with the name of the file."""

if __name__ == "__main__":
    from streams_app.cli import main

    with Path(os.environ[SPANS]).open("w", encoding="utf-8") as lines:
        exporter = ConsoleSpanExporter(out=lines, formatter=lambda span: span.to_json(indent=None) + "\n")
        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=3_600_000))
        trace.set_tracer_provider(provider)
        main()
