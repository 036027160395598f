"""How many cells are asked for, or written, at once (pure).

A batch that exceeded the time-out would exceed it again: half as many follow. While batches take less than half of the time they
grow, by a quarter each, so that a store or source of constant speed settles below its time-out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class BatchSize:
    """The size of the batches of one store or source.

    Attributes:
        timeout_ms: How long a batch may take.
        most: Cells of a batch, at most; None: any number.
    """

    timeout_ms: int
    most: int | None = None
    _too_many: int = 0

    def exceeded(self, cells: int) -> bool:
        """Halves after a batch that took too long; returns whether no batch before it did."""
        is_first = self.most is None
        self._too_many = cells if is_first else max(cells, self._too_many)
        self.most = max(1, min(cells, self.most or cells) // 2)
        return is_first

    def finished(self, cells: int, took_ms: int) -> bool:
        """Grows after a batch that took little time; returns whether batches may have any size from now on."""
        if self.most is None or cells < self.most or 2 * took_ms >= self.timeout_ms:
            return False
        self.most += max(1, self.most // 4)
        if self.most <= self._too_many:
            return False
        self.most = None
        return True

    def parts(self, items: Sequence[T]) -> list[Sequence[T]]:
        """Cuts a batch; without any items it is one empty part."""
        size = max(1, self.most or len(items))
        return [items[begin : begin + size] for begin in range(0, len(items), size)] or [items]
