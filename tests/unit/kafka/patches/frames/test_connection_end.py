"""How a connection that receives frames ends: what is still read, which errors are raised, and that nothing leaks."""

from __future__ import annotations

import asyncio
import struct
import tracemalloc
import weakref
from typing import Any

import pytest

from streams_app.kafka.patches.frames import ReceivingLoop
from tests.helpers.waiting import wait_until
from tests.unit.kafka.patches.frames.connection import LIMIT_SECONDS, MEGABYTE, Connection, framed, run, works_with_large_replies


def test_negative_length_closes_the_connection(loop: ReceivingLoop) -> None:
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
def test_end_of_a_connection_ends_the_wait_and_frees_the_buffer(loop: ReceivingLoop, left: bytes) -> None:
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
        assert not connection.transport.is_closing()  # aiokafka does this

    run(loop, work)

    assert 1 == len(loop._buffers._free)


def test_reply_received_before_the_end_is_still_read(loop: ReceivingLoop) -> None:
    async def work(connection: Connection) -> None:
        await connection.send(framed(b"last"))
        connection.peer.close()
        await wait_until(connection.reader.at_eof, LIMIT_SECONDS, "the end has come")
        assert b"last" == await connection.reply()

    run(loop, work)


@pytest.mark.parametrize("left", [b"", framed(bytes(MEGABYTE))[:-1]])
def test_reset_connection_is_an_error_and_affects_no_other(loop: ReceivingLoop, left: bytes) -> None:
    async def work(connection: Connection) -> None:
        waiting = asyncio.create_task(connection.reply())
        await connection.send(framed(b"whole") + left)
        assert b"whole" == await waiting
        waiting = asyncio.create_task(connection.reply())
        await connection.wait_for_bytes(len(left))
        connection.reset()
        with pytest.raises(ConnectionResetError):
            await waiting
        with pytest.raises(ConnectionResetError):
            await connection.reply()

    for _ in range(3):
        run(loop, work)
        works_with_large_replies(loop)


def test_closed_connection_is_garbage_collected(loop: ReceivingLoop) -> None:
    left: list[weakref.ref[Any]] = []

    async def work(connection: Connection) -> None:
        waiting = asyncio.create_task(connection.reply())
        await connection.send(framed(b"read", b"not read") + b"begun")
        assert b"read" == await waiting
        left.extend(map(weakref.ref, (connection.reader, connection.protocol, connection.transport.get_protocol())))

    run(loop, work)

    assert [None] * 3 == [each() for each in left]


def test_reset_connections_retain_no_memory(loop: ReceivingLoop) -> None:
    async def work(connection: Connection) -> None:
        waiting = asyncio.create_task(connection.reply())
        await connection.send(framed(bytes(4 * MEGABYTE))[:-1])
        await connection.wait_for_bytes(4 * MEGABYTE + 3)
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


def test_cancelled_wait_consumes_nothing(loop: ReceivingLoop) -> None:
    async def work(connection: Connection) -> None:
        waiting = asyncio.create_task(connection.reader.readexactly(4))
        await connection.wait_for_bytes(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await connection.send(framed(b"abc"))
        assert b"abc" == await connection.reply()
        # As aiokafka closes: the transport first, then the task that reads.
        waiting = asyncio.create_task(connection.reader.readexactly(4))
        await connection.wait_for_bytes(0)
        connection.transport.close()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    run(loop, work)
