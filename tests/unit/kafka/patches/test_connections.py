"""Lost connections, on the loop that the worker uses."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest
import uvloop
from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.admin import ApiVersionRequest

from streams_app.kafka.client import client_options
from streams_app.settings import KafkaSettings

TURNS = 20


class Connection(AIOKafkaConnection):
    """Skips the version lookup, because the other side never answers."""

    async def _do_version_lookup(self) -> None:
        self._versions = {ApiVersionRequest.API_KEY: (0, 0)}


async def _outcomes_of_sending_over_a_reset() -> list[BaseException]:
    async def reset(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Closed with a linger of 0 s, a socket sends a reset.
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await released.wait()
        writer.close()

    released = asyncio.Event()
    server = await asyncio.start_server(reset, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connection = Connection("127.0.0.1", port, request_timeout_ms=1_000)
    await connection.connect()
    released.set()
    found: list[BaseException] = []
    waiting = []
    for _ in range(TURNS):
        try:
            waiting.append(asyncio.ensure_future(connection.send(ApiVersionRequest())))
        except Exception as error:  # any error that a task of aiokafka would get
            found.append(error)
        await asyncio.sleep(0)  # one turn of the loop: the reset comes between any two of them
    found += [outcome for outcome in await asyncio.gather(*waiting, return_exceptions=True) if isinstance(outcome, BaseException)]
    connection.close()
    server.close()
    await server.wait_closed()
    return found


async def _is_reading_with(received_bytes: int) -> bool:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await was_checked.wait()
        writer.close()
        await writer.wait_closed()

    was_checked = asyncio.Event()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    connection = Connection("127.0.0.1", server.sockets[0].getsockname()[1])
    await connection.connect()
    assert connection._reader is not None
    connection._reader.feed_data(bytes(received_bytes))
    is_reading: bool = connection._writer.transport.is_reading()
    was_checked.set()
    await connection._reader.read()
    connection.close()
    server.close()
    await server.wait_closed()
    return is_reading


def test_large_reply_is_received_without_a_pause() -> None:
    client_options(KafkaSettings())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        is_reading = runner.run(_is_reading_with(4 * 1024 * 1024))

    assert is_reading


@pytest.mark.parametrize("factory", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_reset_connection_is_an_error_that_aiokafka_expects(factory) -> None:
    client_options(KafkaSettings())
    with asyncio.Runner(loop_factory=factory) as runner:
        found = runner.run(_outcomes_of_sending_over_a_reset())

    assert found
    assert {KafkaConnectionError} == {type(error) for error in found}
