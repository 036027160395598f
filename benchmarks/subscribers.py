"""How fast subscribers are called, as a ratio to reading the same topic and awaiting the same function without any promise.

The topic is filled before one process starts. The time is measured from the first tenth of the calls to the last one, by a ledger
in which the function records each event. At the end every offset must be committed.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from benchmarks import subscribed, topics
from benchmarks.finding import Finding
from benchmarks.ledger import CallRate, Ledger, Watch
from benchmarks.loads import PARTITIONS
from benchmarks.processes import CpuWatch, memory_mb
from benchmarks.servers import Servers
from streams_app.embedded.child import Child
from tests.helpers.worker.workers import WorkerProcess
from tests.servers.cache import ROOT

EVENTS: Final = 1_000_000
ACCOUNTS: Final = 10_000
VALUE_BYTES: Final = 100
IDLE_SECONDS: Final = 20.0
SETTLE_SECONDS: Final = 30.0
IDLE: Final = "idle"

LineReporter = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Case:
    """One subscriber of :mod:`benchmarks.subscribed`.

    Attributes:
        name: Name of the subscriber.
        what: Description for the reader of a report.
        events: Number of its events, because all events of the topic would take too long.
        has_ids: Whether its events have ``ce_id`` and ``ce_type``, as published events do.
        has_base: Whether it is compared with the base; with few events, the base ends too early to be timed.
    """

    name: str
    what: str
    events: int = EVENTS
    has_ids: bool = False
    has_base: bool = True


CASES: Final = (
    Case("again", '"yes"'),
    Case("ordered", '"yes", ordered by key'),
    Case("napping", '"yes", 10 ms each, concurrency 100', 100_000, has_base=False),
    Case("once", '"unknown", concurrency 64', 200_000, has_ids=True),
    Case("never_twice", '"no", concurrency 64', 30_000, has_ids=True, has_base=False),
)


@dataclass(frozen=True, slots=True)
class Bench:
    """The environment of the measurement.

    Attributes:
        servers: Broker and Redis.
        folder: Folder for settings, ledgers and logs.
        scale: Scale of the numbers of events.
    """

    servers: Servers
    folder: Path
    scale: float

    @asynccontextmanager
    async def topic(self, case: Case) -> AsyncIterator[tuple[str, int]]:
        """Return a filled topic, and its number of events."""
        name, events = f"bench-events-{secrets.token_hex(4)}", round(case.events * self.scale)
        await topics.make(self.servers.bootstrap, name)
        try:
            await fill(self.servers.bootstrap, name, events, has_ids=case.has_ids)
            yield name, events
        finally:
            await topics.remove(self.servers.bootstrap, name)

    def ledger(self, events: int) -> tuple[Path, Ledger]:
        """Create a ledger."""
        path = self.folder / f"ledger-{secrets.token_hex(4)}"
        return path, Ledger.make(path, events)


async def fill(bootstrap: str, topic: str, events: int, *, has_ids: bool) -> None:
    """Produce numbered events of 100 bytes, of many accounts in turn."""
    now_ms = time.time_ns() // 1_000_000
    async with topics.filling(bootstrap, topic) as filler:
        for number in range(events):
            account = f"account_{number * 7919 % ACCOUNTS}"
            value = json.dumps({"number": number, "account": account, "padding": ""}).encode()
            value = value[:-2] + b"x" * (VALUE_BYTES - len(value)) + value[-2:]
            headers = [("ce_id", b"id-%032d" % number), ("ce_type", subscribed.numbered.key.encode())] if has_ids else []
            await filler.add(number * 7919 % ACCOUNTS % PARTITIONS, now_ms, account.encode(), value, headers)


async def base(bench: Bench, topic: str, events: int) -> CallRate:
    """Measure the rate of awaiting the function alone."""
    path, ledger = bench.ledger(events)
    command = [sys.executable, "-m", "benchmarks.awaited", bench.servers.bootstrap, topic]
    environment = {subscribed.LEDGER: str(path)}
    with process(bench, "awaited", command, environment) as (_, must_live):
        return await Watch(ledger, must_live).call_rate()


async def called(bench: Bench, case: Case, topic: str, events: int) -> tuple[CallRate, dict[str, Any], list[str]]:
    """Measure the rate of a worker with one subscriber; return it with further figures and errors."""
    path, ledger = bench.ledger(events)
    async with working(bench, topic, path, [case.name]) as (worker, app_id):
        pids = {"worker": worker.pid, "redis": bench.servers.redis_pid, "broker": bench.servers.broker_pid}
        watch = Watch(ledger, lambda: _must_live(worker))
        await watch.until(1)
        cpu = CpuWatch(pids)
        call_rate = await watch.call_rate()
        figures: dict[str, Any] = {"cpu_seconds": cpu.used(), "peak_rss_mb": round(memory_mb(worker.pid, "VmHWM") or 0)}
        committed = await committed_soon(bench.servers.bootstrap, topic, f"{app_id}.{case.name}", events)
    faults = []
    if committed != events:
        faults.append(f"{committed:,} of {events:,} events are committed")
    if repeated := ledger.repeated():
        faults.append(f"{repeated:,} calls were repeated")
    return call_rate, figures, faults


async def idle(bench: Bench, subscribers: int) -> float:
    """Measure the CPU of a worker with this number of subscribers and no event, as a share of a core."""
    topic = f"bench-idle-{secrets.token_hex(4)}"
    await topics.make(bench.servers.bootstrap, topic)
    path, _ = bench.ledger(1)
    try:
        async with working(bench, topic, path, [f"idle_{number}" for number in range(subscribers)]) as (worker, _):
            await worker.wait_ready()
            await asyncio.sleep(3)
            cpu, began = CpuWatch({"worker": worker.pid}), time.monotonic()
            await asyncio.sleep(IDLE_SECONDS)
            return cpu.used()["worker"] / (time.monotonic() - began)
    finally:
        await topics.remove(bench.servers.bootstrap, topic)


@asynccontextmanager
async def configured(
    bench: Bench, topic: str, ledger: Path, enabled: Sequence[str], more: str = ""
) -> AsyncIterator[tuple[Path, dict[str, str]]]:
    """Return settings and environment of workers that run these subscribers, and a fold without events."""
    app_id = f"bench-{secrets.token_hex(4)}"
    names = [one.name for one in subscribed.catalogue.subscribers]
    made = [f"{app_id}.{kind}" for kind in ("source", "folded", "dead", "again")] + [f"{topic}.{name}.dead" for name in names]
    switches = "".join(f"[subscribers.{name}]\nenabled = false\n" for name in names if name not in enabled)
    config = bench.folder / f"{app_id}.toml"
    config.write_text(
        f"""\
app_id = "{app_id}"
[kafka]
bootstrap_servers = {json.dumps(bench.servers.bootstrap)}
partitions = {PARTITIONS}
[redis]
url = {json.dumps(bench.servers.redis_url)}
[http]
port = 0
[folds.account-metrics]
source = "{app_id}.source"
output = "{app_id}.folded"
dead_letters = "{app_id}.dead"
group_key = "account"
changed = "metrics"
quiet_period = "1m"
[events]
catalogue = "benchmarks.subscribed:catalogue"
{switches}{more}""",
        "utf-8",
    )
    environment = {subscribed.TOPIC: topic, subscribed.LEDGER: str(ledger), "PYTHONPATH": python_path()}
    try:
        # The command also sets the initial offsets of subscribers that must not be called twice.
        await create_topics(config, environment)
        yield config, environment
    finally:
        bench.servers.forget(app_id)
        await topics.remove(bench.servers.bootstrap, *made)


async def create_topics(config: Path, environment: Mapping[str, str]) -> None:
    """Run ``streams-app topics create``."""
    command = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "streams_app", "topics", "create", "--config", str(config),
        env={**os.environ, **environment}, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await command.communicate()
    if command.returncode:
        raise RuntimeError(output.decode())


@asynccontextmanager
async def working(bench: Bench, topic: str, ledger: Path, enabled: Sequence[str]) -> AsyncIterator[tuple[WorkerProcess, str]]:
    """Yield a worker with its own settings, and its ``app_id``."""
    async with configured(bench, topic, ledger, enabled) as (config, environment):
        with WorkerProcess(config, bench.folder, environment) as worker:
            yield worker, config.stem
            await worker.terminate(limit_seconds=30)


@contextmanager
def process(
    bench: Bench, name: str, command: Sequence[str], environment: Mapping[str, str]
) -> Iterator[tuple[Child, Callable[[], None]]]:
    """Yield a process that is killed at the end of the block, and a function that raises if it has ended before."""
    child = Child(name, command, bench.folder / f"{name}-{secrets.token_hex(4)}", {"PYTHONPATH": python_path(), **environment})

    def must_live() -> None:
        if not child.is_running:
            raise RuntimeError(f"{name} has ended; its log ends with:\n{child.log_tail()}")

    try:
        yield child, must_live
    finally:
        child.kill()


async def committed_soon(bootstrap: str, topic: str, group: str, wanted: int) -> int:
    """Return the sum of the committed offsets of a group, when it covers all events or after a timeout."""
    deadline = time.monotonic() + SETTLE_SECONDS
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False)
    await consumer.start()
    try:
        while True:
            offsets = [await consumer.committed(TopicPartition(topic, number)) or 0 for number in range(PARTITIONS)]
            if sum(offsets) >= wanted or time.monotonic() > deadline:
                return sum(offsets)
            await asyncio.sleep(0.1)
    finally:
        await consumer.stop()


def python_path() -> str:
    """Return the path on which processes find the benchmarks."""
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


def _must_live(worker: WorkerProcess) -> None:
    if worker.exit_code is not None:
        raise RuntimeError(f"the worker ended with exit code {worker.exit_code}:\n{worker.log()[-2_000:]}")


async def one_run(bench: Bench, case: Case, topic: str, events: int) -> tuple[dict[str, Any], list[str]]:
    """Measure one subscriber and the base; return the result with errors."""
    bare = await base(bench, topic, events) if case.has_base else None
    call_rate, used, faults = await called(bench, case, topic, events)
    compared = {"ratio_to_base": round(call_rate.per_second / bare.per_second, 3), "base": round(bare.per_second)} if bare else {}
    return {"events_per_second": round(call_rate.per_second), **compared, **used}, faults


def in_the_middle(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the median run, and the range of all runs."""
    by = "ratio_to_base" if "ratio_to_base" in runs[0] else "events_per_second"
    ascending = sorted(runs, key=lambda run: float(run[by]))
    middle = ascending[len(runs) // 2]
    return middle if len(runs) == 1 else {**middle, f"{by}_of_all_runs": [run[by] for run in ascending]}


async def subscribers(
    servers: Servers, folder: Path, scale: float, runs: int, names: Sequence[str], report: LineReporter
) -> list[Finding]:
    """Measure each subscriber and the base, and the cost of an idle subscriber.

    Each run measures the base, too. The result is the median run, by its ratio to the base if it has one, and the range of all
    runs.

    Args:
        servers: Servers to use.
        folder: Folder for settings, ledgers and logs.
        scale: Scale of the numbers of events.
        runs: Number of runs of each.
        names: Names of the subscribers; ``idle`` for the cost of an idle one.
        report: Receives a line for each run.
    """
    bench, findings = Bench(servers, folder, scale), []
    for case in (case for case in CASES if case.name in names):
        async with bench.topic(case) as (topic, events):
            found: list[dict[str, Any]] = []
            faults: list[str] = []
            for _ in range(runs):
                figures, wrong = await one_run(bench, case, topic, events)
                report(f"{case.what}: {figures} {' '.join(wrong)}")
                found.append(figures)
                faults += wrong
        findings.append(Finding(f"subscriber {case.what}, {events:,} events", in_the_middle(found), faults))
    if IDLE in names:
        few, many = [await idle(bench, number) for number in (1, subscribed.IDLE)]
        each = (many - few) / (subscribed.IDLE - 1)
        figures = {"percent_of_a_core_each": round(100 * each, 2), "percent_of_a_worker_with_one": round(100 * few, 2)}
        findings.append(Finding("idle subscribers", figures))
        report(f"idle: {each:.2%} of a core a subscriber, {few:.2%} with one")
    return findings
