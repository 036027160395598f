"""What the processors of all folds in a worker share: clients, clock, settings, and whether older workers run.

Also reports rejected and misrouted events.

An event is misrouted if its record key is not its group key.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from streams_app.delivery.batch import TP
from streams_app.delivery.clocks import TrustedClock
from streams_app.delivery.dead_letters import DeadLetterSender, RejectingComponent
from streams_app.fold import Fold
from streams_app.folding.agents.record_tracing import EventContexts, RecordTracing
from streams_app.folding.agents.shard_snapshots import ClaimedShards, set_gauges
from streams_app.folding.agents.window_statistics import WindowStatistics
from streams_app.folding.reading.reader import RangeFaults
from streams_app.folding.shard.shard import Shard
from streams_app.folding.store.keys import shard_keys
from streams_app.folding.store.scripts import FoldScripts
from streams_app.formatting import counted
from streams_app.health.metrics import Metrics
from streams_app.health.status import Status
from streams_app.kafka.producer import AckedProducer
from streams_app.settings import Settings

if TYPE_CHECKING:
    from streams_app.tracing.spans import Tracing


logger = logging.getLogger(__name__)

CHECK_MS: Final = 500
"""Interval of the checks in ms; that of an application with more shards is one ms for each of them."""

WATCH_MS: Final = 60_000
"""Duration of the checks after a claim, in ms. An older worker claims only after a rebalance, and then this worker claims, too."""

ABSENT_MS: Final = 3_000
"""Time for which no shard must have an older owner, after one was found, until the older workers count as gone, in ms."""


class OlderWorkers:
    """Finds out whether workers of an older version run: they read neither packed groups nor entries of several records.

    A worker that reads both stores its token twice when it claims a shard, so a shard whose tokens differ has an older owner. While
    there is one, sealed records are stored one by one, and each group as a hash: the older worker may get any partition at any
    time, also because this process is killed. Shards are checked for a while after each claim, as long as an older worker is
    found, and for :data:`ABSENT_MS` more: in a rebalance, an older worker may own nothing for a moment.
    """

    def __init__(self, scripts: FoldScripts, settings: Settings, clock: TrustedClock) -> None:
        self._scripts, self._settings, self._clock = scripts, settings, clock
        self._partitions: dict[str, int] = {}
        self._metas: list[str] = []
        self._checked_ms: int | None = None
        self._watched_until_ms = 0
        self._exist: bool | None = None
        self._absent_since_ms: int | None = None

    async def exist(self) -> bool:
        """Return whether an older worker owned a shard at the last check; True before the first one."""
        now_ms = self._clock.monotonic_ms()
        is_watched = self._exist is not False or now_ms < self._watched_until_ms  # also while no check has succeeded
        if self._checked_ms is None or (is_watched and now_ms - self._checked_ms >= max(CHECK_MS, len(self._metas))):
            self._checked_ms = now_ms  # before the check: other shards need not wait for it
            found = await self._own_shards()
            if found:
                self._absent_since_ms = None
            elif self._exist:  # not since the last check that found one: nobody checks in a rebalance, which may take longer
                self._absent_since_ms = now_ms if self._absent_since_ms is None else self._absent_since_ms
                found = now_ms - self._absent_since_ms < ABSENT_MS
            if found and not self._exist:
                logger.info("an older version runs, records and groups are stored one by one")
            elif self._exist and not found:
                logger.info("no older version runs any more")
            self._exist = found
        return self._exist is not False

    def expect(self, source: str, partitions: int) -> None:
        """Check the shards of this source, too, and all of them again for a while: this worker has claimed one."""
        self._watched_until_ms = self._clock.monotonic_ms() + WATCH_MS
        if self._partitions.get(source) != partitions:
            self._partitions[source] = partitions
            self._metas = [
                shard_keys(self._settings.app_id, fold.name, fold.source, number).meta
                for fold in self._settings.folds
                for number in range(self._partitions.get(fold.source, 0))
            ]
            self._checked_ms = None

    async def _own_shards(self) -> bool:
        async with self._scripts.redis.pipeline(transaction=False) as pipe:
            for meta in self._metas:
                pipe.hmget(meta, ["token", "reads_packed"])
            owners: list[Any] = await pipe.execute()
        return any(token != reader for token, reader in owners)


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
    older_workers: OlderWorkers = field(init=False)

    def __post_init__(self) -> None:
        self.older_workers = OlderWorkers(self.scripts, self.settings, self.clock)

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
