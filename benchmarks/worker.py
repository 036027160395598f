"""Worker processes of this project. Progress is read from Redis; a page of metrics is requested only after a measurement."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from benchmarks import topics
from benchmarks.fences import Fences, fences
from benchmarks.loads import PARTITIONS
from benchmarks.processes import CpuWatch
from benchmarks.servers import Servers
from streams_app.folding.store.keys import shard_keys
from streams_app.native import NativeChoice
from tests.helpers.waiting import wait_until
from tests.helpers.worker.workers import WorkerProcess

FOLD: Final = "account-metrics"
FIRST_POLL_SECONDS: Final = 0.02
_SAMPLE = re.compile(r"^(\w+)(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)
_BOUND = re.compile(r'\ble="([^"]+)"')
_START_LIMIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Metrics:
    """A page of metrics: name, labels as written, value."""

    samples: list[tuple[str, str, float]]

    @classmethod
    def of(cls, page: str) -> Metrics:
        """Parse a page."""
        return cls([(name, labels, float(value)) for name, labels, value in _SAMPLE.findall(page)])

    def value(self, name: str) -> float:
        """Return the sum over all series of a metric; 0 if there is none."""
        return sum(value for found, _, value in self.samples if found == name)

    def percentile(self, name: str, share: float, label: str = "") -> float | None:
        """Return a percentile of a histogram, interpolated within its bucket; None if it is empty.

        Args:
            name: Name of the histogram.
            share: 0.5 for the median.
            label: Use only series with this text in their labels.
        """
        buckets = sorted(
            (float(bound[1]), value)
            for found, labels, value in self.samples
            if found == f"{name}_bucket" and label in labels and (bound := _BOUND.search(labels))
        )
        if not buckets or not buckets[-1][1]:
            return None
        wanted, below, lower = share * buckets[-1][1], 0.0, 0.0
        for edge, count in buckets:
            if count >= wanted:
                return lower if edge == float("inf") else lower + (edge - lower) * (wanted - below) / (count - below)
            below, lower = count, edge
        return None


class Worker:
    """A running worker with topics and a consumer group of its own.

    Attributes:
        app_id: Unique id of its application.
        output: Its output topic.
        pid: Process id.
        fences: The fences of its application.
        before: Number of events that were folded before it was started.
    """

    def __init__(self, process: WorkerProcess, deployment: Deployment, before: int) -> None:
        self._process = process
        self._session = deployment.session
        self.app_id = deployment.app_id
        self.output = deployment.output
        self.fences = deployment.fences
        self._indexes = deployment.indexes
        self.before = before
        self.pid = process.pid
        self.url = process.url

    def require_running(self) -> None:
        """Check that it runs.

        Raises:
            RuntimeError: It has ended; the message has the end of its log.
        """
        if self._process.exit_code is not None:
            raise RuntimeError(f"the worker ended with exit code {self._process.exit_code}:\n{self.log_tail()}")

    async def metrics(self) -> Metrics:
        """Return its current metrics. To render them costs the worker CPU time: not during a measurement.

        Raises:
            RuntimeError: It has ended.
        """
        self.require_running()
        async with self._session.get(f"{self.url}/metrics") as reply:
            return Metrics.of(await reply.text())

    async def open_groups(self) -> int:
        """Return the number of open groups of its application."""
        return await self.fences.sizes(self._indexes)

    async def ready(self) -> None:
        """Wait until it has claimed its partitions."""
        await self._process.wait_ready(_START_LIMIT_SECONDS)

    def log_tail(self) -> str:
        """Return the last lines of its log."""
        return self._process.log()[-2_000:]


class Deployment:
    """Settings, topics and a consumer group of its own: of any number of workers, together or one after the other.

    Attributes:
        app_id: Unique id of the application.
        output: Its output topic.
        session: HTTP client for the workers.
        fences: The fences of the fold.
        indexes: The Redis keys that index its open groups.
    """

    def __init__(
        self, config: Path, session: aiohttp.ClientSession, app_id: str, output: str, fences: Fences, indexes: list[str]
    ) -> None:
        self._config = config
        self.session = session
        self.app_id = app_id
        self.output = output
        self.fences = fences
        self.indexes = indexes

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[Worker]:
        """Yield a worker, which is stopped gracefully at the end of the block; open groups stay open."""
        before = await self.fences.count()
        with WorkerProcess(self._config, self._config.parent) as process:
            # Not "ready": with a backlog, it may have folded a part of it by then.
            await _wait_for_url(process)
            yield Worker(process, self, before)
            await process.terminate(limit_seconds=30)


@asynccontextmanager
async def deployed(
    servers: Servers,
    folder: Path,
    source: str,
    *,
    quiet_period: str,
    max_hold: str = "6h",
    backlog: str = "merge",
    partitions: int = PARTITIONS,
    contents: str = 'changed = "metrics"',
    native: NativeChoice = "auto",
    more: str = "",
) -> AsyncIterator[Deployment]:
    """Yield a deployment with default settings, except the given ones; remove its topics and keys at the end of the block.

    Args:
        servers: Servers to use.
        folder: Folder for settings and logs.
        source: Topic that is folded from its beginning.
        quiet_period: Quiet period of the fold.
        max_hold: Max hold of the fold.
        backlog: ``merge`` or ``sessions``.
        partitions: Number of partitions of the topics.
        contents: Settings of the fold about kept events.
        native: Whether workers use the native core.
        more: Further sections of the settings.
    """
    app_id = f"bench-{secrets.token_hex(4)}"
    output, dead = f"{app_id}.folded", f"{app_id}.dead"
    await topics.make(servers.bootstrap, output, dead, partitions=partitions)
    text = f"""\
app_id = "{app_id}"
[kafka]
bootstrap_servers = {json.dumps(servers.bootstrap)}
[redis]
url = {json.dumps(servers.redis_url)}
[http]
port = 0
[worker]
native = "{native}"
[folds.{FOLD}]
source = {json.dumps(source)}
output = "{output}"
dead_letters = "{dead}"
group_key = "account_id"
{contents}
quiet_period = "{quiet_period}"
max_hold = "{max_hold}"
backlog = "{backlog}"
{more}"""
    config = folder / f"{app_id}.toml"
    config.write_text(text, "utf-8")
    shards = [shard_keys(app_id, FOLD, source, partition) for partition in range(partitions)]
    timeout = aiohttp.ClientTimeout(total=10)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            fences(servers.redis_url, [shard.meta for shard in shards]) as found,
        ):
            yield Deployment(config, session, app_id, output, found, [shard.first for shard in shards])
    finally:
        servers.forget(app_id)
        await topics.remove(servers.bootstrap, output, dead)


@asynccontextmanager
async def running(servers: Servers, folder: Path, source: str, **options: Any) -> AsyncIterator[Worker]:
    """Yield one worker of a new deployment; the arguments are those of :func:`deployed`."""
    async with deployed(servers, folder, source, **options) as deployment, deployment.worker() as worker:
        yield worker


def cpu_watch(servers: Servers, workers: Sequence[Worker]) -> CpuWatch:
    """Return a watch of the CPU time of all processes from now on."""
    names = ["worker"] if len(workers) == 1 else [f"worker {number}" for number in range(1, len(workers) + 1)]
    pids = dict(zip(names, (worker.pid for worker in workers), strict=True))
    return CpuWatch({**pids, "redis": servers.redis_pid, "broker": servers.broker_pid})


async def folded_by(workers: Sequence[Worker]) -> int:
    """Return the number of events that these workers, all of their application, have folded since they were started."""
    return sum((await _fences_of(workers)).values()) - workers[0].before


async def first_folded(workers: Sequence[Worker], limit_seconds: float) -> int:
    """Wait until each worker has folded something, and return the number of folded events."""
    async with asyncio.timeout(limit_seconds):
        while True:
            found = await _fences_of(workers)
            count = sum(found.values()) - workers[0].before
            if count > 0 and all(found.get(worker.pid) for worker in workers):
                return count
            await asyncio.sleep(FIRST_POLL_SECONDS)


async def _fences_of(workers: Sequence[Worker]) -> dict[int, int]:
    for worker in workers:
        worker.require_running()
    return await workers[0].fences.by_process()


async def _wait_for_url(process: WorkerProcess) -> None:
    def listens() -> bool:
        if process.exit_code is not None:
            raise RuntimeError(f"the worker ended with exit code {process.exit_code}:\n{process.log()[-2_000:]}")
        return process.url is not None

    await wait_until(listens, _START_LIMIT_SECONDS, "the worker listens")
