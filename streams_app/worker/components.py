"""The composition root of a worker: checks its requirements, then assembles, starts and stops all components besides its folds.

These are read stores, subscribers, live views, journals, HTTP pages and the watchdog, with the Redis client, producer and clock
that they share. A worker without folds consists of these components. In a worker with folds, they run beside the Faust application.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from redis.asyncio import Redis

from streams_app.checking.redis import warn_of_servers
from streams_app.clock import Clock, SystemClock
from streams_app.delivery.clocks import TrustedClock
from streams_app.delivery.dependency_errors import DEPENDENCY_ERRORS
from streams_app.delivery.skew import SKEW_EVERY_SECONDS, SkewWatch
from streams_app.errors import TryAgainError
from streams_app.folding.store.keys import probe_key
from streams_app.health.http import ASYNCAPI_PAGE, EVENTS_PAGE, HttpServer
from streams_app.health.metrics import Metrics
from streams_app.health.status import Status
from streams_app.journal.agents.agent import journal_agents
from streams_app.journal.reading.page import add_journal_pages
from streams_app.kafka.group_agent import GroupAgent
from streams_app.kafka.producer import AckedProducer
from streams_app.live.agents.agent import view_agents
from streams_app.operations.flush_page import add_flush_page
from streams_app.operations.groups import groups_of_worker
from streams_app.read_store.sync.agent import read_store_agent, require_store_access
from streams_app.redis_access.client import REDIS_ERRORS, connect, require_access, require_redis_rights, why_unreachable
from streams_app.requirements.at_start import require_kafka
from streams_app.requirements.workload import Workload
from streams_app.settings import Settings
from streams_app.subscribers.running.subscribers import Subscribers
from streams_app.tracing import tracing_of
from streams_app.worker.selection import Selection
from streams_app.worker.watchdog import FoldingState, Watchdog

if TYPE_CHECKING:
    from streams_app.tracing.spans import Tracing

logger = logging.getLogger(__name__)

COMPONENTS_STOP_SECONDS: Final = 12.0
"""Time that subscribers have after ``worker.grace`` to commit and leave their groups at shutdown; read stores need less."""

BEAT_SECONDS: Final = 1.0

NO_SECRETS: Final = {"password_file": None, "sentinel_username": None, "sentinel_password_file": None}

Run = Callable[[asyncio.Event], Coroutine[Any, Any, None]]
"""Runs one component until the event is set."""


@dataclass(slots=True)
class Components:
    """Starts and stops all components of a worker other than its folds; created by :func:`assemble`.

    Attributes:
        selection: The read stores, subscribers, live views and journals to run.
        on_fatal: Ends the process because of an error; may be called from any thread.
        is_folding: Whether folds also run, so that Redis must answer at the start.
        stopping: Set when the worker begins to shut down.
        folding: The folds of the worker, once it is started; None without folds.
        tracing: Starts spans; None if tracing is off.
    """

    settings: Settings
    selection: Selection
    clock: Clock
    metrics: Metrics
    status: Status
    redis: Redis
    producer: AckedProducer
    skew: SkewWatch
    http: HttpServer
    watchdog: Watchdog
    on_fatal: Callable[[BaseException], None]
    is_folding: bool = False
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    heartbeat: asyncio.Task[None] | None = None
    folding: FoldingState | None = None
    tracing: Tracing | None = None
    _runs: dict[str, Run] = field(default_factory=dict)

    async def start(self, folding: FoldingState | None = None) -> None:
        """Check the requirements of the worker, including those of its folds, then start all components.

        After an error, no component runs; :meth:`stop` closes the connections.

        Args:
            folding: The folds of the worker; None without folds.

        Raises:
            TryAgainError: Kafka cannot be reached, folds run and Redis cannot be reached, or the HTTP server cannot listen, for
                example because no port is free.
            ConfigurationError: A server denies access, topics are missing, or a component has wrong settings.
        """
        self._create_runs()  # does not connect, so that wrong settings are reported even if a server does not answer
        await require_kafka(self._workload())
        await self._check_redis()
        await require_store_access(self.selection.stores)
        if self.tracing is not None:
            from streams_app.tracing.spans import add_trace_ids  # its package is optional

            add_trace_ids()
            self.tracing.warn_if_unrecorded()
        self._start_runs(folding)

    def _workload(self) -> Workload:
        folds = self.settings.folds if self.is_folding else ()
        workload = Workload(self.settings, folds, self.selection.stores, self.selection.views, self.selection.journals)
        return workload.with_subscribers(self.selection.subscribers) if self._has_subscribers() else workload

    def _create_runs(self) -> None:
        for store in self.selection.stores:
            agent = read_store_agent(self.settings, store, self.metrics, self.clock, self.status)
            self.watchdog.watch_transactions(store.group, agent.ownership)
            self._runs[store.group] = agent.run
        if self._has_subscribers():
            subscribers = Subscribers(
                self.settings, self.redis, self.producer, self.skew.clock, self.metrics, self.status, self.on_fatal,
                self.watchdog.watch, self.selection.subscribers,
            )  # fmt: skip
            self.status.pages |= {EVENTS_PAGE: subscribers.page, ASYNCAPI_PAGE: subscribers.asyncapi}
            self._runs["subscribers"] = subscribers.run
        agents: list[GroupAgent] = []
        if self.selection.views:
            agents += view_agents(
                self.settings, self.redis, self.producer, self.skew.clock, self.metrics, self.status, self.selection.views
            )
        if self.selection.journals:
            agents += journal_agents(
                self.settings, self.redis, self.skew.clock, self.metrics, self.status, self.selection.journals, self.fold_backlog
            )
        for agent in agents:
            self.watchdog.watch(agent.member.group, agent.ownership)
            self._runs[agent.member.group] = agent.run

    def fold_backlog(self) -> int:
        """Return the number of records that the folds of this worker have read but not applied yet; 0 without folds.

        May be called from any thread.
        """
        return 0 if self.folding is None else self.folding.ownership.backlog()

    async def _check_redis(self) -> None:
        warn = partial(warn_of_servers, self.redis, self.settings)
        probe = probe_key(self.settings.app_id)
        if self.is_folding:
            try:
                await require_redis_rights(self.redis, probe)
                await self.skew.check_once()
                await warn()
            except REDIS_ERRORS as error:
                raise await why_unreachable(self.settings.redis, error) from error
            self._runs["redis"] = partial(watch_redis, self.skew, None)
        elif self.selection.uses_redis:
            await require_access(self.settings.redis, probe)
            await self.skew.try_once()
            self._runs["redis"] = partial(watch_redis, self.skew, warn)

    def _has_subscribers(self) -> bool:
        selected = self.selection.subscribers
        return self.settings.events.catalogue is not None if selected is None else bool(selected)

    def _start_runs(self, folding: FoldingState | None) -> None:
        self.status.beat(self.clock.monotonic_ms())
        self.folding = folding
        if folding is not None:
            self.status.groups_provider = lambda fold, limit: groups_of_worker(
                folding.shards.all(), self.settings, self.redis, fold, limit
            )
            self.watchdog.watch("folds", folding.ownership, is_essential=True)
        add_journal_pages(self.http, self.settings, self.clock)
        add_flush_page(self.http, self.settings, self.clock)
        self.http.start()
        if folding is None:
            self.status.clear("start")
        self.watchdog.start(folding)
        self.heartbeat = self._run(self._beat(), "heartbeat")
        for name, run in self._runs.items():
            self._run(run(self.stopping), name)

    def _run(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a task; any error in it is unexpected and ends the process."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._on_task_done)
        self.tasks.append(task)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        error = self._unexpected_cancellation(task) if task.cancelled() else task.exception()
        if error is not None:
            logger.error("a task has failed task=%s error=%r", task.get_name(), error)
            self.on_fatal(error)

    def _unexpected_cancellation(self, task: asyncio.Task[None]) -> BaseException | None:
        """Return an error if a task was cancelled although the worker is not shutting down; otherwise return None."""
        return None if self.stopping.is_set() else TryAgainError(f"the task {task.get_name()!r} was cancelled")

    async def stop(self) -> None:
        """Stop all components, then close all connections.

        Running functions of subscribers may complete within ``worker.grace``. What still runs
        :data:`COMPONENTS_STOP_SECONDS` after that is cancelled.
        """
        self.watchdog.stop()
        self.stopping.set()
        if others := [task for task in self.tasks if task is not self.heartbeat]:
            await asyncio.wait(others, timeout=COMPONENTS_STOP_SECONDS + self.settings.worker.grace_seconds)
        for task in self.tasks:
            task.cancel()
        self.http.stop()
        await self.producer.stop()
        await self.redis.aclose()
        if self.tracing is not None:
            await self.tracing.flush()

    async def _beat(self) -> None:
        # The heartbeat continues during the shutdown: a worker that waits for functions of subscribers is alive.
        while True:
            self.status.beat(self.clock.monotonic_ms())
            await asyncio.sleep(BEAT_SECONDS)


def assemble(
    settings: Settings,
    selection: Selection,
    on_fatal: Callable[[BaseException], None],
    *,
    clock: Clock | None = None,
    is_folding: bool = False,
) -> Components:
    """Create the components of a worker, without connecting.

    Args:
        settings: Settings of the application.
        selection: The read stores, subscribers, live views and journals to run.
        on_fatal: Ends the process because of an error; may be called from any thread.
        clock: A clock for tests; None: the clock of the machine.
        is_folding: Whether the worker also runs the folds.

    Raises:
        ConfigurationError: A secret cannot be read, or tracing is on and ``opentelemetry-api`` is not installed.
    """
    clock = clock or SystemClock()
    # Read stores have no state in Redis. Without other components, the client never connects and its secrets need not exist.
    uses_redis = is_folding or selection.uses_redis
    access = settings.redis if uses_redis else settings.redis.model_copy(update=NO_SECRETS)
    metrics, status, redis = Metrics(settings), Status(), connect(access)
    if is_folding:
        producer = AckedProducer(settings.kafka, client_id=f"{settings.app_id}-output", report_fault=status.set_topic)
    else:
        producer = AckedProducer(settings.kafka, client_id=f"{settings.app_id}-letters")
    # A worker without folds does not report the lag of folds, which other workers run.
    watched = settings if is_folding else settings.model_copy(update={"folds": ()})
    return Components(
        settings,
        selection,
        clock,
        metrics,
        status,
        redis,
        producer,
        SkewWatch(TrustedClock(clock), status, redis.time),
        HttpServer(settings.http, status, metrics, clock, console_url=settings.console.public_url),
        Watchdog(watched, clock, metrics, status, asks_redis=uses_redis),
        on_fatal,
        is_folding,
        tracing=tracing_of(settings),
    )


async def watch_redis(skew: SkewWatch, warn: Callable[[], Awaitable[None]] | None, stop: asyncio.Event) -> None:
    """Compare the wall clock with that of Redis every few seconds until the worker stops.

    Event ids are stored by the hour, and retries are due by the wall clock, so all workers need the same time.

    Args:
        skew: Compares the clocks.
        warn: Reports a wrong configuration of Redis once it answers; None if that was already done.
        stop: Set when the worker stops.
    """
    watching, stopping = asyncio.create_task(_watch_forever(skew, warn)), asyncio.create_task(stop.wait())
    await asyncio.wait((watching, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    # The cancelled task is not awaited, because a command to a frozen Redis may time out later than a shutdown may take.
    if not watching.cancel():
        watching.result()


async def _watch_forever(skew: SkewWatch, warn: Callable[[], Awaitable[None]] | None) -> None:
    while True:
        if warn is not None:
            with suppress(*DEPENDENCY_ERRORS):
                await warn()
                warn = None
        await asyncio.sleep(SKEW_EVERY_SECONDS)
        await skew.try_once()
