"""The delay from an event in Kafka, and from its expiry, to a browser: producer, broker, worker, Redis, hub, socket."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import orjson
from aiokafka import AIOKafkaProducer

from benchmarks import topics
from benchmarks.finding import TICK_MS
from benchmarks.live_browsers import crowd
from benchmarks.live_hub import configured, serving
from benchmarks.live_redis import now_ms
from benchmarks.live_rows import Row, Sizes, percentile
from benchmarks.servers import Servers
from benchmarks.subscribers import create_topics
from tests.helpers.waiting import wait_until
from tests.helpers.worker.workers import WorkerProcess

PAGES: Final = 5
PARTITIONS: Final = 4
EVENTS_A_SECOND: Final = 20
EXPIRY_MS: Final = 5_000
WAIT_SECONDS: Final = 60


@dataclass
class Watching:
    """The observations of a browser of one page.

    Attributes:
        shown: Item on the page → expected time of its expiry (ms).
        came: Delay of each event (ms).
        left: Time for which each item was shown after its expiry (ms).
        is_read: Whether the view is no longer being read from its source.
    """

    shown: dict[str, int] = field(default_factory=dict)
    came: list[float] = field(default_factory=list)
    left: list[float] = field(default_factory=list)
    is_read: bool = False

    def take(self, data: bytes) -> None:
        """A state."""
        at_ms, state = now_ms(), orjson.loads(data)
        if "items" not in state:
            return
        self.is_read = True
        items = {item["item"]: item for item in state["items"]}
        self.came += [at_ms - item["time_ms"] for name, item in items.items() if name not in self.shown]
        self.left += [at_ms - expires_ms for name, expires_ms in self.shown.items() if name not in items]
        self.shown = {name: item["expires_ms"] for name, item in items.items()}


async def under_way(servers: Servers, folder: Path, sizes: Sizes) -> list[Row]:
    """Produce events for a while, and observe that each appears and expires."""
    topic = f"bench-live-{time.time_ns():x}"
    views = f"""\
[live.news]
kind = "list"
source = "{topic}"
page = "project"
item = "id"
expiry = "{EXPIRY_MS}ms"
show = 50
public = true
"""
    config, app_id, port = configured(servers, folder, views, 100)
    await topics.make(servers.bootstrap, topic, partitions=PARTITIONS)
    try:
        await create_topics(config, {})
        with WorkerProcess(config, folder) as worker:
            await worker.wait_ready()
            async with serving(config, folder):
                watching = [Watching() for _ in range(PAGES)]
                with crowd(port) as browsers:
                    for page, one in enumerate(watching):
                        await browsers.open(f"/live/p{page}/events?view=news", one.take)
                    await wait_until(lambda: all(one.is_read for one in watching), WAIT_SECONDS, "all browsers show the view")
                    produced = await _produce(servers.bootstrap, topic, sizes.seconds)
                    gone = f"each of {produced} events has come and left"
                    await wait_until(lambda: sum(len(one.left) for one in watching) >= produced, WAIT_SECONDS, gone)
                    browsers.require()
            await worker.terminate()
    finally:
        servers.forget(app_id)
        await topics.remove(servers.bootstrap, topic)
    came, left = ([ms / 1000 for one in watching for ms in getattr(one, name)] for name in ("came", "left"))
    if len(came) != produced or len(left) != produced:
        raise RuntimeError(f"{produced} events were produced, {len(came)} came and {len(left)} left")
    tick = TICK_MS / 1000
    return [
        Row("event -> socket, p99", percentile(came, 0.99), 1, "s", f"median {percentile(came, 0.5):.2f} s, {servers.broker}"),
        Row(
            "expiry -> socket, p99",
            percentile(left, 0.99),
            tick + 1,
            "s",
            f"median {percentile(left, 0.5):.2f} s, a tick is {tick:g} s",
        ),
    ]


async def _produce(bootstrap: str, topic: str, seconds: float) -> int:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all")
    await producer.start()
    try:
        due, number = time.monotonic(), 0
        for number in range(1, max(1, round(seconds * EVENTS_A_SECOND)) + 1):
            page = f"p{number % PAGES}"
            value = json.dumps({"project": page, "id": f"c{number}", "title": "t"}).encode()
            await producer.send_and_wait(topic, value, page.encode(), timestamp_ms=now_ms())
            due += 1 / EVENTS_A_SECOND
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        return number
    finally:
        await producer.stop()
