"""Helpers of measurements without contestants: the result, a source topic, waiting until events are folded."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks import topics
from benchmarks.loads import PARTITIONS
from benchmarks.servers import Servers
from benchmarks.worker import Worker, folded_by

POLL_SECONDS: Final = 0.1
LIMIT_SECONDS: Final = 600.0
TICK_MS: Final = 1_000
"""The tick of a worker with the default settings: a due group is emitted at most this much later."""


@dataclass(slots=True)
class Finding:
    """One measurement without contestants.

    Attributes:
        name: Name of the measurement.
        figures: The result, with units in their names.
        faults: Errors; empty if there are none.
    """

    name: str
    figures: dict[str, Any] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


@asynccontextmanager
async def source_topic(servers: Servers, name: str, partitions: int = PARTITIONS) -> AsyncIterator[str]:
    """Create a source topic."""
    topic = f"bench-{name}-{secrets.token_hex(4)}"
    await topics.make(servers.bootstrap, topic, partitions=partitions)
    try:
        yield topic
    finally:
        await topics.remove(servers.bootstrap, topic)


async def until_folded(worker: Worker, events: int) -> None:
    """Wait until this number of events is folded; 0: until the worker is ready for the first one."""
    async with asyncio.timeout(LIMIT_SECONDS):
        if not events:
            await worker.ready()
        while await folded_by([worker]) < events:
            await asyncio.sleep(POLL_SECONDS)


def micros(seconds: float, count: int) -> float:
    """Return microseconds per event."""
    return round(seconds * 1_000_000 / max(1, count), 2)


def scripts(calls: dict[str, int]) -> int:
    """Return the number of script calls among the calls of commands."""
    return sum(count for name, count in calls.items() if name.startswith("eval"))


def since(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """Return the calls by command between two samples."""
    return {name: after[name] - before.get(name, 0) for name in after}
