"""The agent that keeps one read store in sync: a member of the store's consumer group, and the metrics of the store.

The group is ``<app_id>.read-store.<name>``. An unavailable store, a rebalance of this group or a failing client delays neither
folding nor another store. The lag of the store is the metric ``streams_app_read_store_lag_records``.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from streams_app.clock import Clock
from streams_app.delivery.batch import TP
from streams_app.delivery.clocks import TrustedClock
from streams_app.delivery.ownership import Ownership, OwnershipConfig
from streams_app.health.metrics import Metrics
from streams_app.health.outage_reporter import OutageReporter
from streams_app.health.status import Status
from streams_app.health.unread import Unread, unread_since
from streams_app.kafka.group_member import GroupMember, wait
from streams_app.read_store.sync.processor import StoreProcessors
from streams_app.read_store.sync.store_sync import StoreSync
from streams_app.read_store.sync.traced import traced
from streams_app.settings import ReadStoreSettings, Settings
from streams_app.tracing import tracing_of

logger = logging.getLogger(__name__)

REPORT_EVERY_SECONDS: Final = 2.0


class ReadStoreAgent:
    """Keeps one read store in sync with the output topics of its folds. Several workers share the partitions of these topics."""

    def __init__(self, settings: Settings, store: ReadStoreSettings, metrics: Metrics, clock: Clock) -> None:
        self._clock = clock
        self._lag = metrics.read_store_lag_records.labels(store.name)
        self._age = metrics.read_store_oldest_unsynced_seconds.labels(store.name)
        self._unread: dict[TP, Unread] = {}
        self._sync = StoreSync(settings, store, metrics, clock)
        outages = OutageReporter(f"read store {store.name}", metrics.up.labels(component=f"read_store.{store.name}").set, clock)
        sync_once, tracing = None, tracing_of(settings)
        if tracing is not None:
            sync_once = traced(self._sync, f"{settings.app_id}.{store.group}", tracing)
        self._processors = processors = StoreProcessors(self._sync, outages, sync_once)
        self._member = GroupMember(settings, store.group, processors.topics)
        self.ownership = Ownership(
            self._member,
            processors,
            OwnershipConfig(
                TrustedClock(clock),
                Status(),  # a worker without its read store is ready, because it still folds
                on_fatal=self._member.fail,
                on_resync=lambda name, cause: None,
                on_went_back=metrics.went_back,
                session_ms=settings.kafka.session_timeout_ms,
                tick_seconds=settings.worker.tick_ms / 1000,
            ),
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Sync until ``stop`` is set, then commit and leave the group within about five seconds.

        Raises:
            ExceptionGroup: An unexpected error, which is a defect of this project; the member has left the group.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                reporting = tasks.create_task(self._report(stop), name="read-store-report")
                await self._member.run(self.ownership, stop)
                reporting.cancel()
        finally:
            await self._sync.close()

    async def _report(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self._report_once()
            await wait(stop, REPORT_EVERY_SECONDS)

    async def _report_once(self) -> None:
        """Set the metrics of this member's partitions: the number of records that are not synced, and the age of the oldest.

        While the broker does not answer, the lag keeps its last value, and the age rises.
        """
        try:
            unread_ranges = await self._member.unread_ranges(self.ownership.positions())
        except Exception as error:  # any error: the next report reads the lag again
            logger.debug("cannot read the lag of a read store", exc_info=error)
        else:
            self._lag.set(sum(max(0, end - position) for position, end in unread_ranges.values()))
            self._unread = unread_since(self._unread, unread_ranges, self._clock.now_ms())
        since = {tp: one.since_ms for tp, one in self._unread.items()} | self._processors.oldest_ms()
        now_ms = self._clock.now_ms()
        self._age.set(max(0, now_ms - min(since.values(), default=now_ms)) / 1000)
