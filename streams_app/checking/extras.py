"""Checks the optional packages: those for tracing, and the native core."""

from __future__ import annotations

from streams_app.checking.finding import Finding, Level
from streams_app.errors import ConfigurationError
from streams_app.folding.reading.fast import is_usual
from streams_app.native import INSTALL, native_fault
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


def native_finding(settings: Settings) -> Finding | None:
    """Check whether the native core can be used. Return None if it is off, or if no fold could use it and it is not required."""
    choice, could_use_it = settings.worker.native, any(map(is_usual, settings.folds))
    if choice == "off" or not (could_use_it or choice == "require"):
        return None
    fault = native_fault()
    if fault is None:
        return Finding(Level.OK, "folds of names in JSON are read by the native core")
    if choice == "require":
        return Finding(Level.ERROR, f'worker.native is "require", but {fault}', INSTALL)
    return Finding(Level.OK, f"events are read by Python: {fault}")
