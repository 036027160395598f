"""What a PostgreSQL server refuses of a batch, and for which of its changes: it does not say that itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Final, TypeVar

import asyncpg

from streams_app.read_store.core.bisect_rejected import bisect_rejected
from streams_app.read_store.core.merge import Cell, CellChange
from streams_app.read_store.core.store import NotStorableError
from streams_app.read_store.postgresql.connection import Connection

T = TypeVar("T")

REJECTIONS: Final = (
    asyncpg.DataError, asyncpg.IntegrityConstraintViolationError, asyncpg.PLPGSQLError, asyncpg.ProgramLimitExceededError,
)  # fmt: skip
"""What is said to a value that is never taken: a type, a constraint, a trigger of somebody's, a row beyond a page."""


async def bisecting_rejected(
    connection: Connection, changes: Sequence[CellChange], run: Callable[[Sequence[CellChange]], Awaitable[T]]
) -> T:
    """What a statement returns for a batch.

    Args:
        connection: On which the statement runs, outside of a transaction.
        changes: The batch.
        run: The statement; where it fails it is tried with parts of the batch, and whatever that has done is undone.

    Raises:
        NotStorableError: Some of the changes are refused; nothing was done.
        asyncpg.PostgresError: The statement fails for another reason. That is also said where it fails without any change.
    """
    try:
        return await run(changes)
    except REJECTIONS:
        found = await _rejected_changes(connection, changes, run) if changes else {}
        if not found:
            raise
        raise NotStorableError(found) from None


@contextmanager
def rejecting_all(changes: Iterable[CellChange]) -> Iterator[None]:
    """Says of all changes that they are refused where a statement is refused for what it writes; nobody looks for which.

    Raises:
        NotStorableError: It is; nothing was written.
    """
    try:
        yield
    except REJECTIONS as error:
        raise NotStorableError({change.cell: _why(error) for change in changes}) from None


@asynccontextmanager
async def trial_or_commit(connection: Connection, *, is_trial: bool) -> AsyncIterator[None]:
    """A transaction that is committed, or rolled back once everything that is looked at in its end was looked at."""
    transaction = connection.transaction()
    await transaction.start()
    try:
        if is_trial:
            await connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        yield
    except BaseException:  # a cancellation, too, must not leave a transaction open; it is raised again
        await transaction.rollback()
        raise
    await (transaction.rollback() if is_trial else transaction.commit())


async def _rejected_changes(
    connection: Connection, changes: Sequence[CellChange], run: Callable[[Sequence[CellChange]], Awaitable[object]]
) -> dict[Cell, str]:
    """Cell → why; empty: it is not for the changes."""

    async def fault(part: Sequence[CellChange]) -> str | None:
        transaction = connection.transaction()
        await transaction.start()
        try:
            await connection.execute("SET CONSTRAINTS ALL IMMEDIATE")  # they would be looked at when it ends, and it is undone
            await run(part)
        except REJECTIONS as error:
            return _why(error)
        finally:
            await transaction.rollback()
        return None

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


def _why(error: BaseException) -> str:
    return f"is refused: {error.args[0]}"
