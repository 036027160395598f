"""How many connections a hub has room for, by the descriptors that its process may have."""

from __future__ import annotations

import resource
import sys
from contextlib import suppress
from typing import Final

from streams_app.health.http_connections import MOST_CONNECTIONS

RESERVE: Final = 64
"""Connections besides open pages: they ask for something else, are about to be refused, or have not asked yet."""

OTHER_DESCRIPTORS: Final = MOST_CONNECTIONS + 64
"""Of a hub besides those connections: its health pages, Redis, files."""


def descriptors_for(pages: int) -> int:
    """How many descriptors a hub wants for so many open pages."""
    return pages + RESERVE + OTHER_DESCRIPTORS


def pages_within(pages: int) -> int:
    """How many open pages, of so many at most, this process has descriptors for."""
    return max(1, min(pages, pages - descriptors_for(pages) + _counted(resource.getrlimit(resource.RLIMIT_NOFILE)[0])))


def most_descriptors() -> int:
    """How many descriptors a process that is started here may ask for."""
    return _counted(resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def ask_for_descriptors(pages: int) -> None:
    """Raises the limit of this process to what so many open pages want, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(descriptors_for(pages), _counted(hard))
    if _counted(soft) < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _counted(limit: int) -> int:
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit
