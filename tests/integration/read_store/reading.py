"""An output topic, a store that follows it, and members of the read store's group that sync it."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from streams_app.clock import SystemClock
from streams_app.delivery.batch import TP
from streams_app.health.metrics import Metrics
from streams_app.kafka.group_agent import GroupAgent
from streams_app.read_store.sync.agent import read_store_agent
from streams_app.settings import Settings
from tests.conftest import Names
from tests.helpers.kafka.topics import admin_of, produce
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import SESSION

LIMIT_SECONDS = 60
PARTITIONS = 4


@dataclass
class Member:
    """An agent that runs in this process."""

    agent: GroupAgent
    metrics: Metrics
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def claimed(self) -> set[TP]:
        return set(self.agent.ownership.partitions)

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"streams_app_{name}", labels)

    def lag(self) -> float | None:
        return self.value("read_store_lag_records", store="dashboard")


@dataclass
class Reading:
    """An output topic and a store that follows it."""

    names: Names
    bootstrap: str
    path: Path
    session: str = SESSION
    sent: dict[str, int] = field(default_factory=dict)

    @property
    def topic(self) -> str:
        return self.names.topic("folded")

    def config(self) -> dict[str, object]:
        return {
            "app_id": self.names.app_id,
            "kafka": {"bootstrap_servers": self.bootstrap, "session_timeout": self.session},
            "worker": {"tick": "200ms", "commit_every": "200ms"},
            "folds": [{"name": "f", "source": f"{self.topic}.source", "output": self.topic, "group_key": "id", "changed": "m",
                       "keep": "last", "quiet_period": "1s"}],
            "read_stores": [
                {"name": "dashboard", "url": f"sqlite:///{self.path}", "table": "cells", "folds": ["f"], "source": "carried"}
            ],
        }  # fmt: skip

    @asynccontextmanager
    async def member(self) -> AsyncIterator[Member]:
        settings = Settings.model_validate(self.config())
        metrics = Metrics(settings)
        member = Member(read_store_agent(settings, settings.read_store(None), metrics, SystemClock()), metrics)
        running = asyncio.create_task(member.agent.run(member.stop))
        try:
            yield member
        finally:
            member.stop.set()
            await running

    async def send(self, count: int, partition: int | None = None) -> None:
        """Send records of a changed name each, to each partition in turn, or to one."""
        items: dict[int, list[tuple[bytes, bytes]]] = {}
        for _ in range(count):
            number = len(self.sent)
            group, value = f"g{number % 7}", number
            record = {"id": group, "m": {f"n{number}": value}, "fold": {"name": "f", "version": number}}
            self.sent[f"n{number}"] = value
            into = number % PARTITIONS if partition is None else partition
            items.setdefault(into, []).append((group.encode(), json.dumps(record).encode()))
        for into, records in items.items():
            await produce(self.bootstrap, self.topic, records, partition=into)

    def stored(self) -> dict[str, int]:
        with closing(sqlite3.connect(self.path, timeout=10)) as connection:
            return dict(connection.execute("SELECT name, value FROM cells"))

    async def is_synced(self) -> bool:
        await wait_until(lambda: len(self.stored()) == len(self.sent), LIMIT_SECONDS, "everything is in the store")
        return self.stored() == self.sent

    @contextmanager
    def locked(self) -> Iterator[None]:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as writer:
            writer.execute("BEGIN IMMEDIATE")
            yield

    async def committed(self) -> dict[int, int]:
        async with admin_of(self.bootstrap) as admin:
            found = await admin.list_consumer_group_offsets(f"{self.names.app_id}.read-store.dashboard")
            return {tp.partition: position.offset for tp, position in found.items()}


@dataclass
class PostgresReading(Reading):
    """An output topic and a store in PostgreSQL that follows it."""

    url: str = ""

    def config(self) -> dict[str, object]:
        return {
            **super().config(),
            "read_stores": [
                {"name": "dashboard", "url": self.url, "table": "cells", "folds": ["f"], "source": "carried", "timeout": "2s"}
            ],
        }
