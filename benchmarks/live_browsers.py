"""Browsers of a benchmark of live views: minimal readers of server-sent events."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

Take = Callable[[bytes], None]

SMALL_BYTES: Final = 4_096


class Browser(asyncio.Protocol):
    """One connection.

    Attributes:
        states: Number of received messages of views.
        is_lost: Whether the connection has ended.
    """

    def __init__(self, path: str, take: Take) -> None:
        self.states = 0
        self.is_lost = False
        self._path = path
        self._take = take
        self._rest = b""
        self._is_view = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Request the stream."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(f"GET {self._path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n".encode())

    def data_received(self, data: bytes) -> None:
        """Handle whole lines: no line is split between two chunks, because each message is written at once."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"event: "):
                self._is_view = line[7:].strip() == b"view"
            elif self._is_view and line.startswith(b"data: "):
                self.states += 1
                self._take(line[6:])

    def connection_lost(self, exc: Exception | None) -> None:
        """Record the end of the connection."""
        self.is_lost = True

    def stall(self) -> None:
        """Stop reading."""
        assert self._transport is not None
        self._transport.pause_reading()

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()


def nothing(_: bytes) -> None:
    """Ignore a state; used if states are only counted."""


class Crowd:
    """Open browsers."""

    def __init__(self, port: int) -> None:
        self.browsers: list[Browser] = []
        self._port = port

    async def open(self, path: str, take: Take = nothing, *, may_stall: bool = False) -> Browser:
        """Open a browser. One that may stall has small kernel buffers, which otherwise take megabytes of old states."""
        loop = asyncio.get_running_loop()
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setblocking(False)
        if may_stall:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BYTES)
        await loop.sock_connect(sock, ("127.0.0.1", self._port))
        _, browser = await loop.create_connection(lambda: Browser(path, take), sock=sock)
        self.browsers.append(browser)
        return browser

    def require(self) -> None:
        """Raise unless all connections are open and have received something."""
        if bad := sum(one.is_lost or not one.states for one in self.browsers):
            raise RuntimeError(f"{bad} of {len(self.browsers)} browsers were shown nothing, or have lost their connection")


@contextmanager
def crowd(port: int) -> Iterator[Crowd]:
    """Yield an empty crowd; close all browsers at the end of the block."""
    opened = Crowd(port)
    try:
        yield opened
    finally:
        for browser in opened.browsers:
            browser.close()
