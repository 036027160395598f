"""The agent that keeps one read store in sync, as a member of the consumer group ``<app_id>.read-store.<name>``."""

from __future__ import annotations

from streams_app.clock import Clock
from streams_app.delivery.batch import TP
from streams_app.delivery.clocks import TrustedClock
from streams_app.health.metrics import Metrics
from streams_app.health.outage_reporter import OutageReporter
from streams_app.health.unread import Unread, unread_since
from streams_app.kafka.group_agent import GroupAgent, UnreadRanges, config_of, lag_of
from streams_app.kafka.group_member import GroupMember
from streams_app.read_store.sync.processor import StoreProcessors
from streams_app.read_store.sync.store_sync import StoreSync
from streams_app.read_store.sync.traced import traced
from streams_app.settings import ReadStoreSettings, Settings
from streams_app.tracing import tracing_of


def read_store_agent(settings: Settings, store: ReadStoreSettings, metrics: Metrics, clock: Clock) -> GroupAgent:
    """Create the agent of a read store, without connecting."""
    sync = StoreSync(settings, store, metrics, clock)
    outages = OutageReporter(f"read store {store.name}", metrics.up.labels(component=f"read_store.{store.name}").set, clock)
    sync_once, tracing = None, tracing_of(settings)
    if tracing is not None:
        sync_once = traced(sync, f"{settings.app_id}.{store.group}", tracing)
    processors = StoreProcessors(sync, outages, sync_once)
    member = GroupMember(settings, store.group, processors.topics)
    config = config_of(settings, TrustedClock(clock), metrics, member.fail)
    gauges = ReadStoreGauges(store.name, metrics, clock, processors)
    return GroupAgent("read store", member, processors, config, gauges.update, on_end=sync.close)


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
