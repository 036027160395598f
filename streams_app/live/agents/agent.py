"""Runs the live views of a worker, each in its own consumer group, ``<app_id>.live.<view>``.

With a group of its own, a view does not delay other views, folds or subscribers: neither while it is rebuilt from old records,
nor during a rebalance, nor if its Kafka client fails.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from redis.asyncio import Redis

from streams_app.delivery.batch import TP
from streams_app.delivery.clocks import TrustedClock
from streams_app.delivery.dead_letters import DeadLetterSender, RejectingComponent
from streams_app.delivery.ownership import Ownership, OwnershipConfig
from streams_app.delivery.producer import Producer
from streams_app.delivery.scripts import Scripts
from streams_app.health.metrics import Metrics
from streams_app.health.outage_reporter import OutageReporter
from streams_app.health.status import Status
from streams_app.kafka.group_member import GroupMember, wait
from streams_app.live.agents.processor import ViewContext, ViewProcessors
from streams_app.live.core.operations import ViewBatch
from streams_app.live.store.view_store import ApplyReply, ExpireReply, LiveScripts
from streams_app.schemas.registry import registry_of
from streams_app.schemas.waiting import PatientRegistry, report_to
from streams_app.settings import LiveView, Settings

logger = logging.getLogger(__name__)

REPORT_EVERY_SECONDS: Final = 2.0

FETCH_WAIT_MS: Final = 200
"""Maximum wait of a fetch in ms. The clock of a view is the time of its last fetch request, so items may expire this much later."""


class ViewAgent:
    """Maintains one live view in Redis from its source topic. Several workers share the partitions of the topic."""

    def __init__(
        self,
        settings: Settings,
        view: LiveView,
        scripts: Scripts,
        producer: Producer,
        clock: TrustedClock,
        metrics: Metrics,
        schemas: PatientRegistry | None,
    ) -> None:
        self._view = view
        self._metrics = metrics
        component = RejectingComponent("view", view.name, settings.app_id, view.dead_letters)

        def dead_letters_of(tp: TP) -> DeadLetterSender:
            return DeadLetterSender(component, tp, producer, clock, lambda name, reason: None)

        outages = OutageReporter(f"live view {view.name}")
        self._processors = ViewProcessors(
            ViewContext(
                settings.app_id, view, settings.limits.value_bytes, scripts, dead_letters_of, clock, outages,
                self._on_part, self._on_expired, schemas,
            )
        )  # fmt: skip
        self._member = GroupMember(settings, view.group, self._processors.topics, fetch_wait_ms=FETCH_WAIT_MS)
        self.ownership = Ownership(
            self._member,
            self._processors,
            OwnershipConfig(
                clock,
                Status(),  # not that of the worker, which is ready while a view is rebuilt; the view shows its own state
                on_fatal=self._member.fail,
                on_resync=lambda name, cause: None,
                on_went_back=metrics.went_back,
                session_ms=settings.kafka.session_timeout_ms,
                tick_seconds=settings.worker.tick_ms / 1000,
            ),
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Maintain the view until the worker stops, then commit and leave the group. During outages, wait and retry."""
        reporting = asyncio.create_task(self._report(stop), name=f"live-report {self._view.name}")
        try:
            await self._member.run(self.ownership, stop)
        finally:
            reporting.cancel()

    async def _report(self, stop: asyncio.Event) -> None:
        name, metrics = self._view.name, self._metrics
        while not stop.is_set():
            pages, is_reading = self._processors.status()
            metrics.live_pages.labels(view=name).set(pages)
            metrics.live_reading.labels(view=name).set(is_reading)
            try:
                unread_ranges = await self._member.unread_ranges(self.ownership.positions())
            except Exception as error:  # any error: the next report reads the lag again
                logger.debug("cannot read the lag of a live view", exc_info=error)
            else:
                lag = sum(max(0, end - position) for position, end in unread_ranges.values())
                metrics.live_lag_records.labels(view=name).set(lag)
            await wait(stop, REPORT_EVERY_SECONDS)

    def _on_part(self, part: ViewBatch, applied: ApplyReply) -> None:
        counts = dict(part.counts)
        if applied.expired:
            counts["put"] = max(0, counts.get("put", 0) - applied.expired)
            counts["late"] = applied.expired
        for result, count in counts.items():
            self._metrics.live_events.labels(view=self._view.name, result=result).inc(count)

    def _on_expired(self, expired: ExpireReply) -> None:
        self._metrics.live_expired.labels(view=self._view.name).inc(expired.items)


class LiveViews:
    """Maintains all live views of topics, by one :class:`ViewAgent` for each."""

    def __init__(
        self,
        settings: Settings,
        redis: Redis,
        producer: Producer,
        clock: TrustedClock,
        metrics: Metrics,
        status: Status,
        watch: Callable[[str, Ownership], None],
        views: Sequence[LiveView],
    ) -> None:
        """Create the agents, without connecting.

        Args:
            watch: Called when a view starts, with its consumer group and its ownership, so that the watchdog detects a stall.

        Raises:
            ConfigurationError: A format needs a package that is not installed, or a schema registry that is not configured.
        """
        self._views = views
        self._watch = watch
        scripts = LiveScripts(redis, lambda name: metrics.script_seconds.labels(script=name).time())
        registry = registry_of(settings, [view.format for view in views], clock)
        report = report_to(status, "live views")
        schemas = None if registry is None else PatientRegistry(registry, clock, report, reports_outages=False)
        self._agents = [
            ViewAgent(settings, view, scripts, producer, clock, metrics, None if view.format == "json" else schemas)
            for view in views
        ]

    async def run(self, stop: asyncio.Event) -> None:
        for view, agent in zip(self._views, self._agents, strict=True):
            self._watch(view.group, agent.ownership)
        await asyncio.gather(*(agent.run(stop) for agent in self._agents))
