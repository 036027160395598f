"""Finds the changes for which a PostgreSQL server rejects a batch, because the server does not report which they are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Final, TypeVar

import asyncpg

from streams_app.read_store.core.bisect_rejected import rejected_cells
from streams_app.read_store.core.merge import Cell, CellChange
from streams_app.read_store.core.store import NotStorableError
from streams_app.read_store.postgresql.connection import Connection

T = TypeVar("T")

REJECTIONS: Final = (
    asyncpg.DataError, asyncpg.IntegrityConstraintViolationError, asyncpg.PLPGSQLError, asyncpg.ProgramLimitExceededError,
)  # fmt: skip
"""Errors about a value that the table never accepts, because of a type, a constraint, a user's trigger, or the size of a row."""


async def bisecting_rejected(
    connection: Connection, changes: Sequence[CellChange], run: Callable[[Sequence[CellChange]], Awaitable[T]]
) -> T:
    """Run a statement for a batch and return its result. If the server rejects the batch, find the rejected changes.

    Args:
        connection: The connection of the statement, outside of a transaction.
        run: Runs the statement. If it fails, it is called with parts of the batch, and each of these calls is rolled back.

    Raises:
        NotStorableError: The server rejects some of the changes, which the error names; nothing was written.
        asyncpg.PostgresError: The changes are not the cause; for example, the statement also fails for an empty batch.
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
    """If the server rejects a value in the body of the ``with`` statement, report all changes as rejected, without bisecting."""
    try:
        yield
    except REJECTIONS as error:
        raise NotStorableError({change.cell: _why(error) for change in changes}) from None


@asynccontextmanager
async def trial_or_commit(connection: Connection, *, is_trial: bool) -> AsyncIterator[None]:
    """Open a transaction for the body of an ``async with`` statement, and commit it afterwards.

    A trial is rolled back instead of committed. In a trial, deferred constraints are checked at once, because the rollback would
    skip them.
    """
    transaction = connection.transaction()
    await transaction.start()
    try:
        if is_trial:
            await connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        yield
    except BaseException:  # any exception, also a cancellation, which is re-raised: the transaction must not stay open
        await transaction.rollback()
        raise
    await (transaction.rollback() if is_trial else transaction.commit())


async def _rejected_changes(
    connection: Connection, changes: Sequence[CellChange], run: Callable[[Sequence[CellChange]], Awaitable[object]]
) -> dict[Cell, str]:
    """Bisect a rejected batch; return the rejected cells, each with the reason. Empty if the changes are not the cause."""

    async def fault(part: Sequence[CellChange]) -> str | None:
        transaction = connection.transaction()
        await transaction.start()
        try:
            await connection.execute("SET CONSTRAINTS ALL IMMEDIATE")  # the rollback would skip deferred ones
            await run(part)
        except REJECTIONS as error:
            return _why(error)
        finally:
            await transaction.rollback()
        return None

    return await rejected_cells(changes, fault)


def _why(error: BaseException) -> str:
    return f"is refused: {error.args[0]}"
