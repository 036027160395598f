"""Limits the number of connections of a hub to what the file descriptors of its process allow."""

from __future__ import annotations

import resource
import sys
from contextlib import suppress
from typing import Final

from streams_app.health.http_connections import MAX_CONNECTIONS

RESERVE: Final = 64
"""Connections besides those with open pages: other requests, requests to be rejected, and clients that have not sent a request."""

OTHER_DESCRIPTORS: Final = MAX_CONNECTIONS + 64
"""File descriptors that a hub needs for anything other than connections of browsers: its health server, Redis and files."""


def descriptors_for(connections: int) -> int:
    """Return the number of file descriptors that the process of a hub needs to serve a number of connections with open pages."""
    return connections + RESERVE + OTHER_DESCRIPTORS


def connections_within(connections: int) -> int:
    """Return how many connections with open pages, from 1 to ``connections``, the soft limit of file descriptors allows."""
    spare = _counted(resource.getrlimit(resource.RLIMIT_NOFILE)[0]) - descriptors_for(connections)
    return max(1, min(connections, connections + spare))


def max_descriptors() -> int:
    """Return the hard limit of file descriptors, up to which a process can raise its own limit."""
    return _counted(resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def ask_for_descriptors(connections: int) -> None:
    """Raise the soft limit of file descriptors of this process to what a number of connections with open pages needs.

    The limit is raised to the hard limit at most; if the system denies that, it stays as it is. It is never lowered.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(descriptors_for(connections), _counted(hard))
    if _counted(soft) < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _counted(limit: int) -> int:
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit
