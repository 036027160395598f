"""Finds the changes of a batch that a table in SQLite rejects, because SQLite does not report which they are."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar

from streams_app.read_store.core.bisect_rejected import bisect_rejected
from streams_app.read_store.core.merge import Cell, CellChange
from streams_app.read_store.core.store import NotStorableError

T = TypeVar("T")

REJECTIONS: Final = (sqlite3.IntegrityError, sqlite3.DataError)
"""Errors about a value that is never accepted: a constraint, a user's trigger, a text that is too long."""


def bisecting_rejected(
    connection: sqlite3.Connection, changes: Sequence[CellChange], run: Callable[[Sequence[CellChange]], T]
) -> T:
    """Write a batch by ``run`` and return its result; if the table rejects it, find the rejected changes by bisection.

    Args:
        connection: A connection in a transaction, which must be rolled back if this raises.
        changes: The batch.
        run: Writes changes; if it fails, it is called with parts of the batch.

    Raises:
        NotStorableError: Some of the changes are rejected.
    """
    try:
        return run(changes)
    except REJECTIONS:
        raise NotStorableError(_rejected_changes(connection, changes, run)) from None


@contextmanager
def rejecting_all(changes: Iterable[CellChange]) -> Iterator[None]:
    """Report all changes as rejected if the table rejects one of them, without bisecting.

    Raises:
        NotStorableError: The table rejects a change; the transaction must be rolled back.
    """
    try:
        yield
    except REJECTIONS as error:
        raise NotStorableError({change.cell: f"is refused: {error}" for change in changes}) from None


def _rejected_changes(
    connection: sqlite3.Connection, changes: Sequence[CellChange], run: Callable[[Sequence[CellChange]], object]
) -> dict[Cell, str]:
    """Bisect a rejected batch; return the rejected cells, each with the reason."""

    def fault(part: Sequence[CellChange]) -> str | None:
        connection.execute("SAVEPOINT trial")
        try:
            run(part)
        except REJECTIONS as error:
            return f"is refused: {error}"
        finally:
            connection.execute("ROLLBACK TO trial")
        return None

    bisection = bisect_rejected(sorted(changes, key=lambda change: change.cell))
    part = next(bisection)
    while True:
        try:
            part = bisection.send(fault(part))
        except StopIteration as found:
            cells: dict[Cell, str] = found.value
            return cells
