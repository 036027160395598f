"""Calls of the same function by others and by this project: how many a second, and what one SIGKILL in the middle loses or repeats.

Each rival is one process with the same concurrency, whose queue or topic is filled before. The time is measured from the first
tenth of the calls to the last one, by a ledger in which the function records each event.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from benchmarks import topics
from benchmarks.environments import install
from benchmarks.finding import Finding
from benchmarks.ledger import CallRate, Ledger, Watch
from benchmarks.peers import recording
from benchmarks.servers import Servers
from benchmarks.subscribers import Bench, configured, fill, python_path
from streams_app.embedded.child import Child
from tests.servers.cache import ROOT

FOLDER: Final = ROOT / ".cache" / "peers"
CONSTRAINTS: Final = Path(__file__).parent / "constraints.txt"
PACKAGES: Final = ("faststream[kafka]", "taskiq", "taskiq-redis", "taskiq-aio-kafka", "dramatiq[redis]", "celery[redis]")

NOOPS: Final = 20_000
NAPS: Final = 20_000
KILLED: Final = 6_000
"""Number of events of 10 ms of the test with a kill, unless a rival has its own number."""

CONCURRENCY: Final = 100
NAP_SECONDS: Final = 0.01
AFTER_SECONDS: Final = 90.0
"""Time within which the process that is started after the kill must process the rest."""

LIMIT_SECONDS: Final = 120.0
CONCURRENT: Final = "[subscribers.{}]\nconcurrency = 100\n"

LineReporter = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Rival:
    """One program that calls the function.

    Attributes:
        name: Name for people.
        module: Module in :mod:`benchmarks.peers`, or "" for this project.
        command: Command line; {python} is the folder of its programs.
        is_kafka: Whether it reads a topic; otherwise a queue in Redis.
        fills: Whether its module fills the queue or topic, because it has its own message format.
        environment: Further environment variables.
        subscriber: Subscriber of this project.
        faster: Factor for the number of no-ops, because the run would end too early.
        slower: Divisor of the number of events, because the run would take minutes.
        killed: Number of events of the test with a kill. FastStream's default and Taskiq with Kafka commit every five seconds:
            with fewer events, nothing would be committed yet. FastStream with ACK is slow.
    """

    name: str
    module: str = ""
    command: Sequence[str] = ()
    is_kafka: bool = False
    fills: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    subscriber: str = ""
    faster: int = 1
    slower: int = 1
    killed: int = KILLED


_FASTSTREAM: Final = ("python", "-m", "benchmarks.peers.by_faststream")
_DRAMATIQ: Final = ("dramatiq", "benchmarks.peers.by_dramatiq", "-p", "1", "-t", str(CONCURRENCY))
_TASKIQ: Final = ("--workers", "1", "--max-async-tasks", str(CONCURRENCY), "--log-level", "WARNING")
_CELERY: Final = (
    "celery", "-A", "benchmarks.peers.by_celery", "worker", "-P", "threads", "-c", str(CONCURRENCY), "-l", "warning",
    "--without-gossip", "--without-mingle",
)  # fmt: skip

RIVALS: Final = (
    Rival('streams_app, "yes"', subscriber="napping", is_kafka=True, faster=10),
    Rival("FastStream, ACK", "by_faststream", _FASTSTREAM, is_kafka=True, environment={"PEERS_LATE": "1"}, slower=10, killed=1_500),
    Rival("FastStream, ACK_FIRST (default)", "by_faststream", _FASTSTREAM, is_kafka=True, killed=20_000),
    Rival("Taskiq, Redis stream", "by_taskiq", ("taskiq", "worker", "benchmarks.peers.by_taskiq:broker", *_TASKIQ), fills=True),
    Rival(
        "Taskiq over Kafka", "by_taskiq_kafka", ("taskiq", "worker", "benchmarks.peers.by_taskiq_kafka:broker", *_TASKIQ),
        is_kafka=True, fills=True, killed=100_000,
    ),
    Rival("Dramatiq, Redis", "by_dramatiq", _DRAMATIQ, fills=True),
    Rival("Celery, Redis (default)", "by_celery", _CELERY, fills=True),
    Rival("Celery, Redis, acks_late", "by_celery", _CELERY, fills=True, environment={"PEERS_LATE": "1"}),
)  # fmt: skip


@dataclass(slots=True)
class Track:
    """One run of a rival, with its own names and ledger.

    Attributes:
        bench: Servers and folder.
        rival: The rival.
        name: Name of its topic or queue.
        path: Path of the ledger.
        events: Number of events.
        nap_seconds: Duration of the function.
        programs: Folder of the peers' programs.
        ours: Settings and environment of a worker of this project.
    """

    bench: Bench
    rival: Rival
    name: str
    path: Path
    events: int
    nap_seconds: float
    programs: Path
    ours: tuple[Path, Mapping[str, str]] | None = None

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment of its processes."""
        servers = self.bench.servers
        return {
            recording.LEDGER: str(self.path),
            recording.NAP: str(self.nap_seconds),
            recording.NAME: self.name,
            recording.SERVER: servers.bootstrap if self.rival.is_kafka else servers.redis_url,
            "PEERS_WORKERS": str(CONCURRENCY),
            **self.rival.environment,
        }

    async def fill(self) -> None:
        """Fill the topic or queue."""
        if self.rival.is_kafka:
            await topics.make(self.bench.servers.bootstrap, self.name)
        if not self.rival.fills:
            await fill(self.bench.servers.bootstrap, self.name, self.events, has_ids=False)
            return
        command = [str(self.programs / "python"), "-m", f"benchmarks.peers.{self.rival.module}", str(self.events)]
        child = await asyncio.create_subprocess_exec(
            *command, env={**os.environ, **self.variables, "PYTHONPATH": python_path()}, stdout=subprocess.DEVNULL
        )
        if await child.wait():
            raise RuntimeError(f"{self.rival.name} could not be filled")

    @asynccontextmanager
    async def started(self) -> AsyncIterator[Callable[[], Process]]:
        """Start processes one after the other within the block; end them and remove their data afterwards."""
        made: list[Process] = []

        def start() -> Process:
            made.append(self._process())
            return made[-1]

        async with AsyncExitStack() as stack:
            if not self.rival.module:
                config, environment = await stack.enter_async_context(
                    configured(self.bench, self.name, self.path, [self.rival.subscriber], CONCURRENT.format(self.rival.subscriber))
                )
                self.ours = config, environment
            try:
                yield start
            finally:
                for one in made:
                    one.kill()

    def _process(self) -> Process:
        if self.ours is not None:
            config, environment = self.ours
            command = [sys.executable, "-m", "streams_app", "worker", "--config", str(config)]
            return Process("worker", command, self.bench.folder, environment)
        command = [str(self.programs / self.rival.command[0]), *self.rival.command[1:]]
        return Process(self.rival.module, command, self.bench.folder, self.variables)


class Process:
    """A process with its child processes."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        """Start the process."""
        home = folder / f"{name}-{secrets.token_hex(4)}"
        self._child = Child(name, command, home, {"PYTHONPATH": python_path(), **environment})

    def must_live(self) -> None:
        """Raise RuntimeError if the process has ended."""
        if not self._child.is_running:
            raise RuntimeError(f"{self._child.name} has ended; its log ends with:\n{self._child.log_tail()}")

    def kill(self) -> None:
        """Send SIGKILL to all of them."""
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.kill()


async def call_rate(track: Track) -> CallRate:
    """Measure the calls a second."""
    await track.fill()
    async with track.started() as start:
        return await Watch(Ledger(track.path), start().must_live, LIMIT_SECONDS).call_rate()


async def killed(track: Track) -> dict[str, Any]:
    """Count lost and repeated events after one SIGKILL in the middle and an immediate restart."""
    await track.fill()
    ledger = Ledger(track.path)
    async with track.started() as start:
        first = start()
        await Watch(ledger, first.must_live, LIMIT_SECONDS).until(track.events // 2)
        first.kill()
        began = time.monotonic()
        second = start()
        with suppress(RuntimeError):
            await Watch(ledger, second.must_live, AFTER_SECONDS).until(track.events)
        took = time.monotonic() - began
    missing = track.events - ledger.called()
    return {"not_called": missing, "repeated": ledger.repeated(), "seconds": None if missing else round(took, 1)}


async def rivals(
    servers: Servers, folder: Path, scale: float, names: Sequence[str], report: LineReporter, *, kills: bool
) -> list[Finding]:
    """Measure each rival.

    Args:
        servers: Servers to use.
        folder: Folder for ledgers and logs.
        scale: Scale of the numbers of events.
        names: Prefixes of the names to measure; none: all.
        report: Receives a line for each run.
        kills: Whether to test a kill, too.
    """
    programs, bench, findings = install(FOLDER, CONSTRAINTS, PACKAGES), Bench(servers, folder, scale), []
    for rival in RIVALS:
        if names and not rival.name.lower().startswith(tuple(name.lower() for name in names)):
            continue
        finding = Finding(rival.name)
        findings.append(finding)
        for what, events, nap_seconds in (
            ("no-op", NOOPS, 0.0),
            ("10 ms", NAPS, NAP_SECONDS),
            ("killed", rival.killed, NAP_SECONDS),
        ):
            if what == "killed" and not kills:
                continue
            count = round(scale * events * (rival.faster if what == "no-op" else 1) / (1 if what == "killed" else rival.slower))
            one = replace(rival, subscriber="again") if not rival.module and what == "no-op" else rival
            path, _ = bench.ledger(count)
            track = Track(bench, one, f"peers-{secrets.token_hex(4)}", path, count, nap_seconds, programs)
            try:
                if what == "killed":
                    finding.figures |= await killed(track)
                else:
                    finding.figures[f"{what}, {count:,} events"] = round((await call_rate(track)).per_second)
            except RuntimeError as error:
                finding.faults.append(f"{what}: {error}")
            finally:
                if rival.is_kafka:
                    await topics.remove(servers.bootstrap, track.name)
                with servers.client() as client:
                    client.flushall()  # this Redis belongs to the benchmark
            report(f"{rival.name}: {what}: {finding.figures} {' '.join(finding.faults)}")
    return findings
