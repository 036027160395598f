"""Bounds the connections of a server of HTTP: how many there are, and how long each may keep the server waiting.

aiohttp knows neither a limit of connections nor one for the time that a request takes to arrive. Each connection is a file
descriptor of the worker, which needs them for Kafka, Redis and its stores: hundreds of clients that send half a request, or read
half an answer, would stop folding and the health pages alike.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from typing import Final, cast

REQUEST_SECONDS: Final = 10.0
"""From the first byte of a request to the end of its headers; also from the connection to its first byte."""

IDLE_SECONDS: Final = 75.0
"""Between two requests of a connection: longer than the usual interval of a scrape. Also how long an answer may stay unread."""

MOST_CONNECTIONS: Final = 64
DESCRIPTORS_A_CONNECTION: Final = 8
"""Of the descriptors that the process may have, one in so many is a connection to this server at most."""

BACKLOG: Final = 32
"""Connections that the system accepts before the server looks at them: each takes a descriptor more for a moment."""


def connection_limit() -> int:
    """How many connections the server keeps, by the number of descriptors that this process may have."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(1, min(MOST_CONNECTIONS, descriptors // DESCRIPTORS_A_CONNECTION))


class Connections:
    """The connections of one server; used on its loop only.

    Where there are too many, the one that has waited longest for its client is closed, never the new one: whoever asks for the
    health of the worker is answered, however many others hold their connections open.
    """

    def __init__(self, limit: int, request_seconds: float = REQUEST_SECONDS, idle_seconds: float = IDLE_SECONDS) -> None:
        """Has no connection yet.

        Args:
            limit: How many are kept.
            request_seconds: See :data:`REQUEST_SECONDS`.
            idle_seconds: See :data:`IDLE_SECONDS`.
        """
        self.limit = limit
        self.request_seconds = request_seconds
        self.idle_seconds = idle_seconds
        self._open: dict[asyncio.BaseTransport, BoundedConnection] = {}

    def __len__(self) -> int:
        return len(self._open)

    def factory(self, handler: Callable[[], asyncio.Protocol]) -> Callable[[], asyncio.Protocol]:
        """Makes the protocol of each connection around the one that speaks HTTP."""
        return lambda: BoundedConnection(self, handler())

    def opened(self, connection: BoundedConnection, transport: asyncio.Transport) -> None:
        """Takes a new connection; closes the longest waiting one where that is one too many."""
        self._open[transport] = connection
        if len(self._open) > max(1, self.limit):
            # One whose request is being answered may end by itself soon; where all are, the oldest has to go.
            others = [one for one in self._open.values() if one is not connection]
            next((one for one in others if not one.is_answering), others[0]).abort()

    def closed(self, transport: asyncio.BaseTransport) -> None:
        """Forgets a connection; a second call does nothing."""
        self._open.pop(transport, None)

    def request_begins(self, transport: asyncio.BaseTransport | None) -> None:
        """The headers of a request are complete: its answer takes the time it takes."""
        if transport is not None and (connection := self._open.get(transport)) is not None:
            connection.request_begins()

    def request_ends(self, transport: asyncio.BaseTransport | None) -> None:
        """The answer is made; what is left is to send it, and to wait for the next request."""
        if transport is not None and (connection := self._open.pop(transport, None)) is not None:
            self._open[transport] = connection  # the order is by who has waited longest
            connection.request_ends()


class BoundedConnection(asyncio.Protocol):
    """One connection: hands everything on to the protocol that speaks HTTP, and watches the time."""

    def __init__(self, connections: Connections, handler: asyncio.Protocol) -> None:
        self._connections = connections
        self._handler = handler
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_arriving = False
        self.is_answering = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins to wait for the first request."""
        # No class says so of a transport of uvloop.
        self._transport = opened = cast(asyncio.Transport, transport)
        self._handler.connection_made(opened)
        self._expect(self._connections.request_seconds)
        self._connections.opened(self, opened)

    def data_received(self, data: bytes) -> None:
        """Further bytes of the same request do not give it more time."""
        if not (self._is_arriving or self.is_answering):
            self._is_arriving = True
            self._expect(self._connections.request_seconds)
        self._handler.data_received(data)

    def request_begins(self) -> None:
        """See :meth:`Connections.request_begins`."""
        self.is_answering, self._is_arriving = True, False
        self._expect(None)

    def request_ends(self) -> None:
        """See :meth:`Connections.request_ends`."""
        self.is_answering = False
        self._expect(self._connections.idle_seconds)

    def eof_received(self) -> bool | None:
        """The client sends no more."""
        return self._handler.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._expect(None)
        if self._transport is not None:
            self._connections.closed(self._transport)
        self._handler.connection_lost(exc)

    def pause_writing(self) -> None:
        """The client reads more slowly than it is sent to."""
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        """It has caught up."""
        self._handler.resume_writing()

    def abort(self) -> None:
        """Closes the connection at once; what was not sent is dropped."""
        self._expect(None)
        if self._transport is not None:
            self._connections.closed(self._transport)
            self._transport.abort()

    def _expect(self, seconds: float | None) -> None:
        """Closes the connection after so long unless something else is expected meanwhile; None: waits for nobody."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else asyncio.get_running_loop().call_later(seconds, self.abort)
