"""Audit lines: each command that changes something writes an audit line to stderr, with time, action and user."""

from __future__ import annotations

import getpass
import socket
import sys
from typing import Any

from streams_app.clock import Clock
from streams_app.formatting import time_text


def audit(clock: Clock, action: str, by: str = "", **facts: Any) -> None:
    """Write an audit line about an action to stderr; ``facts`` become ``key=value`` pairs.

    Args:
        by: Who has acted; empty: the user of this process.
    """
    pairs = " ".join(f"{name}={value}" for name, value in facts.items())
    print(f"{time_text(clock.now_ms())} audit {action} {pairs} by={by or user_text()}", file=sys.stderr)


def user_text() -> str:
    """Return the user of this process, as ``user@host``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"  # the user id of a container may have no name
    return f"{user}@{socket.gethostname()}"
