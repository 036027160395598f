"""What the processors of all folds in a worker share: clients, clock and settings. Also reports rejected and misrouted events.

An event is misrouted if its record key is not its group key.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from streams_app.delivery.batch import TP
from streams_app.delivery.clocks import TrustedClock
from streams_app.delivery.dead_letters import DeadLetterSender, RejectingComponent
from streams_app.fold import Fold
from streams_app.folding.agents.record_tracing import EventContexts, RecordTracing
from streams_app.folding.agents.shard_snapshots import ClaimedShards, set_gauges
from streams_app.folding.agents.window_statistics import WindowStatistics
from streams_app.folding.reading.reader import RangeFaults
from streams_app.folding.shard.shard import Shard
from streams_app.folding.store.scripts import FoldScripts
from streams_app.formatting import counted
from streams_app.health.metrics import Metrics
from streams_app.health.status import Status
from streams_app.kafka.producer import AckedProducer
from streams_app.settings import Settings

if TYPE_CHECKING:
    from streams_app.tracing.spans import Tracing


@dataclass(slots=True)
class FoldContext:
    """Clients, clocks and settings that the processors of all folds in a worker share.

    Attributes:
        clock: Wall clock; while it differs too much from the time of Redis, an estimate of the time of Redis.
        tracing: Starts spans; None if tracing is off.
    """

    settings: Settings
    scripts: FoldScripts
    producer: AckedProducer
    clock: TrustedClock
    metrics: Metrics
    status: Status
    claimed_shards: ClaimedShards = field(default_factory=ClaimedShards)
    statistics: dict[str, WindowStatistics] = field(default_factory=dict)
    tracing: Tracing | None = None
    event_contexts: EventContexts = field(default_factory=EventContexts)

    def observe_shards(self, assigned: Collection[TP]) -> None:
        """Update the snapshots of shards and the gauges of folds; drop the samples of partitions that are not assigned."""
        monotonic_ms = self.clock.monotonic_ms()
        self.claimed_shards.update(assigned, self.clock.now_ms(), monotonic_ms)
        set_gauges(self.claimed_shards.snapshots, self.settings, self.metrics, monotonic_ms)
        for statistics in self.statistics.values():
            statistics.keep(assigned)

    def dead_letter_sender_of(self, fold: Fold, source: TP) -> DeadLetterSender:
        component = RejectingComponent("fold", fold.name, self.settings.app_id, fold.dead_letters)
        return DeadLetterSender(component, source, self.producer, self.clock, self.metrics.rejected)

    def statistics_of(self, fold: Fold) -> WindowStatistics:
        """Return the statistics of a fold's window in this worker, one object for each fold."""
        if fold.name not in self.statistics:
            self.statistics[fold.name] = WindowStatistics(fold, self.metrics)
        return self.statistics[fold.name]

    def record_tracing_of(self, shard: Shard) -> RecordTracing | None:
        return None if self.tracing is None else RecordTracing(self.tracing, self.event_contexts, shard.key, shard.fold.output)


logger = logging.getLogger(__name__)


def report_misrouted_events(name: str, faults: RangeFaults, tp: TP, metrics: Metrics) -> None:
    """Count the misrouted events of a range; log a warning at the first call for each fold."""
    if metrics.is_first_misrouted(name):
        logger.warning(
            "record keys of events differ from their group keys: a group may be split over partitions and its records come "
            "in no order; produce them with the group key as record key fold=%s source=%s offset=%s count=%d",
            name, tp, faults.misrouted_example, faults.misrouted,
        )  # fmt: skip
    metrics.misrouted_events.labels(fold=name).inc(faults.misrouted)


def report_rejected_events(folds: Iterable[Fold], metrics: Metrics) -> None:
    """Log, for each fold, the number of events rejected since the last call, by reason."""
    topics = {fold.name: fold.dead_letters for fold in folds}
    for name, reasons in metrics.rejected_since().items():
        summary = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        logger.warning(
            "%s rejected in the last minute (%s) fold=%s dead_letters=%s",
            counted(reasons.total(), "event"), summary, name, topics.get(name, "?"),
        )  # fmt: skip
