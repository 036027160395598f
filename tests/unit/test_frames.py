"""Replies received as frames, from a real socket, in pieces as they come."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from aiokafka.conn import AIOKafkaProtocol

from streams_app.kafka.frames import KEPT_BUFFER_BYTES, KEPT_BUFFERS, LEAST_BUFFER_BYTES, Buffers, ReceivingLoop

MEGABYTE = 1024 * 1024


def framed(*replies: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(reply)) + reply for reply in replies)


class Connection:
    """What aiokafka makes of a connection, and the other side of it."""

    def __init__(self, reader: asyncio.StreamReader, transport: asyncio.Transport, peer: socket.socket) -> None:
        self.reader, self.transport, self.peer = reader, transport, peer

    @classmethod
    async def open(cls) -> Connection:
        loop = asyncio.get_running_loop()
        ours, peer = socket.socketpair()
        peer.setblocking(False)
        reader = asyncio.StreamReader(loop=loop)
        protocol = AIOKafkaProtocol(loop.create_future(), reader, loop=loop)
        transport, _ = await loop.create_connection(lambda: protocol, sock=ours)
        return cls(reader, transport, peer)

    async def send(self, data: bytes, most: int = 10**9) -> None:
        for begin in range(0, len(data), most):
            await asyncio.get_running_loop().sock_sendall(self.peer, data[begin : begin + most])
            await asyncio.sleep(0)

    async def reply(self) -> bytes:
        """As aiokafka reads it."""
        (length,) = struct.unpack(">i", await self.reader.readexactly(4))
        return await self.reader.readexactly(length)

    def close(self) -> None:
        self.transport.close()
        self.peer.close()


@pytest.fixture
def loop() -> Iterator[ReceivingLoop]:
    loop = ReceivingLoop()
    yield loop
    loop.close()


def run(loop: ReceivingLoop, work: Callable[[Connection], Coroutine[Any, Any, None]]) -> None:
    async def opened() -> None:
        connection = await Connection.open()
        try:
            async with asyncio.timeout(30):
                await work(connection)
        finally:
            connection.close()
            await asyncio.sleep(0)

    loop.run_until_complete(opened())


@pytest.mark.parametrize("seed", range(8))
def test_replies_arrive_whole_however_they_are_cut(loop: ReceivingLoop, seed: int) -> None:
    chance = random.Random(seed)
    sizes = [chance.choice([0, 1, 5, 300, 70_000, LEAST_BUFFER_BYTES - 4, LEAST_BUFFER_BYTES, MEGABYTE]) for _ in range(20)]
    replies = [chance.randbytes(size) for size in sizes]

    async def work(connection: Connection) -> None:
        sending = asyncio.create_task(connection.send(framed(*replies), chance.choice([100_000, 10**9])))
        for reply in replies:
            assert reply == await connection.reply()
        await sending

    run(loop, work)


def test_a_length_that_comes_byte_by_byte(loop: ReceivingLoop) -> None:
    async def work(connection: Connection) -> None:
        sending = asyncio.create_task(connection.send(framed(b"abc", b"", b"de"), most=1))
        assert [b"abc", b"", b"de"] == [await connection.reply() for _ in range(3)]
        await sending

    run(loop, work)


def test_a_reply_larger_than_any_buffer_that_is_kept(loop: ReceivingLoop) -> None:
    large = random.Random(1).randbytes(3 * KEPT_BUFFER_BYTES + 7)

    async def work(connection: Connection) -> None:
        sending = asyncio.create_task(connection.send(framed(b"before", large, b"after")))
        assert [b"before", large, b"after"] == [await connection.reply() for _ in range(3)]
        await sending

    run(loop, work)

    assert all(len(buffer) <= KEPT_BUFFER_BYTES for buffer in loop._buffers._free)


def test_memory_is_not_taken_for_what_a_reply_claims_to_be(loop: ReceivingLoop) -> None:
    async def work(connection: Connection) -> None:
        waiting = asyncio.create_task(connection.reply())
        await connection.send(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10)  # a gigabyte, as a length
        await asyncio.sleep(0.05)
        held = connection.transport.get_protocol()._buffer  # type: ignore[attr-defined]
        assert len(held) <= KEPT_BUFFER_BYTES
        connection.peer.close()
        with pytest.raises(asyncio.IncompleteReadError):
            await waiting

    run(loop, work)


def test_a_negative_length_ends_the_connection(loop: ReceivingLoop) -> None:
    async def work(connection: Connection) -> None:
        waiting = asyncio.create_task(connection.reply())
        await connection.send(framed(b"whole") + struct.pack(">i", -2))
        assert b"whole" == await waiting
        with pytest.raises(ConnectionError, match="no Kafka broker"):
            await connection.reply()

    run(loop, work)


@pytest.mark.parametrize("left", [b"", b"\0", framed(b"abc")[:-1], framed(bytes(MEGABYTE))[:-1]])
def test_the_end_of_a_connection_ends_the_wait_and_frees_the_buffer(loop: ReceivingLoop, left: bytes) -> None:
    async def work(connection: Connection) -> None:
        waiting = asyncio.create_task(connection.reply())
        await connection.send(framed(b"whole"))
        assert b"whole" == await waiting
        waiting = asyncio.create_task(connection.reply())
        await connection.send(left)
        connection.peer.close()
        with pytest.raises(asyncio.IncompleteReadError):
            await waiting
        with pytest.raises(asyncio.IncompleteReadError):
            await connection.reply()

    run(loop, work)

    assert 1 == len(loop._buffers._free)


def test_what_came_before_the_end_is_still_read(loop: ReceivingLoop) -> None:
    async def work(connection: Connection) -> None:
        await connection.send(framed(b"last"))
        connection.peer.close()
        await asyncio.sleep(0.05)
        assert b"last" == await connection.reply()

    run(loop, work)


def test_a_reset_connection_is_an_error(loop: ReceivingLoop) -> None:
    async def work(connection: Connection) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        reader = asyncio.StreamReader(loop=loop)
        protocol = AIOKafkaProtocol(loop.create_future(), reader, loop=loop)
        transport, _ = await loop.create_connection(lambda: protocol, *listener.getsockname())
        peer, _ = listener.accept()
        waiting = asyncio.create_task(reader.readexactly(4))
        await asyncio.sleep(0.05)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        with pytest.raises(ConnectionResetError):
            await waiting
        transport.close()
        listener.close()

    run(loop, work)


def test_buffers_are_used_again_and_few_are_kept() -> None:
    buffers = Buffers()
    taken = [buffers.take() for _ in range(KEPT_BUFFERS + 2)]
    for buffer in taken:
        buffers.give_back(buffer)
    buffers.give_back(bytearray(KEPT_BUFFER_BYTES + 1))
    again = [buffers.take() for _ in range(KEPT_BUFFERS + 1)]

    known = {id(buffer) for buffer in taken}
    assert [True] * KEPT_BUFFERS + [False] == [id(buffer) in known for buffer in again]
