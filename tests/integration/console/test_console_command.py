"""``streams-app console`` as a process: its address, its faults, and its end."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from pathlib import Path

import aiohttp
from redis.asyncio import Redis

from streams_app.clock import SystemClock
from streams_app.console.reading.console_reader import ConsoleReader
from streams_app.settings import Settings
from tests.helpers.cli.commands import FOLD, Place, run
from tests.helpers.console.consoles import RunningConsole
from tests.helpers.console.forms import FormBrowser, forms_in
from tests.helpers.waiting import wait_until
from tests.helpers.worker.workers import WorkerProcess, get_page
from tests.integration.console.test_console_actions import opened, state_of

SERVED = re.compile(r"the console is served url=(http://[\w.:\[\]-]+)")


class ConsoleProcess(WorkerProcess):
    """A process ``python -m streams_app console``."""

    def command(self, config: Path, arguments: object) -> list[str]:
        words = super().command(config, ["--listen", "127.0.0.1:0"])
        return ["console" if word == "worker" else word for word in words]

    @property
    def url(self) -> str | None:
        found = SERVED.search(self.log())
        return found[1] if found else None


async def test_console_shows_a_worker_and_ends_with_0_on_sigterm(app: Place, tmp_path: Path) -> None:
    config = Path(app.config())
    with ConsoleProcess(config, tmp_path) as console:
        url = await wait_until(lambda: console.url, 60, "the console listens")
        status, text = get_page(f"{url}/overview.json")
        health, _ = get_page(f"{url}/health/live")
        code = await console.terminate()

    assert (200, 200, 0) == (status, health, code), console.log()
    assert app.names.app_id == json.loads(text)["app_id"]
    assert "the console is no longer served" in console.log()
    assert "Traceback" not in console.log()


def test_address_that_others_reach_needs_a_token(app: Place) -> None:
    ran = run("console", "--config", app.config(), "--listen", "0.0.0.0:8091")

    assert 1 == ran.code
    assert "name a file with a token as console.token_file (openssl rand -hex 32)" in ran.err


def test_taken_address_that_was_named_is_a_fault(app: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ran = run("console", "--config", app.config(), "--listen", address)

    assert 1 == ran.code
    assert f"console.listen: {address} is in use: end the other process, or choose another port" in ran.err


async def test_console_that_dies_in_an_action_leaves_what_a_command_leaves(app: Place, redis_client: Redis, tmp_path: Path) -> None:
    config = app.config(extra="[console]\nallow_actions = true\n")
    store = await opened(app, redis_client)
    command = await asyncio.to_thread(run, "groups", "flush", "anna", "--timeout", "0.1", "--config", config)
    left = await state_of(store)
    await redis_client.delete(store.keys.flush)
    with ConsoleProcess(Path(config), tmp_path) as process:
        url = str(await wait_until(lambda: process.url, 60, "the console listens"))
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
            browser = FormBrowser(RunningConsole(url, ConsoleReader(Settings.load(Path(config), {}), SystemClock()), session))
            (form,) = forms_in((await browser.open(f"/actions/flush?fold={FOLD}&key=anna"))[1])
            _, _, job = await browser.send(form)
            await wait_until(lambda: redis_client.exists(store.keys.flush), 60, "the request is in Redis")
            running = await browser.job(job)
            process.kill()

    assert (75, "running") == (command.code, running["state"]), command.text
    assert left == await state_of(store)
