"""One chaos run's stage: broker, Redis, topics, a read store, and workers that a supervisor starts again."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from streams_app.embedded import Broker, Valkey
from streams_app.embedded.child import Child
from streams_app.embedded.ports import free_port
from tests.chaos.proxy import Proxy
from tests.helpers import WorkerProcess, create_topics
from tests.servers.apache_kafka import ApacheKafka

SESSION_SECONDS = 3
PARTITIONS = 4
FOLD = "account-metrics"

CONFIG = """\
app_id = "chaos"
[kafka]
bootstrap_servers = "{bootstrap}"
session_timeout = "{session}s"
[redis]
url = "{redis}"
[http]
port = 0
[worker]
tick = "200ms"
commit_every = "500ms"
[folds.{fold}]
source = "events"
output = "folded"
dead_letters = "dead"
group_key = "account_id"
changed = "metrics"
keep = "last"
quiet_period = "1s"
max_hold = "5s"
[read_store]
url = "sqlite:///{folder}/read.db"
folds = ["{fold}"]
source = "carried"
"""


class KilledAt(WorkerProcess):
    """A worker that kills itself with SIGKILL at a named point, see :mod:`tests.chaos.killing`."""

    def __init__(self, config: Path, directory: Path, point: str, count: int) -> None:
        super().__init__(config, directory, {"STREAMS_APP_TEST_KILL_AT": f"{point}:{count}"})

    def command(self, config: Path, arguments: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "tests.chaos.killing", "worker", "--config", str(config.resolve()), *arguments]


@dataclass
class Stage:
    """Everything one run needs.

    Attributes:
        exits: Exit code → how often, of workers that were not ended on purpose.
        kept_data: Redis has lost nothing in this run.
    """

    folder: Path
    is_apache: bool
    workers: list[WorkerProcess] = field(default_factory=list)
    exits: Counter[int] = field(default_factory=Counter)
    kept_data: bool = True
    ended: list[WorkerProcess] = field(default_factory=list)
    _supervisor: asyncio.Task[None] | None = None

    async def start(self, count: int) -> None:
        """Starts servers, topics, tables and workers; returns when the workers are ready."""
        self.broker_port, self.redis_port = free_port(), free_port()
        self.start_broker()
        self.start_redis()
        self.proxy = Proxy("127.0.0.1", self.redis_port)
        await self.proxy.start()
        await create_topics(self.bootstrap, ["events", "folded", "dead"], PARTITIONS)
        self.config = self._config("streams.toml", self.redis_url)
        self.cut_config = self._config("cut.toml", f"redis://127.0.0.1:{self.proxy.port}/0")
        init = Child("init", [sys.executable, "-m", "streams_app", "read-store", "init", "--config", str(self.config)])
        while init.is_running:
            await asyncio.sleep(0.05)
        init.stop()
        # The first one reaches Redis through the proxy that can be cut.
        self.workers = [WorkerProcess(self.cut_config if number == 0 else self.config, self.folder) for number in range(count)]
        for worker in self.workers:
            await worker.wait_ready(60)
        self._supervisor = asyncio.create_task(self._supervise())

    @property
    def bootstrap(self) -> str:
        """host:port of the broker."""
        return f"127.0.0.1:{self.broker_port}"

    @property
    def redis_url(self) -> str:
        """Of Redis itself."""
        return f"redis://127.0.0.1:{self.redis_port}/0"

    def start_broker(self) -> None:
        """Also again, on what it has kept."""
        kind: Any = ApacheKafka if self.is_apache else Broker
        self.broker = kind.start(self.broker_port, self.folder / "broker")

    def start_redis(self) -> None:
        """Also again, on what it has kept."""
        self.redis = Valkey.start(self.redis_port, self.folder / "redis", appendonly=True)

    def client(self, **options: Any) -> redis.Redis:
        """A client past the proxy."""
        return redis.Redis(port=self.redis_port, **options)

    def replace(self, number: int, worker: WorkerProcess) -> None:
        """Another worker takes a place; the former one has ended."""
        self.ended.append(self.workers[number])
        self.workers[number] = worker

    def logs(self) -> str:
        """Of every worker there was."""
        return "".join(worker.log() for worker in [*self.ended, *self.workers])

    def versions(self) -> dict[tuple[str, str], int]:
        """Version of every cell of the read store."""
        connection = sqlite3.connect(self.folder / "read.db", timeout=0.2)
        try:
            rows = connection.execute("SELECT group_key, name, version FROM folded_values").fetchall()
        except sqlite3.OperationalError:
            return {}  # locked by a fault
        finally:
            connection.close()
        return {(group, name): version for group, name, version in rows}

    async def stop_workers(self) -> list[int]:
        """SIGTERM to all of them; exit codes."""
        if self._supervisor is not None:
            self._supervisor.cancel()
        return list(await asyncio.gather(*(worker.terminate(25) for worker in self.workers)))

    async def close(self) -> None:
        """Ends whatever runs and removes the folder."""
        if self._supervisor is not None:
            self._supervisor.cancel()
        for worker in [*self.ended, *self.workers]:
            worker.continue_signal()
            worker.kill()
        await self.proxy.stop()
        self.redis.stop()
        self.broker.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    async def _supervise(self) -> None:
        """What a supervisor does: a worker that ended is started again, whatever its exit code."""
        while True:
            await asyncio.sleep(0.2)
            for number, worker in enumerate(self.workers):
                if worker.exit_code is not None:
                    self.exits[worker.exit_code] += 1
                    self.replace(number, WorkerProcess(self.cut_config if number == 0 else self.config, self.folder))

    def _config(self, name: str, redis_url: str) -> Path:
        path = self.folder / name
        text = CONFIG.format(bootstrap=self.bootstrap, session=SESSION_SECONDS, redis=redis_url, fold=FOLD, folder=self.folder)
        path.write_text(text, "utf-8")
        return path
