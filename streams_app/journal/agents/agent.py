"""Runs the journals of a worker, each in its own consumer group, ``<app_id>.journal.<name>``.

Because of its own group, a journal delays no fold, live view or subscriber while it is rebuilt, its group rebalances, or its Kafka
client fails.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from redis.asyncio import Redis

from streams_app.delivery.clocks import TrustedClock
from streams_app.delivery.ownership import Ownership, OwnershipConfig
from streams_app.health.metrics import Metrics
from streams_app.health.outage_reporter import OutageReporter
from streams_app.health.status import Status
from streams_app.journal.agents.keeper import KeeperContext
from streams_app.journal.agents.processor import JournalContext, JournalProcessors
from streams_app.journal.agents.shard import FORMS, Filing
from streams_app.journal.agents.throttle import FilingThrottle
from streams_app.journal.store.journal_store import JournalScripts
from streams_app.journal.store.segment import Segment
from streams_app.kafka.group_member import GroupMember, wait
from streams_app.schemas.registry import registry_of
from streams_app.schemas.waiting import PatientRegistry, report_to
from streams_app.settings import JournalSettings, Settings

logger = logging.getLogger(__name__)

REPORT_EVERY_SECONDS: Final = 2.0

FETCH_WAIT_MS: Final = 200
"""Maximum wait of an idle fetch in ms. The clock of a shard that has caught up follows the time of the last fetch request."""


class JournalAgent:
    """Fills one journal from its source topic, as a member of the journal's consumer group."""

    def __init__(
        self,
        settings: Settings,
        journal: JournalSettings,
        redis: Redis,
        scripts: JournalScripts,
        clock: TrustedClock,
        metrics: Metrics,
        keeper_context: KeeperContext,
        throttle: FilingThrottle,
        schemas: PatientRegistry | None,
    ) -> None:
        self._journal = journal
        self._metrics = metrics
        on_damaged = metrics.journal_damaged_blocks.labels(journal=journal.name).inc
        keeper_context = replace(keeper_context, on_dropped=self._on_dropped, on_packed=self._on_packed, on_damaged=on_damaged)
        self._processors = JournalProcessors(
            JournalContext(
                settings.app_id, journal, settings.limits, redis, scripts, clock, keeper_context, throttle,
                OutageReporter(f"journal {journal.name}"), self._on_filed,
                metrics.journal_gap_offsets.labels(journal=journal.name).inc, schemas,
            )
        )  # fmt: skip
        self._member = GroupMember(settings, journal.group, self._processors.topics, fetch_wait_ms=FETCH_WAIT_MS)
        self.ownership = Ownership(
            self._member,
            self._processors,
            OwnershipConfig(
                clock,
                Status(),  # not the worker's: a worker is ready during a rebuild, because it folds, and readers get stored events
                on_fatal=self._member.fail,
                on_resync=lambda name, cause: None,
                on_went_back=metrics.went_back,
                session_ms=settings.kafka.session_timeout_ms,
                tick_seconds=settings.worker.tick_ms / 1000,
            ),
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Fill the journal until the worker stops, then commit and leave the group. During outages, wait and retry."""
        reporting = asyncio.create_task(self._report(stop), name=f"journal-report {self._journal.name}")
        try:
            await self._member.run(self.ownership, stop)
        finally:
            reporting.cancel()

    async def _report(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            self._report_segments()
            try:
                unread_ranges = await self._member.unread_ranges(self.ownership.positions())
            except Exception as error:  # any error: the next round retries
                logger.debug("cannot read the lag of a journal", exc_info=error)
            else:
                lag = sum(max(0, end - position) for position, end in unread_ranges.values())
                self._metrics.journal_lag_records.labels(journal=self._journal.name).set(lag)
            await wait(stop, REPORT_EVERY_SECONDS)

    def _report_segments(self) -> None:
        name, metrics = self._journal.name, self._metrics
        shards = self._processors.shards()
        segments = [segment for shard in shards for segment in shard.segments]
        for form in FORMS:
            metrics.journal_segments.labels(journal=name, form=form).set(sum(one.form == form for one in segments))
            stored = sum(one.stored_bytes for one in segments if one.form == form)
            metrics.journal_bytes.labels(journal=name, form=form).set(stored)
        reach = [shard.clock_ms - shard.segments[0].newest_ms for shard in shards if shard.segments]
        metrics.journal_oldest_seconds.labels(journal=name).set(max(0, min(reach, default=0)) / 1000)

    def _on_dropped(self, segment: Segment, cause: str) -> None:
        self._metrics.journal_dropped_segments.labels(journal=self._journal.name, cause=cause).inc()

    def _on_packed(self, before: int, after: int) -> None:
        for side, size in (("before", before), ("after", after)):
            self._metrics.journal_compressed_bytes.labels(journal=self._journal.name, side=side).inc(size)

    def _on_filed(self, filing: Filing) -> None:
        name, chunk = self._journal.name, filing.chunk
        self._metrics.journal_entries.labels(journal=name).inc(chunk.entries)
        for reason, count in chunk.unkeyed.items():
            self._metrics.journal_unkeyed.labels(journal=name, reason=reason).inc(count)


class Journals:
    """Fills all journals of a worker, by one :class:`JournalAgent` each."""

    def __init__(
        self,
        settings: Settings,
        redis: Redis,
        clock: TrustedClock,
        metrics: Metrics,
        status: Status,
        watch: Callable[[str, Ownership], None],
        journals: Sequence[JournalSettings],
        fold_backlog: Callable[[], int],
    ) -> None:
        """Create the agents of all journals, without connecting.

        Args:
            watch: Called when a journal starts, with its consumer group and its ownership, so that the watchdog detects a stall.
            fold_backlog: Returns how many records the folds of this worker have not applied yet; 0 without folds.

        Raises:
            ConfigurationError: A format needs a package that is not installed, or a schema registry that is not configured.
        """
        self._journals = journals
        self._watch = watch
        scripts = JournalScripts(redis, lambda name: metrics.script_seconds.labels(script=name).time())
        keeper_context, throttle = KeeperContext(), FilingThrottle(fold_backlog, clock)
        registry = registry_of(settings, [journal.format for journal in journals], clock)
        report = report_to(status, "journals")
        schemas = None if registry is None else PatientRegistry(registry, clock, report, reports_outages=False)
        self._agents = [
            JournalAgent(
                settings,
                journal,
                redis,
                scripts,
                clock,
                metrics,
                keeper_context,
                throttle,
                None if journal.format == "json" else schemas,
            )
            for journal in journals
        ]

    async def run(self, stop: asyncio.Event) -> None:
        for journal, agent in zip(self._journals, self._agents, strict=True):
            self._watch(journal.group, agent.ownership)
        await asyncio.gather(*(agent.run(stop) for agent in self._agents))
