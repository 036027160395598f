"""The maximum number of cells in one request to a source, or in one transaction of a store (pure).

If a batch exceeds the timeout of its store or source, the next batches have at most half of its size, because a retry of the same
batch would exceed the timeout again. If a batch of the maximum size takes less than half of the timeout, the maximum grows by a
quarter. If a store or source has a constant speed, its batches settle at a size that stays below the timeout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class BatchSize:
    """Adapts the number of cells in a batch (``most``; None: no limit) to the timeout of one store or source of values."""

    timeout_ms: int
    most: int | None = None
    _too_many: int = 0

    def exceeded(self, cells: int) -> bool:
        """Record that a batch exceeded the timeout: later batches have at most half of its size, but at least one cell.

        Returns:
            Whether there was no maximum before this call.
        """
        is_first = self.most is None
        self._too_many = cells if is_first else max(cells, self._too_many)
        self.most = max(1, min(cells, self.most or cells) // 2)
        return is_first

    def finished(self, cells: int, took_ms: int) -> bool:
        """Record that a batch finished within the timeout, and raise the maximum size of batches if this one was fast.

        Returns:
            Whether the maximum was removed, because it has grown beyond the largest batch that exceeded the timeout.
        """
        if self.most is None or cells < self.most or 2 * took_ms >= self.timeout_ms:
            return False
        self.most += max(1, self.most // 4)
        if self.most <= self._too_many:
            return False
        self.most = None
        return True

    def parts(self, items: Sequence[T]) -> list[Sequence[T]]:
        """Split a batch into parts of at most the maximum size; an empty batch becomes one empty part."""
        size = max(1, self.most or len(items))
        return [items[begin : begin + size] for begin in range(0, len(items), size)] or [items]
