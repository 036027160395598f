"""Listens for an HTTP server, and limits its connections: their number, and the time for which each may keep the server waiting.

aiohttp limits neither the number of connections nor the time in which a request must arrive. Each connection takes a file
descriptor of the worker, which needs them for Kafka, Redis and its stores. So hundreds of clients that send half a request, or read
half a response, would stop both folding and the health pages.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Callable
from typing import Final, cast

from aiohttp import web

from streams_app.clock import Clock
from streams_app.health.http_errors import JsonRequestHandler, UnexpectedErrors

REQUEST_SECONDS: Final = 10.0
"""Maximum time from opening a connection to its first byte, and from the first byte of a request to the end of its headers."""

IDLE_SECONDS: Final = 75.0
"""Maximum time for a client to read a response and to send its next request; longer than a usual scrape interval."""

MAX_CONNECTIONS: Final = 64
DESCRIPTORS_A_CONNECTION: Final = 8
"""The server has at most one connection for this many file descriptors that the process may open."""

BACKLOG: Final = 32
"""Maximum number of connections that wait until the server accepts them. Each accepted connection takes a file descriptor."""


def connection_limit(most: int = MAX_CONNECTIONS, descriptors_each: int = DESCRIPTORS_A_CONNECTION) -> int:
    """Return the maximum number of connections: ``most``, or fewer if this process may open few descriptors."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return most
    return max(1, min(most, descriptors // descriptors_each))


class Connections:
    """The open connections of one HTTP server; not thread-safe, used only on the server's event loop.

    Above the limit, the connection that has waited longest for its client is closed, never the new one. So a health check is
    answered even if other clients hold many connections open.
    """

    def __init__(
        self, limit: int, clock: Clock, request_seconds: float = REQUEST_SECONDS, idle_seconds: float = IDLE_SECONDS
    ) -> None:
        self.limit = limit
        self.request_seconds = request_seconds
        self.idle_seconds = idle_seconds
        self._open: dict[asyncio.BaseTransport, BoundedConnection] = {}
        self._errors = UnexpectedErrors(clock)

    def __len__(self) -> int:
        return len(self._open)

    def factory(self, server: web.Server) -> Callable[[], asyncio.Protocol]:
        """Return a function that creates the protocol of a connection: an HTTP protocol whose errors are JSON, with time limits."""
        return lambda: BoundedConnection(self, JsonRequestHandler(server, self._errors, IDLE_SECONDS))

    def opened(self, connection: BoundedConnection, transport: asyncio.Transport) -> None:
        """Add a new connection. Above the limit, close the other one that has waited longest for its client."""
        self._open[transport] = connection
        if len(self._open) > max(1, self.limit):
            # A connection whose request is being answered may end soon; if all are, the oldest one is closed.
            others = [one for one in self._open.values() if one is not connection]
            next((one for one in others if not one.is_answering), others[0]).abort()

    def closed(self, transport: asyncio.BaseTransport) -> None:
        """Remove a connection; a second call does nothing."""
        self._open.pop(transport, None)

    def request_begins(self, transport: asyncio.BaseTransport | None) -> None:
        """Record that the headers of a request are complete, so that no time limit applies until the response is complete."""
        if transport is not None and (connection := self._open.get(transport)) is not None:
            connection.request_begins()

    def request_ends(self, transport: asyncio.BaseTransport | None) -> None:
        """Record that the response is complete, and start the time limit for reading it and sending the next request."""
        if transport is not None and (connection := self._open.pop(transport, None)) is not None:
            self._open[transport] = connection  # moves it to the end: connections are ordered by how long they have waited
            connection.request_ends()


class BoundedConnection(asyncio.Protocol):
    """Protocol of one connection, which enforces the time limits and passes all calls on to aiohttp's HTTP protocol."""

    def __init__(self, connections: Connections, handler: asyncio.Protocol) -> None:
        self._connections = connections
        self._handler = handler
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_arriving = False
        self.is_answering = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The transports of uvloop have no common class.
        self._transport = opened = cast(asyncio.Transport, transport)
        self._handler.connection_made(opened)
        self._expect(self._connections.request_seconds)
        self._connections.opened(self, opened)

    def data_received(self, data: bytes) -> None:
        """Pass bytes on to aiohttp. The first bytes of a request start its time limit; further ones do not extend it."""
        if not (self._is_arriving or self.is_answering):
            self._is_arriving = True
            self._expect(self._connections.request_seconds)
        self._handler.data_received(data)

    def request_begins(self) -> None:
        self.is_answering, self._is_arriving = True, False
        self._expect(None)

    def request_ends(self) -> None:
        self.is_answering = False
        self._expect(self._connections.idle_seconds)

    def eof_received(self) -> bool | None:
        return self._handler.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect(None)
        if self._transport is not None:
            self._connections.closed(self._transport)
        self._handler.connection_lost(exc)

    def pause_writing(self) -> None:
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        self._handler.resume_writing()

    def abort(self) -> None:
        """Close the connection at once; unsent data is dropped."""
        self._expect(None)
        if self._transport is not None:
            self._connections.closed(self._transport)
            self._transport.abort()

    def _expect(self, seconds: float | None) -> None:
        """Replace the time limit: close the connection after ``seconds``, or never if it is None."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else asyncio.get_running_loop().call_later(seconds, self.abort)


def bound_socket(host: str, port: int, send_buffer_bytes: int) -> socket.socket:
    """Bind a TCP socket whose connections have small send buffers: by default, the kernel buffers megabytes for a slow client.

    Raises:
        OSError: The port is in use, or the address does not exist.
    """
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
        found.bind((host, port))
    except OSError:
        found.close()
        raise
    return found


def url_of(host: str, bound: socket.socket) -> str:
    """Return the URL of a server, with the port to which its socket is bound."""
    return f"http://{f'[{host}]' if ':' in host else host}:{bound.getsockname()[1]}"
