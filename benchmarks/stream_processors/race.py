"""Bare reading, this project and stream processors with the same topic, one alone after the other."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks import topics
from benchmarks.contest import NATIVE, bare, watch
from benchmarks.finding import Finding
from benchmarks.loads import LOADS, PARTITIONS, QUIET_MS, Expected, counting
from benchmarks.processes import CpuWatch, memory_mb
from benchmarks.servers import Servers
from benchmarks.stream_processors.processors import PROCESSORS, Processor
from benchmarks.stream_processors.sessions import CLOSING_MS, Truth, closing, difference, folded
from benchmarks.subscribers import python_path
from benchmarks.worker import running
from streams_app.embedded.child import Child
from streams_app.native import NativeChoice

BEGIN_LIMIT_SECONDS: Final = 60.0
"""Time within which a processor must read its first event. It is not part of the measured time."""

BEGIN_POLL_SECONDS: Final = 0.02
POLL_SECONDS: Final = 0.1
SETTLE_SECONDS: Final = 1.0
TRAFFIC_SECONDS: Final = 0.25

LineReporter = Callable[[str], None]


@dataclass(slots=True)
class Attempt:
    """One run of a contestant.

    Attributes:
        events: Events in the measured time.
        seconds: From the first event to the last expected record; None if that did not come within the limit.
        cpu_seconds: CPU time of its processes, and of Redis for this project.
        peak_mb: Peak memory of its processes together; for this project with that of Redis, since Redis started.
        missing: Sessions that did not come; None for bare reading.
        extra: Sessions that should not have come; None likewise.
        fault: How it ended too early; "" if it did not.
    """

    events: int
    seconds: float | None = None
    cpu_seconds: float = 0.0
    peak_mb: float = 0.0
    missing: int | None = None
    extra: int | None = None
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Race:
    """One load in one topic."""

    servers: Servers
    folder: Path
    source: str
    begin_ms: int
    expected: Expected
    truth: Truth
    limit_seconds: float

    async def bare(self) -> Attempt:
        """Read the topic and do nothing else."""
        run = await bare(self.servers, self.source, self.expected.events)
        return Attempt(run.events, run.events / run.events_per_second, run.cpu.get("bare", 0.0), run.peak_rss_mb or 0.0)

    async def ours(self, native: NativeChoice) -> Attempt:
        """Run a worker of this project with the default settings, with which nothing is lost in a crash."""
        quiet = f"{QUIET_MS}ms"
        async with (
            running(self.servers, self.folder, self.source, quiet_period=quiet, backlog="sessions", native=native) as worker,
            topics.reading(self.servers.bootstrap, worker.output) as outputs,
        ):
            run = await watch(self.servers, [worker], outputs, "sessions", self.expected)
            cpu = sum(seconds for name, seconds in run.cpu.items() if name in ("worker", "redis"))
            assert run.end_to_end is not None
            pids = [worker.pid, *([] if self.servers.redis_pid is None else [self.servers.redis_pid])]
            peak_mb = sum(memory_mb(pid, "VmHWM") or 0.0 for pid in pids)
            attempt = Attempt(run.events, run.events / run.end_to_end, cpu, peak_mb)
            return await self._compared(attempt, outputs)

    async def other(self, processor: Processor) -> Attempt:
        """Run a stream processor until the last expected record, or until the limit."""
        output = f"bench-{secrets.token_hex(4)}"
        await topics.make(self.servers.bootstrap, output)
        try:
            async with topics.reading(self.servers.bootstrap, output) as outputs:
                began = self.folder / f"{output}.began"
                with self._started(processor, output, began) as children:
                    async with self._traffic():
                        attempt = await self._watched(children, outputs, began, closes_all=processor.closes_all)
                    return await self._compared(attempt, outputs)
        finally:
            await topics.remove(self.servers.bootstrap, output)

    @asynccontextmanager
    async def _traffic(self) -> AsyncIterator[None]:
        """Repeat the last event of each partition within the block: Kafka Streams looks for closed sessions only when one comes."""
        is_over = asyncio.Event()

        async def repeat() -> None:
            while not is_over.is_set():
                await topics.fill(self.servers.bootstrap, self.source, closing(), self.begin_ms)
                with suppress(TimeoutError):
                    await asyncio.wait_for(is_over.wait(), TRAFFIC_SECONDS)

        task = asyncio.create_task(repeat(), name="traffic")
        try:
            yield
        finally:
            is_over.set()
            await task

    @contextmanager
    def _started(self, processor: Processor, output: str, began: Path) -> Iterator[list[Child]]:
        environment = {
            "SESSIONS_BOOTSTRAP": self.servers.bootstrap,
            "SESSIONS_SOURCE": self.source,
            "SESSIONS_OUTPUT": output,
            "SESSIONS_BEGAN": str(began),
            "PYTHONPATH": python_path(),
            **processor.environment,
        }
        children: list[Child] = []
        try:
            for number, command in enumerate(processor.commands(self.folder)):
                children.append(Child("processor", command, self.folder / f"{output}-{number}", environment))
            yield children
        finally:
            for child in children:
                child.kill()

    async def _watched(self, children: list[Child], outputs: topics.Outputs, began: Path, *, closes_all: bool) -> Attempt:
        attempt = Attempt(self.expected.events)
        deadline = time.monotonic() + BEGIN_LIMIT_SECONDS
        while not began.exists():  # noqa: ASYNC240 - as quick as asking for the time
            attempt.fault = fault_of(children)
            if attempt.fault or time.monotonic() > deadline:
                attempt.fault = attempt.fault or f"no event was read within {BEGIN_LIMIT_SECONDS:.0f} s"
                return attempt
            await asyncio.sleep(BEGIN_POLL_SECONDS)
        started, cpu = time.monotonic(), CpuWatch({str(child.pid): child.pid for child in children})
        used: dict[str, float] = {}
        peaks: dict[int, float] = {}
        wanted = self.expected.sessions - (0 if closes_all else PARTITIONS)
        deadline = started + self.limit_seconds
        while outputs.count < wanted and time.monotonic() < deadline:
            await asyncio.sleep(POLL_SECONDS)
            # The last values remain of a process that has come to the end of the topic.
            used |= {pid: seconds for pid, seconds in cpu.used().items() if pid != "stolen"}
            peaks |= {child.pid: peak for child in children if (peak := memory_mb(child.pid, "VmHWM")) is not None}
            if not any(child.is_running for child in children):
                deadline = min(deadline, time.monotonic() + SETTLE_SECONDS)
        if outputs.count >= wanted:
            attempt.seconds = time.monotonic() - started
        else:
            attempt.fault = fault_of(children)
        attempt.cpu_seconds, attempt.peak_mb = sum(used.values()), sum(peaks.values())
        return attempt

    async def _compared(self, attempt: Attempt, outputs: topics.Outputs) -> Attempt:
        """Compare what has come with the truth, after the time for records that should not come."""
        await asyncio.sleep(SETTLE_SECONDS)
        attempt.missing, attempt.extra = difference(
            self.truth.sessions(), (folded(value, self.begin_ms) for value in outputs.values())
        )
        return attempt


def fault_of(children: Sequence[Child]) -> str:
    """Return why a process has ended, as its log says; "" if all are running."""
    return next((f"ended: {reason_in(child.log_tail())}" for child in children if not child.is_running), "")


def reason_in(log: str) -> str:
    """Return the last line of a log that is not a line of a Java stack trace."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if not line.startswith(("at ", "... "))), "without a word in its log")


async def processors(
    servers: Servers, folder: Path, scale: float, runs: int, names: Sequence[str], loads: Sequence[str], limit_seconds: float,
    report: LineReporter,
) -> list[Finding]:  # fmt: skip
    """Measure stream processors beside bare reading and this project.

    Args:
        servers: Servers to use.
        folder: Folder for settings, logs and compiled classes.
        scale: Scale of the loads.
        runs: Number of runs of each contestant.
        names: Names in :data:`PROCESSORS`.
        loads: Names of loads.
        limit_seconds: Maximum time of a run of a processor, from its first event.
        report: Receives a line for each run.
    """
    for name in names:
        PROCESSORS[name].prepare(folder)
    findings = []
    for load in loads:
        source, expected, truth = f"bench-{load}-{secrets.token_hex(4)}", Expected(), Truth()
        begin_ms = int(time.time() * 1000) - CLOSING_MS - 2 * QUIET_MS
        await topics.make(servers.bootstrap, source)
        try:
            events = chain(LOADS[load].generate(scale, PARTITIONS), closing())
            await topics.fill(servers.bootstrap, source, truth.recording(counting(events, expected)), begin_ms)
            report(f"{load}: {expected.events:,} events, {expected.sessions:,} sessions")
            race = Race(servers, folder, source, begin_ms, expected, truth, limit_seconds)
            findings += await _raced(race, load, runs, names, report)
        finally:
            await topics.remove(servers.bootstrap, source)
    return findings


async def _raced(race: Race, load: str, runs: int, names: Sequence[str], report: LineReporter) -> list[Finding]:
    contestants: dict[str, Callable[[], Awaitable[Attempt]]] = {"bare": race.bare}
    for native in NATIVE:
        contestants["streams_app native" if native == "require" else "streams_app"] = partial(race.ours, native)
    for name in names:
        contestants[PROCESSORS[name].title] = partial(race.other, PROCESSORS[name])
    attempts: dict[str, list[Attempt]] = {title: [] for title in contestants}
    for _ in range(runs):
        for title, run in contestants.items():
            attempts[title].append(await run())
            one = summary(f"{load}: {title}", attempts[title][-1:], attempts["bare"], race.limit_seconds)
            report(f"{one.name}: {one.figures} {' '.join(one.faults)}")
    return [summary(f"{load}: {title}", found, attempts["bare"], race.limit_seconds) for title, found in attempts.items()]


def summary(name: str, attempts: Sequence[Attempt], base: Sequence[Attempt], limit_seconds: float) -> Finding:
    """Return the medians of the runs that finished, and the worst of all in what came out.

    What a processor leaves out is a result of the comparison, not an error of the benchmark.

    Args:
        name: Name of the finding.
        attempts: Runs of a contestant.
        base: Runs of bare reading.
        limit_seconds: Maximum time of a run.
    """
    result: dict[str, Any] = {}
    finished = [(attempt, attempt.seconds) for attempt in attempts if attempt.seconds is not None]
    if finished:
        rate = median(attempt.events / seconds for attempt, seconds in finished)
        bare_rate = median(attempt.events / attempt.seconds for attempt in base if attempt.seconds is not None)
        result |= {
            "events_per_second": round(rate),
            "ratio_to_bare": round(rate / bare_rate, 3),
            "cpu_us_per_event": round(median(attempt.cpu_seconds * 1e6 / attempt.events for attempt, _ in finished), 2),
        }
    result["peak_mb"] = round(max(attempt.peak_mb for attempt in attempts))
    if missing := [attempt.missing for attempt in attempts if attempt.missing is not None]:
        result["sessions_missing"] = max(missing)
    if extra := [attempt.extra for attempt in attempts if attempt.extra is not None]:
        result["sessions_extra"] = max(extra)
    if len(finished) < len(attempts):
        reasons = {attempt.fault or f"not finished in {limit_seconds:.0f} s" for attempt in attempts if attempt.seconds is None}
        result |= {"finished": f"{len(finished)} of {len(attempts)} runs", "unfinished": "; ".join(sorted(reasons))}
    return Finding(name, result)
