"""What the gauges of groups show, from what was last snapshots of each shard: nothing here scans groups, or waits."""

from __future__ import annotations

from streams_app.folding.agents.shard_snapshots import ShardSnapshots
from streams_app.health.metrics import Metrics
from streams_app.settings import Settings


def set_gauges(snapshots: ShardSnapshots, settings: Settings, metrics: Metrics, monotonic_ms: int) -> None:
    """Sets the gauges of every fold of this worker; none falls because Redis or Kafka is away."""
    metrics.look(monotonic_ms)
    for fold in settings.folds:
        shards = list(snapshots.of(fold.name))
        overdue_ms = max((shard.overdue_ms(monotonic_ms) for shard in shards), default=0)
        metrics.open_groups.labels(fold=fold.name).set(sum(shard.open_groups for shard in shards))
        metrics.outbox_records.labels(fold=fold.name).set(sum(shard.outbox for shard in shards))
        metrics.oldest_overdue_seconds.labels(fold=fold.name).set(overdue_ms / 1000)
        metrics.merging_backlog.labels(fold=fold.name).set(any(shard.is_merging for shard in shards))
