"""Computes the quiet period that each past event would have had if it had set itself (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from streams_app.fold import Fold
from streams_app.folding.core.auto_quiet import AutoQuiet, AutoQuietGoal
from streams_app.folding.core.event import FoldInput


@dataclass
class AutoReplay:
    """The quiet periods of the partitions of a fold, which begin with the default and have learned nothing.

    A worker changes the quiet period between two ranges of events; here, each event is a range, as in the test kit.

    Attributes:
        now_ms: Wall clock in ms. Events with a later time count at this time.
        changes: Number of changes so far.
    """

    goal: AutoQuietGoal
    now_ms: int
    changes: int = 0
    _partitions: dict[int, AutoQuiet] = field(default_factory=dict)

    @classmethod
    def of(cls, fold: Fold, now_ms: int) -> AutoReplay | None:
        """Return the quiet periods of a fold; None if its quiet period does not set itself."""
        goal = AutoQuietGoal.of(fold)
        return None if goal is None else cls(goal, now_ms)

    @property
    def last_ms(self) -> dict[int, int]:
        """Return the quiet period of each partition after the last event, in ms."""
        return {partition: auto.quiet_ms for partition, auto in sorted(self._partitions.items())}

    def quiet_after(self, partition: int, events: Sequence[FoldInput]) -> NDArray[np.int64]:
        """Return the quiet period after each of the next events of a partition, in ms, and learn from the events."""
        auto = self._partitions.setdefault(partition, AutoQuiet(self.goal))
        found = np.empty(len(events), np.int64)
        for at, (_, timestamp_ms, member, *_) in enumerate(events):
            found[at] = auto.quiet_ms
            if timestamp_ms >= 0:
                self.changes += auto.observe(member, min(timestamp_ms, self.now_ms)) is not None
        return found
