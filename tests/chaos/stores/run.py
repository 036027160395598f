"""A run of a read store: workers sync shuffled folded records into a server under faults, and the final contents are judged."""

from __future__ import annotations

import asyncio
import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

from streams_app.embedded import Broker
from tests.chaos.run import Duration, Options, Run
from tests.helpers.cli.commands import run as command
from tests.helpers.kafka.topics import create_topics, produce
from tests.helpers.waiting import wait_until
from tests.helpers.worker.workers import WorkerProcess

PARTITIONS: Final = 4
WORKERS: Final = 2
GROUPS, NAMES = 8_000, 12
DRAIN_SECONDS: Final = 180
CONFIG: Final = """\
app_id = "stores"
[kafka]
bootstrap_servers = "{bootstrap}"
session_timeout = "3s"
[http]
port = 0
[worker]
tick = "200ms"
commit_every = "500ms"
[folds.f]
source = "events"
output = "folded"
group_key = "id"
changed = "m"
keep = "last"
quiet_period = "1s"
[read_stores.dashboard]
url = "{url}"
folds = ["f"]
source = "carried"
timeout = "2s"
dead_letters = "dead"
shape = "{shape}"
"""

Cells = dict[tuple[str, str], tuple[int, int]]
"""Group and name → version and value."""

Fault = Callable[[Any], Awaitable[None]]
"""A function that receives the run."""


class StoreRun(Run):
    """One run; a subclass for each kind of server.

    Attributes:
        faults_of: Possible faults by name.
        max_records: Maximum number of new records in a burst; the load also depends on the duration of a burst.
        shape: Layout of the tables.
        expected: Values of the highest versions.
        exits: Exit code → number of workers that ended with it.
        records: Number of produced records.
        lost_progress: Number of offsets by which the progress of the store went back, over all failovers.
        noticed: Number of times that a worker found an unexpected progress in the store.
        drain_seconds: Seconds from the end of the load until the store had the newest values.
    """

    faults_of: ClassVar[Mapping[str, Fault]]
    full = Duration(5, 40.0)
    share = Duration(1, 20.0)
    max_records = 400
    shape = "cells"

    def __init__(self, seed: int, folder: Path, options: Options, duration: Duration) -> None:
        super().__init__(seed, folder, options, duration)
        self.expected: Cells = {}
        self.exits: Counter[int] = Counter()
        self.records = self.lost_progress = self.noticed = 0
        self.drain_seconds = 0.0
        self.workers: list[WorkerProcess] = []
        self.ended: list[WorkerProcess] = []

    @classmethod
    def possible(cls, options: Options) -> list[str]:
        return list(cls.faults_of)

    @abstractmethod
    async def start(self) -> str:
        """Start the server and return its URL."""

    @abstractmethod
    def stop(self) -> None:
        """End the server."""

    @abstractmethod
    async def stored(self) -> Cells:
        """Return the contents of the store."""

    async def perform(self) -> None:
        """Start everything, cause faults for a while, drain and judge."""
        names = list(self.duration.faults or self.faults_of)
        self.broker = Broker.start(directory=self.folder / "broker")
        url = await self.start()
        tasks: list[asyncio.Task[None]] = []
        try:
            await self._prepare(url)
            tasks = [asyncio.create_task(self._supervise()), asyncio.create_task(self._produce(self.duration.seconds))]
            await self._break(self.duration.seconds, names)
            await tasks[1]
            await self._drain()
        except AssertionError as error:
            self.wrong.append(str(error)[:2_000])
        finally:
            for task in tasks:
                task.cancel()
            self.noticed = self.logs().count("cause=progress")
            for worker in [*self.workers, *self.ended]:
                worker.kill()
            self.stop()
            self.broker.stop()

    async def _prepare(self, url: str) -> None:
        await create_topics(self.broker.bootstrap_servers, ["folded", "dead"], PARTITIONS)
        self.config = self.folder / "streams.toml"
        self.config.write_text(CONFIG.format(bootstrap=self.broker.bootstrap_servers, url=url, shape=self.shape), "utf-8")
        done = await asyncio.to_thread(command, "read-store", "init", "--config", str(self.config))
        assert done.code == 0, done.text
        self.workers = [self._worker() for _ in range(WORKERS)]

    def _worker(self) -> WorkerProcess:
        return WorkerProcess(self.config, self.folder, arguments=["--only", "dashboard"])

    async def _supervise(self) -> None:
        while True:
            await asyncio.sleep(0.2)  # the interval of a supervisor
            for number, worker in enumerate(self.workers):
                if worker.exit_code is not None:
                    self.exits[worker.exit_code] += 1
                    self.ended.append(worker)
                    self.workers[number] = self._worker()

    async def _produce(self, seconds: float) -> None:
        """Produce records of rising versions, each burst shuffled, a third of it twice."""
        loop, version = asyncio.get_running_loop(), 0
        until = loop.time() + seconds
        while loop.time() < until:
            burst = []
            for _ in range(self.chance.randrange(50, self.max_records)):
                version += 1
                group = self.chance.randrange(GROUPS)
                changed = self.chance.sample(range(NAMES), self.chance.randrange(1, 4))
                names = {f"n{number}": self.chance.randrange(10**6) for number in changed}
                value = {"id": f"g{group}", "m": names, "fold": {"name": "f", "version": version}}
                burst.append((group % PARTITIONS, f"g{group}".encode(), json.dumps(value).encode()))
                for name, carried in names.items():
                    self.expected[f"g{group}", name] = version, carried
            burst += self.chance.sample(burst, len(burst) // 3)
            self.chance.shuffle(burst)
            for partition in range(PARTITIONS):
                items = [(key, value) for into, key, value in burst if into == partition]
                await produce(self.broker.bootstrap_servers, "folded", items, partition=partition)
            self.records += len(burst)
            await asyncio.sleep(0.1)  # the rate of the load

    def logs(self) -> str:
        """Return the logs of all workers."""
        return "".join(worker.log() for worker in [*self.ended, *self.workers])

    async def _break(self, seconds: float, names: list[str]) -> None:
        loop = asyncio.get_running_loop()
        begin, turn = loop.time(), self.seed
        await asyncio.sleep(3)  # the load runs without faults at first
        while loop.time() < begin + seconds - 2:
            name = names[turn % len(names)] if turn < self.seed + len(names) else self.chance.choice(names)
            turn += 1
            await self.faults_of[name](self)
            self.faults.append(name)
            await asyncio.sleep(self.chance.uniform(1, 4))  # until the next fault

    async def _drain(self) -> None:
        loop = asyncio.get_running_loop()
        begin = loop.time()

        async def is_current() -> bool:
            return await self.stored() == self.expected

        try:
            await wait_until(is_current, DRAIN_SECONDS, "the store has the newest values")
        except AssertionError:
            stored = await self.stored()
            wrong = [cell for cell in stored.keys() | self.expected.keys() if stored.get(cell) != self.expected.get(cell)]
            shown = [(cell, stored.get(cell), self.expected.get(cell)) for cell in sorted(wrong)[:3]]
            self.wrong.append(f"{len(wrong)} of {len(self.expected)} cells differ (cell, stored, expected): {shown}")
        self.drain_seconds = loop.time() - begin

    def line(self) -> str:
        """Return the run in two lines, followed by its violations."""
        exits = ", ".join(f"{count}x {code}" for code, count in sorted(self.exits.items()))
        text = (
            f"seed {self.seed:>3}  {'FAILED' if self.wrong else 'ok':<6} records {self.records:>7,}  "
            f"cells {len(self.expected):>6,}  offsets lost {self.lost_progress:>6,}  noticed {self.noticed:>2}  "
            f"drained in {self.drain_seconds:>5.1f} s  exits: {exits or 'none'}\n"
            f"          {', '.join(self.faults)}"
        )
        return "\n".join([text, *(f"    WRONG {wrong}" for wrong in self.wrong)])
