"""How much of the sources is not yet folded, over all partitions of a fold, whoever owns them (pure).

A worker that knew only its own partitions would see no lag in those nobody owns, and none in an outage, when it has lost its own:
exactly when somebody looks. So the lag of each fold is that of the whole group, and every worker tells it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from streams_app.delivery.batch import TP
from streams_app.delivery.commits import Committed
from streams_app.delivery.marks import marks_of
from streams_app.fold import Fold

ShardKey: TypeAlias = tuple[str, TP]
"""Name of a fold, and a partition of its source."""


READ_MS: Final = 10_000
"""An end that a fetch has named counts for so long after its partition was let go; by then the broker was asked for it."""


@dataclass(slots=True)
class PartitionEnds:
    """The end of each partition, as the broker was asked for it, or as the reader has seen it since."""

    _read: dict[TP, tuple[int, int]] = field(default_factory=dict)

    def combined(
        self, asked: Mapping[TP, int], read: Mapping[TP, int | None], now_ms: int, *, is_answering: bool
    ) -> dict[TP, int]:  # fmt: skip
        """The ends as far as they are known now.

        Args:
            asked: Ends as the broker answered last.
            read: Ends as the last fetch of each partition named them; None for partitions this worker does not read.
            now_ms: Monotonic clock.
            is_answering: Whether the broker answers, so that ``asked`` is young.
        """
        self._read |= {tp: (end, now_ms) for tp, end in read.items() if end is not None}
        if is_answering:
            self._read = {tp: (end, at_ms) for tp, (end, at_ms) in self._read.items() if now_ms - at_ms < READ_MS}
        return {tp: max(end, self._read.get(tp, (0, 0))[0]) for tp, end in asked.items()}


def lags(
    folds: Iterable[Fold], ends: Mapping[TP, int], begins: Mapping[TP, int], committed: Mapping[TP, Committed],
    fences: Mapping[ShardKey, int],
) -> dict[str, int]:  # fmt: skip
    """Source offsets beyond what each fold has folded.

    Args:
        folds: The declared folds.
        ends: End of each partition, as far as it was ever told.
        begins: First offset of each partition.
        committed: Last commit of the group in each partition.
        fences: Highest offset folded of each shard, as last known; a shard that is missing has no state.

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
    """The offset at which the fold would go on if its partition were claimed now."""
    fence = fences.get((fold.name, tp))
    if fence is not None:
        return max(fence + 1, begins.get(tp, 0))
    commit = committed.get(tp)
    mark = None if commit is None else marks_of(commit, (fold.name,)).get(fold.name)
    if mark is not None:
        return mark.offset
    return end if fold.start == "latest" else begins.get(tp, 0)
