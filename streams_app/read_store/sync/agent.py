"""The agent that keeps one read store in sync: its member of a consumer group, and what is told of the store.

The group is ``<app_id>.read-store.<name>``. A store that is away, a rebalance of this group or a client that fails delays neither
folding nor another store, and ``streams_app_read_store_lag_records`` says how far behind the store is.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from streams_app.clock import Clock
from streams_app.delivery.batch import TP
from streams_app.delivery.clocks import TrustedClock
from streams_app.delivery.ownership import Ownership, OwnershipConfig
from streams_app.health.metrics import Metrics
from streams_app.health.outage_reporter import OutageReporter
from streams_app.health.status import Status
from streams_app.kafka.member import GroupMember, wait
from streams_app.read_store.sync.observed_ends import ObservedEnds, age_ms
from streams_app.read_store.sync.processor import StoreProcessors
from streams_app.read_store.sync.store_sync import StoreSync
from streams_app.settings import ReadStoreSettings, Settings

logger = logging.getLogger(__name__)

REPORT_EVERY_SECONDS: Final = 2.0


class ReadStoreAgent:
    """Reads the output topics of the folds of one store and syncs it; several workers share the partitions."""

    def __init__(self, settings: Settings, store: ReadStoreSettings, metrics: Metrics, clock: Clock) -> None:
        """Connects nothing yet.

        Args:
            settings: Of the application.
            store: The store that is kept in sync.
            metrics: Where lag, age and writes are told.
            clock: What ages and the column ``updated_ms`` are taken from.

        Raises:
            ConfigurationError: The store or its source cannot be used.
        """
        self._clock = clock
        self._lag = metrics.read_store_lag_records.labels(store.name)
        self._age = metrics.read_store_oldest_unsynced_seconds.labels(store.name)
        self._ends: dict[TP, ObservedEnds] = defaultdict(ObservedEnds)
        self._waiting: dict[TP, int | None] = {}
        self._sync = StoreSync(settings, store, metrics, clock)
        outages = OutageReporter(f"read store {store.name}", metrics.up.labels(component=f"read_store.{store.name}").set, clock)
        self._processors = processors = StoreProcessors(self._sync, outages)
        self._member = GroupMember(settings, store.group, processors.topics)
        self.ownership = Ownership(
            self._member,
            processors,
            OwnershipConfig(
                TrustedClock(clock),
                Status(),  # a worker whose read store is away is ready: it folds
                on_fatal=self._member.fail,
                on_resync=lambda name, cause: None,
                on_went_back=metrics.went_back,
                session_ms=settings.kafka.session_timeout_ms,
                tick_seconds=settings.worker.tick_ms / 1000,
            ),
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Syncs until told to stop, then commits and leaves the group; returns within about five seconds.

        Whatever is away is waited for.

        Args:
            stop: Set by the application.

        Raises:
            ExceptionGroup: A defect, as nobody knows these errors; the group has been left.
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
        """Tells how many records the store has not taken, of all partitions of this member, and how old the oldest one is.

        While the broker does not answer, the lag stays as it was told last, and the age rises.
        """
        try:
            places = await self._member.places(self.ownership.positions())
        except Exception as error:  # whatever it is: it is asked again
            logger.debug("lag of the read store is not known now", exc_info=error)
        else:
            self._observe_ends(places)
        in_progress = self._processors.oldest_ms()
        since = [in_progress.get(tp, waiting) for tp, waiting in self._waiting.items()]
        self._age.set(age_ms(since, self._clock.now_ms()) / 1000)

    def _observe_ends(self, places: Mapping[TP, tuple[int, int]]) -> None:
        self._lag.set(sum(max(0, end - position) for position, end in places.values()))
        for gone in self._ends.keys() - places.keys():
            del self._ends[gone]
        for tp, (_, end) in places.items():
            self._ends[tp].observe(end, self._clock.now_ms())
        self._waiting = {tp: self._ends[tp].since(position) for tp, (position, _) in places.items()}
