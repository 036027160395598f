"""The stage of the alert drill: servers, a worker with two folds, a read store and a subscriber, and a steady load."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import redis
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from streams_app.embedded import Broker, Valkey
from streams_app.embedded.ports import LOOPBACK, free_port
from tests.helpers.cli.commands import run as command
from tests.helpers.kafka.topics import create_topics, delete_topic
from tests.helpers.worker.workers import WorkerProcess
from tests.servers.apache_kafka import ApacheKafka
from tests.servers.cache import ROOT

SESSION_SECONDS: Final = 3
PARTITIONS: Final = 2
EVERY_SECONDS: Final = 0.1
"""Time between two events of the load."""

CONFIG: Final = """\
app_id = "drill"
[kafka]
bootstrap_servers = "{bootstrap}"
session_timeout = "{session}s"
partitions = {partitions}
[redis]
url = "{redis}"
[http]
port = {http}
[worker]
tick = "200ms"
commit_every = "500ms"
[folds.likes]
source = "events"
output = "likes"
dead_letters = "likes.dead"
group_key = "id"
changed = "m"
keep = "last"
quiet_period = "1s"
max_hold = "3s"
[folds.views]
source = "events"
output = "views"
dead_letters = "views.dead"
group_key = "id"
changed = "m"
quiet_period = "1s"
max_hold = "3s"
[read_stores.dashboard]
url = "sqlite:///{folder}/read.db"
folds = ["likes"]
source = "carried"
[events]
catalogue = "drill_events:catalogue"
"""
CATALOGUE: Final = """
from pathlib import Path
import msgspec
from streams_app import Catalogue, Received, records_of, subscriber

class Changed(msgspec.Struct):
    id: str

@subscriber(records_of("likes", Changed), idempotent="yes", description="Ships it.")
async def ship(event: Received[Changed]) -> None:
    if Path({switch!r}).exists():
        raise ConnectionError("its dependency is down")

catalogue = Catalogue(events=(), subscribers=(ship,))
"""


@dataclass
class DrillStage:
    """The servers, the worker and the load of the drill, with files in ``folder``."""

    folder: Path
    is_apache: bool
    ended: list[WorkerProcess] = field(default_factory=list)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start everything, wait until the worker is ready, and stop everything at the end."""
        self.broker = ApacheKafka.start() if self.is_apache else Broker.start()
        self.redis_port, self.http_port, self.switch = free_port(), free_port(), self.folder / "is-down"
        self.start_redis()
        loading: asyncio.Task[None] | None = None
        try:
            self._write()
            for words in (("topics", "create"), ("read-store", "init")):
                done = await asyncio.to_thread(command, *words, "--config", str(self.config), cwd=None, **self._environment)
                assert done.code == 0, done.text
            self.start_worker()
            await self.worker.wait_ready(120)
            loading = asyncio.create_task(self._load())
            yield
        finally:
            if loading is not None:
                loading.cancel()
                await asyncio.gather(loading, return_exceptions=True)
            for worker in [*self.ended, *([self.worker] if hasattr(self, "worker") else [])]:
                worker.continue_signal()
                worker.kill()
            self.redis.stop()
            self.broker.stop()

    @property
    def target(self) -> str:
        """``host:port`` of the worker's metrics, the same for each worker."""
        return f"{LOOPBACK}:{self.http_port}"

    def start_redis(self) -> None:
        """Start Redis, also after a stop, with its stored data."""
        self.redis = Valkey.start(self.redis_port, self.folder / "redis", appendonly=True)

    def start_worker(self) -> None:
        """Start the worker, also after a stop."""
        self.worker = WorkerProcess(self.config, self.folder, self._environment)

    def client(self) -> redis.Redis:
        """Return a client of Redis for an operator."""
        return redis.Redis(port=self.redis_port)

    def store(self) -> sqlite3.Connection:
        """Return a connection of another program to the read store."""
        return sqlite3.connect(self.folder / "read.db", isolation_level=None, timeout=60)

    async def make(self, topic: str) -> None:
        """Create a topic."""
        await create_topics(self.broker.bootstrap_servers, [topic], PARTITIONS)

    async def delete(self, topic: str) -> None:
        """Delete a topic."""
        await delete_topic(self.broker.bootstrap_servers, topic)

    async def send(self, value: bytes) -> None:
        """Produce one event to each partition of the source."""
        producer = AIOKafkaProducer(bootstrap_servers=self.broker.bootstrap_servers, acks="all")
        await producer.start()
        try:
            for partition in range(PARTITIONS):
                await producer.send_and_wait("events", value, b"g0", partition=partition)
        finally:
            await producer.stop()

    async def supervise(self) -> None:
        """Restart the worker whenever it has ended."""
        if self.worker.exit_code is not None:
            self.ended.append(self.worker)
            self.start_worker()
        await self.worker.wait_ready(120)

    @property
    def _environment(self) -> dict[str, str]:
        return {"PYTHONPATH": f"{ROOT}:{self.folder}"}

    def _write(self) -> None:
        self.config = self.folder / "streams.toml"
        assert urlsplit(self.redis.url).port == self.redis_port
        self.config.write_text(
            CONFIG.format(
                bootstrap=self.broker.bootstrap_servers, session=SESSION_SECONDS, partitions=PARTITIONS, redis=self.redis.url,
                http=self.http_port, folder=self.folder,
            )
        )  # fmt: skip
        (self.folder / "drill_events.py").write_text(CATALOGUE.format(switch=str(self.switch)))

    async def _load(self) -> None:
        """Produce events of a few groups, also while the broker is down."""
        number = 0
        while True:
            producer = AIOKafkaProducer(bootstrap_servers=self.broker.bootstrap_servers, acks="all", request_timeout_ms=5_000)
            try:
                await producer.start()
                while True:
                    number += 1
                    group = f"g{number % 20}"
                    await producer.send_and_wait("events", json.dumps({"id": group, "m": {"n": number}}).encode(), group.encode())
                    await asyncio.sleep(EVERY_SECONDS)  # the rate of the load
            except (KafkaError, OSError):
                await asyncio.sleep(1)  # the broker is down on purpose
            finally:
                with suppress(KafkaError, OSError, TimeoutError):
                    await asyncio.wait_for(producer.stop(), 5)
