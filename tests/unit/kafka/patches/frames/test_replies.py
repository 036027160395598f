"""Replies received as frames from a real socket, in pieces of any size."""

from __future__ import annotations

import asyncio
import random

import pytest

from streams_app.kafka.patches.frames import KEPT_BUFFER_BYTES, KEPT_BUFFERS, LEAST_BUFFER_BYTES, Buffers, ReceivingLoop
from tests.unit.kafka.patches.frames.connection import MEGABYTE, Connection, framed, run


@pytest.mark.parametrize("seed", range(8))
def test_replies_arrive_whole_for_any_segmentation(loop: ReceivingLoop, seed: int) -> None:
    chance = random.Random(seed)
    sizes = [chance.choice([0, 1, 5, 300, 70_000, LEAST_BUFFER_BYTES - 4, LEAST_BUFFER_BYTES, MEGABYTE]) for _ in range(20)]
    replies = [chance.randbytes(size) for size in sizes]

    async def work(connection: Connection) -> None:
        sending = asyncio.create_task(connection.send(framed(*replies), chance.choice([100_000, 10**9])))
        for reply in replies:
            assert reply == await connection.reply()
        await sending

    run(loop, work)


def test_length_may_arrive_byte_by_byte(loop: ReceivingLoop) -> None:
    async def work(connection: Connection) -> None:
        sending = asyncio.create_task(connection.send(framed(b"abc", b"", b"de"), most=1))
        assert [b"abc", b"", b"de"] == [await connection.reply() for _ in range(3)]
        await sending

    run(loop, work)


def test_reply_may_be_larger_than_any_pooled_buffer(loop: ReceivingLoop) -> None:
    large = random.Random(1).randbytes(3 * KEPT_BUFFER_BYTES + 7)

    async def work(connection: Connection) -> None:
        sending = asyncio.create_task(connection.send(framed(b"before", large, b"after")))
        assert [b"before", large, b"after"] == [await connection.reply() for _ in range(3)]
        await sending

    run(loop, work)

    assert all(len(buffer) <= KEPT_BUFFER_BYTES for buffer in loop._buffers._free)


def test_buffer_is_not_allocated_from_a_claimed_length_alone(loop: ReceivingLoop) -> None:
    async def work(connection: Connection) -> None:
        waiting = asyncio.create_task(connection.reply())
        other = b"HTTP/1.1 400 Bad Request\r\n\r\n"  # a length of a gigabyte
        for count in range(1, 4):
            await connection.send(other)
            await connection.wait_for_bytes(count * len(other))
        assert connection.buffer is not None
        assert len(connection.buffer) <= KEPT_BUFFER_BYTES
        connection.peer.close()
        with pytest.raises(asyncio.IncompleteReadError):
            await waiting

    run(loop, work)

    assert [] == loop._buffers._free


def test_fast_sender_is_throttled(loop: ReceivingLoop) -> None:
    async def work(connection: Connection) -> None:
        connection.writer.write(bytes(8 * MEGABYTE))
        draining = asyncio.create_task(connection.writer.drain())
        await asyncio.sleep(0.05)  # a drain that does not wait has returned by then
        assert not draining.done()
        while not draining.done():
            await asyncio.get_running_loop().sock_recv(connection.peer, MEGABYTE)
        await draining

    run(loop, work)


def test_idle_connection_holds_no_buffer(loop: ReceivingLoop) -> None:
    async def work(connection: Connection) -> None:
        other = await Connection.open()
        for each in (connection, other):
            await each.send(framed(b"abc"))
            assert b"abc" == await each.reply()
            assert each.buffer is None
        await other.close()

    run(loop, work)

    assert 1 == len(loop._buffers._free)


def test_buffer_grows_once_to_the_size_of_the_reply(loop: ReceivingLoop) -> None:
    """Each socket call waits for the GIL."""

    async def work(connection: Connection) -> None:
        sending = asyncio.create_task(connection.send(framed(bytes(4 * MEGABYTE))))
        await connection.reply()
        await sending

    run(loop, work)

    assert [4 * MEGABYTE + 4] == [len(buffer) for buffer in loop._buffers._free]


def test_other_protocols_are_unaffected(loop: ReceivingLoop) -> None:
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


def test_buffers_are_pooled_up_to_a_limit() -> None:
    buffers = Buffers()
    taken = [buffers.take() for _ in range(KEPT_BUFFERS + 2)]
    for buffer in taken:
        buffers.give_back(buffer)
    buffers.give_back(bytearray(KEPT_BUFFER_BYTES + 1))
    reused = [buffers.take() for _ in range(KEPT_BUFFERS + 1)]

    pooled = {id(buffer) for buffer in taken}
    assert [True] * KEPT_BUFFERS + [False] == [id(buffer) in pooled for buffer in reused]
