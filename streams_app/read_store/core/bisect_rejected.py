"""Finds the changes that make a database reject a whole batch (pure).

If a change violates a constraint of a user's table, the database rejects the whole batch without naming the change.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence

from streams_app.read_store.core.group_rows import row_key
from streams_app.read_store.core.merge import Cell, CellChange


def bisect_rejected(changes: Sequence[CellChange]) -> Generator[Sequence[CellChange], str | None, dict[Cell, str]]:
    """Bisect a batch until each rejected change is isolated: first between groups, then between the cells of a single group.

    Args:
        changes: The batch, ordered by cell.

    Yields:
        Changes that the caller must try to write without the others. The caller must roll the write back.

    Sends:
        The reason why the database rejects the yielded changes, or None if it accepts them.

    Returns:
        The rejected cells, each with the reason. If changes are rejected only together, all of them are returned, because any of
        them may be the cause.
    """
    fault = yield changes
    if fault is None:
        return {}
    middle = _middle(changes)
    found = {**(yield from bisect_rejected(changes[:middle])), **(yield from bisect_rejected(changes[middle:]))} if middle else {}
    return found or {change.cell: fault for change in changes}


async def rejected_cells(
    changes: Sequence[CellChange], fault: Callable[[Sequence[CellChange]], Awaitable[str | None]]
) -> dict[Cell, str]:
    """Bisect a batch by :func:`bisect_rejected`; return the rejected cells, each with the reason.

    Args:
        fault: Tries to write changes and rolls the write back; returns the reason why the database rejects them, or None.

    Returns:
        Empty if the changes are not the cause, because an empty batch is rejected, too.
    """
    if await fault([]):
        return {}
    bisection = bisect_rejected(sorted(changes, key=lambda change: change.cell))
    part = next(bisection)
    while True:
        try:
            part = bisection.send(await fault(part))
        except StopIteration as found:
            cells: dict[Cell, str] = found.value
            return cells


def _middle(changes: Sequence[CellChange]) -> int:
    """Return the index at which to divide a batch: between two rows if it has several, otherwise within its only row.

    Returns 0 if the batch cannot be divided, because it has at most one change.
    """
    half = len(changes) // 2
    bounds = [index for index in range(1, len(changes)) if row_key(changes[index - 1]) != row_key(changes[index])]
    return min(bounds, key=lambda index: abs(index - half), default=half)
