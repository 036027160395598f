"""State that the agents of a worker share."""

from __future__ import annotations

from typing import Any, cast

from streams_app.delivery.batch import TP
from streams_app.delivery.clocks import TrustedClock
from streams_app.fold import Fold
from streams_app.folding.agents.context import FoldContext
from streams_app.folding.core.chunks import Chunk, ChunkCutter
from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.shard_clock import RangeTime
from streams_app.health.metrics import Metrics
from streams_app.health.status import Status
from streams_app.settings import Settings
from tests.helpers.manual_clock import ManualClock

FOLD = Fold(name="f", source="t", group_key="a", changed="m", quiet_period="10s")
SETTINGS = Settings(app_id="a", folds=(FOLD,))


def chunk_at(offset: int) -> Chunk:
    """Return a chunk with one event of one group."""
    bounds = Bounds(0, hold_ms=60_000, sessions=False)
    cutter = ChunkCutter([(offset, 1_000 + offset, b"sa", {"n": 1})], offset - 1, offset, bounds, keeps_values=False)
    return cutter.next(RangeTime(10_000, None), 0)


def test_window_statistics_restart_for_partitions_that_were_assigned_to_another_worker() -> None:
    nothing = cast("Any", None)
    context = FoldContext(SETTINGS, nothing, nothing, TrustedClock(ManualClock()), Metrics(SETTINGS), Status())
    statistics, begun = context.statistics_of(FOLD), []
    for offset, assigned in enumerate([{TP("t", 0)}, {TP("t", 0)}, {TP("t", 1), TP("other", 0)}]):
        statistics.folded(0, chunk_at(2 * offset))
        context.observe_shards(assigned)
        statistics.folded(0, chunk_at(2 * offset + 1))
        begun.append(context.metrics.groups_begun.labels(fold="f")._value.get())

    assert [1, 1, 2] == begun
