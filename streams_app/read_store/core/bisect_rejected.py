"""Which changes a database refuses, where it refuses a batch as a whole (pure).

A constraint that people have given their table says that something is wrong with a batch, and not with what of it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from streams_app.read_store.core.group_rows import row_key
from streams_app.read_store.core.merge import Cell, CellChange


def bisect_rejected(changes: Sequence[CellChange]) -> Generator[Sequence[CellChange], str | None, dict[Cell, str]]:
    """Divides a batch until what is refused stands alone: first into rows, which are refused each for itself, then a row.

    Args:
        changes: In the order of their cells.

    Yields:
        Changes to be tried alone, whose outcome is to be undone.

    Sends:
        Why they are refused; None: they are not.

    Returns:
        Cell → why. Of changes that are refused together only, all of them: nobody can tell which one is wrong.
    """
    fault = yield changes
    if fault is None:
        return {}
    middle = _middle(changes)
    found = {**(yield from bisect_rejected(changes[:middle])), **(yield from bisect_rejected(changes[middle:]))} if middle else {}
    return found or {change.cell: fault for change in changes}


def _middle(changes: Sequence[CellChange]) -> int:
    """Where to divide: between two rows, or in the middle of one; 0: nowhere."""
    half = len(changes) // 2
    bounds = [place for place in range(1, len(changes)) if row_key(changes[place - 1]) != row_key(changes[place])]
    return min(bounds, key=lambda place: abs(place - half), default=half)
