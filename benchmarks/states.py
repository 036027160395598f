"""Measurements without contestants: a steady stream, idle open groups, and memory over many events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Final

from benchmarks import topics
from benchmarks.finding import LIMIT_SECONDS, TICK_MS, Finding, scripts, since, source_topic, until_folded
from benchmarks.loads import LOADS, QUIET_MS, SEED, SPAN_MS, Event, metric_values, partition_of, single_events, small_value
from benchmarks.processes import cpu_seconds, memory_mb
from benchmarks.servers import Servers
from benchmarks.worker import Worker, cpu_watch, running

LIVE_SECONDS: Final = 60
LIVE_GROUPS: Final = 50_000
LIVE_QUIET_MS: Final = 5_000
IDLE_SECONDS: Final = 60
OPEN_GROUPS: Final = 100_000
MEMORY: Final = ((4, (1, 5, 10)), (1, (1, 5)), (8, (1, 5)))
"""Number of partitions, and the millions of events after which memory is measured."""


async def live(servers: Servers, folder: Path, scale: float, rate: int) -> Finding:
    """Measure the delay of records and the cost of a steady stream over many groups.

    Args:
        servers: Servers to use.
        folder: Folder for settings and logs.
        scale: Scale of its duration.
        rate: Events/s.
    """
    seconds = max(10, round(LIVE_SECONDS * scale))
    async with (
        source_topic(servers, "live") as source,
        running(servers, folder, source, quiet_period=f"{LIVE_QUIET_MS}ms") as worker,
        topics.reading(servers.bootstrap, worker.output) as outputs,
    ):
        await until_folded(worker, 0)
        servers.slow_commands()
        calls, cpu = servers.command_calls(), cpu_watch(servers, [worker])
        events = seconds * rate
        took, lag_ms = await topics.steady(servers.bootstrap, source, _any_groups(), events, rate)
        used, after = cpu.used(), servers.command_calls()
        await until_folded(worker, events)
        await _all_out(worker, outputs)
        metrics = await worker.metrics()
        records = outputs.folded()
        delays = sorted(record.produced_ms - record.last_event_ms - LIVE_QUIET_MS for record in records)
        made = since(calls, after)
        finding = Finding("live")
        finding.figures = {
            "events": events,
            "events_per_second_wanted": rate,
            "events_per_second": round(events / took),
            "producer_behind_ms_at_most": lag_ms,
            "records": len(records),
            "emit_delay_ms_p50": delays[len(delays) // 2],
            "emit_delay_ms_p99": delays[len(delays) * 99 // 100],
            "emit_delay_ms_max": delays[-1],
            "tick_ms": TICK_MS,
            "emit_delay_ms_p99_minus_tick": delays[len(delays) * 99 // 100] - TICK_MS,
            "histogram_delay_ms_p99": _ms(metrics.percentile("streams_app_emit_delay_seconds", 0.99)),
            "cpu_share_of_a_core": {name: round(value / took, 3) for name, value in used.items()},
            "redis_scripts_per_event": round(scripts(made) / events, 4),
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
    """Wait until no group is open and the output topic has not grown for some ticks."""
    await asyncio.sleep(LIVE_QUIET_MS / 1000)
    seen = -1
    async with asyncio.timeout(LIMIT_SECONDS):
        while await worker.open_groups() or seen != (seen := outputs.count):
            await asyncio.sleep(2.5)


def _any_groups() -> Iterator[Event]:
    """Yield events without end; the producer sets their time."""
    random = Random(SEED)
    metrics = metric_values(random)
    keys = [b"account_%d" % group for group in range(LIVE_GROUPS)]
    places = [partition_of(key) for key in keys]
    for number in count():
        group = int(random.random() * LIVE_GROUPS)
        yield Event(0, places[group], keys[group], small_value(keys[group], number % 100_003, metrics[number % len(metrics)]))


async def waiting_groups(servers: Servers, folder: Path, scale: float, *, idle: bool) -> list[Finding]:
    """Open 100 000 groups that stay open; measure the bytes of each in Redis, and the CPU of the idle worker."""
    async with source_topic(servers, "open") as source:
        events = list(single_events(range(round(OPEN_GROUPS * scale))))
        await topics.fill(servers.bootstrap, source, iter(events), int(time.time() * 1000) - SPAN_MS)
        before = servers.used_memory()
        async with running(servers, folder, source, quiet_period="30d", max_hold="30d") as worker:
            await until_folded(worker, len(events))
            opened = await worker.open_groups()
            size = (servers.used_memory() - before) / max(1, opened)
            found = [Finding("open groups", {"groups": opened, "names_of_each": 3, "redis_bytes_per_group": round(size)})]
            if opened != len(events):
                found[0].faults.append(f"{opened:,} groups are open, {len(events):,} expected")
            if idle:
                cpu = cpu_watch(servers, [worker])
                await asyncio.sleep(IDLE_SECONDS)
                shares = {name: f"{value / IDLE_SECONDS:.2%}" for name, value in cpu.used().items()}
                found.append(Finding("idle", {"open_groups": opened, "seconds": IDLE_SECONDS, "cpu_share_of_a_core": shares}))
            return found


async def memory(servers: Servers, folder: Path, scale: float, millions: Sequence[int], partitions: int) -> Finding:
    """Measure the memory of the worker after each number of events of the hot load.

    Args:
        servers: Servers to use.
        folder: Folder for settings and log.
        scale: Scale of a million.
        millions: Millions of events after which memory is measured, ascending.
        partitions: Number of partitions of the source.
    """
    async with source_topic(servers, "memory", partitions) as source:
        begin_ms, total = int(time.time() * 1000) - (millions[-1] + 1) * SPAN_MS, 0
        for part in range(millions[-1]):
            async with topics.filling(servers.bootstrap, source) as filler:
                for event in LOADS["hot"].generate(scale, partitions):
                    await filler.add(event.partition, begin_ms + part * SPAN_MS + event.at_ms, event.key, event.value)
                    total += 1
        finding = Finding(f"memory: {partitions} partition{'s' * (partitions > 1)}", {"events": total})
        options: dict[str, Any] = {"quiet_period": f"{QUIET_MS}ms", "backlog": "sessions", "partitions": partitions}
        async with running(servers, folder, source, **options) as worker:
            for million in millions:
                events = total * million // millions[-1]
                await until_folded(worker, events)
                finding.figures[f"rss_mb_after_{events}_events"] = _rounded(memory_mb(worker.pid, "VmRSS"))
                finding.figures[f"peak_rss_mb_after_{events}_events"] = _rounded(memory_mb(worker.pid, "VmHWM"))
            finding.figures["peak_rss_mb"] = _rounded(memory_mb(worker.pid, "VmHWM"))
            finding.figures["worker_cpu_seconds_with_start"] = cpu_seconds(worker.pid)
        return finding


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
