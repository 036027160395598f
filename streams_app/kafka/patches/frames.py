"""Receives replies of a broker into buffers that are reused.

asyncio receives a reply in pieces, appends them to a growing buffer, and copies the reply from there. A reply of 4 MB takes three
times its size, newly allocated each time. The protocol of this module receives a reply into one buffer, and copies it once.
"""

from __future__ import annotations

import asyncio
import struct
import weakref
from asyncio import StreamReader
from collections import deque
from typing import Any, Final

from aiokafka.conn import AIOKafkaProtocol

_LENGTH: Final = struct.Struct(">i")
LEAST_BUFFER_BYTES: Final = 256 * 1024
KEPT_BUFFER_BYTES: Final = 8 * 1024 * 1024
"""Buffers of at least this size are not reused.

A buffer grows to this size only if a reply is larger than requested, which Kafka allows (KIP-74), or if its length field is wrong
because the server is no Kafka broker.
"""

KEPT_BUFFERS: Final = 2


class Buffers:
    """Pool of free buffers for all connections of an event loop."""

    def __init__(self) -> None:
        self._free: list[bytearray] = []

    def take(self) -> bytearray:
        return self._free.pop() if self._free else bytearray(LEAST_BUFFER_BYTES)

    def give_back(self, buffer: bytearray) -> None:
        if len(self._free) < KEPT_BUFFERS and len(buffer) < KEPT_BUFFER_BYTES:
            self._free.append(buffer)


class Frames(asyncio.BufferedProtocol):
    """A protocol between a connection's transport and aiokafka's protocol; it passes whole replies to aiokafka's reader.

    It must not be part of a reference cycle, and no object may retain a buffer, because a worker rarely collects garbage.
    """

    def __init__(self, protocol: AIOKafkaProtocol, buffers: Buffers) -> None:
        self._protocol = protocol
        reader: StreamReader = protocol._stream_reader
        reader.readexactly = self.read  # type: ignore[method-assign]  # patches this reader only, because aiokafka creates it
        self._reader = weakref.ref(reader)
        self._buffers = buffers
        self._buffer: bytearray | None = None
        self._filled = 0
        self._wanted = 0
        self._parts: deque[bytes] = deque()
        self._waiter: asyncio.Future[None] | None = None

    async def read(self, n: int) -> bytes:
        """Return the next part that aiokafka reads: four bytes with the length of the reply, or the reply."""
        while not self._parts:
            self._check(n)
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._parts.popleft()

    def _check(self, size: int) -> None:
        reader = self._reader()
        if reader is not None and (error := reader.exception()) is not None:
            raise error
        if reader is None or reader.at_eof():
            raise asyncio.IncompleteReadError(b"", size)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._buffer is None:
            self._buffer = self._buffers.take()
        # Grow in steps, not at once to the length in the reply: in another protocol, those bytes may mean a gigabyte.
        needed = min(self._wanted, max(KEPT_BUFFER_BYTES, 2 * self._filled))
        if len(self._buffer) < needed:
            # Allocate another buffer, because the traceback of a receiver may still have a view of this one.
            grown = bytearray(needed)
            grown[: self._filled] = memoryview(self._buffer)[: self._filled]
            self._buffer = grown
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Pass complete replies to the reader.

        Raises:
            ConnectionError: The length of a reply is negative, so the server is no Kafka broker.
        """
        assert self._buffer is not None
        self._filled += nbytes
        self._wanted = 0
        begin = 0
        with memoryview(self._buffer) as received:
            while self._filled - begin >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(received, begin)
                if length < 0:
                    raise ConnectionError(f"a reply of {length} bytes: the server there is no Kafka broker")
                end = begin + _LENGTH.size + length
                if end > self._filled:
                    self._wanted = end - begin
                    break
                self._parts.append(bytes(received[begin : begin + _LENGTH.size]))
                self._parts.append(bytes(received[begin + _LENGTH.size : end]))
                begin = end
            if begin:
                received[: self._filled - begin] = received[begin : self._filled]
                self._filled -= begin
        if not self._filled:
            self._buffers.give_back(self._buffer)
            self._buffer = None
        if begin:
            self._wake()

    def connection_made(self, transport: Any) -> None:
        self._protocol.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            exc.__traceback__ = None  # the traceback refers to a view of the buffer, and the reader retains the error
        if self._buffer is not None:
            self._buffers.give_back(self._buffer)
            self._buffer = None
        self._protocol.connection_lost(exc)
        self._wake()

    def eof_received(self) -> bool | None:
        keeps_open: bool | None = self._protocol.eof_received()
        self._wake()
        return keeps_open

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class ReceivingLoop(asyncio.SelectorEventLoop):
    """Event loop that receives replies for aiokafka by :class:`Frames`, with as few calls of the operating system as possible.

    After each of these calls, the thread of the loop waits for Python's global interpreter lock (GIL), which folding often holds.
    On connections with TLS, asyncio itself receives replies. uvloop would be faster, but a worker that ended while a thread ran
    uvloop crashed with a segmentation fault.
    """

    def __init__(self) -> None:
        super().__init__()
        self._buffers = Buffers()

    def _make_socket_transport(self, sock: Any, protocol: Any, *args: Any, **options: Any) -> Any:
        if isinstance(protocol, AIOKafkaProtocol):
            protocol = Frames(protocol, self._buffers)
        return super()._make_socket_transport(sock, protocol, *args, **options)  # type: ignore[misc]  # typeshed does not know it
