"""Why silence or the hold closes a group (pure): the rule in Python, as ``shared/closing.lua`` is the rule in Redis.

Which open groups are due now is looked up in ``seal.lua``. The bounds on events and names close a group while it grows, in
``fold.lua``. :mod:`streams_app.folding.core.model` does both in memory. With ``sessions``, groups that open and close within one
chunk are closed before Redis sees them, see ``_session_count`` in :mod:`streams_app.folding.store.arguments`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from streams_app.fold import Fold

FEW_NAMES: Final = 1_000
"""A bound on names below this may be reached within one fetch."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What closes the groups of a fold; times in ms.

    Attributes:
        quiet_ms: Quiet period.
        hold_ms: Max hold.
        max_events: Most events of one group; 0 = no bound.
        max_changed: Most changed names of one group.
        sessions: Whether the backlog policy is ``sessions``: a gap in the scores that is longer than the quiet period closes a
            group while it is folded. With ``merge`` silence closes groups only once the worker has caught up.
    """

    quiet_ms: int
    hold_ms: int
    max_events: int = 0
    max_changed: int = 10_000
    sessions: bool = False

    @classmethod
    def of(cls, fold: Fold) -> Bounds:
        """The bounds of a declared fold."""
        return cls(
            quiet_ms=fold.quiet_period_ms, hold_ms=fold.max_hold_ms, max_events=fold.max_events, max_changed=fold.max_changed,
            sessions=fold.backlog == "sessions",
        )  # fmt: skip

    @property
    def are_near(self) -> bool:
        """Whether a busy group may reach a bound on events or names within what is fetched at once."""
        return self.max_events > 0 or self.max_changed < FEW_NAMES

    @property
    def session_gap_ms(self) -> int | None:
        """A longer gap in the scores closes a session; None where the backlog policy is ``merge``."""
        return self.quiet_ms if self.sessions else None

    def closes_before(self, opened_ms: int, score_ms: int, next_ms: int) -> bool:
        """Whether a group closes before an event. An event exactly the quiet period after the last one still belongs to the group.

        Args:
            opened_ms: Score of the group's first event.
            score_ms: Score of its last one.
            next_ms: Score of the event.
        """
        return next_ms >= opened_ms + self.hold_ms or (self.sessions and next_ms > score_ms + self.quiet_ms)

    def closed_by(self, opened_ms: int, silent_from_ms: int, *, quiet: bool = True) -> tuple[str, int]:
        """The reason why a group closes, and when it was due: the bound that was reached first.

        Args:
            opened_ms: Score of the group's first event.
            silent_from_ms: From when its silence is counted.
            quiet: Whether silence closes groups now.
        """
        hold_due_ms, quiet_due_ms = opened_ms + self.hold_ms, silent_from_ms + self.quiet_ms
        return ("max_hold", hold_due_ms) if not quiet or hold_due_ms <= quiet_due_ms else ("quiet", quiet_due_ms)
