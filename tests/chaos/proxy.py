"""A TCP proxy that can be cut: what a broken network looks like to one worker."""

from __future__ import annotations

import asyncio
import contextlib


class Proxy:
    """Forwards to a server until it is cut; then it refuses and drops."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._is_cut = False
        self.port = 0
        self.refused = 0
        self.dropped = 0

    async def start(self) -> None:
        """Listens on a free port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Ends."""
        self.cut()
        if self._server is not None:
            self._server.close()

    def cut(self) -> None:
        """Drops every connection and refuses new ones."""
        self._is_cut = True
        self.dropped += len(self._open)
        for writer in list(self._open):
            writer.transport.abort()

    def heal(self) -> None:
        """Forwards again."""
        self._is_cut = False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            self.refused += 1
            writer.transport.abort()
            return
        try:
            there, back = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, back}
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_pump(reader, back))
                group.create_task(_pump(there, writer))
        finally:
            self._open -= {writer, back}


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()
