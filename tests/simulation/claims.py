"""The events done under each claim of a simulated subscriber, which the commits of that claim must include."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TypeAlias

from streams_app.subscribers.state.intervals import Interval

ClaimOf: TypeAlias = tuple[str, float]
"""Name of the worker, and the time at which its claim requested the commit of the group."""


class DoneUnder:
    """Offsets whose function has returned, by the claim under which it did."""

    def __init__(self, behind: int) -> None:
        """Create an empty ledger.

        Args:
            behind: Number of commits after which an event must be included.
        """
        self._behind = behind
        self._done: dict[ClaimOf, set[int]] = defaultdict(set)
        self._before: dict[ClaimOf, list[frozenset[int]]] = defaultdict(list)

    def add(self, claim: ClaimOf, offset: int) -> None:
        """Record that the function has returned."""
        self._done[claim].add(offset)

    def has(self, claim: ClaimOf, offset: int) -> bool:
        """Whether the function has returned under this claim."""
        return offset in self._done[claim]

    def committed(self, claim: ClaimOf, low: int, finished: Iterable[Interval]) -> list[int]:
        """Handle a commit of a claim.

        Args:
            claim: Claim of the commit.
            low: Committed offset: all events below are finished.
            finished: Offsets above it that the metadata names as finished.

        Returns:
            Offsets that the commit must include and does not, ascending.
        """
        named = {offset for run in finished for offset in range(run.begin, run.end)}
        before = self._before[claim]
        due = before[-self._behind] if len(before) >= self._behind else frozenset()
        before.append(frozenset(self._done[claim]))
        return sorted(offset for offset in due if offset >= low and offset not in named)
