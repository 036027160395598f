"""How the HTTP server finds a port, and how it ends."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiohttp
import pytest

import streams_app.health.http
from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.health.http import HttpServer
from streams_app.health.metrics import Metrics
from streams_app.health.status import Status
from streams_app.settings import HttpSettings
from tests.helpers.manual_clock import ManualClock
from tests.integration.health.asking import Start, get


async def test_occupied_default_port_falls_back_to_the_next_one(start: Start, taken: int, caplog: pytest.LogCaptureFixture) -> None:
    server = start(default_port=taken)

    assert server.port is not None
    assert taken < server.port < taken + 100
    assert f"port taken, trying the next one port={taken}" in caplog.text
    assert (await get(f"{server.url}/health/live"))[0] == 200


async def test_two_workers_on_one_machine_have_a_port_each(start: Start) -> None:
    one = start()
    other = start(default_port=one.port)

    assert one.port != other.port
    assert (await get(f"{other.url}/health/live"))[0] == 200


async def test_hub_uses_the_next_port_if_a_worker_has_the_one_of_their_settings(
    taken: int, status: Status, metrics: Metrics, clock: ManualClock
) -> None:
    server = HttpServer(HttpSettings(port=taken), status, metrics, clock, is_port_fixed=False)
    server.start()
    server.stop()

    assert server.port is not None
    assert taken < server.port


async def test_foreign_address_is_an_error(start: Start) -> None:
    with pytest.raises(TryAgainError, match=r"cannot listen on 192\.0\.2\.1"):
        start(host="192.0.2.1")


async def test_missing_free_port_is_an_error(start: Start, taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams_app.health.http, "PORTS_TRIED", 1)

    with pytest.raises(TryAgainError, match=str(taken)):
        start(default_port=taken)


async def test_occupied_port_that_the_settings_name_is_an_error(start: Start, taken: int) -> None:
    with pytest.raises(ConfigurationError, match=rf"http\.port: 127\.0\.0\.1:{taken} is in use: end the other process"):
        start(port=taken)


async def test_stopped_server_has_no_listener_and_no_thread(start: Start) -> None:
    server = start()
    thread = server._thread
    server.stop()
    server.stop()

    assert thread is not None
    assert not thread.is_alive()
    with pytest.raises(aiohttp.ClientConnectorError):
        await get(f"{server.url}/health/live")


async def test_stop_does_not_wait_for_a_hanging_page(start: Start, status: Status, monkeypatch: pytest.MonkeyPatch) -> None:
    # Far longer than a busy machine takes to end a thread.
    monkeypatch.setattr(streams_app.health.http, "GROUPS_SECONDS", 120)
    asked = asyncio.Event()

    async def provider(*_: Any) -> list[dict[str, Any]]:
        asked.set()
        await asyncio.Event().wait()
        return []

    status.groups_provider = provider
    server = start()
    asking = asyncio.create_task(get(f"{server.url}/groups"))
    await asked.wait()
    begin = time.monotonic()
    await asyncio.to_thread(server.stop)

    assert time.monotonic() - begin < streams_app.health.http.GROUPS_SECONDS
    with pytest.raises(aiohttp.ClientError):
        await asking
