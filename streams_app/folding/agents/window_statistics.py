"""Estimates how the window of a fold, its quiet period and ``max_hold``, affects its records; exports the estimates as metrics."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from streams_app.delivery.batch import TP
from streams_app.fold import Fold
from streams_app.folding.core.chunks import Chunk
from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.group_sample import GroupSample, ObservedGroups
from streams_app.folding.core.record import SealedGroup
from streams_app.health.metric_table import GAP_BUCKETS
from streams_app.health.metrics import Metrics, observe_counts


class WindowStatistics:
    """Samples the groups of one fold in all partitions of a worker, and exports as metrics how the window affects its records.

    The sample exists only in memory: after a restart of the worker, a new one begins.
    """

    def __init__(self, fold: Fold, metrics: Metrics) -> None:
        self._sample = GroupSample(Bounds.of(fold), [seconds * 1_000 for seconds in GAP_BUCKETS])
        self._source = fold.source
        name = fold.name
        self._gaps, self._waits = metrics.gap_seconds.labels(fold=name), metrics.added_latency_seconds.labels(fold=name)
        self._begun, self._split = metrics.groups_begun.labels(fold=name), metrics.split_folds.labels(fold=name)
        self._share, self._error = metrics.sample_share.labels(fold=name), metrics.sample_error_ratio.labels(fold=name)

    def folded(self, partition: int, chunk: Chunk) -> None:
        self._record(self._sample.folded(partition, chunk))

    def emitted(self, partition: int, records: Sequence[SealedGroup], now_ms: int) -> None:
        self._record(self._sample.emitted(partition, records, now_ms))

    def keep(self, assigned: Collection[TP]) -> None:
        self._sample.keep({tp.partition for tp in assigned if tp.topic == self._source})

    def _record(self, seen: ObservedGroups) -> None:
        observe_counts(self._gaps, seen.gaps.counts, seen.gaps.total_ms / 1_000)
        observe_counts(self._waits, seen.waits.counts, seen.waits.total_ms / 1_000)
        self._begun.inc(seen.begun)
        self._split.inc(seen.split)
        if self._sample.weight > 1:
            self._share.set(self._sample.share)
            self._error.set(self._sample.error)
