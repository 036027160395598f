"""The Faust application: agents that read the sources of folds, and timers that emit and commit.

The other components of a worker are in :mod:`streams_app.worker.components`, the processing of events in
:mod:`streams_app.folding`, and changes of Faust and aiokafka in :mod:`streams_app.kafka`.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import faust
from faust.app.base import BootStrategy

from streams_app.clock import Clock
from streams_app.delivery.batch import TP
from streams_app.delivery.ownership import Ownership, OwnershipConfig
from streams_app.errors import ConfigurationError, StreamsAppError
from streams_app.folding.agents.context import FoldContext, report_rejected_events
from streams_app.folding.agents.processors import FoldProcessors
from streams_app.folding.agents.shard_snapshots import ClaimedShards
from streams_app.folding.store.scripts import FoldScripts
from streams_app.health.metrics import Metrics
from streams_app.health.status import Status
from streams_app.kafka.batches import BatchScheduler
from streams_app.kafka.consumer import FoldingConsumer
from streams_app.kafka.faust_consumer import FaustGroupConsumer
from streams_app.kafka.tables import EmptyTableManager
from streams_app.logs import hold_back_libraries
from streams_app.process_exit import exit_now
from streams_app.settings import Settings
from streams_app.worker.components import Components, assemble
from streams_app.worker.selection import everything
from streams_app.worker.watchdog import FoldingState

logger = logging.getLogger(__name__)

MAX_POLL_RECORDS = 20_000
BUFFERED_BATCHES = 4
REQUEST_SECONDS = 40.0
REJECTED_EVERY_SECONDS = 60.0
REVOKED_SECONDS = 6.0
"""Minimum of the rebalance timeout, within which each member must commit and rejoin its group during a rebalance."""


class NoProducerStrategy(BootStrategy):
    """Starts a Faust application without Faust's own producer, which is not used."""

    enable_kafka_producer = False


class FoldingApp(faust.App):
    """A Faust application whose consumer delivers batches, and whose committed offsets are low watermarks."""

    BootStrategy = NoProducerStrategy

    settings: Settings
    ownership: Ownership
    components: Components
    claimed_shards: ClaimedShards
    metrics: Metrics
    status: Status
    fatal: BaseException | None = None
    report_fatal: Callable[[BaseException], None] | None = None
    """Ends the process because of an error; set by ``streams-app worker``, which also sets the exit code.

    None if Faust's own worker runs the application, which would always exit with 1.
    """

    def _new_consumer(self) -> FoldingConsumer:
        return FoldingConsumer(
            self.transport,
            callback=self.topics.on_message,
            on_partitions_revoked=self._on_partitions_revoked,
            on_partitions_assigned=self._on_partitions_assigned,
            beacon=self.beacon,
        )

    async def on_start(self) -> None:
        """Check the requirements, and start the other components, before the first record is consumed."""
        hold_back_libraries()  # Faust's own worker has set up its logging by now
        try:
            await self.components.start(FoldingState(self.ownership, self.claimed_shards))
        except StreamsAppError as error:
            self._exit_with(error)
            raise
        await super().on_start()

    async def on_stop(self) -> None:
        """Release the partitions and commit, while the consumer is still a member of its group."""
        self.components.stopping.set()  # read stores and subscribers leave their own groups at the same time
        await self.ownership.stop()
        report_rejected_events(self.settings.folds, self.metrics)
        await super().on_stop()

    async def on_shutdown(self) -> None:
        """Stop the other components.

        This happens after the consumer has left its group, so that other workers take over the folds while functions of subscribers
        still run.
        """
        await super().on_shutdown()
        await self.components.stop()
        self._exit_with(self.fatal)

    def _exit_with(self, fault: BaseException | None) -> None:
        """End the process with the exit code of an error, if the error has one and Faust's own worker runs the application."""
        if isinstance(fault, StreamsAppError) and self.report_fatal is None:
            logger.critical("%s", fault)
            exit_now(fault.exit_code)

    def _create_directories(self) -> None:
        """Do nothing: Faust would create folders for tables, which this application does not have."""

    def on_assignment(self, generation: int) -> None:
        """Start to claim the partitions that a rebalance has assigned; the claims run in the background."""
        self.components.producer.clear_faults()
        self.status.clear("start")
        self.ownership.assigned(generation)

    async def on_revoke(self, tps: Iterable[TP]) -> None:
        await self.ownership.revoked(tps)

    def in_flight(self) -> int:
        return self.ownership.in_flight()

    def on_fatal(self, error: BaseException) -> None:
        """End the process because of an unexpected error, or one that only an operator can resolve."""
        if self.report_fatal is not None:
            self.report_fatal(error)  # Faust's crash() would also end the consumer, which the last commits need
        elif self.fatal is None:
            self.fatal = error
            self.loop.create_task(self.crash(error))

    def _crash(self, reason: BaseException) -> None:
        super()._crash(reason)
        if self.report_fatal is not None:
            self.report_fatal(reason)


def create_app(settings: Settings, *, clock: Clock | None = None) -> FoldingApp:
    """Create the Faust application for settings, without connecting to a server.

    Args:
        settings: See :class:`streams_app.settings.Settings`.
        clock: A clock for tests; None: the clock of the machine.

    Returns:
        A ``faust.App`` with the additional attributes ``settings``, ``ownership``, ``metrics`` and ``status``.

    Raises:
        ConfigurationError: The settings declare no fold, a secret cannot be read, or tracing is on and ``opentelemetry-api`` is not
            installed.
    """
    if not settings.folds:
        raise ConfigurationError(["there is no fold: subscribers alone are run by `streams-app worker`, without Faust"])
    session_seconds = settings.kafka.session_timeout_ms / 1000
    app = FoldingApp(
        settings.app_id,
        broker=[f"kafka://{server.strip()}" for server in settings.kafka.bootstrap_servers.split(",")],
        ConsumerScheduler=BatchScheduler,
        TableManager=EmptyTableManager,
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
    app.settings = settings
    app.components = assemble(settings, everything(settings), app.on_fatal, clock=clock, is_folding=True)
    app.metrics, app.status = app.components.metrics, app.components.status
    trusted = app.components.skew.clock
    scripts = FoldScripts(app.components.redis, lambda name: app.metrics.script_seconds.labels(script=name).time())
    context = FoldContext(settings, scripts, app.components.producer, trusted, app.metrics, app.status)
    context.tracing = app.components.tracing
    app.claimed_shards = context.claimed_shards
    app.ownership = Ownership(
        FaustGroupConsumer(lambda: app.consumer, lambda: app.consumer_generation_id),
        FoldProcessors(context),
        OwnershipConfig(
            trusted, app.status, app.on_fatal, _counted(settings, app.metrics),
            settings.kafka.session_timeout_ms, settings.worker.tick_ms / 1000, on_went_back=app.metrics.went_back,
            on_assigned=lambda tps: app.metrics.rebalanced(settings.app_id, tps, trusted.now_ms()),
        ),
    )  # fmt: skip
    _add_agents(app)
    _add_timers(app, context)
    return app


def _counted(settings: Settings, metrics: Metrics) -> Callable[[str, str], None]:
    """Return a function that counts a resync, given the name of the fold and the cause; retired folds are not counted."""
    declared = {fold.name for fold in settings.folds}

    def count(fold: str, cause: str) -> None:
        if fold in declared:
            metrics.resyncs.labels(fold=fold, cause=cause).inc()

    return count


def _add_agents(app: FoldingApp) -> None:
    async def fold(stream: Any) -> None:
        # An agent only passes batches on: if it waited, the delivery to all other agents would stop.
        async for message in stream:
            app.ownership.deliver(message.take_batch())

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

    @app.timer(interval=REJECTED_EVERY_SECONDS, name="refused")
    async def rejected() -> None:
        report_rejected_events(settings.folds, app.metrics)
