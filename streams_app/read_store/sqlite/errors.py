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
"""Errors about a value that the table never accepts, because of a constraint, a user's trigger, or the length of a text."""


def bisecting_rejected(
    connection: sqlite3.Connection, changes: Sequence[CellChange], run: Callable[[Sequence[CellChange]], T]
) -> T:
    """Write a batch with the function ``run`` and return its result. If the table rejects the batch, find the rejected changes.

    Args:
        connection: A connection in a transaction, which the caller must roll back after an error.
        run: Writes changes. If it fails, it is called with parts of the batch.
    """
    try:
        return run(changes)
    except REJECTIONS:
        raise NotStorableError(_rejected_changes(connection, changes, run)) from None


@contextmanager
def rejecting_all(changes: Iterable[CellChange]) -> Iterator[None]:
    """If the table rejects a change in the body of the ``with`` statement, report all changes as rejected, without bisecting.

    Raises:
        NotStorableError: The table rejects a change; the caller must roll the transaction back.
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
