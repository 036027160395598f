"""The Faust application: agents that read the sources of folds, and timers that emit and commit.

What runs beside the folds is in :mod:`streams_app.worker.components`, what happens to events in :mod:`streams_app.folding`, and
what is changed in Faust and aiokafka in :mod:`streams_app.kafka`.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import faust
from faust.app.base import BootStrategy

from streams_app.clock import Clock
from streams_app.delivery.batch import TP
from streams_app.delivery.ownership import Ownership, OwnershipConfig
from streams_app.errors import ConfigurationError, StreamsAppError, text_of
from streams_app.folding.agents.context import FoldContext, report_rejected_events
from streams_app.folding.agents.processors import FoldProcessors
from streams_app.folding.agents.shard_snapshots import ClaimedShards
from streams_app.folding.store.scripts import FoldScripts
from streams_app.health.metrics import Metrics
from streams_app.health.status import Status
from streams_app.kafka.batches import BatchScheduler
from streams_app.kafka.consumer import FoldingConsumer
from streams_app.kafka.faust_consumer import FaustGroupConsumer
from streams_app.kafka.tables import NoTables
from streams_app.logs import hold_back_libraries
from streams_app.process import leave
from streams_app.settings import Settings
from streams_app.subscribers.running.requirements import require_topics
from streams_app.worker.components import Components, assemble
from streams_app.worker.selection import everything
from streams_app.worker.watchdog import Folding

logger = logging.getLogger(__name__)

MAX_POLL_RECORDS = 20_000
BUFFERED_BATCHES = 4
REQUEST_SECONDS = 40.0
REFUSED_EVERY_SECONDS = 60.0
REVOKED_SECONDS = 6.0
"""Members have at least so long to commit and join again when partitions are redistributed."""


class WithoutProducer(BootStrategy):
    """Faust's own producer is not started: nothing is sent through it."""

    enable_kafka_producer = False


class FoldingApp(faust.App):
    """A Faust application whose consumer delivers batches and whose offsets are low watermarks."""

    BootStrategy = WithoutProducer

    settings: Settings
    ownership: Ownership
    components: Components
    claimed_shards: ClaimedShards
    metrics: Metrics
    status: Status
    fatal: BaseException | None = None
    has_failed: asyncio.Event
    is_served = False
    """Whoever started it ends the process with the right exit code. Faust's own worker would end it with 1, whatever happened."""

    def _new_consumer(self) -> FoldingConsumer:
        return FoldingConsumer(
            self.transport,
            callback=self.topics.on_message,
            on_partitions_revoked=self._on_partitions_revoked,
            on_partitions_assigned=self._on_partitions_assigned,
            beacon=self.beacon,
        )

    async def on_start(self) -> None:
        """Connects before anything is consumed; whoever serves it has looked for its topics before."""
        hold_back_libraries()  # by now Faust's own worker has set up its logging
        try:
            if not self.is_served:
                await require_topics(self.settings)
            await self.components.prepare()
            self.components.start(Folding(self.ownership, self.claimed_shards))
        except StreamsAppError as error:
            self._leave_for(error)
            raise
        await super().on_start()

    async def on_stop(self) -> None:
        """Commits while the consumer still belongs to its group."""
        self.components.stopping.set()  # read stores and subscribers leave groups of their own meanwhile
        await self.ownership.stop()
        report_rejected_events(self.settings.folds, self.metrics)
        await super().on_stop()

    async def on_shutdown(self) -> None:
        """Closes what runs beside Faust.

        Only now that the consumer has left its group: functions of subscribers may take long to end, and other workers fold on.
        """
        await super().on_shutdown()
        await self.components.stop()
        self._leave_for(self.fatal)

    def _leave_for(self, fault: BaseException | None) -> None:
        """Under ``faust -A``: ends the process with the exit code of a fault that has one."""
        if isinstance(fault, StreamsAppError) and not self.is_served:
            logger.critical("%s", fault)
            leave(fault.exit_code)

    def _create_directories(self) -> None:
        """Nothing: Faust would make folders for tables, and there are none."""

    def on_seek(self, generation: int) -> None:
        """The consumer group has assigned partitions."""
        self.components.producer.forget_trouble()
        self.status.clear("start")
        self.ownership.assigned(generation)

    async def on_revoke(self, tps: Iterable[TP]) -> None:
        """The consumer group takes partitions away."""
        await self.ownership.revoked(tps)

    def in_flight(self) -> int:
        """Records in memory that are not folded yet."""
        return self.ownership.in_flight()

    def on_fatal(self, error: BaseException) -> None:
        """Ends the process: an error nobody knows, or one that only an operator can mend."""
        if self.fatal is not None:
            return
        self.fatal = error
        if self.is_served:
            # Faust's crash() would end the consumer beside the application: there would be none for the last commits.
            logger.error("the worker ends error=%s", text_of(error))
            self.has_failed.set()
        else:
            self.loop.create_task(self.crash(error))


def create_app(settings: Settings, *, clock: Clock | None = None) -> FoldingApp:
    """The Faust application for these settings; nothing is connected before it is started.

    Args:
        settings: See :class:`streams_app.settings.Settings`.
        clock: Another clock than that of the machine, for tests.

    Returns:
        A ``faust.App``; ``app.settings``, ``app.ownership``, ``app.metrics`` and ``app.status`` are this project's.

    Raises:
        ConfigurationError: The settings have no fold.
    """
    if not settings.folds:
        raise ConfigurationError(["there is no fold: subscribers alone are run by `streams-app worker`, without Faust"])
    session_seconds = settings.kafka.session_timeout_ms / 1000
    app = FoldingApp(
        settings.app_id,
        broker=[f"kafka://{server.strip()}" for server in settings.kafka.bootstrap_servers.split(",")],
        ConsumerScheduler=BatchScheduler,
        TableManager=NoTables,
        processing_guarantee="at_least_once",
        stream_wait_empty=False,
        topic_disable_leader=True,
        topic_allow_declare=False,
        web_enabled=False,
        producer_threaded=False,
        cython_optimizations=False,
        broker_session_timeout=session_seconds,
        broker_request_timeout=max(REQUEST_SECONDS, session_seconds),
        broker_rebalance_timeout=max(REVOKED_SECONDS, min(10.0, session_seconds)),
        broker_heartbeat_interval=min(3.0, max(0.3, session_seconds / 5)),
        broker_max_poll_records=MAX_POLL_RECORDS,
        broker_commit_interval=3600.0,
        stream_buffer_maxsize=BUFFERED_BATCHES,
        consumer_max_fetch_size=4 * 1024 * 1024,
        datadir=tempfile.gettempdir(),
        worker_redirect_stdouts=False,
        autodiscover=False,
    )
    app.settings, app.has_failed = settings, asyncio.Event()
    app.components = assemble(settings, everything(settings), app.on_fatal, clock=clock, is_folding=True)
    app.metrics, app.status = app.components.metrics, app.components.status
    trusted = app.components.skew.clock
    scripts = FoldScripts(app.components.redis, lambda name: app.metrics.script_seconds.labels(script=name).time())
    context = FoldContext(settings, scripts, app.components.producer, trusted, app.metrics, app.status)
    app.claimed_shards = context.claimed_shards
    app.ownership = Ownership(
        FaustGroupConsumer(lambda: app.consumer, lambda: app.consumer_generation_id),
        FoldProcessors(context),
        OwnershipConfig(
            trusted, app.status, app.on_fatal, _counted(settings, app.metrics),
            settings.kafka.session_timeout_ms, settings.worker.tick_ms / 1000, on_went_back=app.metrics.went_back,
        ),
    )  # fmt: skip
    _add_agents(app)
    _add_timers(app, context)
    return app


def _counted(settings: Settings, metrics: Metrics) -> Callable[[str, str], None]:
    """Counts resyncs of declared folds."""
    declared = {fold.name for fold in settings.folds}

    def count(fold: str, cause: str) -> None:
        if fold in declared:
            metrics.resyncs.labels(fold=fold, cause=cause).inc()

    return count


def _add_agents(app: FoldingApp) -> None:
    async def fold(stream: Any) -> None:
        # Only hands over: an agent that waits would stop the delivery to every other one.
        async for carrier in stream:
            app.ownership.deliver(carrier.taken())

    for source in app.settings.sources:
        topic = app.topic(source, key_serializer="raw", value_serializer="raw", acks=False)
        app.agent(topic, name=f"fold-{source}")(fold)


def _add_timers(app: FoldingApp, context: FoldContext) -> None:
    settings, ownership = app.settings, app.ownership

    @app.timer(interval=settings.worker.tick_ms / 1000, name="tick")
    async def tick() -> None:
        ownership.tick_once()
        context.observe_shards(ownership.assignment)

    @app.timer(interval=settings.worker.commit_every_ms / 1000, name="commit")
    async def commit() -> None:
        await ownership.commit_once()

    @app.timer(interval=REFUSED_EVERY_SECONDS, name="refused")
    async def refused() -> None:
        report_rejected_events(settings.folds, app.metrics)
