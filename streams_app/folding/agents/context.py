"""What all processors of a worker share."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from streams_app.delivery.batch import TP
from streams_app.delivery.clocks import TrustedClock
from streams_app.delivery.dead_letters import DeadLetters, Refuser
from streams_app.fold import Fold
from streams_app.folding.agents.shard_snapshots import ClaimedShards, set_gauges
from streams_app.folding.agents.window_statistics import WindowStatistics
from streams_app.folding.reading.reader import DecodedRange
from streams_app.folding.store.scripts import FoldScripts
from streams_app.formatting import counted
from streams_app.health.metrics import Metrics
from streams_app.health.status import Status
from streams_app.kafka.producer import AckedProducer
from streams_app.settings import Settings


@dataclass(slots=True)
class FoldContext:
    """The clients, clocks and settings that every processor of a worker is given."""

    settings: Settings
    scripts: FoldScripts
    producer: AckedProducer
    clock: TrustedClock
    metrics: Metrics
    status: Status
    claimed_shards: ClaimedShards = field(default_factory=ClaimedShards)
    statistics: dict[str, WindowStatistics] = field(default_factory=dict)

    def observe_shards(self, assigned: Collection[TP]) -> None:
        """Update the snapshots of the shards for the watchdog, the gauges and the samples.

        Args:
            assigned: Partitions of the last assignment.
        """
        monotonic_ms = self.clock.monotonic_ms()
        self.claimed_shards.update(assigned, self.clock.now_ms(), monotonic_ms)
        set_gauges(self.claimed_shards.snapshots, self.settings, self.metrics, monotonic_ms)
        for statistics in self.statistics.values():
            statistics.keep(assigned)

    def dead_letters_of(self, fold: Fold, source: TP) -> DeadLetters:
        """Where a fold sends what it refuses of a partition."""
        refuser = Refuser("fold", fold.name, self.settings.app_id, fold.dead_letters)
        return DeadLetters(refuser, source, self.producer, self.clock, self.metrics.refused)

    def statistics_of(self, fold: Fold) -> WindowStatistics:
        """What this worker says about the window of a fold; one for all partitions."""
        if fold.name not in self.statistics:
            self.statistics[fold.name] = WindowStatistics(fold, self.metrics)
        return self.statistics[fold.name]


logger = logging.getLogger(__name__)


def report_misrouted_events(name: str, reading: DecodedRange, tp: TP, metrics: Metrics) -> None:
    """Counts the events of a fold that are keyed otherwise than they are grouped; warns at the first of them."""
    if metrics.is_first_misrouted(name):
        logger.warning(
            "events are keyed otherwise than they are grouped: a group may be split over partitions and its records come "
            "in no order; produce them with the group key as record key fold=%s source=%s offset=%s count=%d",
            name, tp, reading.misrouted_example, reading.misrouted,
        )  # fmt: skip
    metrics.misrouted_events.labels(fold=name).inc(reading.misrouted)


def report_rejected_events(folds: Iterable[Fold], metrics: Metrics) -> None:
    """Logs how many events were refused since it was last called, and why; nothing where none were."""
    topics = {fold.name: fold.dead_letters for fold in folds}
    for name, reasons in metrics.refused_since().items():
        summary = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        logger.warning(
            "%s refused in the last minute (%s) fold=%s dead_letters=%s",
            counted(reasons.total(), "event"), summary, name, topics.get(name, "?"),
        )  # fmt: skip
