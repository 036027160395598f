"""Replies received as frames, from a real socket, in pieces as they come."""

from __future__ import annotations

import asyncio
import gc
import random
import socket
import struct
import tracemalloc
import weakref
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from aiokafka.conn import AIOKafkaProtocol

from streams_app.kafka.patches.frames import KEPT_BUFFER_BYTES, KEPT_BUFFERS, LEAST_BUFFER_BYTES, Buffers, ReceivingLoop

MEGABYTE = 1024 * 1024


def framed(*replies: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(reply)) + reply for reply in replies)


class Connection:
    """What aiokafka makes of a connection, and the other side of it."""

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

    async def send(self, data: bytes, most: int = 10**9) -> None:
        for begin in range(0, len(data), most):
            await asyncio.get_running_loop().sock_sendall(self.peer, data[begin : begin + most])
            await asyncio.sleep(0)

    async def reply(self) -> bytes:
        """As aiokafka reads it."""
        (length,) = struct.unpack(">i", await self.reader.readexactly(4))
        return await self.reader.readexactly(length)

    def reset(self) -> None:
        """By the other side: closed with a linger of 0 s."""
        self.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.peer.close()

    async def close(self) -> None:
        self.transport.close()
        self.peer.close()
        await self.closed


@pytest.fixture(scope="module", autouse=True)
def _small_heap() -> Iterator[None]:
    """What was there before is not looked at by each of the collections of these tests."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def loop() -> Iterator[ReceivingLoop]:
    """Without garbage collection, as it next to never happens in a worker; whatever a callback raises is a failure."""
    loop = ReceivingLoop()
    faults: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: faults.append(context))
    gc.collect()
    gc.disable()
    yield loop
    gc.enable()
    loop.close()
    assert [] == faults


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
    """Whatever became of a connection before, the next one gets what does not fit its buffer."""
    large = random.Random(2).randbytes(2 * MEGABYTE)

    async def work(connection: Connection) -> None:
        sending = asyncio.create_task(connection.send(framed(large)))
        assert large == await connection.reply()
        await sending

    run(loop, work)


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
        for _ in range(3):
            await connection.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")  # a gigabyte, as a length
            await asyncio.sleep(0.02)
        assert connection.buffer is not None
        assert len(connection.buffer) <= KEPT_BUFFER_BYTES
        connection.peer.close()
        with pytest.raises(asyncio.IncompleteReadError):
            await waiting

    run(loop, work)

    assert [] == loop._buffers._free


def test_a_negative_length_ends_the_connection(loop: ReceivingLoop) -> None:
    async def work(connection: Connection) -> None:
        waiting = asyncio.create_task(connection.reply())
        await connection.send(framed(b"whole") + struct.pack(">i", -2))
        assert b"whole" == await waiting
        with pytest.raises(ConnectionError, match="no Kafka broker"):
            await connection.reply()

    for _ in range(3):
        run(loop, work)
        works_with_large_replies(loop)


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
        assert not connection.transport.is_closing()  # that is for aiokafka to do

    run(loop, work)

    assert 1 == len(loop._buffers._free)


def test_what_came_before_the_end_is_still_read(loop: ReceivingLoop) -> None:
    async def work(connection: Connection) -> None:
        await connection.send(framed(b"last"))
        connection.peer.close()
        await asyncio.sleep(0.05)
        assert b"last" == await connection.reply()

    run(loop, work)


@pytest.mark.parametrize("left", [b"", framed(bytes(MEGABYTE))[:-1]])
def test_a_reset_connection_is_an_error_and_harms_no_other(loop: ReceivingLoop, left: bytes) -> None:
    async def work(connection: Connection) -> None:
        waiting = asyncio.create_task(connection.reply())
        await connection.send(framed(b"whole") + left)
        assert b"whole" == await waiting
        waiting = asyncio.create_task(connection.reply())
        await asyncio.sleep(0.05)
        connection.reset()
        with pytest.raises(ConnectionResetError):
            await waiting
        with pytest.raises(ConnectionResetError):
            await connection.reply()

    for _ in range(3):
        run(loop, work)
        works_with_large_replies(loop)


def test_nothing_is_left_of_a_closed_connection(loop: ReceivingLoop) -> None:
    left: list[weakref.ref[Any]] = []

    async def work(connection: Connection) -> None:
        waiting = asyncio.create_task(connection.reply())
        await connection.send(framed(b"read", b"not read") + b"begun")
        assert b"read" == await waiting
        left.extend(map(weakref.ref, (connection.reader, connection.protocol, connection.transport.get_protocol())))

    run(loop, work)

    assert [None] * 3 == [each() for each in left]


def test_no_memory_is_left_of_connections_that_were_reset(loop: ReceivingLoop) -> None:
    async def work(connection: Connection) -> None:
        waiting = asyncio.create_task(connection.reply())
        await connection.send(framed(bytes(4 * MEGABYTE))[:-1])
        await asyncio.sleep(0.02)
        connection.reset()
        with pytest.raises(ConnectionResetError):
            await waiting

    run(loop, work)
    tracemalloc.start()
    try:
        for _ in range(5):
            run(loop, work)
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert left < 5 * MEGABYTE


def test_a_wait_that_is_cancelled_takes_nothing(loop: ReceivingLoop) -> None:
    async def work(connection: Connection) -> None:
        waiting = asyncio.create_task(connection.reader.readexactly(4))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await connection.send(framed(b"abc"))
        assert b"abc" == await connection.reply()
        # As aiokafka closes: the transport first, then the task that reads.
        waiting = asyncio.create_task(connection.reader.readexactly(4))
        await asyncio.sleep(0.01)
        connection.transport.close()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    run(loop, work)


def test_whoever_writes_too_much_waits(loop: ReceivingLoop) -> None:
    async def work(connection: Connection) -> None:
        connection.writer.write(bytes(8 * MEGABYTE))
        draining = asyncio.create_task(connection.writer.drain())
        await asyncio.sleep(0.05)
        assert not draining.done()
        while not draining.done():
            await asyncio.get_running_loop().sock_recv(connection.peer, MEGABYTE)
        await draining

    run(loop, work)


def test_a_connection_at_rest_holds_no_buffer(loop: ReceivingLoop) -> None:
    async def work(connection: Connection) -> None:
        other = await Connection.open()
        for each in (connection, other):
            await each.send(framed(b"abc"))
            assert b"abc" == await each.reply()
            assert each.buffer is None
        await other.close()

    run(loop, work)

    assert 1 == len(loop._buffers._free)


def test_room_is_made_for_the_whole_reply_at_once(loop: ReceivingLoop) -> None:
    """Each call to the socket costs a wait for Python's lock."""

    async def work(connection: Connection) -> None:
        sending = asyncio.create_task(connection.send(framed(bytes(4 * MEGABYTE))))
        while connection.buffer is None:
            await asyncio.sleep(0)
        await connection.reply()
        await sending

    run(loop, work)

    assert [4 * MEGABYTE + 4] == [len(buffer) for buffer in loop._buffers._free]


def test_other_protocols_are_left_alone(loop: ReceivingLoop) -> None:
    async def work(connection: Connection) -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readline())
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"a line\n")
        assert b"a line\n" == await reader.readline()
        writer.close()
        server.close()
        await writer.wait_closed()

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
