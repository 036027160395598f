"""How much of the sources is not yet folded, over all partitions of a fold, whoever owns them (pure).

A worker that knew only its own partitions would see no lag in those nobody owns, and none in an outage, when it has lost its own:
exactly when somebody looks. So the lag of each fold is that of the whole group, and every worker tells it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from faust.types import TP

from streams_app.folding.definition import Fold
from streams_app.kafka.commits import Committed
from streams_app.kafka.marks import marks_of

ShardKey: TypeAlias = tuple[str, TP]
"""Name of a fold, and a partition of its source."""


def lags(
    folds: Iterable[Fold], ends: Mapping[TP, int], begins: Mapping[TP, int], committed: Mapping[TP, Committed],
    fences: Mapping[ShardKey, int],
) -> dict[str, int]:  # fmt: skip
    """Source offsets beyond what each fold has folded.

    Args:
        folds: Declared.
        ends: End of each partition, as far as it was ever told.
        begins: First offset of each partition.
        committed: What the group has committed.
        fences: Highest offset folded, by what was last known of each shard; missing: nobody has any state of it.

    Returns:
        Fold name → offsets.
    """
    return {
        fold.name: sum(
            max(0, end - _next(fold, tp, end, begins, committed, fences)) for tp, end in ends.items() if tp.topic == fold.source
        )
        for fold in folds
    }


def _next(
    fold: Fold, tp: TP, end: int, begins: Mapping[TP, int], committed: Mapping[TP, Committed], fences: Mapping[ShardKey, int]
) -> int:
    """Where the fold goes on: as a claim would find it."""
    fence = fences.get((fold.name, tp))
    if fence is not None:
        return max(fence + 1, begins.get(tp, 0))
    commit = committed.get(tp)
    mark = None if commit is None else marks_of(commit, (fold.name,)).get(fold.name)
    if mark is not None:
        return mark
    return end if fold.start == "latest" else begins.get(tp, 0)
