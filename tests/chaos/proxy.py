"""A TCP proxy that simulates a network fault of one worker."""

from __future__ import annotations

import asyncio
import contextlib

from streams_app.embedded.ports import LOOPBACK


class Proxy:
    """Forwards to a server until it is cut: then it rejects and drops connections, or delays all data.

    Attributes:
        port: Port on which it listens.
        target_port: Port of the server.
        stopped: Number of connections dropped or rejected, and of delayed pieces of data, so far.
    """

    def __init__(self, port: int, target_port: int) -> None:
        self.port = port
        self.stopped = 0
        self.target_port = target_port
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._rejects = False
        self._passing = asyncio.Event()
        self._passing.set()

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, LOOPBACK, self.port)

    async def stop(self) -> None:
        """End."""
        self.cut(silently=False)
        self._passing.set()
        if self._server is not None:
            self._server.close()

    def cut(self, *, silently: bool) -> None:
        """Stop forwarding.

        Args:
            silently: Keep connections open and delay all data until :meth:`heal`, as if a route were lost. Otherwise drop every
                connection and reject new ones.
        """
        if silently:
            self._passing.clear()
            return
        self._rejects = True
        self.stopped += len(self._open)
        for writer in list(self._open):
            writer.transport.abort()

    def heal(self) -> None:
        """Resume forwarding, delayed data first."""
        self._rejects = False
        self._passing.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._rejects:
            self.stopped += 1
            writer.transport.abort()
            return
        try:
            there, back = await asyncio.open_connection(LOOPBACK, self.target_port)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, back}
        try:
            await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
        finally:
            self._open -= {writer, back}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                if not self._passing.is_set():
                    self.stopped += 1
                    await self._passing.wait()
                writer.write(data)
                await writer.drain()
        writer.close()
