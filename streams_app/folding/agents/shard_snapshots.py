"""The last known state of each shard of this worker, and the gauges that are computed from it.

If a shard is released because Redis or Kafka is down, its groups still exist, and those that are due wait. Its snapshot is kept
until the consumer group assigns its partition to another worker, and its overdue time continues to grow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from streams_app.delivery.batch import TP
from streams_app.delivery.clocks import FRESH_MS
from streams_app.folding.agents.emitter import Emitter
from streams_app.folding.agents.lag import ShardKey
from streams_app.folding.shard.shard import Shard
from streams_app.folding.store.replies import SealedGroups
from streams_app.health.metrics import Metrics
from streams_app.health.progress import Progress
from streams_app.settings import Settings


@dataclass(frozen=True, slots=True)
class ShardSnapshot:
    """The state of a shard when it was last observed. Times are in ms.

    ``due_clock_ms`` and ``clock_ms`` are times of the partition clock; all other times are of the monotonic clock.

    Attributes:
        sealed_at_ms: When that reply was first observed.
        due_clock_ms: When the first open group is due; None if no group is open, or if that is unknown.
        clock_ms: The partition clock when ``last_seal`` was first observed.
        was_current: Whether ``clock_ms`` was close to the wall clock; if so, the partition clock is assumed to advance with it.
        is_merging: Whether silence closes no groups, because a backlog is read with the backlog policy ``merge``.
        head: First source offset of the first record in the outbox; None if the outbox is empty.
        head_since_ms: When this record became the first in the outbox.
        acknowledged: Number of records that the broker has acknowledged since the claim.
        quiet_ms: Quiet period of the next range if it sets itself; otherwise None.
    """

    last_seal: SealedGroups | None
    sealed_at_ms: int
    due_clock_ms: int | None
    clock_ms: int
    was_current: bool
    is_merging: bool
    outbox: int
    head: int | None
    head_since_ms: int
    acknowledged: int
    is_claimed: bool
    quiet_ms: int | None = None

    @property
    def open_groups(self) -> int:
        return self.last_seal.open_groups if self.last_seal else 0

    def overdue_ms(self, monotonic_ms: int) -> int:
        """Return how long the first due group or the first unacknowledged record has waited, in ms, whichever is longer; or 0."""
        waits = monotonic_ms - self.head_since_ms if self.head is not None else 0
        if self.due_clock_ms is None:
            return waits
        elapsed = monotonic_ms - self.sealed_at_ms
        was_due = self.clock_ms >= self.due_clock_ms
        clock_ms = self.clock_ms + elapsed if was_due or self.was_current else self.clock_ms
        return max(waits, clock_ms - self.due_clock_ms, 0)


def snapshot_of(shard: Shard, former: ShardSnapshot | None, acknowledged: int, now_ms: int, monotonic_ms: int) -> ShardSnapshot:
    """Return a new snapshot of a claimed shard; its open groups are those of ``former`` until the shard has sealed again."""
    is_merging = not shard.clock.quiet_groups_close(shard.clock.stored.clock_ms, now_ms)
    head = next((entry.first_offset for entry in shard.outbox), None)
    head_since_ms = former.head_since_ms if former and head == former.head else monotonic_ms
    outbox = len(shard.outbox)
    quiet_ms = None if shard.quiet_period is None else shard.quiet_period.quiet_ms
    if former is not None and (shard.last_seal is None or shard.last_seal is former.last_seal):
        # No new seal since the former snapshot, for example after a claim: the open groups are still those of the former one.
        return replace(
            former, is_merging=is_merging, outbox=outbox, head=head, head_since_ms=head_since_ms, acknowledged=acknowledged,
            is_claimed=True, quiet_ms=quiet_ms,
        )  # fmt: skip
    due_ms = _due_clock_ms(shard, is_merging=is_merging)
    clock_ms = shard.clock.stored.clock_ms
    was_current = now_ms - clock_ms <= FRESH_MS
    return ShardSnapshot(
        shard.last_seal, monotonic_ms, due_ms, clock_ms, was_current, is_merging, outbox, head, head_since_ms, acknowledged,
        is_claimed=True, quiet_ms=quiet_ms,
    )  # fmt: skip


def _due_clock_ms(shard: Shard, *, is_merging: bool) -> int | None:
    if shard.last_seal is None:
        return None
    hold_ms = shard.bounds.hold_ms + shard.clock.stored.late_ms
    # While a backlog is read with the policy "merge", only the hold closes a group.
    return shard.last_seal.next_due_ms(hold_ms if is_merging else shard.bounds.quiet_ms, hold_ms)


class ShardSnapshots:
    """The snapshots of all shards in the partitions that the consumer group assigned to this worker.

    The main loop writes them; any thread may read them, because each entry is replaced as a whole.
    """

    def __init__(self) -> None:
        self._snapshots: dict[ShardKey, ShardSnapshot] = {}

    def update(self, claimed: Collection[tuple[Shard, int]], assigned: Collection[TP], now_ms: int, monotonic_ms: int) -> None:
        """Replace the snapshots of ``claimed`` shards, each given with its number of acknowledged records.

        The last snapshot of another shard is kept, marked as not claimed, while its partition is assigned.
        """
        keys = set()
        for shard, acknowledged in claimed:
            keys.add(shard.key)
            self._snapshots[shard.key] = snapshot_of(shard, self._snapshots.get(shard.key), acknowledged, now_ms, monotonic_ms)
        for key in self._snapshots.keys() - keys:
            if key[1] in assigned:
                self._snapshots[key] = replace(self._snapshots[key], is_claimed=False)
            else:
                del self._snapshots[key]

    def of(self, fold: str) -> Iterator[ShardSnapshot]:
        return (snapshot for (name, _), snapshot in self._snapshots.copy().items() if name == fold)

    def quiet_seconds(self, fold: str) -> dict[int, float]:
        """Return the quiet period of each partition, if it sets itself."""
        shards = self._snapshots.copy().items()
        return {tp.partition: one.quiet_ms / 1_000 for (name, tp), one in shards if name == fold and one.quiet_ms is not None}

    def progress(self, key: ShardKey, monotonic_ms: int) -> Progress | None:
        """Return how many records were acknowledged since the claim, and whether more are overdue; None if it is not claimed."""
        snapshot = self._snapshots.get(key)
        if snapshot is None or not snapshot.is_claimed:
            return None
        fold, tp = key
        waiting = f"{snapshot.outbox} records wait" if snapshot.outbox else "groups are due"
        return Progress(
            snapshot.acknowledged, snapshot.acknowledged + (snapshot.overdue_ms(monotonic_ms) > 0),
            f"fold={fold} source={tp}",
            f"nothing of fold {fold} has been acknowledged for {tp} although {waiting}",
        )  # fmt: skip


class ClaimedShards:
    """The shards that this worker owns, and their snapshots; the main loop writes them, any thread may read them."""

    def __init__(self) -> None:
        self.snapshots = ShardSnapshots()
        self._emitters: dict[ShardKey, Emitter] = {}
        self._ever: set[ShardKey] = set()

    def add(self, emitter: Emitter) -> None:
        self._emitters[emitter.shard.key] = emitter
        self._ever.add(emitter.shard.key)

    def remove(self, emitter: Emitter) -> None:
        """Remove the shard of an emitter, unless another emitter was added for the same shard."""
        key = emitter.shard.key
        if self._emitters.get(key) is emitter:
            del self._emitters[key]

    def was_claimed(self, shard: Shard) -> bool:
        """Return whether this process has ever claimed the shard."""
        return shard.key in self._ever

    def all(self) -> list[Shard]:
        return [emitter.shard for emitter in self._emitters.copy().values()]

    def fences(self) -> dict[ShardKey, int]:
        return {shard.key: shard.fence for shard in self.all()}

    def update(self, assigned: Collection[TP], now_ms: int, monotonic_ms: int) -> None:
        """Take a new snapshot of each claimed shard, see :meth:`.ShardSnapshots.update`."""
        claimed = [(emitter.shard, emitter.acknowledged) for emitter in self._emitters.values()]
        self.snapshots.update(claimed, assigned, now_ms, monotonic_ms)


def set_gauges(snapshots: ShardSnapshots, settings: Settings, metrics: Metrics, monotonic_ms: int) -> None:
    """Set the gauges of all folds from the last snapshots, so that an outage of Redis or Kafka lowers none of them."""
    metrics.update(monotonic_ms)
    for fold in settings.folds:
        shards = list(snapshots.of(fold.name))
        overdue_ms = max((shard.overdue_ms(monotonic_ms) for shard in shards), default=0)
        metrics.open_groups.labels(fold=fold.name).set(sum(shard.open_groups for shard in shards))
        metrics.outbox_records.labels(fold=fold.name).set(sum(shard.outbox for shard in shards))
        metrics.oldest_overdue_seconds.labels(fold=fold.name).set(overdue_ms / 1000)
        metrics.set_quiet_periods(fold.name, snapshots.quiet_seconds(fold.name))
        metrics.merging_backlog.labels(fold=fold.name).set(any(shard.is_merging for shard in shards))
