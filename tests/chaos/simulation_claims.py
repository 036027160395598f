"""What was done under each claim of a simulated subscriber, and what the commits of that claim have to say of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TypeAlias

from streams_app.subscribers.runs import Run

ClaimOf: TypeAlias = tuple[str, float]
"""Name of the worker, and when it asked for the commit."""


class DoneUnder:
    """Offsets whose function has returned, by the claim under which it did."""

    def __init__(self) -> None:
        """Nothing is done."""
        self._done: dict[ClaimOf, set[int]] = defaultdict(set)
        self._to_be_said: dict[ClaimOf, frozenset[int]] = {}

    def add(self, claim: ClaimOf, offset: int) -> None:
        """The function has returned."""
        self._done[claim].add(offset)

    def has(self, claim: ClaimOf, offset: int) -> bool:
        """Whether the function has returned under this claim."""
        return offset in self._done[claim]

    def committed(self, claim: ClaimOf, low: int, finished: Iterable[Run]) -> list[int]:
        """Takes a commit of a claim.

        Args:
            claim: Whose it is.
            low: What it says is finished below.
            finished: What its note says is finished above.

        Returns:
            What it does not call finished although that was done when the commit before it was taken, ascending: what has been done
            since may be on its way.
        """
        said = {offset for run in finished for offset in range(run.begin, run.end)}
        unsaid = [offset for offset in self._to_be_said.get(claim, ()) if offset >= low and offset not in said]
        self._to_be_said[claim] = frozenset(self._done[claim])
        return sorted(unsaid)
