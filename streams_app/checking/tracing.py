"""Checks that the packages for tracing are installed."""

from __future__ import annotations

from streams_app.checking.finding import Finding, Level
from streams_app.errors import ConfigurationError
from streams_app.settings import Settings
from streams_app.tracing import tracing_of


def tracing_finding(settings: Settings) -> Finding | None:
    """Check whether spans can be recorded. Return None if tracing is off."""
    try:
        tracing = tracing_of(settings)
    except ConfigurationError as error:
        return Finding(Level.ERROR, "tracing.enabled: opentelemetry-api is not installed", error.faults[0].rpartition("; ")[2])
    what = "tracing is enabled; the configuration of the OpenTelemetry SDK decides where spans are exported"
    return None if tracing is None else Finding(Level.OK, what)
