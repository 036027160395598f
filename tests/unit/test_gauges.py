"""Gauges say what the scripts and the last fetch have said."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

from faust.types import TP

from streams_app.folding.definition import Fold
from streams_app.folding.gauges import observe
from streams_app.folding.partition_clock import ReaderView
from streams_app.folding.replies import SealedGroups
from streams_app.folding.shard import Shard
from streams_app.metrics import Metrics
from streams_app.settings import Settings

FOLD = Fold(name="f", source="t", group_key="a", changed="m", quiet_period=timedelta(seconds=10), max_hold=timedelta(seconds=60))


def gauges(*, fence: int, stable: int | None, position: int, clock_ms: int, now_ms: int, seen: SealedGroups | None = None) -> Any:
    """A function name → value, for one shard."""
    shard = Shard(FOLD, "t", 0, cast("Any", None))
    shard.fence, shard.clock_ms, shard.seen = fence, clock_ms, seen
    ownership: Any = SimpleNamespace(folds=(FOLD,), partitions={TP("t", 0): SimpleNamespace(shards=[shard])})
    views: Any = SimpleNamespace(reader_view=lambda _: (ReaderView(stable, now_ms), position))
    metrics = Metrics(Settings(app_id="a", folds=(FOLD,)))
    observe(ownership, metrics, now_ms, views)
    return lambda name: getattr(metrics, name).labels(fold="f")._value.get()


def test_lag_counts_what_can_be_read_and_is_not_folded_however_far_the_reader_is() -> None:
    found = [gauges(fence=fence, stable=10, position=10, clock_ms=0, now_ms=0)("lag_events") for fence in (-1, 4, 8, 9, 12)]

    assert [10, 5, 1, 0, 0] == found


def test_lag_is_not_invented_before_the_first_fetch() -> None:
    assert gauges(fence=-1, stable=None, position=0, clock_ms=0, now_ms=0)("lag_events") == 0


def test_the_oldest_overdue_group_is_the_first_by_either_bound() -> None:
    quiet = SealedGroups(0, False, 3, 2, oldest_score_ms=100_000, oldest_opened_ms=100_000, sealed=[])
    held = SealedGroups(0, False, 3, 2, oldest_score_ms=100_000, oldest_opened_ms=40_000, sealed=[])
    found = [gauges(fence=0, stable=1, position=1, clock_ms=113_000, now_ms=113_000, seen=seen) for seen in (quiet, held, None)]

    assert [3, 13, 0] == [of("oldest_overdue_seconds") for of in found]
    assert [3, 3, 0] == [of("open_groups") for of in found]


def test_a_backlog_is_merged_while_the_clock_is_a_quiet_period_behind() -> None:
    found = [gauges(fence=0, stable=9, position=9, clock_ms=clock, now_ms=50_000)("merging_backlog") for clock in (39_999, 40_001)]

    assert [1, 0] == found
