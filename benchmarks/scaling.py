"""What an event costs with two workers instead of one, and with two million open groups instead of ten thousand."""

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
from benchmarks.worker import Deployment, Worker, cpu_watch, deployed, first_folded, folded_by

PARTITIONS: Final = 8
WORKERS: Final = (1, 2)
WORKERS_LOADS: Final = ("hot", "wide")
GATE_LIMIT_SECONDS: Final = 40.0

GROWTH: Final = (10_000, 100_000, 1_000_000, 2_000_000)
GROWTH_EVENTS: Final = 200_000
GROWTH_LEAST_EVENTS: Final = 100_000
FLAT: Final = 1.3


async def workers(servers: Servers, folder: Path, scale: float) -> list[Finding]:
    """The same loads over eight partitions, folded by one worker and by two of the same application."""
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
        shares = [await folded_by([worker]) for worker in crew]
        await asyncio.sleep(SETTLE_SECONDS)
        return Finding("workers", _cost(run.details | {"events": expected.events}, run.cpu, run.end_to_end or 0.0, made) | {
            "events_per_second_folded": round(run.events_per_second),
            "events_by_worker": shares,
            "slow_commands": servers.slow_commands(),
        }, await wrongs(crew, outputs, "sessions", expected))  # fmt: skip


def _cost(about: dict[str, Any], cpu: dict[str, float], rate: float, made: dict[str, int]) -> dict[str, Any]:
    """CPU of the measured time over the events of that time; Redis calls over all events."""
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

    Redis takes no writes until the consumer group has agreed: the first worker would have folded half of the backlog before the
    second one had joined, and a rebalance would be measured with it.
    """
    async with AsyncExitStack() as stack:
        with servers.write_pause(GATE_LIMIT_SECONDS):
            crew = [await stack.enter_async_context(deployment.worker()) for _ in range(count)]
            async with asyncio.timeout(GATE_LIMIT_SECONDS):
                while await topics.members(servers.bootstrap, deployment.app_id) != count:
                    await asyncio.sleep(POLL_SECONDS)
            await asyncio.sleep(1)  # Faust learns of its assignment a moment later
        yield crew


async def growth(servers: Servers, folder: Path, scale: float) -> list[Finding]:
    """Opens more and more groups and folds the same number of events into them each time.

    The events wait in the topic while no worker runs: to produce them meanwhile would slow down what is measured.
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
                finding = await _into_open_groups(servers, worker, events)
            finding.name = f"growth: {groups:,} open groups"
            finding.figures["redis_bytes_per_group"] = round(size)
            first = findings[0].figures["us_per_event"] if findings else finding.figures["us_per_event"]
            finding.figures["ratio_to_the_first"] = round(finding.figures["us_per_event"] / first, 3)
            finding.figures["flat_within_30_percent"] = finding.figures["ratio_to_the_first"] <= FLAT
            if (found := await _open_groups(deployment)) != groups:
                finding.faults.append(f"{found:,} groups are open, {groups:,} expected")
            findings.append(finding)
    return findings


async def _into_open_groups(servers: Servers, worker: Worker, events: int) -> Finding:
    before = servers.command_calls()
    servers.slow_commands()
    first = await first_folded([worker], LIMIT_SECONDS)
    started, cpu = time.monotonic(), cpu_watch(servers, [worker])
    async with asyncio.timeout(LIMIT_SECONDS):
        while await folded_by([worker]) < events:
            await asyncio.sleep(POLL_SECONDS / 2)
    seconds, used = time.monotonic() - started, cpu.used()
    made, measured = since(before, servers.command_calls()), max(1, events - first)
    return Finding("growth", {
        "events": events,
        "folded_at_the_first_look": first,
        "events_per_second": round(measured / seconds),
        "cpu_us_per_event": {name: micros(value, measured) for name, value in used.items()},
        "us_per_event": micros(used.get("worker", 0.0) + used.get("redis", 0.0), measured),
        "group_updates_per_event": round(made.get("hset", 0) / events, 3),
        "slow_commands": servers.slow_commands(),
    })  # fmt: skip


async def _open_groups(deployment: Deployment) -> int:
    """As a worker counts them."""
    async with deployment.worker() as worker:
        await worker.ready()
        await asyncio.sleep(3)  # the gauge is set at a tick, after a seal
        return int((await worker.metrics()).value("streams_app_open_groups"))
