"""Hubs in the process of a test, on a real Redis; the test acts as the worker that keeps the views."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import redis.asyncio
from yarl import URL

from streams_app.clock import SystemClock
from streams_app.health.metrics import Metrics
from streams_app.health.status import Status
from streams_app.live.core.operations import Change
from streams_app.live.core.state import Item
from streams_app.live.hub.hub import Hub
from streams_app.live.hub.server import ViewServer
from streams_app.live.hub.serving import connect_hub, listen
from streams_app.live.hub.tokens import TokenVerifier
from streams_app.live.store.keys import view_keys
from streams_app.live.store.view_store import LiveScripts, ViewMetadata, ViewStart, ViewStore
from streams_app.settings import LiveServer, LiveView, Settings
from streams_app.settings.redis import RedisSettings
from tests.helpers.waiting import wait_until

LIMIT_SECONDS = 30
SECRET = "s" * 32
EXPIRY_MS = 60_000
SHOWN = ViewMetadata()


def now_ms() -> int:
    return SystemClock().now_ms()


class Owner:
    """The owner of one partition of a view, acting as a worker."""

    def __init__(self, client: redis.asyncio.Redis, app_id: str, view: LiveView, partition: int = 0, partitions: int = 1) -> None:
        keys = view_keys(app_id, view.name, view.source, partition)
        self._view = view
        self._scripts, self._keys = LiveScripts(client), keys
        self._partitions = partitions
        self._claims = 0
        self.metadata = ViewMetadata()
        self.fence = -1
        self._lock = asyncio.Lock()
        """As in a worker, the scripts of one partition run one after the other."""

    async def claim(self, *, metadata: ViewMetadata = SHOWN, clock_ms: int | None = None) -> None:
        self._claims += 1
        self.metadata = metadata
        self.store = ViewStore(
            self._scripts, self._keys, f"owner-{self._claims}-{now_ms()}", has_data=self._view.kind == "list",
            expiry_ms=self._view.expiry_ms, keep=self._view.keeps,
        )  # fmt: skip
        begin = ViewStart(-1, now_ms() if clock_ms is None else clock_ms, metadata)
        claimed = await self.store.claim("d", "id", self._partitions, begin=begin)
        assert claimed is not None
        self.fence = claimed.fence

    async def change(self, page: str, put: Iterable[Item] = (), removed: Iterable[str] = ()) -> None:
        async with self._lock:
            await self.store.apply(self.fence, self.fence + 1, [Change(page, list(removed), list(put))], self.metadata)
            self.fence += 1

    async def put(self, page: str, item: str, data: Any = None, time_ms: int | None = None) -> None:
        await self.change(page, [Item(item, now_ms() if time_ms is None else time_ms, json.dumps(data).encode())])

    async def tick(self) -> None:
        async with self._lock:
            await self.store.expire(self.fence, now_ms(), moves_clock=True)


class Events:
    """The events that a raw client of server-sent events has received."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.is_over = False
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        name = ""
        with suppress(aiohttp.ClientError):
            async for line in self.response.content:
                if line.startswith(b"event: "):
                    name = line[7:].strip().decode()
                elif line.startswith(b"data: "):
                    self.events.append((name, json.loads(line[6:])))
        self.is_over = True

    def views(self, view: str) -> list[dict[str, Any]]:
        return [data for name, data in self.events if name == "view" and data["view"] == view]

    def names(self) -> list[str]:
        return [name for name, _ in self.events]

    async def until(self, view: str, **expected: Any) -> dict[str, Any]:
        """Return the newest state of a view, once it has what is expected."""

        def found() -> dict[str, Any] | None:
            states = self.views(view)
            fits = states and {key: states[-1].get(key) for key in expected} == expected
            return states[-1] if fits else None

        try:
            return await wait_until(found, LIMIT_SECONDS, f"{view} with {expected}") or {}
        except AssertionError as error:
            raise AssertionError(f"{error}; it was sent {self.views(view)[-3:]} and {self.names()[-3:]}") from error

    async def close(self) -> None:
        self.response.close()
        self._reading.cancel()
        with suppress(asyncio.CancelledError):
            await self._reading


class RunningHub:
    """A hub and its address."""

    def __init__(self, hub: Hub, server: ViewServer, url: str, metrics: Metrics, session: aiohttp.ClientSession) -> None:
        self.hub = hub
        self.server = server
        self.url = url
        self.metrics = metrics
        self.session = session
        self._streams: list[Events] = []

    async def events(self, path: str | URL, **options: Any) -> Events:
        response = await self.session.get(self.url + path if isinstance(path, str) else path, **options)
        assert response.status == 200, await response.text()
        self._streams.append(Events(response))
        return self._streams[-1]

    async def json(self, path: str, **options: Any) -> dict[str, Any]:
        async with self.session.get(self.url + path, **options) as response:
            assert response.status == 200, await response.text()
            found: dict[str, Any] = await response.json()
            return found

    async def rejection(self, path: str, **options: Any) -> tuple[int, str]:
        async with self.session.get(self.url + path, **options) as response:
            return response.status, (await response.json())["error"]

    async def close(self) -> None:
        for stream in self._streams:
            await stream.close()


@asynccontextmanager
async def running_hub(
    app_id: str, redis_url: str, views: Iterable[LiveView], *, has_page: bool = False, **server: Any
) -> AsyncIterator[RunningHub]:
    """Run a hub in this process, and end it as SIGTERM would."""
    settings = Settings(
        app_id=app_id,
        redis=RedisSettings(url=redis_url),
        live=tuple(views),
        live_server=LiveServer(**{"port": 0, "interval": "50ms", "beat": "1s", **server}),
    )
    async with AsyncExitStack() as stack:
        client = connect_hub(settings.redis)
        stack.push_async_callback(client.aclose)
        clock, metrics = SystemClock(), Metrics(settings)
        hub = Hub(settings, client, clock, metrics, Status())
        view_server = ViewServer(settings, hub, TokenVerifier(settings.live_server, clock), clock, metrics, has_page=has_page)
        runner = view_server.runner(0.1)
        stack.push_async_callback(runner.cleanup)
        listening = listen(settings)
        accepting = await view_server.listen(listening, runner)
        stack.callback(accepting.close)
        stop = asyncio.Event()
        tasks = [asyncio.create_task(hub.run(stop)), asyncio.create_task(view_server.check_forever())]
        session = await stack.enter_async_context(aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()))
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        running = RunningHub(hub, view_server, url, metrics, session)
        try:
            yield running
        finally:
            await view_server.end()
            await running.close()
            stop.set()
            await asyncio.wait(tasks[:1])
            tasks[1].cancel()
        tasks[0].result()


def secret_file(folder: Path, *secrets: str) -> Path:
    path = folder / "secret"
    path.write_text("\n".join(secrets or (SECRET,)) + "\n")
    return path
