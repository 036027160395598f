"""What the gauges show, from what the last scripts said: nothing here scans groups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Protocol

from faust.types import TP

from streams_app.folding.ownership import Ownership
from streams_app.folding.partition_clock import ReaderView, quiet_groups_close
from streams_app.folding.shard import Shard
from streams_app.metrics import Metrics


class Views(Protocol):
    """Where the reader stands."""

    def reader_view(self, tp: TP) -> tuple[ReaderView, int | None]:
        """The last fetch reply and the reader's position."""


def overdue_ms(shard: Shard) -> int:
    """By how much the oldest due group of a shard is overdue, in the partition clock; 0 if none is."""
    due_ms = shard.seen.next_due_ms(shard.bounds.quiet_ms, shard.bounds.hold_ms) if shard.seen else None
    return 0 if due_ms is None else max(0, shard.clock_ms - due_ms)


def observe(ownership: Ownership, metrics: Metrics, now_ms: int, views: Views) -> None:
    """Sets the gauges of every fold of this worker."""
    by_fold: dict[str, list[Shard]] = defaultdict(list)
    for partition in ownership.partitions.values():
        for shard in partition.shards:
            by_fold[shard.fold.name].append(shard)
    for fold in ownership.folds:
        shards = by_fold.get(fold.name, [])
        metrics.open_groups.labels(fold=fold.name).set(sum(shard.seen.open_groups for shard in shards if shard.seen))
        metrics.outbox_records.labels(fold=fold.name).set(sum(len(shard.pending) for shard in shards))
        metrics.lag_events.labels(fold=fold.name).set(sum(_lags(shards, views)))
        metrics.oldest_overdue_seconds.labels(fold=fold.name).set(max(map(overdue_ms, shards), default=0) / 1000)
        metrics.merging_backlog.labels(fold=fold.name).set(any(_is_merging(shard, now_ms) for shard in shards))


def _lags(shards: Iterable[Shard], views: Views) -> Iterable[int]:
    for shard in shards:
        view, _ = views.reader_view(TP(shard.topic, shard.partition))
        if view.stable_offset is not None:
            yield max(0, view.stable_offset - shard.fence - 1)


def _is_merging(shard: Shard, now_ms: int) -> bool:
    return not quiet_groups_close(shard.fold.backlog, shard.clock_ms, now_ms, shard.bounds.quiet_ms)
