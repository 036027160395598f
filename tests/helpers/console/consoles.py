"""A console that runs in a test, and requests to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from streams_app.clock import SystemClock
from streams_app.console.pages.registry import PAGES
from streams_app.console.reading.console_reader import ConsoleReader
from streams_app.console.server import ConsoleServer
from streams_app.console.serving import listen
from streams_app.health.http_connections import Connections, url_of
from streams_app.requirements.declarations import declarations_of
from streams_app.settings import Settings


class RunningConsole:
    """A console, and a client that sends no cookies of its own."""

    def __init__(self, url: str, reader: ConsoleReader, session: aiohttp.ClientSession) -> None:
        self.url = url
        self.reader = reader
        self._session = session

    async def get(self, path: str, **options: Any) -> tuple[int, str, Any]:
        """Return status, text and headers of an answer; redirects are not followed."""
        async with self._session.get(self.url + path, allow_redirects=False, **options) as answer:
            return answer.status, await answer.text(), answer.headers

    async def post(self, path: str, **options: Any) -> tuple[int, str, Any]:
        async with self._session.post(self.url + path, allow_redirects=False, **options) as answer:
            return answer.status, await answer.text(), answer.headers

    async def json(self, path: str, method: str = "GET", **options: Any) -> Any:
        async with self._session.request(method, self.url + path, **options) as answer:
            return await answer.json()

    async def stream(self, path: str) -> aiohttp.ClientResponse:
        """Open the stream of a page, as htmx does."""
        return await self._session.get(self.url + path, headers={"HX-Request": "true", "Accept": "text/html, text/event-stream"})


@asynccontextmanager
async def running_console(settings: Settings) -> AsyncIterator[RunningConsole]:
    """Serve the console on a free port; its history is kept as in a process."""
    console = settings.console.model_copy(update={"listen": "127.0.0.1:0"})
    reader = ConsoleReader(settings, SystemClock())
    sockets = Connections(100, SystemClock())
    server = ConsoleServer(PAGES, settings, declarations_of(settings), reader, sockets)
    runner = web.AppRunner(server.application(), handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    assert runner.server is not None
    listening = listen(console)
    accepting = await asyncio.get_running_loop().create_server(sockets.factory(runner.server), sock=listening)
    history = asyncio.create_task(reader.keep_history())
    try:
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
            yield RunningConsole(url_of(console.host, listening), reader, session)
    finally:
        history.cancel()
        await asyncio.gather(history, return_exceptions=True)
        accepting.close()
        await server.end()
        await runner.cleanup()
        await reader.close()


def with_console(settings: Settings, **given: Any) -> Settings:
    """Return the settings with another section ``[console]``."""
    return Settings.model_validate({**dict(settings), "console": given})


def with_components(settings: Settings, folder: Path) -> Settings:
    """Return the settings with a journal, two live views, and a read store whose tables are missing."""
    fold = settings.folds[0]
    journal = {"name": "events", "source": fold.source, "key": "account_id"}
    view = {"name": "newest", "kind": "list", "source": fold.source, "page": "account_id", "expiry": "1h", "public": True}
    views = [{**view, "dead_letters": fold.dead_letters}, {"name": "visitors", "kind": "presence", "expiry": "1m", "public": True}]
    store = {"name": "dashboard", "url": f"sqlite:///{folder}/read.db", "folds": [fold.name], "dead_letters": fold.dead_letters,
             "source": "sql", "source_url": f"sqlite:///{folder}/write.db", "sql": "SELECT 1, 2, 3"}  # fmt: skip
    return Settings.model_validate({**dict(settings), "journals": [journal], "live": views, "read_stores": [store]})


def token_file(folder: Path, token: str = "right") -> Path:
    path = folder / "console.token"
    path.write_text(f"{token}\n", "utf-8")
    return path
