"""Checks what the process of a worker has besides its components: HTTP pages, tracing, and the native core."""

from __future__ import annotations

from ipaddress import ip_address

from streams_app.errors import ConfigurationError
from streams_app.finding import Finding, Level
from streams_app.folding.reading.fast import is_usual
from streams_app.native import INSTALL, native_fault
from streams_app.settings import HttpSettings, Settings
from streams_app.tracing import tracing_of


def http_finding(http: HttpSettings) -> Finding:
    """Check whether the HTTP pages of a worker can be read over the network without a token; if so, the finding is a warning."""
    if _is_loopback(http.host):
        return Finding(Level.OK, f"health, metrics and groups are served on {http.host} only")
    if http.token_file is not None:
        return Finding(Level.OK, f"health, metrics and groups are served on {http.host}; all but health require a token")
    return Finding(
        Level.WARNING,
        f'http.host = "{http.host}" serves metrics, groups and events to anyone who can reach this machine, without a token',
        "set http.token_file, or keep others off the port by the network",
    )


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


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
