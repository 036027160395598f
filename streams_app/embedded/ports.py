"""Finds free ports on the loopback address, so that conflicts are rare. After a conflict, callers choose another port.

On Linux, a port stays reserved for the process that received it until that process has received many more ports. A reservation
is a socket that is bound and does not listen. In every process, :func:`free_port` skips a reserved port; the server can bind it,
because the server and the reservation set ``SO_REUSEADDR``.
"""

from __future__ import annotations

import atexit
import random
import socket
import sys
import threading
from collections import deque

from streams_app.errors import TryAgainError

LOOPBACK = "127.0.0.1"

# Below the ranges from which Linux (32768-60999) and macOS (49152-65535) assign ports to outgoing connections: if the
# kernel chose the port ("bind to 0"), any client on this machine could take it before the server binds it.
_FIRST_PORT = 20_000
_LAST_PORT = 32_000

# When this number is reached, a server already listens on the oldest port. Each reservation takes a file descriptor.
_MAX_RESERVATIONS = 64

# Not seeded: two processes that start at the same time must not try the same ports.
_random = random.SystemRandom()
_given: set[int] = set()
_reservations: deque[socket.socket] = deque()
_lock = threading.Lock()


def is_free(port: int) -> bool:
    """Return whether a server could listen on the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as candidate:
        # Same option as the servers: a port with connections in TIME_WAIT is free, one with a listener is not.
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            candidate.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """Return a free port that this function has not returned before in this process. Another program may still bind it first.

    Raises:
        TryAgainError: No port was free after 1 000 attempts.
    """
    with _lock:
        for _ in range(1_000):
            port = _random.randint(_FIRST_PORT, _LAST_PORT)
            if port not in _given and _reserve(port):
                _given.add(port)
                return port
    raise TryAgainError(f"no free port between {_FIRST_PORT} and {_LAST_PORT} on {LOOPBACK}")


def _reserve(port: int) -> bool:
    """Reserve a port if it is free; return whether it was free."""
    if sys.platform != "linux":
        return is_free(port)
    reservation = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # Without SO_REUSEADDR, binding fails if any socket is bound to the port; with it, a server may bind it as well.
        reservation.bind((LOOPBACK, port))
    except OSError:
        reservation.close()
        return False
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if len(_reservations) == _MAX_RESERVATIONS:
        _reservations.popleft().close()
    _reservations.append(reservation)
    return True


@atexit.register
def _release_all() -> None:
    while _reservations:
        _reservations.popleft().close()
