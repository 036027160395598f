"""The progress of every target is a chain: a transaction continues where the last one ended, or does nothing."""

from __future__ import annotations

import asyncio

import pytest

from streams_app.read_store.core.merge import Cell, CellChange
from streams_app.read_store.core.store import CheckpointError, CheckpointStep, Counts
from tests.helpers.read_store.stores import P0, P1, StoreHarness, write

LIKES = Cell("f", "a", "likes")


async def test_transaction_that_continues_at_the_stored_progress_is_written(harness: StoreHarness) -> None:
    await harness.store.apply([CellChange(LIKES, 1, 1)], CheckpointStep(P0, None, 3), 0)
    await harness.store.apply([CellChange(LIKES, 2, 2)], CheckpointStep(P0, 3, 5), 0)
    await harness.store.apply([], CheckpointStep(P1, None, 7), 0)

    assert {P0: 5, P1: 7} == await harness.store.checkpoints()
    assert [("a", "likes", harness.in_rows(2), 2, 0)] == await harness.rows()


@pytest.mark.parametrize("after", [None, 2, 4])
async def test_store_with_another_progress_writes_nothing_and_reports_its_own(harness: StoreHarness, after: int | None) -> None:
    await write(harness.store, [CellChange(LIKES, 1, 1)], 3)
    with pytest.raises(CheckpointError, match=rf"has progress 3 for .*s\.f.*, expected {after}"):
        await harness.store.apply([CellChange(LIKES, 2, 2)], CheckpointStep(P0, after, 9), 0)

    assert {P0: 3} == await harness.store.checkpoints()
    assert [("a", "likes", harness.in_rows(1), 1, 0)] == await harness.rows()


async def test_store_without_its_progress_writes_nothing(harness: StoreHarness) -> None:
    with pytest.raises(CheckpointError, match=r"has progress None for .*, expected 3"):
        await harness.store.apply([CellChange(LIKES, 2, 2)], CheckpointStep(P0, 3, 9), 0)

    assert ({}, []) == (await harness.store.checkpoints(), await harness.rows())


async def test_transaction_with_a_missing_reply_is_repeated_harmlessly(harness: StoreHarness) -> None:
    counts = [await harness.store.apply([CellChange(LIKES, 2, 2)], CheckpointStep(P0, None, 9), 0) for _ in range(2)]

    assert [Counts(written=1), Counts(unchanged=1)] == counts
    assert {P0: 9} == await harness.store.checkpoints()


async def test_partition_may_begin_anywhere_with_any_progress(harness: StoreHarness) -> None:
    await harness.store.set_checkpoint(P0, 90, 0)
    await harness.store.set_checkpoint(P0, 4, 0)

    assert {P0: 4} == await harness.store.checkpoints()
    assert Counts(written=1) == await harness.store.apply([CellChange(LIKES, 2, 2)], CheckpointStep(P0, 4, 9), 0)


async def test_progress_is_advanced_by_only_one_of_several_owners(harness: StoreHarness) -> None:
    await write(harness.store, [], 3)

    async def go_on(number: int) -> int | None:
        try:
            await harness.another().apply(
                [CellChange(Cell("f", f"g{number}", "likes"), 1, 1)], CheckpointStep(P0, 3, 10 + number), 0
            )
        except CheckpointError:
            return None
        return 10 + number

    moved = [to for to in await asyncio.gather(*map(go_on, range(4))) if to is not None]

    assert (1, [(await harness.store.checkpoints())[P0]]) == (len(moved), moved)
