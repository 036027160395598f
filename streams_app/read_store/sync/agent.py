"""The agent that keeps one read store in sync, as a member of the consumer group ``<app_id>.read-store.<name>``.

Also the check at the start of a worker whether stores and sources accept its credentials and grant the rights that it needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final

from streams_app.clock import Clock
from streams_app.delivery.batch import TP
from streams_app.delivery.clocks import TrustedClock
from streams_app.errors import ConfigurationError
from streams_app.health.metrics import Metrics
from streams_app.health.outage_reporter import OutageReporter
from streams_app.health.status import Status
from streams_app.health.unread import Unread, unread_since
from streams_app.kafka.group_agent import GroupAgent, UnreadRanges, config_of, lag_of
from streams_app.kafka.group_member import GroupMember
from streams_app.read_store.core.errors import AccessDeniedError
from streams_app.read_store.registry import open_source, open_store
from streams_app.read_store.sync.processor import StoreProcessors
from streams_app.read_store.sync.store_sync import StoreSync
from streams_app.read_store.sync.traced import traced
from streams_app.settings import ReadStoreSettings, Settings
from streams_app.settings.databases import database_of
from streams_app.tracing import tracing_of

PROBE_SECONDS: Final = 5.0
"""A server that does not answer within this time counts as unavailable."""


def read_store_agent(
    settings: Settings, store: ReadStoreSettings, metrics: Metrics, clock: Clock, status: Status | None = None
) -> GroupAgent:
    """Create the agent of a read store, without connecting; its outages become remarks of ``status``."""
    sync = StoreSync(settings, store, metrics, clock)
    outages = OutageReporter(f"read store {store.name}", metrics.up.labels(component=f"read_store.{store.name}").set, clock)
    sync_once, tracing = None, tracing_of(settings)
    if tracing is not None:
        sync_once = traced(sync, f"{settings.app_id}.{store.group}", tracing)
    processors = StoreProcessors(sync, outages, sync_once)
    member = GroupMember(settings, store.group, processors.topics)
    config = config_of(settings, store.group, TrustedClock(clock), metrics, member.fail)
    gauges = ReadStoreGauges(store.name, metrics, clock, processors)
    return GroupAgent("read store", member, processors, config, gauges.update, status=status, outages=[outages], on_end=sync.close)


class ReadStoreGauges:
    """Gauges of this member's partitions: the number of records that are not synced, and the age of the oldest.

    While the broker does not answer, the lag keeps its last value, and the age rises.
    """

    def __init__(self, store: str, metrics: Metrics, clock: Clock, processors: StoreProcessors) -> None:
        self._clock = clock
        self._processors = processors
        self._lag = metrics.read_store_lag_records.labels(store)
        self._age = metrics.read_store_oldest_unsynced_seconds.labels(store)
        self._unread: dict[TP, Unread] = {}

    def update(self, unread_ranges: UnreadRanges | None) -> None:
        if unread_ranges is not None:
            self._lag.set(lag_of(unread_ranges))
            self._unread = unread_since(self._unread, unread_ranges, self._clock.now_ms())
        since = {tp: one.since_ms for tp, one in self._unread.items()} | self._processors.oldest_ms()
        now_ms = self._clock.now_ms()
        self._age.set(max(0, now_ms - min(since.values(), default=now_ms)) / 1000)


async def require_store_access(stores: Sequence[ReadStoreSettings]) -> None:
    """Check that stores and sources accept the worker's credentials and grant its rights.

    All servers are checked concurrently: checkpoints are read, a write without effect is tried, and sources get an empty request. A
    server that is unavailable, slow or not initialised passes the check, because the worker waits for it. Files and users'
    functions are not checked, because they need no login.

    Raises:
        ConfigurationError: A server rejects credentials or a right, or a password cannot be read; every fault is listed.
    """
    found = await asyncio.gather(*(attempt(store) for store in stores for attempt in (_store_fault, _source_fault)))
    if faults := [fault for fault in found if fault is not None]:
        raise ConfigurationError(faults)


async def _store_fault(declared: ReadStoreSettings) -> str | None:
    database = database_of(declared.url)
    if database is None or not database.has_login:
        return None
    store = open_store(declared)

    async def probe() -> None:
        await store.checkpoints()
        await store.probe()

    return await _fault(probe, store.close)


async def _source_fault(declared: ReadStoreSettings) -> str | None:
    database = database_of(declared.source_url or "")
    if declared.source != "sql" or database is None or not (database.has_login and database.is_source):
        return None
    source = open_source(declared)
    return await _fault(source.check, source.close)


async def _fault(probe: Callable[[], Coroutine[Any, Any, None]], close: Callable[[], Awaitable[None]]) -> str | None:
    """Run the probe of a store or source, then close it; return the text of an error that waiting cannot fix.

    Returns None if the probe succeeds, takes too long, or has an error that may be temporary.
    """
    task = asyncio.create_task(probe())
    await asyncio.wait((task,), timeout=PROBE_SECONDS)
    task.cancel()
    await close()  # otherwise the cancelled statement would wait for the server
    await asyncio.wait((task,), timeout=PROBE_SECONDS)
    if not task.done() or task.cancelled():
        return None
    error = task.exception()
    return str(error) if isinstance(error, (AccessDeniedError, ConfigurationError)) else None
