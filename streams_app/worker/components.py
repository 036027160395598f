"""What runs beside Faust, started and ended together: Redis, HTTP, watchdog, read stores, subscribers, live views, journals."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import Redis

from streams_app.checking.redis import warn_of_servers
from streams_app.clock import Clock
from streams_app.delivery.ownership import Ownership
from streams_app.delivery.skew import SkewWatch
from streams_app.errors import TryAgainError
from streams_app.folding.agents.shard_snapshots import ClaimedShards
from streams_app.folding.store.keys import probe_key
from streams_app.health.http import ASYNCAPI_PAGE, EVENTS_PAGE, HttpServer
from streams_app.health.metrics import Metrics
from streams_app.health.status import Status
from streams_app.journal.agents.agent import Journals
from streams_app.journal.reading.page import add_journal_pages
from streams_app.kafka.producer import AckedProducer
from streams_app.live.agents.agent import LiveViews
from streams_app.operations.groups import groups_of_worker
from streams_app.read_store.agents.access import require_store_access
from streams_app.read_store.agents.agent import ReadStoreAgent
from streams_app.redis_access.client import REDIS_ERRORS, require_rights, why_unreachable
from streams_app.settings import Settings
from streams_app.subscribers.running import Subscribers
from streams_app.worker.watchdog import Folding, Watchdog

logger = logging.getLogger(__name__)

STOP_SECONDS = 12.0
"""Subscribers commit and leave their groups, once what runs has ended; read stores need less."""

BEAT_SECONDS = 1.0


@dataclass(slots=True)
class Services:
    """What create_app made for it."""

    settings: Settings
    redis: Redis
    producer: AckedProducer
    clock: Clock
    metrics: Metrics
    status: Status
    http: HttpServer
    watchdog: Watchdog
    skew: SkewWatch
    held: ClaimedShards
    on_fatal: Callable[[BaseException], None]
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    beating: asyncio.Task[None] | None = None

    async def start(self, ownership: Ownership) -> None:
        """Connects.

        Raises:
            TryAgainError: Redis or Kafka cannot be reached.
            ConfigurationError: One of them does not let us in.
        """
        try:
            await require_rights(self.redis, probe_key(self.settings.app_id))
            await self.skew.check_once()
            await warn_of_servers(self.redis, self.settings)
        except REDIS_ERRORS as error:
            raise await why_unreachable(self.settings.redis, error) from error
        # Before anything runs: what is wrong with one of them ends the start.
        agents = [(store, ReadStoreAgent(self.settings, store, self.metrics, self.clock)) for store in self.settings.read_stores]
        await require_store_access(self.settings.read_stores)
        subscribers = None
        if self.settings.events.catalogue is not None:
            subscribers = Subscribers(
                self.settings,
                self.redis,
                self.producer,
                self.skew.clock,
                self.metrics,
                self.status,
                self.on_fatal,
                self.watchdog.watch,
            )
            await subscribers.require_topics()
            self.status.pages |= {EVENTS_PAGE: subscribers.page, ASYNCAPI_PAGE: subscribers.asyncapi}
        live, journals = self._live_views(), self._journals()
        self.status.groups_provider = lambda fold, limit: groups_of_worker(
            self.held.shards(), self.settings, self.redis, fold, limit
        )
        self.status.beat(self.clock.monotonic_ms())
        add_journal_pages(self.http, self.settings, self.clock)
        self.http.start()
        self.watchdog.watch("folds", ownership, is_essential=True)
        self.watchdog.start(Folding(ownership, self.held))
        self.beating = self._run(self._beat(), "heartbeat")
        for store, agent in agents:
            self.watchdog.watch_transactions(store.group, agent.ownership)
            self._run(agent.run(self.stopping), store.group)
        if subscribers is not None:
            self._run(subscribers.run(self.stopping), "subscribers")
        if live is not None:
            self._run(live.run(self.stopping), "live views")
        if journals is not None:
            self._run(journals.run(self.stopping), "journals")

    def _live_views(self) -> LiveViews | None:
        if not (views := self.settings.live_of_topics):
            return None
        return LiveViews(
            self.settings, self.redis, self.producer, self.skew.clock, self.metrics, self.watchdog.watch, views
        )  # fmt: skip

    def _journals(self) -> Journals | None:
        if not (journals := self.settings.journals):
            return None
        return Journals(self.settings, self.redis, self.skew.clock, self.metrics, self.watchdog.watch, journals)

    def _run(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Runs a task; an error of it is one that nobody knows, and ends the process."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        self.tasks.append(task)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = self._unasked(task) if task.cancelled() else task.exception()
        if error is not None:
            logger.error("a task has failed task=%s error=%r", task.get_name(), error)
            self.on_fatal(error)

    def _unasked(self, task: asyncio.Task[None]) -> BaseException | None:
        """The error of a task that was cancelled although nothing is to stop: what it did is done by nobody now."""
        return None if self.stopping.is_set() else TryAgainError(f"the task {task.get_name()!r} was cancelled")

    async def stop(self) -> None:
        """Ends everything started, within a few seconds once what runs for subscribers has ended."""
        self.watchdog.stop()
        self.stopping.set()
        if others := [task for task in self.tasks if task is not self.beating]:
            await asyncio.wait(others, timeout=STOP_SECONDS + self.settings.worker.grace_seconds)
        for task in self.tasks:
            task.cancel()
        self.http.stop()
        await self.producer.stop()
        await self.redis.aclose()

    async def _beat(self) -> None:
        # Until the very end: what runs for subscribers may take long to end, and a worker that waits for it is alive.
        while True:
            self.status.beat(self.clock.monotonic_ms())
            await asyncio.sleep(BEAT_SECONDS)
