"""A TLS front for PostgreSQL, because the server of the wheel is built without TLS."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from streams_app.embedded.ports import LOOPBACK
from tests.servers.tls import Signed

TLS_REQUEST: Final = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"


@asynccontextmanager
async def tls_front(port: int, signed: Signed) -> AsyncIterator[int]:
    """Accept only TLS connections for a PostgreSQL on ``port``; yield the port of the front."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(signed.certificate, signed.key)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            if await reader.readexactly(8) == TLS_REQUEST:
                writer.write(b"S")
                await writer.start_tls(context)
                there, back = await asyncio.open_connection(LOOPBACK, port)
                await asyncio.gather(_pump(reader, back), _pump(there, writer))
        writer.close()

    server = await asyncio.start_server(serve, LOOPBACK, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()
