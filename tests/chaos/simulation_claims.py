"""What was done under each claim of a simulated subscriber, and what the commits of that claim have to say of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TypeAlias

from streams_app.subscribers.state.intervals import Interval

ClaimOf: TypeAlias = tuple[str, float]
"""Name of the worker, and when it asked for the commit."""


class DoneUnder:
    """Offsets whose function has returned, by the claim under which it did."""

    def __init__(self, behind: int) -> None:
        """Nothing is done.

        Args:
            behind: So many commits later what was done has to be said.
        """
        self._behind = behind
        self._done: dict[ClaimOf, set[int]] = defaultdict(set)
        self._before: dict[ClaimOf, list[frozenset[int]]] = defaultdict(list)

    def add(self, claim: ClaimOf, offset: int) -> None:
        """The function has returned."""
        self._done[claim].add(offset)

    def has(self, claim: ClaimOf, offset: int) -> bool:
        """Whether the function has returned under this claim."""
        return offset in self._done[claim]

    def committed(self, claim: ClaimOf, low: int, finished: Iterable[Interval]) -> list[int]:
        """Takes a commit of a claim.

        Args:
            claim: Whose it is.
            low: What it says is finished below.
            finished: What its note says is finished above.

        Returns:
            What it does not call finished although that was done so many commits before, ascending.
        """
        said = {offset for run in finished for offset in range(run.begin, run.end)}
        before = self._before[claim]
        to_be_said = before[-self._behind] if len(before) >= self._behind else frozenset()
        before.append(frozenset(self._done[claim]))
        return sorted(offset for offset in to_be_said if offset >= low and offset not in said)
