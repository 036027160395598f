"""Checks whether the settings protect the HTTP pages of a worker (pure). Each module of this package checks one subject."""

from __future__ import annotations

from ipaddress import ip_address

from streams_app.checking.finding import Finding, Level
from streams_app.settings import HttpSettings


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


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
