"""Free ports on the loopback address, chosen so that a clash is rare; callers try again when one happens.

On Linux a port stays reserved for the process it was given to, until that process has been given many more. A socket
that is bound and does not listen keeps other callers of :func:`free_port` away, in every process, and lets the server
bind the port, as both set ``SO_REUSEADDR``.
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

# Below the ranges from which Linux (32768-60999) and macOS (49152-65535) give ports to outgoing connections: a port
# the kernel hands out by "bind to 0" can be taken by any client of this machine before the server binds it.
_FIRST_PORT = 20_000
_LAST_PORT = 32_000

# By then a server listens on the oldest of them; each costs a file descriptor.
_MAX_RESERVATIONS = 64

# Not seeded: two processes that start together must not walk the same ports.
_random = random.SystemRandom()
_given: set[int] = set()
_reservations: deque[socket.socket] = deque()
_lock = threading.Lock()


def is_free(port: int) -> bool:
    """Whether a server could listen on the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as candidate:
        # As the servers do it: a port with connections in TIME_WAIT is free, one with a listener is not.
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            candidate.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A port nobody listens on, and that this process was not given before; see above for other processes.

    A program that chooses its ports otherwise may still take it before it is used.

    Raises:
        TryAgainError: No port was free after many tries.
    """
    with _lock:
        for _ in range(1_000):
            port = _random.randint(_FIRST_PORT, _LAST_PORT)
            if port not in _given and _reserve(port):
                _given.add(port)
                return port
    raise TryAgainError(f"no free port between {_FIRST_PORT} and {_LAST_PORT} on {LOOPBACK}")


def _reserve(port: int) -> bool:
    """Whether the port was free; on Linux it is reserved until this process ends or has been given many more."""
    if sys.platform != "linux":
        return is_free(port)
    reservation = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # Without SO_REUSEADDR the kernel refuses a port that anybody has bound; with it, a server may bind beside us.
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
