"""The cost of a hub with many browsers, and the effect of stalled browsers on others. Views are filled without a worker."""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import orjson
import redis.asyncio

from benchmarks.live_browsers import Crowd, crowd
from benchmarks.live_redis import PAYLOAD, Shard, claimed, now_ms
from benchmarks.live_rows import Row, Sizes, percentile
from benchmarks.processes import CpuWatch, memory_mb
from benchmarks.servers import Servers
from streams_app.embedded.ports import free_port
from streams_app.live.core.operations import Change
from streams_app.live.core.state import Item
from streams_app.live.hub.sockets import ask_for_descriptors
from streams_app.live.store.keys import view_keys
from streams_app.live.store.view_store import LiveScripts, ViewStore
from tests.helpers.worker.workers import WorkerProcess

BROWSERS_A_PAGE: Final = 10
STALLED_OF: Final = 5
"""One in this number of browsers stalls."""

FEED_SECONDS: Final = 0.125
"""Half the poll interval of the hub, so that each poll finds a change."""

STATES_A_SECOND: Final = 4
WARM_SECONDS: Final = 2.0
STALL_SECONDS: Final = 5.0
"""Time after which the buffers of a browser that does not read are full."""

SHOW: Final = 50
EXPIRY_MS: Final = 3_600_000
VIEWS: Final = f"""\
[live.supporters]
kind = "count"
source = "contributions"
page = "project"
item = "id"
expiry = "1h"
public = true
[live.news]
kind = "list"
source = "contributions"
page = "project"
item = "id"
expiry = "1h"
show = {SHOW}
max_items = {SHOW}
public = true
"""


class HubProcess(WorkerProcess):
    """A process of ``live serve`` instead of a worker."""

    def command(self, config: Path, arguments: Sequence[str]) -> list[str]:
        """Return the command line."""
        return [sys.executable, "-m", "streams_app", "live", "serve", "--config", str(config.resolve()), *arguments]


def configured(servers: Servers, folder: Path, views: str, connections: int) -> tuple[Path, str, int]:
    """Return the settings of a hub and workers, the ``app_id``, and the port of the hub."""
    app_id, port = f"bench-{secrets.token_hex(4)}", free_port()
    config = folder / f"{app_id}.toml"
    config.write_text(
        f"""\
app_id = "{app_id}"
[kafka]
bootstrap_servers = {json.dumps(servers.bootstrap)}
[redis]
url = {json.dumps(servers.redis_url)}
[http]
port = 0
[live_server]
port = {port}
connections = {connections}
{views}""",
        "utf-8",
    )
    return config, app_id, port


@asynccontextmanager
async def serving(config: Path, folder: Path) -> AsyncIterator[HubProcess]:
    """Yield a hub that is ready."""
    with HubProcess(config, folder) as hub:
        await hub.wait_ready()
        yield hub
        await hub.terminate()


async def feed(one: Shard, pages: Sequence[str], payload: bytes, stop: asyncio.Event) -> None:
    """Change each page until stopped by a flag: a task that is cancelled during a request to Redis may continue."""
    turn, due = 0, time.monotonic()
    while not stop.is_set():
        turn += 1
        await one.apply([Change(page, [], [Item(f"c{turn:06d}", now_ms(), payload)]) for page in pages])
        await one.store.expire(one.fence[0], now_ms(), moves_clock=True)
        due += FEED_SECONDS
        await asyncio.sleep(max(0.0, due - time.monotonic()))


@asynccontextmanager
async def moving(
    servers: Servers, folder: Path, view: str, pages: Sequence[str], connections: int
) -> AsyncIterator[tuple[HubProcess, Crowd]]:
    """Yield a hub with a view that changes all the time, and browsers."""
    config, app_id, port = configured(servers, folder, VIEWS, connections)
    is_list = view == "news"
    async with redis.asyncio.Redis.from_url(servers.redis_url) as client:
        keys = view_keys(app_id, view, "contributions", 0)
        store = ViewStore(
            LiveScripts(client), keys, "bench", has_data=is_list, expiry_ms=EXPIRY_MS, keep=SHOW if is_list else 100_000
        )
        one = await claimed(store, keys)
        stop = asyncio.Event()
        feeding = asyncio.create_task(feed(one, pages, PAYLOAD if is_list else b"", stop))
        try:
            async with serving(config, folder) as hub:
                with crowd(port) as browsers:
                    yield hub, browsers
        finally:
            stop.set()
            await feeding
            servers.forget(app_id)


async def connections(servers: Servers, folder: Path, sizes: Sizes) -> list[Row]:
    """Measure one hub with many browsers that each receive four states a second."""
    ask_for_descriptors(sizes.connections)
    pages = [f"p{number}" for number in range(max(1, sizes.connections // BROWSERS_A_PAGE))]
    async with moving(servers, folder, "supporters", pages, sizes.connections) as (hub, browsers):
        for number in range(sizes.connections):
            await browsers.open(f"/live/{pages[number % len(pages)]}/events?view=supporters")
        await asyncio.sleep(WARM_SECONDS)  # the measurement excludes connecting
        before, cpu, began = sum(one.states for one in browsers.browsers), CpuWatch({"hub": hub.pid}), time.monotonic()
        await asyncio.sleep(sizes.seconds)  # the duration of the measurement
        used, passed = cpu.used(), time.monotonic() - began
        states = (sum(one.states for one in browsers.browsers) - before) / passed / sizes.connections
        rss = memory_mb(hub.pid, "VmRSS")
        browsers.require()
    if "hub" not in used or rss is None:
        raise RuntimeError("what a process uses cannot be told here: there is no /proc")
    name, beside = f"{sizes.connections:,} connections", f"{states:.1f} states/s each, {len(pages)} pages"
    fault = "" if states >= 0.8 * STATES_A_SECOND else "they were sent too little for the goal: this machine is too busy"
    return [
        Row(f"{name}, {STATES_A_SECOND} states/s each, part of a core", used["hub"] / passed, 0.25, "%", beside, fault),
        Row(f"{name}, memory of the hub", rss, 80, "MB", fault=fault),
    ]


async def stalled(servers: Servers, folder: Path, sizes: Sizes) -> Row:
    """Measure the delay of states at browsers that read, with and without stalled browsers."""
    delays: list[float] = []

    def take(data: bytes) -> None:
        state = orjson.loads(data)
        if state.get("items"):
            delays.append(now_ms() - state["items"][0]["time_ms"])

    async with moving(servers, folder, "news", ["p"], sizes.watchers) as (hub, browsers):
        path, stalling = "/live/p/events?view=news", max(1, sizes.watchers // STALLED_OF)
        stalls = [await browsers.open(path, may_stall=True) for _ in range(stalling)]
        for _ in range(sizes.watchers - stalling):
            await browsers.open(path, take)
        await asyncio.sleep(WARM_SECONDS)  # the measurement excludes connecting
        found: list[float] = []
        for _ in range(2):
            delays.clear()
            await asyncio.sleep(sizes.seconds)  # the duration of the measurement
            if not delays:
                raise RuntimeError("browsers were shown nothing")
            found.append(percentile(delays, 0.99))
            for one in stalls:
                one.stall()
            await asyncio.sleep(STALL_SECONDS)  # until the buffers are full
        browsers.require()
        _, metrics = await hub.get("/metrics")
    replaced = sum(float(line.split()[-1]) for line in metrics.splitlines() if line.startswith("streams_app_live_replaced_total"))
    beside = f"p99 {found[1]:.0f} ms, without stalled ones {found[0]:.0f} ms; {replaced:.0f} states were replaced"
    fault = "" if replaced else "none was so slow that a newer state has replaced one: nothing has stalled"
    return Row(
        f"{stalling} of {sizes.watchers} stalled, p99 of the others", found[1] / max(1.0, found[0]), 1.25, "x", beside, fault
    )
