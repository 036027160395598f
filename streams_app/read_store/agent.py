"""The agent that keeps the read store in sync: its member of a consumer group, and what is told of the store.

The group is ``<app_id>.read-store``. A store that is away, a rebalance of this group or a client that fails never delays folding,
and ``streams_app_read_store_lag_records`` says how far behind the store is.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from streams_app.clock import Clock
from streams_app.delivery.ownership import Ownership
from streams_app.delivery.surroundings import Surroundings
from streams_app.delivery.trusted_clock import TrustedClock
from streams_app.kafka.member import GroupMember, wait
from streams_app.metrics import Metrics
from streams_app.patience import Patience
from streams_app.read_store.processor import StoreProcessors
from streams_app.read_store.sync import Sync
from streams_app.settings import Settings
from streams_app.status import Status

logger = logging.getLogger(__name__)

GROUP: Final = "read-store"
REPORT_EVERY_SECONDS: Final = 2.0


class ReadStoreAgent:
    """Reads the output topics of ``read_store.folds`` and syncs the store; several workers share the partitions."""

    def __init__(self, settings: Settings, metrics: Metrics, clock: Clock) -> None:
        """Connects nothing yet.

        Raises:
            ConfigurationError: ``[read_store]`` is missing or cannot be used.
        """
        self._metrics = metrics
        self._sync = Sync(settings, metrics, clock)
        patience = Patience("read store sync", metrics.up.labels(component="read_store").set)
        processors = StoreProcessors(self._sync, patience)
        self._member = GroupMember(settings, GROUP, processors.topics)
        self._ownership = Ownership(
            self._member,
            processors,
            Surroundings(
                TrustedClock(clock),
                Status(),  # a worker whose read store is away is ready: it folds
                on_fatal=self._member.fail,
                on_resync=lambda name, cause: None,
                session_ms=settings.kafka.session_timeout_ms,
                tick_seconds=settings.worker.tick_ms / 1000,
            ),
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Syncs until told to stop, then commits and leaves the group; returns within about five seconds. Raises nothing.

        Args:
            stop: Set by the application.
        """
        reporting = asyncio.create_task(self._report(stop), name="read-store-report")
        try:
            await self._member.run(self._ownership, stop)
        finally:
            reporting.cancel()
            await asyncio.wait({reporting})
            await self._sync.close()

    async def _report(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self._report_once()
            await wait(stop, REPORT_EVERY_SECONDS)

    async def _report_once(self) -> None:
        """Tells how many records the store has not taken, of all partitions of this member; else what is told stays."""
        try:
            lag = await self._member.left(self._ownership.positions())
        except Exception as error:  # whatever it is: it is asked again
            logger.debug("lag of the read store is not known now", exc_info=error)
        else:
            self._metrics.read_store_lag_records.labels(self._sync.store_name).set(lag)
