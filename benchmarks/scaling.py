"""The cost of an event with two workers instead of one, and with two million open groups instead of ten thousand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks import topics
from benchmarks.contest import SETTLE_SECONDS, long_ago_ms, watch, wrongs
from benchmarks.finding import LIMIT_SECONDS, POLL_SECONDS, Finding, micros, scripts, since, source_topic, until_folded
from benchmarks.loads import LOADS, QUIET_MS, SPAN_MS, Expected, counting, single_events, spread_events
from benchmarks.servers import Servers
from benchmarks.worker import Deployment, Worker, cpu_watch, deployed, first_folded

PARTITIONS: Final = 8
WORKERS: Final = (1, 2)
WORKERS_LOADS: Final = ("hot", "wide")
GATE_LIMIT_SECONDS: Final = 40.0

GROWTH: Final = (10_000, 100_000, 1_000_000, 2_000_000)
GROWTH_EVENTS: Final = 200_000
GROWTH_LEAST_EVENTS: Final = 100_000
GROWTH_RATE: Final = 20_000
FLAT: Final = 1.3


async def workers(servers: Servers, folder: Path, scale: float) -> list[Finding]:
    """Fold the same loads in eight partitions with one worker, and with two workers of the same application."""
    findings = []
    for load in WORKERS_LOADS:
        async with source_topic(servers, "workers", PARTITIONS) as source:
            expected = Expected()
            events = counting(LOADS[load].generate(scale, PARTITIONS), expected)
            await topics.fill(servers.bootstrap, source, events, long_ago_ms())
            found = [await _shared(servers, folder, source, expected, count) for count in WORKERS]
            for count, finding in zip(WORKERS, found, strict=True):
                finding.name = f"workers: {load}, {PARTITIONS} partitions, {count} worker{'s' * (count > 1)}"
            findings += found
    return findings


async def _shared(servers: Servers, folder: Path, source: str, expected: Expected, count: int) -> Finding:
    async with (
        deployed(servers, folder, source, quiet_period=f"{QUIET_MS}ms", backlog="sessions", partitions=PARTITIONS) as deployment,
        topics.reading(servers.bootstrap, deployment.output, PARTITIONS) as outputs,
        AsyncExitStack() as stack,
    ):
        servers.slow_commands()
        before = servers.command_calls()
        crew = await stack.enter_async_context(_started_together(servers, deployment, count))
        run = await watch(servers, crew, outputs, "sessions", expected)
        made = since(before, servers.command_calls())
        shares = await deployment.fences.by_process()
        await asyncio.sleep(SETTLE_SECONDS)
        return Finding("workers", _cost(run.details | {"events": expected.events}, run.cpu, run.end_to_end or 0.0, made) | {
            "events_per_second_folded": round(run.events_per_second),
            "events_by_worker": [shares.get(worker.pid, 0) for worker in crew],
            "slow_commands": servers.slow_commands(),
        }, await wrongs(crew, outputs, "sessions", expected))  # fmt: skip


def _cost(about: dict[str, Any], cpu: dict[str, float], rate: float, made: dict[str, int]) -> dict[str, Any]:
    """Return CPU time per event of the measured time, and Redis calls per event of all events."""
    events = about["events"]
    measured = events - about["folded_at_the_first_look"]
    all_workers = sum(seconds for name, seconds in cpu.items() if name.startswith("worker"))
    return {
        "events": events,
        "folded_at_the_first_look": about["folded_at_the_first_look"],
        "events_per_second_to_the_last_record": round(rate),
        "cpu_us_per_event": {"workers": micros(all_workers, measured)}
        | {name: micros(cpu[name], measured) for name in ("redis", "broker") if name in cpu},
        "cpu_seconds": cpu,
        "redis_scripts_per_event": round(scripts(made) / events, 5),
        "redis_commands_per_event": round(sum(made.values()) / events, 3),
    }


@asynccontextmanager
async def _started_together(servers: Servers, deployment: Deployment, count: int) -> AsyncIterator[list[Worker]]:
    """Workers that begin to fold at the same moment, each with its share of the partitions.

    Redis accepts no writes until the consumer group is stable. Otherwise the first worker would fold half of the backlog before the
    second one joined, and the measurement would include a rebalance.
    """
    async with AsyncExitStack() as stack:
        with servers.write_pause(GATE_LIMIT_SECONDS):
            crew = [await stack.enter_async_context(deployment.worker()) for _ in range(count)]
            async with asyncio.timeout(GATE_LIMIT_SECONDS):
                while await topics.members(servers.bootstrap, deployment.app_id) != count:
                    await asyncio.sleep(POLL_SECONDS)
            await asyncio.sleep(1)  # Faust receives its assignment a little later
        yield crew


async def growth(servers: Servers, folder: Path, scale: float) -> list[Finding]:
    """Open more and more groups and fold the same number of events into them each time, in two ways.

    First a backlog at full speed, which is produced before the worker starts, so that producing does not slow down the measurement.
    With few groups, a group occurs often in one batch and is written once, so an event costs less than with many groups, regardless
    of the size of the store. Then live events at a steady rate: small batches with nearly one write for each event. Growth is
    judged by the live events.
    """
    events = max(GROWTH_LEAST_EVENTS, round(GROWTH_EVENTS * scale))
    findings: list[Finding] = []
    async with (
        source_topic(servers, "growth") as source,
        deployed(servers, folder, source, quiet_period="30d", max_hold="30d") as deployment,
    ):
        empty, opened = servers.used_memory(), 0
        for groups in sorted({max(1, round(groups * scale)) for groups in GROWTH}):
            begin_ms = int(time.time() * 1000) - 2 * SPAN_MS
            await topics.fill(servers.bootstrap, source, single_events(range(opened, groups)), begin_ms)
            async with deployment.worker() as worker:
                await until_folded(worker, groups - opened)
            opened, size = groups, (servers.used_memory() - empty) / groups
            await topics.fill(servers.bootstrap, source, spread_events(events, groups), begin_ms)
            async with deployment.worker() as worker:
                backlog = await _backlog(servers, worker, events)
                live = await _live(servers, worker, source, events, groups)
                found = await worker.open_groups()
            first_us = findings[0].figures["live"]["us_per_event"] if findings else live["us_per_event"]
            ratio = round(live["us_per_event"] / first_us, 3) if first_us else None
            finding = Finding(f"growth: {groups:,} open groups", {"redis_bytes_per_group": round(size)})
            finding.figures |= {"events": events, "backlog": backlog, "live": live, "live_ratio_to_the_first": ratio}
            finding.figures["flat_within_30_percent"] = ratio is not None and ratio <= FLAT
            if found != groups:
                finding.faults.append(f"{found:,} groups are open, {groups:,} expected")
            findings.append(finding)
    return findings


async def _backlog(servers: Servers, worker: Worker, events: int) -> dict[str, Any]:
    """Measure a backlog from the first folded event to the last."""
    before = servers.command_calls()
    servers.slow_commands()
    first = await first_folded([worker], LIMIT_SECONDS)
    started, cpu = time.monotonic(), cpu_watch(servers, [worker])
    await until_folded(worker, events)
    seconds, used = time.monotonic() - started, cpu.used()
    updates = since(before, servers.command_calls()).get("hset", 0)
    return {
        "events_per_second": round((events - first) / seconds),
        "folded_at_the_first_look": first,
        **_of_each(servers, used, max(1, events - first), updates / events),
    }


async def _live(servers: Servers, worker: Worker, source: str, folded: int, groups: int) -> dict[str, Any]:
    """Measure the same number of events at a steady rate."""
    before, cpu = servers.command_calls(), cpu_watch(servers, [worker])
    took, _ = await topics.steady(servers.bootstrap, source, spread_events(folded, groups), folded, GROWTH_RATE)
    await until_folded(worker, 2 * folded)
    used, updates = cpu.used(), since(before, servers.command_calls()).get("hset", 0)
    return {"events_per_second": round(folded / took), **_of_each(servers, used, folded, updates / folded)}


def _of_each(servers: Servers, cpu: dict[str, float], events: int, updates: float) -> dict[str, Any]:
    """Return the cost per write of a group, which is one HSET; the HSET of each script on its meta is negligible."""
    each = {name: micros(value, events) for name, value in cpu.items()}
    redis_us = each.get("redis", 0.0) / updates if updates else 0.0
    return {
        "cpu_us_per_event": each,
        "us_per_event": round(each["worker"] + each.get("redis", 0.0), 2) if "worker" in each else 0.0,
        "group_updates_per_event": round(updates, 3),
        "redis_us_per_group_update": round(redis_us, 2),
        "group_updates_per_second_of_a_redis_core": round(1_000_000 / redis_us) if redis_us else None,
        "slow_commands": servers.slow_commands(),
    }
