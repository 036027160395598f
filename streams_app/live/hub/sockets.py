"""Limits the number of connections of a hub to what the file descriptors of its process allow."""

from __future__ import annotations

import resource
import sys
from contextlib import suppress
from typing import Final

from streams_app.health.http_connections import MAX_CONNECTIONS

RESERVE: Final = 64
"""Connections besides those of open pages: other requests, requests to be rejected, and clients that have not sent a request."""

OTHER_DESCRIPTORS: Final = MAX_CONNECTIONS + 64
"""File descriptors that a hub needs for anything other than connections of browsers: its health server, Redis and files."""


def descriptors_for(pages: int) -> int:
    """Return the number of descriptors that a hub needs for a number of open pages."""
    return pages + RESERVE + OTHER_DESCRIPTORS


def pages_within(pages: int) -> int:
    """Return the number of open pages for which this process has file descriptors: at most ``pages``, and at least 1."""
    return max(1, min(pages, pages - descriptors_for(pages) + _counted(resource.getrlimit(resource.RLIMIT_NOFILE)[0])))


def max_descriptors() -> int:
    """Return the hard limit of file descriptors, up to which a process can raise its own limit."""
    return _counted(resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def ask_for_descriptors(pages: int) -> None:
    """Raise the descriptor limit of this process to what a number of open pages needs, as far as the system permits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(descriptors_for(pages), _counted(hard))
    if _counted(soft) < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _counted(limit: int) -> int:
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit
