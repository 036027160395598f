"""Whether anything that ought to move moves (pure)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

STUCK_MS: Final = 60_000
UNCLAIMED: Final = -1
"""Position of a partition that the group has assigned and nobody has claimed."""


@dataclass(slots=True)
class Progress(Generic[Key]):
    """Since when each of several things has stood still although there is more to do.

    It is kept for partitions that are read, with the next offset as their position and the end of the log as their end; and for
    shards that emit, with the records acknowledged as their position and one more as their end while something is due.

    Attributes:
        stuck_ms: What stands still for so long is stuck.
    """

    stuck_ms: int = STUCK_MS
    _still: dict[Key, tuple[int, int]] = field(default_factory=dict)

    def observe(self, now_ms: int, ends: Mapping[Key, int], positions: Mapping[Key, int]) -> Key | None:
        """Notes one look.

        Args:
            now_ms: Monotonic clock.
            ends: How far each could get now.
            positions: How far each of them is; one that is missing begins anew.

        Returns:
            A key that is stuck; None where there is none.
        """
        for key in self._still.keys() - positions.keys():
            del self._still[key]
        for key, position in positions.items():
            known, since_ms = self._still.get(key, (None, now_ms))
            if position != known or position >= ends.get(key, 0):
                self._still[key] = position, now_ms
            elif now_ms - since_ms >= self.stuck_ms:
                return key
        return None

    def slow(self, now_ms: int) -> Key | None:
        """A key that has stood still for half of :attr:`stuck_ms`, so that it can be told before it is too late."""
        return next((key for key, (_, since_ms) in self._still.items() if 2 * (now_ms - since_ms) >= self.stuck_ms), None)
