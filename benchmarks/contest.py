"""One load side by side: bare reading, the simple design on stock Faust, this project with `sessions` and with `merge`.

If the native core is installed, this project is measured both without it and with it, in turn.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks import topics
from benchmarks.loads import LOADS, PARTITIONS, QUIET_MS, SPAN_MS, Expected, Load, counting
from benchmarks.processes import memory_mb
from benchmarks.servers import Servers
from benchmarks.worker import Worker, cpu_watch, first_folded, folded_by, running
from streams_app.native import NativeChoice, native_fault
from tests.servers.cache import ROOT

POLL_SECONDS: Final = 0.1
STOCK_EVENTS: Final = 40_000
LIMIT_SECONDS: Final = 600.0
NATIVE_SUFFIX: Final = " native"
SETTLE_SECONDS: Final = 1.0

NATIVE: Final[tuple[NativeChoice, ...]] = ("off",) if native_fault() else ("off", "require")
"""Each value of ``worker.native`` that is measured."""

LineReporter = Callable[[str], None]


@dataclass(slots=True)
class Run:
    """The result of one run of a contestant.

    Attributes:
        contestant: ``bare``, ``stock Faust``, or a backlog policy: ``sessions``, ``merge``, with the native core
            ``sessions native``, ``merge native``.
        events_per_second: Events read or folded a second.
        end_to_end: Events/s until the last expected record was on the output topic.
        records_per_second: Records/s over the same time.
        cpu: CPU seconds by process, over the same time.
        events: Number of events in that time.
        peak_rss_mb: Peak memory of the contestant's own process.
        faults: Errors in the output; empty if there are none.
        details: Further numbers.
    """

    contestant: str
    events_per_second: float
    end_to_end: float | None = None
    records_per_second: float | None = None
    cpu: dict[str, float] = field(default_factory=dict)
    events: int = 0
    peak_rss_mb: float | None = None
    faults: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)

    def micros(self) -> dict[str, float]:
        """Return the CPU time by process in microseconds per event."""
        return {name: seconds * 1e6 / self.events for name, seconds in self.cpu.items()} if self.events else {}


@dataclass(slots=True)
class Contest:
    """All runs of one load."""

    load: Load
    expected: Expected
    runs: list[Run] = field(default_factory=list)


async def contest(
    name: str, scale: float, runs: int, servers: Servers, folder: Path, report: LineReporter, *, short: bool = False
) -> Contest:
    """Fill a topic with a load and let every contestant read it.

    The simple design runs once, because it is slow and its figure hardly varies.

    Args:
        name: Name of the load.
        scale: Scale of the load.
        runs: Number of runs of each contestant.
        servers: Servers to use.
        folder: Folder for settings and logs.
        report: Receives a line for each run.
        short: Run only ``bare`` and ``sessions``, for the ratio to bare reading.
    """
    load, expected = LOADS[name], Expected()
    source = f"bench-{name}-{secrets.token_hex(4)}"
    await topics.make(servers.bootstrap, source)
    try:
        await topics.fill(servers.bootstrap, source, counting(load.generate(scale, PARTITIONS), expected), long_ago_ms())
        report(f"{name}: {expected.events:,} events, {expected.sessions:,} sessions, {expected.merge:,} groups")
        found = Contest(load, expected)
        for number in range(runs):
            found.runs.append(await bare(servers, source, expected.events))
            _report_run(report, name, found.runs[-1])
            if number == 0 and not short:
                found.runs.append(await _stock(servers, source, min(STOCK_EVENTS, expected.events)))
                _report_run(report, name, found.runs[-1])
            for backlog in ("sessions",) if short else ("sessions", "merge"):
                for native in NATIVE:
                    found.runs.append(await _folded(servers, folder, source, backlog, native, expected))
                    _report_run(report, name, found.runs[-1])
        return found
    finally:
        await topics.remove(servers.bootstrap, source)


def long_ago_ms() -> int:
    """Return the begin of a load, early enough that its last groups are due as soon as a worker has caught up."""
    return int(time.time() * 1000) - SPAN_MS - 2 * QUIET_MS


def _report_run(report: LineReporter, name: str, run: Run) -> None:
    until = f", {run.end_to_end:,.0f} events/s to the last record" if run.end_to_end else ""
    micros = ", ".join(f"{process} {value:.2f}" for process, value in run.micros().items())
    faults = " ".join(["", *run.faults])
    report(f"{name}: {run.contestant}: {run.events_per_second:,.0f} events/s{until}, CPU us/event: {micros}{faults}")


async def bare(servers: Servers, source: str, events: int) -> Run:
    """Run bare reading of a topic with this number of events."""
    found = await _process("benchmarks.bare", servers.bootstrap, source, str(events))
    return Run("bare", events / found["seconds"], cpu=found["cpu"], events=events, peak_rss_mb=found["peak_rss_mb"])


async def _stock(servers: Servers, source: str, events: int) -> Run:
    found = await _process("benchmarks.stock_faust", servers.bootstrap, servers.redis_url, source, str(events))
    return Run("stock Faust", events / found["seconds"], cpu=found["cpu"], events=events, peak_rss_mb=found["peak_rss_mb"])


async def _process(module: str, *arguments: str) -> dict[str, Any]:
    """Run a contestant to its end, and return the last object that it printed."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            out, err = await process.communicate()
    except BaseException:
        process.kill()
        raise
    if process.returncode:
        raise RuntimeError(f"{module} ended with exit code {process.returncode}:\n{err.decode(errors='replace')[-2_000:]}")
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


async def _folded(servers: Servers, folder: Path, source: str, backlog: str, native: NativeChoice, expected: Expected) -> Run:
    async with (
        running(servers, folder, source, quiet_period=f"{QUIET_MS}ms", backlog=backlog, native=native) as worker,
        topics.reading(servers.bootstrap, worker.output) as outputs,
    ):
        run = await watch(servers, [worker], outputs, backlog, expected)
        await _check(servers, worker, outputs, run, expected)
        if native == "require":
            run.contestant += NATIVE_SUFFIX
        return run


async def watch(servers: Servers, workers: Sequence[Worker], outputs: topics.Outputs, backlog: str, expected: Expected) -> Run:
    """Measure from the time at which every worker has folded something to the last expected record."""
    deadline = time.monotonic() + LIMIT_SECONDS
    wanted = expected.records(backlog)
    first = await first_folded(workers, LIMIT_SECONDS)
    started, cpu = time.monotonic(), cpu_watch(servers, workers)
    at, count, fold_seconds, records = started, first, 0.0, 0
    while not fold_seconds or records < wanted:
        _in_time(deadline, workers, f"{count:,} of {expected.events:,} events, {records:,} of {wanted:,} records")
        await asyncio.sleep(POLL_SECONDS)
        records = outputs.count
        if not fold_seconds:
            now, folded = time.monotonic(), await folded_by(workers)
            if folded >= expected.events:
                # The time between two polls is interpolated at the rate so far, and never after this poll.
                rate = (count - first) / (at - started) if at > started and count > first else 0.0
                fold_seconds = min(now - started, at - started + (folded - count) / rate) if rate else now - started
            at, count = now, folded
    seconds = time.monotonic() - started
    # Events that were folded before the first poll are not part of the rate.
    return Run(
        backlog, (expected.events - first) / fold_seconds, (expected.events - first) / seconds, wanted / seconds, cpu.used(),
        events=expected.events - first,
        details={"folded_at_the_first_look": first, "seconds": round(seconds, 2), "fold_seconds": round(fold_seconds, 2)},
    )  # fmt: skip


def _in_time(deadline: float, workers: Sequence[Worker], what: str) -> None:
    if time.monotonic() > deadline:
        logs = "\n".join(worker.log_tail() for worker in workers)
        raise RuntimeError(f"not within {LIMIT_SECONDS:.0f} s: {what}; the logs of the workers end with:\n{logs}")


async def _check(servers: Servers, worker: Worker, outputs: topics.Outputs, run: Run, expected: Expected) -> None:
    """Check the output: the number of records, each once, with every event in one of them."""
    await asyncio.sleep(SETTLE_SECONDS)
    run.peak_rss_mb = memory_mb(worker.pid, "VmHWM")
    metrics = await worker.metrics()
    run.details["resyncs"] = int(metrics.value("streams_app_resyncs_total"))
    for name, quantile in (("fold_script_ms_p50", 0.5), ("fold_script_ms_p99", 0.99)):
        seconds = metrics.percentile("streams_app_script_seconds", quantile, 'script="fold"')
        run.details[name] = None if seconds is None else round(seconds * 1000, 1)
    run.details["slow_commands"] = servers.slow_commands()
    run.faults += await wrongs([worker], outputs, run.contestant, expected)


async def wrongs(workers: Sequence[Worker], outputs: topics.Outputs, backlog: str, expected: Expected) -> list[str]:
    """Return the errors in the output."""
    found = []
    records = outputs.folded()
    wanted = expected.records(backlog)
    if len(records) != wanted:
        found.append(f"{len(records):,} records, {wanted:,} expected")
    if len({record.id for record in records}) != len(records):
        found.append("some records came twice")
    if (events := sum(record.events for record in records)) != expected.events:
        found.append(f"{events:,} events in the records, {expected.events:,} were produced")
    if dead_letters := sum([(await worker.metrics()).value("streams_app_dead_letters_total") for worker in workers]):
        found.append(f"{dead_letters:,.0f} dead letters")
    return found
