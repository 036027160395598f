"""The live views of a worker, each maintained by a member of its own consumer group, ``<app_id>.live.<view>``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from redis.asyncio import Redis

from streams_app.delivery.batch import TP
from streams_app.delivery.clocks import TrustedClock
from streams_app.delivery.dead_letters import DeadLetterSender, RejectingComponent
from streams_app.delivery.producer import Producer
from streams_app.delivery.scripts import Scripts
from streams_app.health.metrics import Metrics
from streams_app.health.outage_reporter import OutageReporter
from streams_app.health.status import Status
from streams_app.kafka.group_agent import GroupAgent, UnreadRanges, config_of, lag_of
from streams_app.kafka.group_member import GroupMember
from streams_app.live.agents.processor import ViewContext, ViewProcessors
from streams_app.live.core.operations import ViewBatch
from streams_app.live.store.view_store import ApplyReply, ExpireReply, LiveScripts
from streams_app.schemas.waiting import PatientRegistry, patient_registry
from streams_app.settings import LiveView, Settings

FETCH_WAIT_MS: Final = 200
"""Maximum wait of a fetch in ms. The clock of a view is the time of its last fetch request, so items may expire this much later."""


def view_agents(
    settings: Settings,
    redis: Redis,
    producer: Producer,
    clock: TrustedClock,
    metrics: Metrics,
    status: Status,
    views: Sequence[LiveView],
) -> list[GroupAgent]:
    """Create an agent for each live view of a topic, without connecting.

    Raises:
        ConfigurationError: A format needs a package that is not installed, or a schema registry that is not configured.
    """
    scripts = LiveScripts(redis, lambda name: metrics.script_seconds.labels(script=name).time())
    schemas = patient_registry(settings, [view.format for view in views], clock, status, "live views")
    return [
        _view_agent(settings, view, scripts, producer, clock, metrics, status, None if view.format == "json" else schemas)
        for view in views
    ]


def _view_agent(
    settings: Settings,
    view: LiveView,
    scripts: Scripts,
    producer: Producer,
    clock: TrustedClock,
    metrics: Metrics,
    status: Status,
    schemas: PatientRegistry | None,
) -> GroupAgent:
    component = RejectingComponent("view", view.name, settings.app_id, view.dead_letters)
    counts = ViewMetrics(view.name, metrics)

    def dead_letters_of(tp: TP) -> DeadLetterSender:
        return DeadLetterSender(component, tp, producer, clock, lambda name, reason: None)

    outages = OutageReporter(f"live view {view.name}")
    processors = ViewProcessors(
        ViewContext(
            settings.app_id, view, settings.limits.value_bytes, scripts, dead_letters_of, clock, outages,
            counts.on_part, counts.on_expired, schemas,
        )
    )  # fmt: skip

    def update_gauges(unread_ranges: UnreadRanges | None) -> None:
        pages, is_reading = processors.status()
        metrics.live_pages.labels(view=view.name).set(pages)
        metrics.live_reading.labels(view=view.name).set(is_reading)
        if unread_ranges is not None:
            metrics.live_lag_records.labels(view=view.name).set(lag_of(unread_ranges))

    member = GroupMember(settings, view.group, processors.topics, fetch_wait_ms=FETCH_WAIT_MS)
    config = config_of(settings, view.group, clock, metrics, member.fail)
    return GroupAgent("live view", member, processors, config, update_gauges, status=status, outages=[outages])


class ViewMetrics:
    """Counts what the processors of a view apply and remove."""

    def __init__(self, view: str, metrics: Metrics) -> None:
        self._view = view
        self._metrics = metrics

    def on_part(self, part: ViewBatch, applied: ApplyReply) -> None:
        counts = dict(part.counts)
        if applied.expired:
            counts["put"] = max(0, counts.get("put", 0) - applied.expired)
            counts["late"] = applied.expired
        for result, count in counts.items():
            self._metrics.live_events.labels(view=self._view, result=result).inc(count)

    def on_expired(self, expired: ExpireReply) -> None:
        self._metrics.live_expired.labels(view=self._view).inc(expired.items)
