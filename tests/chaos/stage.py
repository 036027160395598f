"""The stage of a chaos run: broker, Redis, topics, a read store, and workers that a supervisor restarts."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from streams_app.embedded import Broker, Valkey
from streams_app.embedded.ports import free_port
from streams_app.errors import TryAgainError
from tests.chaos.proxy import Proxy
from tests.helpers.kafka.topics import create_topics
from tests.helpers.waiting import wait_until
from tests.helpers.worker.fork_server import run
from tests.helpers.worker.workers import WorkerProcess
from tests.servers.apache_kafka import ApacheKafka, Proxied
from tests.servers.redis7 import Redis7

SESSION_SECONDS = 3
OUTAGE_SECONDS = 15
"""Longer than the time within which a worker must report an outage."""

PARTITIONS = 4
ANY_TIMESTAMP = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1)}
APP_ID = "chaos"
FOLD = "account-metrics"
EXCUSED = "excused"
"""A second fold, and its output topic. The topic is deleted on purpose, so the judge only checks that the fold continues."""

TOPIC_MISSING = f"topic '{EXCUSED}' (output of {EXCUSED}) does not exist"
"""Printed by a worker that starts while the topic is deleted; it ends with 1."""

CONFIG = """\
app_id = "{app_id}"
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
[folds.{excused}]
source = "events"
output = "{excused}"
dead_letters = "{excused}.dead"
group_key = "account_id"
changed = "metrics"
quiet_period = "2s"
max_hold = "5s"
[read_stores.dashboard]
dead_letters = "dead"
url = "sqlite:///{folder}/read.db"
folds = ["{fold}"]
source = "carried"
"""


class KilledAt(WorkerProcess):
    """A worker that kills itself with SIGKILL at a named point, see :mod:`tests.chaos.kill_points`."""

    def __init__(self, config: Path, directory: Path, point: str, count: int) -> None:
        super().__init__(config, directory, {"STREAMS_APP_TEST_KILL_AT": f"{point}:{count}"})

    def command(self, config: Path, arguments: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "tests.chaos.kill_points", "worker", "--config", str(config.resolve()), *arguments]


@dataclass(frozen=True, slots=True)
class Outage:
    """An outage of a server for all workers, by the clock of the event loop; ``what``: kafka or redis."""

    what: str
    begin: float
    end: float


@dataclass
class Stage:
    """The servers, topics and workers of one run.

    Attributes:
        exits: Exit code → number of workers that ended with it and were not stopped on purpose. A start without the deleted topic
            is not counted.
        kept_data: Whether Redis has lost nothing in this run.
        acknowledged: Number of events acknowledged to the load so far.
        outages: Outages of the whole broker or Redis, caused by faults.
        former_redis: Primaries before a failover, which continue as replicas.
        healed_at: Time at which the last fault ended, by the event loop, and the number of events acknowledged by then.
        more_settings: Further settings, beside those of the folds and the read store; their topics are created, too.
        dated: Topics of those whose records may have any timestamp; the broker does not remove them by age.
        command_python: Interpreter of the commands that prepare topics and tables.
        command_environment: Environment variables of these commands, in addition to those of this process.
        before_workers: Called when servers and topics exist, before the first worker starts.
    """

    folder: Path
    is_apache: bool
    is_redis7: bool
    workers: list[WorkerProcess] = field(default_factory=list)
    exits: Counter[int] = field(default_factory=Counter)
    kept_data: bool = True
    ended: list[WorkerProcess] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    former_redis: list[Redis7 | Valkey] = field(default_factory=list)
    acknowledged: Callable[[], int] = lambda: 0
    healed_at: tuple[float, int] = (0.0, 0)
    more_settings: str = ""
    dated: tuple[str, ...] = ()
    before_workers: Callable[[], Awaitable[None]] | None = None
    command_python: str = sys.executable
    command_environment: Mapping[str, str] = field(default_factory=dict)
    _supervisor: asyncio.Task[None] | None = None

    async def start(self, count: int) -> None:
        """Start servers, topics, tables and workers; return when the workers are ready."""
        self.broker_port, self.redis_port = free_port(), free_port()
        self.broker_proxy = Proxy(free_port(), free_port() if self.is_apache else self.broker_port)
        self.redis_folder = self.folder / "redis"
        self.redis_name = Proxy(free_port(), self.redis_port)
        self.redis_proxy = Proxy(free_port(), self.redis_name.port)
        for proxy in (self.broker_proxy, self.redis_name, self.redis_proxy):
            await proxy.start()
        self.start_broker()
        self.start_redis()
        await create_topics(self.bootstrap, ["events", "folded", "dead", EXCUSED, f"{EXCUSED}.dead"], PARTITIONS)
        if self.dated:
            await create_topics(self.bootstrap, self.dated, PARTITIONS, ANY_TIMESTAMP)
        redis_url, cut_redis_url = self.redis_urls()
        self.config = self._config("streams.toml", self.broker_port, redis_url)
        # The embedded broker advertises its own address to clients, which would bypass a proxy.
        broker_port = self.broker_proxy.port if self.is_apache else self.broker_port
        self.cut_config = self._config("cut.toml", broker_port, cut_redis_url)
        await self._command("read-store", "init")
        if self.more_settings:
            await self._command("topics", "create")
        if self.before_workers is not None:
            await self.before_workers()
        # The first worker reaches Redis and the broker through proxies that can be cut.
        self.workers = [self.new_worker(number) for number in range(count)]
        for worker in self.workers:
            await worker.wait_ready(60)
        self._supervisor = asyncio.create_task(self._supervise())

    async def _command(self, *words: str) -> None:
        """Run a command of the product, and repeat it while its exit code means that a later attempt may succeed."""
        command = [self.command_python, "-m", "streams_app", *words, "--config", str(self.config)]

        async def is_done() -> bool:
            ran = await asyncio.to_thread(run, command, self.folder, self.command_environment, 60)
            assert ran.returncode in (0, TryAgainError.exit_code), (
                f"{' '.join(words)} ended with {ran.returncode}: {ran.stdout}{ran.stderr}"
            )
            return ran.returncode == 0

        await wait_until(is_done, 60, " ".join(words))

    @property
    def bootstrap(self) -> str:
        """``host:port`` of the broker."""
        return f"127.0.0.1:{self.broker_port}"

    def start_broker(self) -> None:
        """Start it, also after a stop, with its stored data."""
        folder = self.folder / "broker"
        if self.is_apache:
            proxied = Proxied(self.broker_proxy.target_port, self.broker_proxy.port)
            self.broker: ApacheKafka | Broker = ApacheKafka.start(self.broker_port, folder, proxied)
        else:
            self.broker = Broker.start(self.broker_port, folder)

    def start_redis(self) -> None:
        """Start it, also after a stop, with its stored data."""
        self.redis = self._new_redis(self.redis_port, self.redis_folder)

    def redis_urls(self) -> tuple[str, str]:
        """URLs for the settings of the workers; the second one is for the worker that can be cut off."""
        return f"redis://127.0.0.1:{self.redis_name.port}/0", f"redis://127.0.0.1:{self.redis_proxy.port}/0"

    def stop_redis(self) -> None:
        """Stop Redis, if it runs."""
        for server in (self.redis, *self.former_redis):
            server.stop()

    def _new_redis(self, port: int, folder: Path) -> Redis7 | Valkey:
        kind = Redis7 if self.is_redis7 else Valkey
        return kind.start(port, folder, appendonly=True)

    def start_replica(self) -> tuple[Redis7 | Valkey, Path]:
        """Start another Redis, with its folder, as a replica of the current one."""
        folder = self.folder / f"redis-{len(self.former_redis) + 1}"
        replica = self._new_redis(free_port(), folder)
        with redis.Redis(port=replica.port) as client:
            client.execute_command("REPLICAOF", "127.0.0.1", self.redis_port)
        return replica, folder

    def promote(self, replica: Redis7 | Valkey, folder: Path) -> None:
        """Point the name at the replica; the former Redis continues, with its connections open."""
        self.former_redis.append(self.redis)
        self.redis, self.redis_port, self.redis_folder = replica, replica.port, folder
        self.redis_name.target_port = replica.port

    @property
    def primary_port(self) -> int:
        """Port of the current Redis, without the proxies."""
        return self.redis_port

    def client(self, **options: Any) -> redis.Redis:
        """Return a client of the current Redis."""
        return redis.Redis(port=self.primary_port, **options)

    @contextmanager
    def outage(self, what: str) -> Iterator[None]:
        """Record an outage of the broker (``kafka``) or of ``redis`` during this block."""
        begin = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            self.outages.append(Outage(what, begin, asyncio.get_running_loop().time()))

    def record_healed(self) -> None:
        """Record the end of the fault, from which recovery is measured."""
        self.healed_at = asyncio.get_running_loop().time(), self.acknowledged()

    def new_worker(self, number: int) -> WorkerProcess:
        """Start the worker with this number."""
        return WorkerProcess(self.cut_config if number == 0 else self.config, self.folder)

    def replace(self, number: int, worker: WorkerProcess) -> None:
        """Start another worker in place of one that has ended."""
        self.ended.append(self.workers[number])
        self.workers[number] = worker

    def logs(self) -> str:
        """Return the logs of all workers."""
        return "".join(worker.log() for worker in [*self.ended, *self.workers])

    async def is_settled(self) -> bool:
        """Whether every worker is a member of the consumer group and no rebalance is in progress."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        try:
            await admin.start()
            (answer,) = await admin.describe_consumer_groups([APP_ID])
        except KafkaError:
            return False
        finally:
            await admin.close()
        _, _, state, _, _, members = answer.groups[0][:6]
        return state == "Stable" and len(members) == len(self.workers)

    def versions(self) -> dict[tuple[str, str], int]:
        """Return the version of every cell of the read store."""
        connection = sqlite3.connect(self.folder / "read.db", timeout=0.2)
        try:
            rows = connection.execute("SELECT group_key, name, version FROM folded_values").fetchall()
        except sqlite3.OperationalError:
            return {}  # locked by a fault
        finally:
            connection.close()
        return {(group, name): version for group, name, version in rows}

    async def stop_workers(self) -> list[int]:
        """Send SIGTERM to all running workers and return their exit codes."""
        if self._supervisor is not None:
            self._supervisor.cancel()
        codes = [worker.exit_code for worker in self.workers]
        self.exits.update(code for code in codes if code is not None)  # the supervisor has not collected it yet
        running = [worker for worker, code in zip(self.workers, codes, strict=True) if code is None]
        return list(await asyncio.gather(*(worker.terminate(25) for worker in running)))

    async def close(self) -> None:
        """Stop all processes and remove the folder."""
        if self._supervisor is not None:
            self._supervisor.cancel()
        for worker in [*self.ended, *self.workers]:
            worker.continue_signal()
            worker.kill()
        await self.broker_proxy.stop()
        await self.redis_proxy.stop()
        await self.redis_name.stop()
        self.stop_redis()
        self.broker.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    async def _supervise(self) -> None:
        """Restart each worker that has ended, as a supervisor does, with any exit code."""
        while True:
            await asyncio.sleep(0.2)  # the interval of a supervisor
            for number, worker in enumerate(self.workers):
                if worker.exit_code is not None:
                    # A worker that was killed while the topic is away ends with 1 at each start until the topic is back.
                    if worker.exit_code != 1 or TOPIC_MISSING not in worker.log():
                        self.exits[worker.exit_code] += 1
                    self.replace(number, self.new_worker(number))

    def _config(self, name: str, broker_port: int, redis_url: str) -> Path:
        path = self.folder / name
        text = CONFIG.format(
            app_id=APP_ID, bootstrap=f"127.0.0.1:{broker_port}", session=SESSION_SECONDS, redis=redis_url,
            fold=FOLD, excused=EXCUSED, folder=self.folder,
        )  # fmt: skip
        path.write_text(text + self.more_settings, "utf-8")
        return path
