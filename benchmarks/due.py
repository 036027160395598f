"""The worst case of emission: 200 000 groups that are due at the same instant."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Final

from benchmarks import topics
from benchmarks.finding import LIMIT_SECONDS, TICK_MS, Finding, source_topic, until_folded
from benchmarks.loads import single_events
from benchmarks.servers import Servers
from benchmarks.worker import Worker, cpu_watch, folded_by, running

GROUPS: Final = 200_000
POLL_SECONDS: Final = 0.02
LONGEST_SECONDS: Final = 5.0


async def due(servers: Servers, folder: Path, scale: float) -> Finding:
    """Groups of one event with three names, all with the same record time, and by how much their records are late.

    The events are in the topic before the worker starts, so that each score is the record time, not the arrival, which differs
    between batches. The worker must have folded all of them, and be at the end of its partitions, seconds before they are due, so
    that the wall clock makes them due, as in live operation. Otherwise the finding has a fault.
    """
    groups = round(GROUPS * scale)
    quiet_ms = 15_000 + round(30_000 * scale)  # to produce the events, to start the worker, to fold
    async with source_topic(servers, "due") as source:
        at_ms = time.time_ns() // 1_000_000
        await topics.fill(servers.bootstrap, source, single_events(range(groups), at_once=True), at_ms)
        async with (
            running(servers, folder, source, quiet_period=f"{quiet_ms}ms") as worker,
            topics.reading(servers.bootstrap, worker.output) as outputs,
        ):
            finding = Finding("due at once", {"groups": groups})
            await _wait_until_due(worker, at_ms + quiet_ms, groups, outputs, finding)
            servers.slow_commands()
            cpu = cpu_watch(servers, [worker])
            async with asyncio.timeout(LIMIT_SECONDS):
                while outputs.count < groups:
                    await asyncio.sleep(POLL_SECONDS)
            seconds = (time.time_ns() // 1_000_000 - at_ms - quiet_ms) / 1000
            used = cpu.used()
            records = outputs.folded()
            delays = sorted(record.produced_ms - at_ms - quiet_ms for record in records)
            finding.figures |= {
                "seconds_from_due_to_the_last_record": round(seconds, 2),
                "of_them_tick_at_most": TICK_MS / 1000,
                "records_per_second": round(groups / seconds),
                "records_per_second_since_the_first": round(groups / max(0.001, seconds - delays[0] / 1000)),
                "emit_delay_ms": {"first": delays[0], "p50": delays[len(delays) // 2], "last": delays[-1]},
                "slow_commands": servers.slow_commands(),
                "cpu_seconds": used,
                "within_5_s": seconds <= LONGEST_SECONDS,
            }
            if len({record.id for record in records}) != groups or sum(record.events for record in records) != groups:
                finding.faults.append(f"{len(records):,} records, {groups:,} expected, each once")
            return finding


async def _wait_until_due(worker: Worker, due_ms: int, groups: int, outputs: topics.Outputs, finding: Finding) -> None:
    """Wait until the groups are due, and record how long before that they were folded."""
    await until_folded(worker, groups)
    early_ms = due_ms - time.time_ns() // 1_000_000
    finding.figures["seconds_from_folded_to_due"] = round(early_ms / 1000, 1)
    if early_ms < 2 * TICK_MS:
        finding.faults.append("folded too late: not all groups were open when they became due")
    await asyncio.sleep(max(0.0, due_ms / 1000 - time.time()))
    if outputs.count or await folded_by([worker]) != groups:
        finding.faults.append(f"{outputs.count:,} records before they were due")
