"""Writes corrected cells into a read store; cells that the store rejects do not block the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from streams_app.operations.retrying import with_retries
from streams_app.read_store.core.errors import TooSlowError
from streams_app.read_store.core.group_rows import RowKey, row_key
from streams_app.read_store.core.merge import Cell
from streams_app.read_store.core.store import NotStorableError, ReadableStore, Repair


async def repaired(
    store: ReadableStore, repairs: Sequence[Repair], now_ms: Callable[[], int], *, is_trial: bool = False
) -> tuple[int, dict[Cell, str]]:
    """Write corrected cells into a store, in one batch if possible.

    If the store rejects the batch, each row is written separately, and the cells of a rejected row one by one. A batch that times
    out is split in half.

    Args:
        is_trial: Whether to roll every batch back, so that only rejected cells are found, see :meth:`.ReadableStore.repair`.

    Returns:
        The number of written cells, and the cells that the store can never hold, each with the reason.
    """
    if not repairs:
        return 0, {}

    async def repair_once() -> int | None:
        try:
            return await store.repair(repairs, now_ms(), is_trial=is_trial)
        except TooSlowError:
            if len(repairs) == 1:
                raise
            return None

    half = len(repairs) // 2
    parts: Sequence[Sequence[Repair]] = [repairs[:half], repairs[half:]]
    try:
        done = await with_retries(repair_once)
        if done is not None:
            return done, {}
    except NotStorableError as error:
        if error.written is not None or len(repairs) == 1:
            return error.written or 0, error.cells
        parts = _parts(repairs)
    written, rejected = 0, dict[Cell, str]()
    for part in parts:
        of_part = await repaired(store, part, now_ms, is_trial=is_trial)
        written += of_part[0]
        rejected |= of_part[1]
    return written, rejected


def _parts(repairs: Sequence[Repair]) -> list[list[Repair]]:
    rows: dict[RowKey, list[Repair]] = {}
    for repair in repairs:
        rows.setdefault(row_key(repair.change), []).append(repair)
    return list(rows.values()) if len(rows) > 1 else [[repair] for repair in repairs]
