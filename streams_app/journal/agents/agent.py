"""The journals of a worker, each filled by a member of its own consumer group, ``<app_id>.journal.<name>``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from redis.asyncio import Redis

from streams_app.delivery.clocks import TrustedClock
from streams_app.health.metrics import Metrics
from streams_app.health.outage_reporter import OutageReporter
from streams_app.health.status import Status
from streams_app.journal.agents.keeper import KeeperContext
from streams_app.journal.agents.processor import JournalContext, JournalProcessors
from streams_app.journal.agents.shard import FORMS, Filing, JournalShard
from streams_app.journal.agents.throttle import FilingThrottle
from streams_app.journal.store.journal_store import JournalScripts
from streams_app.journal.store.segment import Segment
from streams_app.kafka.group_agent import GroupAgent, UnreadRanges, config_of, lag_of
from streams_app.kafka.group_member import GroupMember
from streams_app.schemas.waiting import PatientRegistry, patient_registry
from streams_app.settings import JournalSettings, Settings

FETCH_WAIT_MS: Final = 200
"""Maximum wait of an idle fetch in ms. The clock of a shard that has caught up follows the time of the last fetch request."""


def journal_agents(
    settings: Settings,
    redis: Redis,
    clock: TrustedClock,
    metrics: Metrics,
    status: Status,
    journals: Sequence[JournalSettings],
    fold_backlog: Callable[[], int],
) -> list[GroupAgent]:
    """Create an agent for each journal, without connecting.

    Args:
        fold_backlog: Returns how many records the folds of this worker have not applied yet; 0 without folds.

    Raises:
        ConfigurationError: A format needs a package that is not installed, or a schema registry that is not configured.
    """
    scripts = JournalScripts(redis, lambda name: metrics.script_seconds.labels(script=name).time())
    keeper_context, throttle = KeeperContext(), FilingThrottle(fold_backlog, clock)
    schemas = patient_registry(settings, [journal.format for journal in journals], clock, status, "journals")
    return [
        _journal_agent(
            settings,
            journal,
            redis,
            scripts,
            clock,
            metrics,
            status,
            keeper_context,
            throttle,
            None if journal.format == "json" else schemas,
        )
        for journal in journals
    ]


def _journal_agent(
    settings: Settings,
    journal: JournalSettings,
    redis: Redis,
    scripts: JournalScripts,
    clock: TrustedClock,
    metrics: Metrics,
    status: Status,
    keeper_context: KeeperContext,
    throttle: FilingThrottle,
    schemas: PatientRegistry | None,
) -> GroupAgent:
    counts, outages = JournalMetrics(journal.name, metrics), OutageReporter(f"journal {journal.name}")
    keeper_context = replace(
        keeper_context,
        on_dropped=counts.on_dropped,
        on_packed=counts.on_packed,
        on_damaged=metrics.journal_damaged_blocks.labels(journal=journal.name).inc,
    )
    processors = JournalProcessors(
        JournalContext(
            settings.app_id, journal, settings.limits, redis, scripts, clock, keeper_context, throttle,
            outages, counts.on_filed,
            metrics.journal_gap_offsets.labels(journal=journal.name).inc, schemas,
        )
    )  # fmt: skip

    def update_gauges(unread_ranges: UnreadRanges | None) -> None:
        counts.set_segments(processors.shards())
        if unread_ranges is not None:
            metrics.journal_lag_records.labels(journal=journal.name).set(lag_of(unread_ranges))

    member = GroupMember(settings, journal.group, processors.topics, fetch_wait_ms=FETCH_WAIT_MS)
    config = config_of(settings, journal.group, clock, metrics, member.fail)
    return GroupAgent("journal", member, processors, config, update_gauges, status=status, outages=[outages])


class JournalMetrics:
    """Counts what the processors of a journal file, compress and remove."""

    def __init__(self, journal: str, metrics: Metrics) -> None:
        self._journal = journal
        self._metrics = metrics

    def set_segments(self, shards: Sequence[JournalShard]) -> None:
        name, metrics = self._journal, self._metrics
        segments = [segment for shard in shards for segment in shard.segments]
        for form in FORMS:
            metrics.journal_segments.labels(journal=name, form=form).set(sum(one.form == form for one in segments))
            stored = sum(one.stored_bytes for one in segments if one.form == form)
            metrics.journal_bytes.labels(journal=name, form=form).set(stored)
        reach = [shard.clock_ms - shard.segments[0].newest_ms for shard in shards if shard.segments]
        metrics.journal_oldest_seconds.labels(journal=name).set(max(0, min(reach, default=0)) / 1000)

    def on_dropped(self, segment: Segment, cause: str) -> None:
        self._metrics.journal_dropped_segments.labels(journal=self._journal, cause=cause).inc()

    def on_packed(self, before: int, after: int) -> None:
        for side, size in (("before", before), ("after", after)):
            self._metrics.journal_compressed_bytes.labels(journal=self._journal, side=side).inc(size)

    def on_filed(self, filing: Filing) -> None:
        chunk = filing.chunk
        self._metrics.journal_entries.labels(journal=self._journal).inc(chunk.entries)
        for reason, count in chunk.unkeyed.items():
            self._metrics.journal_unkeyed.labels(journal=self._journal, reason=reason).inc(count)
