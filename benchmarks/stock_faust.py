"""The simple design on stock Faust: an agent that runs ZADD and SADD for each event. Run as a separate process.

It only folds and emits nothing, so its figure is better than that of a complete program.

Usage: ``python -m benchmarks.stock_faust BOOTSTRAP REDIS_URL TOPIC EVENTS``; prints one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import sys
import tempfile
import time
import warnings
from typing import Any

# Faust 0.15 on Python 3.11 and newer: its own deprecation warnings are irrelevant here.
warnings.filterwarnings("ignore", category=DeprecationWarning)

import faust  # noqa: E402  # the filter first
from redis.asyncio import Redis  # noqa: E402  # as above

from benchmarks.processes import CpuWatch, memory_mb  # noqa: E402  # as above


class Counter:
    """Counts events; the time begins with the first one."""

    def __init__(self, events: int) -> None:
        self.left = events
        self.events = events
        self.started = 0.0
        self.result: dict[str, object] = {}
        self.done = asyncio.Event()

    def begin(self) -> None:
        """Start the time once."""
        if not self.started:
            self.started = time.perf_counter()
            self.cpu = CpuWatch({"faust": os.getpid()})

    def count(self) -> None:
        """Count an event that is in Redis."""
        self.left -= 1
        if self.left == 0:
            seconds = time.perf_counter() - self.started
            self.result = {
                "seconds": seconds,
                "events": self.events,
                "cpu": self.cpu.used(),
                "peak_rss_mb": memory_mb(os.getpid(), "VmHWM"),
            }
            self.done.set()


async def run(bootstrap: str, redis_url: str, topic_name: str, events: int) -> dict[str, object]:
    """Fold this number of events."""
    app_id = f"bench-stock-{secrets.token_hex(4)}"
    app = faust.App(
        app_id, broker=f"kafka://{bootstrap}", web_enabled=False, datadir=tempfile.gettempdir(), topic_disable_leader=True
    )
    topic = app.topic(topic_name)
    redis = Redis.from_url(redis_url)
    counter = Counter(events)
    due, names = f"{{{app_id}/stock}}:due", f"{{{app_id}/stock}}:names:"

    async def fold(stream: Any) -> None:
        async for event in stream:
            counter.begin()
            account = event["account_id"]
            await redis.zadd(due, {account: time.time()})
            await redis.sadd(f"{names}{account}", *event["metrics"])
            counter.count()

    app.agent(topic, name="fold")(fold)
    await app.start()
    await counter.done.wait()
    async for key in redis.scan_iter(f"{{{app_id}/stock}}*", count=5_000):
        await redis.unlink(key)
    return counter.result


def main() -> None:
    """Run and print the result; exit at once, because Faust takes seconds to leave its group."""
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    bootstrap, redis_url, topic, events = sys.argv[1:]
    with asyncio.Runner() as runner:
        print(json.dumps(runner.run(run(bootstrap, redis_url, topic, int(events)))), flush=True)
        os._exit(0)


if __name__ == "__main__":
    main()
