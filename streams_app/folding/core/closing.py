"""Why silence or the hold ends a group (pure): the only place in Python. ``shared/closing.lua`` says the same in Redis.

The bounds on events and names end a group while it grows, see ``fold.lua`` and :mod:`streams_app.folding.core.model`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from streams_app.fold import Fold

FEW_NAMES: Final = 1_000


@dataclass(frozen=True, slots=True)
class Bounds:
    """What ends the groups of a fold; times in ms.

    Attributes:
        quiet_ms: Quiet period.
        hold_ms: Max hold.
        max_events: In one group; 0 = no bound.
        max_changed: Names in one group.
        gaps_close: With ``sessions``: a gap in the scores that is longer than the quiet period ends a group. Else silence ends
            groups only once the worker has caught up.
    """

    quiet_ms: int
    hold_ms: int
    max_events: int = 0
    max_changed: int = 10_000
    gaps_close: bool = False

    @classmethod
    def of(cls, fold: Fold) -> Bounds:
        """Those of a declared fold."""
        return cls(
            quiet_ms=fold.quiet_period_ms, hold_ms=fold.max_hold_ms, max_events=fold.max_events, max_changed=fold.max_changed,
            gaps_close=fold.backlog == "sessions",
        )  # fmt: skip

    @property
    def are_near(self) -> bool:
        """Whether a busy group may reach a bound on events or names within what is fetched at once."""
        return self.max_events > 0 or self.max_changed < FEW_NAMES

    def is_over(self, opened_ms: int, score_ms: int, next_ms: int) -> bool:
        """Whether a group has ended before an event. One exactly the quiet period after the last still belongs to the group.

        Args:
            opened_ms: Score of the group's first event.
            score_ms: Score of its last one.
            next_ms: Score of the event.
        """
        return next_ms >= opened_ms + self.hold_ms or (self.gaps_close and next_ms > score_ms + self.quiet_ms)

    def ended_by(self, opened_ms: int, silent_from_ms: int, *, quiet: bool = True) -> tuple[str, int]:
        """The reason of a group that has ended, and when it was due: whichever bound was reached first.

        Args:
            opened_ms: Score of the group's first event.
            silent_from_ms: From when its silence is counted.
            quiet: Whether silence ends groups now.
        """
        hold_due_ms, quiet_due_ms = opened_ms + self.hold_ms, silent_from_ms + self.quiet_ms
        return ("max_hold", hold_due_ms) if not quiet or hold_due_ms <= quiet_due_ms else ("quiet", quiet_due_ms)
