"""Both sides of an aiokafka connection, and helpers that run work with them on a loop that receives frames."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import Callable, Coroutine
from typing import Any

from aiokafka.conn import AIOKafkaProtocol

from streams_app.kafka.patches.frames import Frames, ReceivingLoop
from tests.helpers.waiting import wait_until

MEGABYTE = 1024 * 1024
LIMIT_SECONDS = 60


def framed(*replies: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(reply)) + reply for reply in replies)


class Connection:
    """An aiokafka connection, and its other side."""

    transport: asyncio.Transport
    writer: asyncio.StreamWriter
    peer: socket.socket

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.reader = asyncio.StreamReader(loop=loop)
        self.closed = loop.create_future()
        self.protocol = AIOKafkaProtocol(self.closed, self.reader, loop=loop)

    @classmethod
    async def open(cls) -> Connection:
        self = cls()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.transport, _ = await asyncio.get_running_loop().create_connection(lambda: self.protocol, *listener.getsockname())
            self.peer, _ = listener.accept()
        self.peer.setblocking(False)
        self.writer = asyncio.StreamWriter(self.transport, self.protocol, self.reader, asyncio.get_running_loop())
        return self

    @property
    def buffer(self) -> bytearray | None:
        return self.transport.get_protocol()._buffer  # type: ignore[attr-defined]

    async def wait_for_bytes(self, received: int) -> None:
        """Return once a reply is awaited and this many bytes of it have arrived."""
        frames: Frames = self.transport.get_protocol()  # type: ignore[assignment]  # that of a ReceivingLoop

        def waits() -> bool:
            return frames._waiter is not None and not frames._waiter.done() and frames._filled == received

        await wait_until(waits, LIMIT_SECONDS, f"a reply is waited for, {received} bytes of it have come")

    async def send(self, data: bytes, most: int = 10**9) -> None:
        for begin in range(0, len(data), most):
            await asyncio.get_running_loop().sock_sendall(self.peer, data[begin : begin + most])
            await asyncio.sleep(0)  # this side reads each piece by itself

    async def reply(self) -> bytes:
        """Read a reply as aiokafka does."""
        (length,) = struct.unpack(">i", await self.reader.readexactly(4))
        return await self.reader.readexactly(length)

    def reset(self) -> None:
        """Reset the connection from the other side: close with a linger of 0 s."""
        self.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.peer.close()

    async def close(self) -> None:
        self.transport.close()
        self.peer.close()
        await self.closed


def run(loop: ReceivingLoop, work: Callable[[Connection], Coroutine[Any, Any, None]]) -> None:
    async def opened() -> None:
        async with asyncio.timeout(30):
            connection = await Connection.open()
            try:
                await work(connection)
            finally:
                await connection.close()

    loop.run_until_complete(opened())


def works_with_large_replies(loop: ReceivingLoop) -> None:
    """Check that a new connection receives replies larger than its buffer after faults of earlier ones."""
    large = random.Random(2).randbytes(2 * MEGABYTE)

    async def work(connection: Connection) -> None:
        sending = asyncio.create_task(connection.send(framed(large)))
        assert large == await connection.reply()
        await sending

    run(loop, work)
