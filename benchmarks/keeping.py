"""The cost of keeping more than the names of events: the hot load, folded with each kind of ``keep``."""

from __future__ import annotations

import asyncio
import secrets
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks import topics
from benchmarks.contest import LIMIT_SECONDS, POLL_SECONDS, long_ago_ms
from benchmarks.finding import Finding
from benchmarks.loads import LOADS, PARTITIONS, QUIET_MS, Expected, counting
from benchmarks.servers import Servers
from benchmarks.worker import first_folded, folded_by, running

KINDS: Final = {
    "names": 'changed = "metrics"',
    "last": 'changed = "metrics"\nkeep = "last"',
    "aggregates": 'changed = "metrics"\nkeep = {"*" = "sum"}',
    "events": 'keep = "events"',
}
SETTLE_SECONDS: Final = 60.0


async def keeping(servers: Servers, folder: Path, scale: float, runs: int, report: Callable[[str], None]) -> list[Finding]:
    """Fold the hot load with each kind of ``keep`` in turn.

    Args:
        servers: Where.
        folder: For settings and logs.
        scale: Of the load.
        runs: Of each kind.
        report: Receives a line for each run.
    """
    expected, source = Expected(), f"bench-keep-{secrets.token_hex(4)}"
    await topics.make(servers.bootstrap, source)
    rates, faults = defaultdict[str, list[float]](list), list[str]()
    try:
        await topics.fill(servers.bootstrap, source, counting(LOADS["hot"].generate(scale, PARTITIONS), expected), long_ago_ms())
        for _ in range(runs):
            for kind, contents in KINDS.items():
                rate, events, script_ms = await _folded(servers, folder, source, contents, expected.events)
                rates[kind].append(rate)
                report(f"keep: {kind}: {rate:,.0f} events/s, {events:,} events in the records, fold script p99 {script_ms} ms")
                if events != expected.events:
                    faults.append(f"{kind}: {events:,} events in the records, {expected.events:,} were produced")
    finally:
        await topics.remove(servers.bootstrap, source)
    medians = {kind: statistics.median(found) for kind, found in rates.items()}
    figures = {f"{kind}_events_per_second": round(rate) for kind, rate in medians.items()}
    ratios = {f"{kind}_to_last": round(rate / medians["last"], 2) for kind, rate in medians.items() if kind != "last"}
    return [Finding("keep, hot load, medians", {**figures, **ratios}, faults)]


async def _folded(servers: Servers, folder: Path, source: str, contents: str, events: int) -> tuple[float, int, float | None]:
    """Return the events folded per second, the events in the records, and the 99th percentile of the fold script in ms."""
    async with (
        running(servers, folder, source, quiet_period=f"{QUIET_MS}ms", contents=contents) as worker,
        topics.reading(servers.bootstrap, worker.output) as outputs,
    ):
        first = await first_folded([worker], LIMIT_SECONDS)
        started, folded = time.monotonic(), first
        async with asyncio.timeout(LIMIT_SECONDS):
            while folded < events:
                await asyncio.sleep(POLL_SECONDS)
                folded = await folded_by([worker])
        seconds = time.monotonic() - started
        until = time.monotonic() + SETTLE_SECONDS
        while (found := sum(record.events for record in outputs.folded())) < events and time.monotonic() < until:
            await asyncio.sleep(1)
        p99 = (await worker.metrics()).percentile("streams_app_script_seconds", 0.99, 'script="fold"')
        return (events - first) / seconds, found, None if p99 is None else round(p99 * 1000, 1)
