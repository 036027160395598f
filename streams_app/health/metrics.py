"""The metrics of a worker, created from the table :data:`.metric_table.METRICS`."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import generate_latest

from streams_app.health.metric_description import Description
from streams_app.health.metric_table import METRICS
from streams_app.health.status import NOT_READY_CAUSES
from streams_app.reasons import OF_FOLDS, OF_READ_STORES, Reason
from streams_app.settings import Settings

STORE_RESULTS = ("written", "stale", "unchanged")
LIVE_RESULTS = ("put", "removed", "late", "other", "refused")
"""Effects of a record on a live view."""

LIVE_REJECTIONS = ("token", "page-not-in-token", "origin", "view", "views", "page", "tab", "full", "redis", "stalled")
"""Reasons for rejected requests for live views."""

READERS = ("native", "python")
JOURNAL_DROPS = ("age", "size", "memory")
UNKEYED_REASONS = ("not-json", "not-an-object", "no-key", "key-too-large")


REBALANCE_CHANGES: Final = ("joined", "gained", "lost", "moved", "same")
"""What a rebalance changes for a member of a consumer group; the first one is ``joined``."""


class Metrics:
    """The metrics of one worker, in a separate registry, because a process may run several applications, as tests do.

    Each metric is an attribute whose name omits the prefix ``streams_app_`` and the suffix ``_total``.
    """

    events_folded: Counter
    records_emitted: Counter
    open_groups: Gauge
    groups_dropped: Counter
    outbox_records: Gauge
    lag_events: Gauge
    oldest_overdue_seconds: Gauge
    emit_delay_seconds: Histogram
    folding_ratio: Gauge
    folding_ratio_last_hour: Gauge
    events_emitted: Counter
    split_folds: Counter
    gap_seconds: Histogram
    groups_begun: Counter
    added_latency_seconds: Histogram
    sample_share: Gauge
    sample_error_ratio: Gauge
    quiet_period_seconds: Gauge
    merging_backlog: Gauge
    dead_letters: Counter
    duplicate_events: Counter
    misrouted_events: Counter
    events_read: Counter
    resyncs: Counter
    known_loss_events: Counter
    log_went_back_events: Counter
    read_store_writes: Counter
    read_store_dead_letters: Counter
    read_store_known_loss_records: Counter
    read_store_absent_values: Counter
    read_store_lag_records: Gauge
    read_store_oldest_unsynced_seconds: Gauge
    published: Counter
    publish_seconds: Histogram
    subscriber_finished: Counter
    subscriber_attempts: Counter
    subscriber_dead_letters: Counter
    subscriber_waiting_events: Gauge
    subscriber_running_events: Gauge
    subscriber_retrying_events: Gauge
    subscriber_oldest_waiting_seconds: Gauge
    subscriber_handler_seconds: Histogram
    subscriber_wait_seconds: Histogram
    subscriber_attempts_per_event: Histogram
    subscriber_suspended: Gauge
    subscriber_loop_lag_seconds: Gauge
    subscriber_note_bytes: Gauge
    subscriber_resyncs: Counter
    live_events: Counter
    live_expired: Counter
    live_pages: Gauge
    live_lag_records: Gauge
    live_reading: Gauge
    live_connections: Gauge
    live_open_pages: Gauge
    live_state: Gauge
    live_messages: Counter
    live_replaced: Counter
    live_delay_seconds: Histogram
    live_look_seconds: Histogram
    live_refused: Counter
    journal_entries: Counter
    journal_bytes: Gauge
    journal_segments: Gauge
    journal_oldest_seconds: Gauge
    journal_lag_records: Gauge
    journal_dropped_segments: Counter
    journal_compressed_bytes: Counter
    journal_gap_offsets: Counter
    journal_unkeyed: Counter
    journal_damaged_blocks: Counter
    assigned_partitions: Gauge
    rebalances: Counter
    last_rebalance_timestamp_seconds: Gauge
    waiting_for: Gauge
    script_seconds: Histogram
    produce_seconds: Histogram
    open_transaction_records: Gauge
    open_transaction_seconds: Gauge
    up: Gauge
    not_ready: Gauge
    redis_refuses_writes: Gauge
    build_info: Gauge

    def __init__(self, settings: Settings) -> None:
        """Create all metrics, and all time series whose labels are known from the settings.

        They are created at once, because ``rate`` and ``increase`` of Prometheus ignore the first value of a time series.
        """
        self.registry = CollectorRegistry()
        for metric in METRICS:
            setattr(self, metric.attribute, made(metric, self.registry))
        readers = [[fold.name for fold in settings.folds], [store.name for store in settings.read_stores]]
        readers.append([journal.name for journal in settings.journals])
        for name in sum(readers, [view.name for view in settings.live_of_topics]):
            self.log_went_back_events.labels(name=name)
        for fold in settings.folds:
            self._begin_fold(fold.name)
        for store in settings.read_stores:
            for reason in OF_READ_STORES:
                self.read_store_dead_letters.labels(store=store.name, reason=reason)
            for result in STORE_RESULTS:
                self.read_store_writes.labels(store=store.name, result=result)
            self.read_store_known_loss_records.labels(store=store.name)
            self.read_store_absent_values.labels(store=store.name)
        for cause in NOT_READY_CAUSES:
            self.not_ready.labels(cause=cause)
        self._begin_live(settings)
        for journal in settings.journals:
            self._begin_journal(journal.name)
        self.build_info.labels(version=_version(), app_id=settings.app_id).set(1)
        # Adds memory, CPU time and open files of this process, under their standard names.
        ProcessCollector(registry=self.registry)
        self._emitted: dict[str, tuple[int, int]] = {}
        self._hours = {fold.name: LastHour() for fold in settings.folds}
        self._misrouted: set[str] = set()
        self._quiet_partitions: dict[str, set[int]] = {}
        self._rejected: dict[str, Tally[Reason]] = {}
        self._assigned: dict[str, frozenset[tuple[str, int]]] = {}

    def _begin_live(self, settings: Settings) -> None:
        for view in settings.live_of_topics:
            self.live_expired.labels(view=view.name)
            for result in LIVE_RESULTS:
                self.live_events.labels(view=view.name, result=result)
        for reason in LIVE_REJECTIONS if settings.live else ():
            self.live_refused.labels(reason=reason)

    def _begin_journal(self, journal: str) -> None:
        for metric in METRICS:
            if metric.kind == "counter" and metric.labels == ("journal",):
                getattr(self, metric.attribute).labels(journal=journal)
        for cause in JOURNAL_DROPS:
            self.journal_dropped_segments.labels(journal=journal, cause=cause)
        for side in ("before", "after"):
            self.journal_compressed_bytes.labels(journal=journal, side=side)
        for reason in UNKEYED_REASONS:
            self.journal_unkeyed.labels(journal=journal, reason=reason)

    def _begin_fold(self, fold: str) -> None:
        for metric in METRICS:
            if metric.labels == ("fold",):
                series = getattr(self, metric.attribute).labels(fold=fold)
                if metric.initial:
                    series.set(metric.initial)
        for reader in READERS:
            self.events_read.labels(fold=fold, reader=reader)
        for reason in OF_FOLDS:
            self.dead_letters.labels(fold=fold, reason=reason)

    def went_back(self, name: str, events: int) -> None:
        """Count events that the broker has lost after the fold, read store or other component ``name`` had read them."""
        self.log_went_back_events.labels(name=name).inc(events)

    def rebalanced(self, group: str, assigned: Collection[tuple[str, int]], now_ms: int) -> None:
        """Count a rebalance of a consumer group by what it changed for this worker.

        Args:
            group: Full name of the group.
            assigned: Topic and partition of everything that is assigned to this worker now.
            now_ms: Wall clock.
        """
        before, after = self._assigned.get(group), frozenset(assigned)
        self._assigned[group] = after
        counts = Tally(topic for topic, _ in after)
        for topic in {topic for topic, _ in after | (before or frozenset())}:
            self.assigned_partitions.labels(consumer_group=group, topic=topic).set(counts[topic])
        for one in REBALANCE_CHANGES if before is None else ():
            self.rebalances.labels(consumer_group=group, change=one)
        change = _change(before, after)
        self.rebalances.labels(consumer_group=group, change=change).inc()
        self.last_rebalance_timestamp_seconds.labels(consumer_group=group, change=change).set(now_ms / 1_000)

    def emitted(self, fold: str, reason: str, records: int, events: int, monotonic_ms: int) -> None:
        """Count folded records that the broker has acknowledged, and the events in them; update the folding ratios.

        Args:
            fold: Name of the fold.
            reason: Why the groups of these records closed, a label of the metric.
            records: Number of folded records.
            events: Number of events in them.
            monotonic_ms: Time of the monotonic clock.
        """
        emitted, folded = self._emitted.get(fold, (0, 0))
        self._emitted[fold] = emitted, folded = emitted + records, folded + events
        self.records_emitted.labels(fold=fold, reason=reason).inc(records)
        self.events_emitted.labels(fold=fold).inc(events)
        self.folding_ratio.labels(fold=fold).set(1 - emitted / folded)
        self._hours.setdefault(fold, LastHour()).add(monotonic_ms, records, events)

    def update(self, monotonic_ms: int) -> None:
        """Set the folding ratio of the last hour for each fold. A timer calls it, because it changes even without events."""
        for fold, hour in self._hours.items():
            self.folding_ratio_last_hour.labels(fold=fold).set(hour.ratio(monotonic_ms))

    def set_quiet_periods(self, fold: str, seconds: Mapping[int, float]) -> None:
        """Set the quiet period of each partition of this worker; remove the time series of all other partitions."""
        before = self._quiet_partitions.get(fold, set())
        self._quiet_partitions[fold] = set(seconds)
        for partition in before - seconds.keys():
            self.quiet_period_seconds.remove(fold, str(partition))
        for partition, one in seconds.items():
            self.quiet_period_seconds.labels(fold=fold, partition=str(partition)).set(one)

    def rejected(self, fold: str, reason: Reason) -> None:
        """Count an event of a fold that became a dead letter, for the metric and for :meth:`rejected_since`."""
        self.dead_letters.labels(fold=fold, reason=reason).inc()
        self._rejected.setdefault(fold, Tally())[reason] += 1

    def rejected_since(self) -> dict[str, Tally[Reason]]:
        """Return the number of events that were rejected since the previous call, by fold and reason."""
        rejected, self._rejected = self._rejected, {}
        return rejected

    def is_first_misrouted(self, fold: str) -> bool:
        """Return True at the first call for a fold, so that the warning about its misrouted events is logged once.

        An event is misrouted if its record key is not its group key.
        """
        is_first = fold not in self._misrouted
        self._misrouted.add(fold)
        return is_first

    def exposition(self) -> bytes:
        """Return the metrics in the text format of Prometheus."""
        return generate_latest(self.registry)


def made(metric: Description, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
    """Create a metric from its description, in a registry."""
    options: dict[str, Any] = {"registry": registry}
    if metric.kind == "histogram":
        options["buckets"] = metric.buckets
    make: Any = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}[metric.kind]
    return make(metric.name, metric.help, metric.labels, **options)


def _change(before: frozenset[tuple[str, int]] | None, after: frozenset[tuple[str, int]]) -> str:
    if before is None:
        return "joined"
    match bool(after - before), bool(before - after):
        case True, True:
            return "moved"
        case True, False:
            return "gained"
        case False, True:
            return "lost"
    return "same"


def _version() -> str:
    try:
        return version("streams_app")
    except PackageNotFoundError:  # a checkout that was not installed
        return "unknown"


def observe_all(histogram: Histogram, values: Collection[float], per_unit: int = 1) -> None:
    """Add many values to a histogram, ten times as fast as by calling ``histogram.observe`` for each.

    ``per_unit`` is 1000 for values in ms if the unit of the histogram is seconds.
    """
    bounds = [bound * per_unit for bound in histogram._upper_bounds]
    for bucket, count in Tally(map(partial(bisect_left, bounds), values)).items():
        histogram._buckets[bucket].inc(count)
    histogram._sum.inc(sum(values) / per_unit)


def observe_counts(histogram: Histogram, counts: Sequence[int], total: float) -> None:
    """Add observations to a histogram, given their number in each bucket and their sum.

    Args:
        histogram: A histogram without labels, or the child of a histogram for given labels.
        counts: Number of observations in each bucket, including the last one, which has no upper bound.
        total: Sum of the observations.
    """
    for bucket, count in enumerate(counts):
        if count:
            histogram._buckets[bucket].inc(count)
    histogram._sum.inc(total)


MINUTE_MS: Final = 60_000
MINUTES: Final = 60


class LastHour:
    """Counts records, and the events folded into them, in the current minute and the 59 before it."""

    def __init__(self) -> None:
        self._minutes: dict[int, tuple[int, int]] = {}

    def add(self, monotonic_ms: int, records: int, events: int) -> None:
        """Add a number of records, and of the events folded into them, to the counts of the current minute."""
        minute = monotonic_ms // MINUTE_MS
        if minute not in self._minutes:
            self._forget(minute)
        had_records, had_events = self._minutes.get(minute, (0, 0))
        self._minutes[minute] = had_records + records, had_events + events

    def ratio(self, monotonic_ms: int) -> float:
        """Return the folding ratio of the last hour: 1 - records / events.

        Without events it is NaN, because 0 would mean that nothing is folded.
        """
        self._forget(monotonic_ms // MINUTE_MS)
        records, events = (sum(counted) for counted in zip(*self._minutes.values(), strict=True)) if self._minutes else (0, 0)
        return 1 - records / events if events else math.nan

    def _forget(self, present: int) -> None:
        """Drop minutes that are an hour or more before the current one."""
        self._minutes = {minute: counted for minute, counted in self._minutes.items() if minute > present - MINUTES}
