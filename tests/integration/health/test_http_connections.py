"""Clients that keep their connections open: their maximum number, their time limit, and requests of other clients."""

from __future__ import annotations

import asyncio
import os
import resource
import shlex
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from streams_app.clock import SystemClock
from streams_app.health.http import HttpServer
from streams_app.health.http_connections import MAX_CONNECTIONS, Connections, connection_limit
from streams_app.health.status import Status
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import Stage
from tests.helpers.worker.workers import WorkerProcess
from tests.integration.health.asking import Start, get

HALF = b"GET /metrics HTTP/1.1\r\nHost: x\r\n"
LIMIT_SECONDS = 60


@asynccontextmanager
async def clients(port: int | None, count: int, sent: bytes = HALF) -> AsyncIterator[list[socket.socket]]:
    """Open this number of connections, and send these bytes on each."""

    def opened(stack: ExitStack) -> socket.socket:
        one = stack.enter_context(socket.create_connection(("127.0.0.1", port or 0)))
        one.sendall(sent)
        one.setblocking(False)
        return one

    with ExitStack() as stack:
        yield [await asyncio.to_thread(opened, stack) for _ in range(count)]


def is_closed(client: socket.socket) -> bool:
    """Return whether the server has ended a connection; earlier answers are dropped."""
    try:
        while client.recv(65_536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


@pytest.fixture
async def short_timeout_server(start: Start) -> HttpServer:
    """Return a server that waits a quarter of a second for a request, and as long for the next one."""
    server = start()
    server._connections.request_seconds = server._connections.idle_seconds = 0.25
    return server


@pytest.mark.parametrize("sent", [b"", b"G", HALF, b"\r\n"], ids=["nothing", "a byte", "half of the headers", "an empty line"])
async def test_incomplete_request_ends_its_connection(short_timeout_server: HttpServer, sent: bytes) -> None:
    async with clients(short_timeout_server.port, 3, sent) as opened:
        await wait_until(lambda: all(map(is_closed, opened)), LIMIT_SECONDS, "the connections are closed")

    assert 0 == len(short_timeout_server._connections)


async def test_further_bytes_of_a_request_do_not_extend_its_time(short_timeout_server: HttpServer) -> None:
    async with clients(short_timeout_server.port, 1) as (client,):

        def is_cut_off() -> bool:
            try:
                client.send(b"X-A: b\r\n")
            except OSError:
                return True
            return False

        await wait_until(is_cut_off, LIMIT_SECONDS, "the connection is closed although bytes arrive")


async def test_idle_connection_is_closed(short_timeout_server: HttpServer) -> None:
    async with clients(short_timeout_server.port, 1, HALF + b"\r\n") as opened:
        await wait_until(lambda: is_closed(opened[0]), LIMIT_SECONDS, "the idle connection is closed")


async def test_response_slower_than_the_request_limit_is_completed(short_timeout_server: HttpServer, status: Status) -> None:
    async def slow(*_: object) -> list[dict[str, object]]:
        await asyncio.sleep(4 * short_timeout_server._connections.request_seconds)  # the worker is slow, not the client
        return [{"group": "anna"}]

    status.groups_provider = slow

    assert (200, {"groups": [{"group": "anna"}]}) == await get(f"{short_timeout_server.url}/groups")


async def test_connection_serves_consecutive_requests(start: Start) -> None:
    server = start()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session:
        for _ in range(5):
            async with session.get(f"{server.url}/health/live") as reply:
                assert 200 == reply.status

        assert 1 == len(server._connections)


async def test_health_is_answered_and_most_descriptors_are_free_with_many_incomplete_requests(start: Start) -> None:
    server = start()
    before = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    async with clients(server.port, 300) as opened:
        assert 200 == (await get(f"{server.url}/health/live"))[0]
        await wait_until(lambda: len(server._connections) <= server._connections.limit, LIMIT_SECONDS, "some are closed")
        if before:
            taken = len(os.listdir("/proc/self/fd")) - before - len(opened)
            assert taken <= server._connections.limit

        assert 200 == (await get(f"{server.url}/health/ready"))[0]
        assert 300 - server._connections.limit <= sum(map(is_closed, opened))


async def test_request_being_answered_outlives_waiting_ones(start: Start, status: Status) -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def provider(*_: object) -> list[dict[str, object]]:
        asked.set()
        await answer.wait()
        return []

    status.groups_provider = provider
    server = start()
    asking = asyncio.create_task(get(f"{server.url}/groups"))
    await asked.wait()
    async with clients(server.port, 3 * server._connections.limit):
        assert 200 == (await get(f"{server.url}/health/live"))[0]
        answer.set()

        assert (200, {"groups": []}) == await asking


@pytest.mark.parametrize(("descriptors", "limit"), [(256, 32), (64, 8), (4, 1), (1024, 64), (10**6, MAX_CONNECTIONS)])
def test_connection_limit_reserves_descriptors_for_the_worker(
    descriptors: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (descriptors, descriptors))

    assert limit == connection_limit()


def test_connection_limit_exists_without_a_descriptor_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    assert MAX_CONNECTIONS == connection_limit() == Connections(connection_limit(), SystemClock()).limit


class FewDescriptors(WorkerProcess):
    """A worker limited to 256 file descriptors, as on some systems."""

    def command(self, config: Path, arguments: Sequence[str]) -> list[str]:
        return ["/bin/sh", "-c", f"ulimit -n 256; exec {shlex.join(super().command(config, arguments))}"]


@pytest.mark.timeout(200)
async def test_worker_with_few_descriptors_folds_and_answers_beside_incomplete_requests(stage: Stage) -> None:
    with FewDescriptors(stage.folder / "streams.toml", stage.folder) as worker:
        await worker.wait_ready()
        port = int((worker.url or "").rpartition(":")[2])
        async with clients(port, 400):
            await stage.send(20)
            outcome = await stage.outcome()

            assert 200 == (await worker.get("/health/live"))[0]
            assert 200 == (await worker.get("/health/ready"))[0]
            assert "Too many open files" not in worker.log()
    assert set(stage.sent) == set(outcome.ids_of)
