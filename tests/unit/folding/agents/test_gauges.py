"""Gauges show the last known state of each shard, and continue to grow without new information."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import pytest

from streams_app.delivery.batch import TP
from streams_app.fold import Fold
from streams_app.folding.agents.shard_snapshots import ShardSnapshots, set_gauges
from streams_app.folding.core.record import SealedGroup
from streams_app.folding.core.shard_clock import Clocks
from streams_app.folding.shard.shard import Shard
from streams_app.folding.store.replies import OutboxEntry, SealedGroups
from streams_app.health.metrics import Metrics
from streams_app.settings import Settings
from tests.helpers.folding.auto_quiet import AUTO_FOLD

FOLD = Fold(name="f", source="t", group_key="a", changed="m", quiet_period=timedelta(seconds=10), max_hold=timedelta(seconds=60))
HERE = TP("t", 0)
START_MS = 1_000_000


def last_seal(open_groups: int, score_ms: int | None = None, opened_ms: int | None = None) -> SealedGroups:
    """Return the result of a seal."""
    return SealedGroups(0, False, open_groups, 0, oldest_score_ms=score_ms, oldest_opened_ms=opened_ms, sealed=[])


class Worker:
    """A worker with one shard that it claims and releases; its wall clock is its monotonic clock."""

    def __init__(self, fold: Fold = FOLD) -> None:
        self.settings = Settings(app_id="a", folds=(fold,))
        self.metrics = Metrics(self.settings)
        self.snapshots = ShardSnapshots()
        self.fold = fold
        self.assigned = {HERE}
        self.shard: Shard | None = None

    def claim(self) -> Shard:
        self.shard = Shard(self.fold, HERE, cast("Any", None))
        return self.shard

    def observe(self, now_ms: int) -> None:
        self.snapshots.update([(self.shard, 0)] if self.shard else [], self.assigned, now_ms, now_ms)
        set_gauges(self.snapshots, self.settings, self.metrics, now_ms)

    def __getitem__(self, name: str) -> float:
        value: float = getattr(self.metrics, name).labels(fold=self.fold.name)._value.get()
        return value

    def sealed(self, now_ms: int, groups: SealedGroups, clock_ms: int | None = None) -> None:
        """Record the result of a seal."""
        shard = self.shard or self.claim()
        shard.last_seal = groups
        shard.clock.take_over(Clocks(now_ms if clock_ms is None else clock_ms))
        self.observe(now_ms)


@pytest.mark.parametrize(("opened_ms", "overdue"), [(START_MS, 3), (START_MS - 60_000, 13)])
def test_oldest_overdue_group_is_determined_by_either_bound(opened_ms: int, overdue: int) -> None:
    worker = Worker()
    worker.sealed(START_MS + 13_000, last_seal(3, START_MS, opened_ms))

    assert (3, overdue) == (worker["open_groups"], worker["oldest_overdue_seconds"])


def test_gauges_are_zero_before_the_first_seal() -> None:
    worker = Worker()
    worker.claim()
    worker.observe(START_MS)

    assert (0, 0) == (worker["open_groups"], worker["oldest_overdue_seconds"])


def test_groups_of_a_released_shard_stay_open() -> None:
    worker = Worker()
    worker.sealed(START_MS, last_seal(3, START_MS, START_MS))
    worker.shard = None
    worker.observe(START_MS + 1_000)

    assert 3 == worker["open_groups"]


def test_open_groups_stay_until_the_next_claim_seals() -> None:
    worker = Worker()
    worker.sealed(START_MS, last_seal(3, START_MS, START_MS))
    worker.claim()
    worker.observe(START_MS + 1_000)
    assert 3 == worker["open_groups"]
    worker.sealed(START_MS + 2_000, last_seal(2, START_MS, START_MS))

    assert 2 == worker["open_groups"]


def test_groups_of_a_partition_assigned_to_another_worker_are_not_counted() -> None:
    worker = Worker()
    worker.sealed(START_MS, last_seal(3, START_MS, START_MS))
    worker.shard, worker.assigned = None, set()
    worker.observe(START_MS + 1_000)

    assert 0 == worker["open_groups"]


def test_group_becomes_overdue_while_its_shard_is_released() -> None:
    worker = Worker()
    worker.sealed(START_MS, last_seal(1, START_MS, START_MS))
    found = []
    for seconds in (5, 10, 12, 40):
        worker.shard = None
        worker.observe(START_MS + seconds * 1_000)
        found.append(worker["oldest_overdue_seconds"])

    assert [0, 0, 2, 30] == found


def test_overdue_group_stays_overdue_for_any_partition_clock() -> None:
    worker = Worker()
    worker.sealed(START_MS, last_seal(1, START_MS - 112_000, START_MS - 112_000), clock_ms=START_MS - 100_000)
    worker.observe(START_MS + 7_000)

    # Due after 10 s of silence, but a backlog is merged: only the hold of 60 s closes it.
    assert 0 == worker["oldest_overdue_seconds"]
    worker.sealed(START_MS + 8_000, last_seal(1, START_MS - 165_000, START_MS - 165_000), clock_ms=START_MS - 100_000)
    worker.observe(START_MS + 15_000)
    assert 12 == worker["oldest_overdue_seconds"]


def test_backlog_does_not_follow_the_wall_clock() -> None:
    worker = Worker()
    worker.sealed(START_MS, last_seal(1, START_MS - 100_000, START_MS - 100_000), clock_ms=START_MS - 100_000)
    worker.observe(START_MS + 500_000)

    assert 0 == worker["oldest_overdue_seconds"]


def test_unacknowledged_record_is_overdue_since_it_became_the_first() -> None:
    worker = Worker()
    shard = worker.claim()
    entries = [SealedGroup(b"g", offset, offset, 1, 0, 0, "quiet", 0, 1, {}) for offset in (1, 2)]
    shard.outbox.add(OutboxEntry(entries, 1))
    worker.observe(START_MS)
    worker.observe(START_MS + 9_000)
    first = worker["oldest_overdue_seconds"]
    shard.outbox.remove(entries[:1])
    worker.observe(START_MS + 10_000)

    assert (9, 0) == (first, worker["oldest_overdue_seconds"])
    assert 1 == worker["outbox_records"]


def test_quiet_period_that_sets_itself_is_a_series_of_each_partition_while_it_is_assigned() -> None:
    worker = Worker(AUTO_FOLD)
    worker.claim()
    worker.observe(START_MS)
    claimed = 'streams_app_quiet_period_seconds{fold="f",partition="0"} 60.0' in worker.metrics.exposition().decode()
    worker.shard = None
    worker.observe(START_MS + 1_000)
    released = "quiet_period_seconds{" in worker.metrics.exposition().decode()
    worker.assigned = set()
    worker.observe(START_MS + 2_000)

    assert (True, True) == (claimed, released)
    assert "quiet_period_seconds{" not in worker.metrics.exposition().decode()


def test_backlog_is_merged_while_the_clock_is_a_quiet_period_behind() -> None:
    found = []
    for behind_ms in (10_001, 9_999):
        worker = Worker()
        worker.sealed(START_MS, last_seal(1, START_MS, START_MS), clock_ms=START_MS - behind_ms)
        found.append(worker["merging_backlog"])

    assert [1, 0] == found
