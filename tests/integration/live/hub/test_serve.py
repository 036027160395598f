"""``streams-app live serve`` and ``live token`` from outside, without Kafka: a process, signals, exit codes."""

from __future__ import annotations

import asyncio
import re
import shlex
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from streams_app.embedded.child import Child
from streams_app.embedded.ports import free_port
from streams_app.live.hub.server import web_file
from tests.conftest import Names, RedisServer
from tests.helpers.live.hubs import secret_file
from tests.helpers.waiting import wait_until
from tests.integration.health.test_http_connections import HALF, clients

LIMIT_SECONDS = 60
SERVED = re.compile(r"live views are served url=(\S+)")
HTTP = re.compile(r"http listens url=(\S+)")

VIEWS = '[live.visitors]\nkind = "presence"\nexpiry = "60s"\n'


class ServeProcess:
    """The command as a process."""

    def __init__(self, config: Path, folder: Path, descriptors: int | None = None) -> None:
        command = [sys.executable, "-m", "streams_app", "live", "serve", "--config", str(config), "--page"]
        if descriptors is not None:
            command = ["/bin/sh", "-c", f"ulimit -n {descriptors}; exec {shlex.join(command)}"]
        self.child = Child("live", command, folder / "live")

    def found(self, pattern: re.Pattern[str]) -> str | None:
        match = pattern.search(self.child.log_path.read_text("utf-8"))
        return match and match[1]

    async def url(self, pattern: re.Pattern[str] = SERVED) -> str:
        return await wait_until(lambda: self.found(pattern), LIMIT_SECONDS, "it serves") or ""

    async def ended(self) -> int | None:
        await wait_until(lambda: not self.child.is_running, LIMIT_SECONDS, "it ends")
        return self.child._process.returncode


@pytest.fixture
def config(tmp_path: Path, names: Names, redis_server: RedisServer) -> Callable[..., Path]:
    def made(views: str = VIEWS, *, redis: str = "", port: int = 0) -> Path:
        path = tmp_path / "streams.toml"
        path.write_text(
            f'app_id = "{names.app_id}"\n[kafka]\nbootstrap_servers = "127.0.0.1:1"\n[redis]\nurl = "{redis or redis_server.url}"\n'
            f'[http]\nport = 0\n[live_server]\nport = {port}\nsecret_file = "{secret_file(tmp_path)}"\n{views}'
        )
        return path

    return made


async def test_server_without_kafka_ends_on_sigterm_with_bye_and_exit_code_0(config: Callable[..., Path], tmp_path: Path) -> None:
    path = config()
    made = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "streams_app",
        "live",
        "token",
        "7",
        "--sub",
        "ada",
        "--config",
        str(path),
        stdout=asyncio.subprocess.PIPE,
    )
    token = (await made.communicate())[0].decode().strip()
    process = ServeProcess(path, tmp_path)
    try:
        url, health = await process.url(), await process.url(HTTP)
        async with aiohttp.ClientSession(cookies={"streams_app_live": token}) as session:
            async with session.get(f"{url}/live/7/events?view=visitors") as stream:
                async for line in stream.content:
                    if b'"count":1' in line:
                        break
                async with session.get(f"{health}/health/ready") as ready, session.get(f"{health}/metrics") as metrics:
                    assert 200 == ready.status
                    assert "streams_app_live_connections 1.0" in await metrics.text()
                async with session.get(f"{url}/live.js") as script, session.get(url) as page:
                    assert web_file("live.js") == await script.text()
                    assert 200 == page.status
                process.child._process.send_signal(signal.SIGTERM)
                rest = (await stream.content.read()).decode()
        code = await process.ended()
    finally:
        process.child.stop(0)

    assert "event: bye" in rest
    assert 0 == code


async def test_unavailable_redis_is_awaited_and_an_occupied_port_is_not(config: Callable[..., Path], tmp_path: Path) -> None:
    away = ServeProcess(config(VIEWS + "public = true\n", redis=f"redis://127.0.0.1:{free_port()}/0"), tmp_path)
    try:
        async with aiohttp.ClientSession() as session:
            url, health = await away.url(), await away.url(HTTP)

            async def reports_outage() -> bool:
                async with session.get(f"{health}/health/ready") as ready:
                    return ready.status == 503 and "Redis" in await ready.text()

            await wait_until(reports_outage, LIMIT_SECONDS, "it reports that Redis is unavailable")
            async with session.get(f"{url}/live/7?view=visitors") as response:
                assert "reading" == (await response.json())["views"][0]["state"]
    finally:
        away.child.stop(0)

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process = ServeProcess(config(port=taken.getsockname()[1]), tmp_path / "taken")
        code = await process.ended()

    assert 75 == code
    assert "taken" in process.child.log_tail()


async def test_serve_without_a_view_has_nothing_to_serve(config: Callable[..., Path], tmp_path: Path) -> None:
    fold = '[folds.f]\nsource = "s"\ngroup_key = "a"\nchanged = "b"\nquiet_period = "1m"\n'
    process = ServeProcess(config(fold), tmp_path)
    code = await process.ended()

    assert 1 == code
    assert "no live view to serve" in process.child.log_tail()


async def test_idle_clients_do_not_take_the_descriptors_of_pages(config: Callable[..., Path], tmp_path: Path) -> None:
    process = ServeProcess(config(VIEWS + "public = true\n"), tmp_path, descriptors=256)
    try:
        url, health = await process.url(), await process.url(HTTP)
        async with aiohttp.ClientSession() as session, session.get(f"{url}/live/7/events?view=visitors") as stream:
            async with clients(urlsplit(url).port, 200, b""), clients(urlsplit(url).port, 200, HALF):
                for _ in range(3):
                    async with session.get(f"{url}/live/7?view=visitors", headers={"Connection": "close"}) as response:
                        assert 200 == response.status
                async with session.get(f"{health}/health/live") as response:
                    assert 200 == response.status
                async for line in stream.content:
                    if b'"count":1' in line:
                        break
            process.child._process.send_signal(signal.SIGTERM)
            assert b"event: bye" in await stream.content.read()
    finally:
        process.child.stop(0)

    log = process.child.log_path.read_text("utf-8")
    assert "Too many open files" not in log
    assert "too few descriptors for live_server.connections" in log
