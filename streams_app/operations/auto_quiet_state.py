"""The quiet period of a partition that sets itself, with its reason, from what its worker has stored (pure)."""

from __future__ import annotations

import msgspec

from streams_app.fold import Fold
from streams_app.folding.core.auto_quiet import AutoQuiet, AutoQuietGoal, LearnedGaps, unpacked_gaps
from streams_app.formatting import duration_text, percentage


class QuietRatio(msgspec.Struct, frozen=True):
    """The folding ratio that recent events would have had with a quiet period."""

    quiet_ms: int
    ratio: float


class AutoQuietState(msgspec.Struct, frozen=True):
    """The quiet period of a partition that sets itself, as its worker has stored it last.

    Attributes:
        aim: ``knee`` or ``target_ratio``.
        target_ratio: The folding ratio to reach; None for the knee.
        ratio: The folding ratio that recent events would have had with it; None: nothing is learned yet.
        shorter: The next shorter candidate; None if there is none, or nothing is learned yet.
        longer: The next longer candidate, likewise.
    """

    quiet_ms: int
    aim: str
    target_ratio: float | None = None
    ratio: float | None = None
    shorter: QuietRatio | None = None
    longer: QuietRatio | None = None

    @classmethod
    def of(cls, fold: Fold, stored: bytes | None) -> AutoQuietState | None:
        """Return the quiet period of a partition; None if it does not set itself.

        Args:
            stored: The field ``learned`` of the Redis hash ``meta`` of the shard; None or empty: nothing is stored.
        """
        goal = AutoQuietGoal.of(fold)
        if goal is None:
            return None
        auto = AutoQuiet(goal, _valid(stored))
        aim = "knee" if goal.target_ratio is None else "target_ratio"
        if not auto.learned.events:
            return cls(auto.quiet_ms, aim, goal.target_ratio)
        ratios = [QuietRatio(quiet_ms, max(0.0, ratio)) for quiet_ms, ratio in zip(goal.candidates, auto.ratios(), strict=True)]
        at = goal.candidates.index(auto.quiet_ms)
        longer = ratios[at + 1] if at + 1 < len(ratios) else None
        return cls(auto.quiet_ms, aim, goal.target_ratio, ratios[at].ratio, ratios[at - 1] if at else None, longer)

    def __str__(self) -> str:
        aim = "the knee" if self.target_ratio is None else f"a folding ratio of {percentage(self.target_ratio)}"
        text = f"{duration_text(self.quiet_ms)} at present, set by itself for {aim}"
        if self.ratio is None:
            return f"{text}; nothing is learned yet"
        others = [f"{percentage(one.ratio)} with {duration_text(one.quiet_ms)}" for one in (self.shorter, self.longer) if one]
        return "; ".join([f"{text}: recent events would fold {percentage(self.ratio)} with it", *others])


def _valid(stored: bytes | None) -> LearnedGaps | None:
    try:
        return unpacked_gaps(stored) if stored else None
    except ValueError:
        return None
