"""What is not a race: a steady stream, open groups that wait, and memory over many events."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from benchmarks import topics
from benchmarks.loads import LOADS, QUIET_MS, SEED, SPAN_MS, metric_values, open_groups, partition_of, small_value
from benchmarks.processes import cpu_seconds, memory_mb
from benchmarks.servers import Servers
from benchmarks.worker import Worker, running

LIVE_RATE: Final = 20_000
LIVE_SECONDS: Final = 60
LIVE_GROUPS: Final = 50_000
LIVE_QUIET_MS: Final = 5_000
LIVE_STEP_SECONDS: Final = 0.025
IDLE_SECONDS: Final = 60
MEMORY_MILLIONS: Final = (1, 5)
POLL_SECONDS: Final = 0.1
LIMIT_SECONDS: Final = 600.0
FOLDED: Final = "streams_app_events_folded_total"


@dataclass(slots=True)
class Finding:
    """One measurement that is not a race.

    Attributes:
        name: ``live``, ``idle``, ``memory`` or ``open groups``.
        figures: What was measured, with units in their names.
        faults: What was wrong; empty when nothing was.
    """

    name: str
    figures: dict[str, Any] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


async def live(servers: Servers, folder: Path, scale: float) -> Finding:
    """A steady stream over many groups: by how much records are late, and what it costs."""
    seconds = max(10, round(LIVE_SECONDS * scale))
    async with (
        _source(servers, "live") as source,
        running(servers, folder, source, quiet_period=f"{LIVE_QUIET_MS}ms") as worker,
        topics.reading(servers.bootstrap, worker.output) as outputs,
    ):
        await _folded(worker, 0)
        servers.slow_commands()
        calls, cpu = servers.command_calls(), worker.cpu()
        events, lag_ms = await _steady(servers.bootstrap, source, seconds)
        used, after = cpu.used(), servers.command_calls()
        await _folded(worker, events)
        await _all_out(worker, outputs)
        metrics = await worker.metrics()
        records = outputs.folded()
        delays = sorted(record.produced_ms - record.last_event_ms - LIVE_QUIET_MS for record in records)
        made = {name: after[name] - calls.get(name, 0) for name in after}
        finding = Finding("live")
        finding.figures = {
            "events": events,
            "events_per_second": round(events / seconds),
            "producer_behind_ms_at_most": lag_ms,
            "records": len(records),
            "emit_delay_ms_p50": delays[len(delays) // 2],
            "emit_delay_ms_p99": delays[len(delays) * 99 // 100],
            "emit_delay_ms_max": delays[-1],
            "histogram_delay_ms_p99": _ms(metrics.percentile("streams_app_emit_delay_seconds", 0.99)),
            "cpu_share_of_a_core": {name: round(value / seconds, 3) for name, value in used.items()},
            "redis_scripts_per_event": round(sum(count for name, count in made.items() if name.startswith("eval")) / events, 4),
            "redis_commands_per_event": round(sum(made.values()) / events, 3),
            "redis_commands_by_name": {name: count for name, count in sorted(made.items(), key=lambda item: -item[1])[:8] if count},
            "slow_commands": servers.slow_commands(),
            "peak_rss_mb": memory_mb(worker.pid, "VmHWM"),
        }
        if (folded := sum(record.events for record in records)) != events:
            finding.faults.append(f"{folded:,} events in the records, {events:,} were produced")
        if len({record.id for record in records}) != len(records):
            finding.faults.append("some records came twice")
        return finding


async def _all_out(worker: Worker, outputs: topics.Outputs) -> None:
    """Returns when no group is open and the output topic has not grown for some ticks."""
    await asyncio.sleep(LIVE_QUIET_MS / 1000)
    seen, is_open = -1, True
    async with asyncio.timeout(LIMIT_SECONDS):
        while is_open or seen != (seen := outputs.count):
            is_open = bool((await worker.metrics()).value("streams_app_open_groups"))
            await asyncio.sleep(2.5)


async def _steady(bootstrap: str, topic: str, seconds: int) -> tuple[int, int]:
    """Produces at :data:`LIVE_RATE` in steps of 25 ms; how many, and by how many ms it was late at worst."""
    random = Random(SEED)
    metrics = metric_values(random)
    keys = [b"account_%d" % group for group in range(LIVE_GROUPS)]
    places = [partition_of(key) for key in keys]
    produced, late_ms = 0, 0
    async with topics.filling(bootstrap, topic) as filler:
        started = time.monotonic()
        while produced < LIVE_RATE * seconds:
            wanted = min(LIVE_RATE * seconds, int((time.monotonic() - started) * LIVE_RATE))
            late_ms = max(late_ms, (wanted - produced) * 1000 // LIVE_RATE - int(LIVE_STEP_SECONDS * 1000))
            now_ms = time.time_ns() // 1_000_000
            for number in range(produced, wanted):
                group = int(random.random() * LIVE_GROUPS)
                value = small_value(keys[group], number % 100_003, metrics[number % len(metrics)])
                await filler.add(places[group], now_ms, keys[group], value)
            produced = wanted
            await filler.flush(wait=False)
            await asyncio.sleep(LIVE_STEP_SECONDS)
    return produced, late_ms


async def waiting_groups(servers: Servers, folder: Path, scale: float, *, idle: bool) -> list[Finding]:
    """Opens 100 000 groups that stay open: bytes of Redis for each, and what the worker uses while nothing happens."""
    async with _source(servers, "open") as source:
        events = list(open_groups(scale))
        await topics.fill(servers.bootstrap, source, iter(events), int(time.time() * 1000) - SPAN_MS)
        before = servers.used_memory()
        async with running(servers, folder, source, quiet_period="30d", max_hold="30d") as worker:
            await _folded(worker, len(events))
            await asyncio.sleep(3)  # the gauge of open groups is set at a tick, after a seal
            opened = int((await worker.metrics()).value("streams_app_open_groups"))
            size = (servers.used_memory() - before) / max(1, opened)
            found = [Finding("open groups", {"groups": opened, "names_of_each": 3, "redis_bytes_per_group": round(size)})]
            if opened != len(events):
                found[0].faults.append(f"{opened:,} groups are open, {len(events):,} expected")
            if idle:
                cpu = worker.cpu()
                await asyncio.sleep(IDLE_SECONDS)
                shares = {name: f"{value / IDLE_SECONDS:.2%}" for name, value in cpu.used().items()}
                found.append(Finding("idle", {"open_groups": opened, "seconds": IDLE_SECONDS, "cpu_share_of_a_core": shares}))
            return found


async def memory(servers: Servers, folder: Path, scale: float) -> Finding:
    """Memory of the worker after one and after five million events of the hot load."""
    async with _source(servers, "memory") as source:
        begin_ms = int(time.time() * 1000) - 2 * MEMORY_MILLIONS[-1] * SPAN_MS
        total = 0
        for part in range(MEMORY_MILLIONS[-1]):
            async with topics.filling(servers.bootstrap, source) as filler:
                for event in LOADS["hot"].generate(scale):
                    await filler.add(event.partition, begin_ms + part * SPAN_MS + event.at_ms, event.key, event.value)
                    total += 1
        finding = Finding("memory", {"events": total})
        async with running(servers, folder, source, quiet_period=f"{QUIET_MS}ms", backlog="sessions") as worker:
            for millions in MEMORY_MILLIONS:
                events = total * millions // MEMORY_MILLIONS[-1]
                await _folded(worker, events)
                finding.figures[f"rss_mb_after_{events}_events"] = _rounded(memory_mb(worker.pid, "VmRSS"))
            finding.figures["peak_rss_mb"] = _rounded(memory_mb(worker.pid, "VmHWM"))
            finding.figures["worker_cpu_seconds_with_start"] = cpu_seconds(worker.pid)
        return finding


@asynccontextmanager
async def _source(servers: Servers, name: str) -> AsyncIterator[str]:
    """A source topic of its own."""
    topic = f"bench-{name}-{secrets.token_hex(4)}"
    await topics.make(servers.bootstrap, topic)
    try:
        yield topic
    finally:
        await topics.remove(servers.bootstrap, topic)


async def _folded(worker: Worker, events: int) -> None:
    """Returns when so many events are folded; 0: when the worker is ready for the first."""
    async with asyncio.timeout(LIMIT_SECONDS):
        if not events:
            await worker.ready()
        while True:
            if (await worker.metrics()).value(FOLDED) >= events:
                return
            await asyncio.sleep(POLL_SECONDS)


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
