"""How many groups are sent to one script (pure)."""

from __future__ import annotations

from typing import Final

WORK: Final = 4_000
"""What a script does before it ends by itself, in microseconds of Redis as ``fold.lua`` reckons them."""

FIRST: Final = 300
MOST: Final = 2_500
"""How many groups are sent at first, and at most: what a script does not take was sent in vain, and is sent again."""


class ScriptSizing:
    """Learns from scripts how many groups the next one can take.

    Attributes:
        groups: Number of groups to be sent to the next script.
    """

    def __init__(self) -> None:
        self.groups = FIRST

    def learn(self, taken: int, work: int) -> None:
        """Learns from a script that took so many groups with so much work, in microseconds of Redis."""
        if taken:
            self.groups = max(1, min(MOST, 2 * self.groups, taken * WORK // max(work, 1) + 1))
