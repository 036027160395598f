"""The contract of every read store target, in both shapes: no older version, equal values left alone, nothing lost."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from streams_app.errors import TryAgainError
from streams_app.read_store.core.merge import Cell, CellChange, JsonText
from streams_app.read_store.core.store import CheckpointStep, Counts
from tests.helpers.read_store.stores import ODD_NAME, P0, P1, StoreHarness, retry_while_locked, write

LIKES, SHARES = Cell("f", "a", "likes"), Cell("f", "a", "shares")


# Tables and indices


async def test_two_workers_initialise_concurrently(bare: StoreHarness) -> None:
    await asyncio.gather(bare.store.initialise(), bare.another().initialise())

    assert [] == await bare.store.missing()
    assert Counts(written=1) == await write(bare.store, [CellChange(LIKES, 1, 7)], 2, 5)
    await bare.close()


async def test_repeated_initialisation_changes_nothing(harness: StoreHarness) -> None:
    await write(harness.store, [CellChange(LIKES, 1, 7)], 2, 5)
    reports = await harness.store.initialise()

    assert [] == [line for line in reports if "already exists" not in line]
    assert [("a", "likes", harness.in_rows(7), 1, 5)] == await harness.rows()
    assert [] == await harness.store.missing()


async def test_uninitialised_store_error_says_what_to_do(bare: StoreHarness, tmp_path: Path) -> None:
    (tmp_path / "read.db").touch()
    with pytest.raises(TryAgainError, match="run `streams-app read-store init --store dashboard`"):
        await bare.store.apply([CellChange(LIKES, 1, 7)], CheckpointStep(P0, None, 2), 5)

    assert [] != await bare.store.missing()

    await bare.store.initialise()

    assert Counts(written=1) == await bare.store.apply([CellChange(LIKES, 1, 7)], CheckpointStep(P0, None, 2), 5)
    await bare.close()


# Batches


async def test_changes_and_progress_are_written_and_counted(harness: StoreHarness) -> None:
    store = harness.store
    first = await write(store, [CellChange(LIKES, 5, 1), CellChange(SHARES, 5, 2)], 6, 100)
    await write(store, [], 3, 150, P1)
    second = await write(store, [CellChange(LIKES, 4, 9), CellChange(SHARES, 7, 2)], 8, 200)
    third = await write(store, [CellChange(SHARES, 6, 9), CellChange(LIKES, 8, None)], 9, 300)
    repeated = await write(store, [CellChange(SHARES, 7, 2), CellChange(LIKES, 8, 3)], 9, 400)

    assert [Counts(written=2), Counts(stale=1, unchanged=1), Counts(written=1, stale=1), Counts(stale=1, unchanged=1)] == [
        first, second, third, repeated,
    ]  # fmt: skip
    assert [("a", "likes", None, 8, 300), ("a", "shares", harness.in_rows(2), 7, harness.time(100, 300))] == await harness.rows()
    assert {P0: 9, P1: 3} == await store.checkpoints()


async def test_values_of_two_types_are_two_values(harness: StoreHarness) -> None:
    values: list[Any] = [1, 1.0, 1, "1", None, "a", JsonText('{"a":1}'), 5]
    counts = [await write(harness.store, [CellChange(LIKES, version, value)]) for version, value in enumerate(values)]

    assert [Counts(written=1)] * len(values) == counts


async def test_group_and_name_of_any_characters_are_one_cell(harness: StoreHarness) -> None:
    odd = Cell("f", "{}'\";--\n$1ä漢\t\\", ODD_NAME)

    assert [Counts(written=1), Counts(unchanged=1)] == [await write(harness.store, [CellChange(odd, 1, 1)]) for _ in range(2)]
    assert [(odd.group_key, odd.name, harness.in_rows(1), 1, 0)] == await harness.rows()


# Faults


async def test_locked_store_is_retried_and_works_later(harness: StoreHarness) -> None:
    store = harness.with_short_timeout()
    async with harness.locked():
        with pytest.raises(TryAgainError, match="lock"):
            await write(store, [CellChange(LIKES, 1, 7)], 2, 5)
        with pytest.raises(TryAgainError, match="lock"):
            await store.probe()

    assert {} == await harness.store.checkpoints()
    assert Counts(written=1) == await write(harness.store, [CellChange(LIKES, 1, 7)], 2, 5)


async def test_probe_leaves_nothing_behind(harness: StoreHarness) -> None:
    for _ in range(2):
        await harness.store.probe()

        assert ({}, []) == (await harness.store.checkpoints(), await harness.rows())


async def test_closed_store_is_reopened(harness: StoreHarness) -> None:
    await write(harness.store, [CellChange(LIKES, 1, 7)], 2, 5)
    await harness.store.close()

    assert {P0: 2} == await harness.store.checkpoints()


async def test_reset_versions_permits_lower_versions_and_keeps_the_values(harness: StoreHarness) -> None:
    other = Cell("g", "a", "likes")
    await write(harness.store, [CellChange(LIKES, 9, 7), CellChange(SHARES, 8, 1), CellChange(other, 9, 7)], 2, 5)
    before = await harness.store.count_versioned("f")
    await harness.store.reset_versions("f")
    after = await harness.store.count_versioned("f"), await harness.store.count_versioned("g")
    counts = await write(harness.store, [CellChange(LIKES, 1, 2), CellChange(other, 1, 2)], now_ms=6)

    assert (2, (0, 1), Counts(written=1, stale=1)) == (before, after, counts)
    assert [
        ("a", "likes", harness.in_rows(2), 1, 6),
        ("a", "likes", harness.in_rows(7), 9, 5),
        ("a", "shares", harness.in_rows(1), -1, harness.time(5, 6)),
    ] == await harness.rows()
    assert 1 == await harness.store.count_versioned("f")


async def test_uninitialised_store_counts_no_versions(bare: StoreHarness) -> None:
    assert None is await bare.store.count_versioned("f")
    await bare.close()


WRITER = """
import asyncio, sys
from streams_app.delivery.batch import TP
from streams_app.read_store.core.merge import Cell, CellChange
from streams_app.read_store.registry import open_store
from streams_app.read_store.core.store import CheckpointStep
from streams_app.settings import ReadStoreSettings

async def main():
    store = open_store(ReadStoreSettings.model_validate_json(sys.argv[1]))
    for offset in range(10**9):
        changes = [CellChange(Cell("f", "a", f"name-{n}"), offset, offset) for n in range(50)]
        await store.apply(changes, CheckpointStep(TP("s.f", 0), offset or None, offset + 1), 0)
        if offset == 20:
            print("going", flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("attempt", [0, *(pytest.param(number, marks=pytest.mark.long) for number in (1, 2))])
async def test_process_killed_while_it_writes_leaves_whole_batches_up_to_the_progress(harness: StoreHarness, attempt: int) -> None:
    writer = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITER, harness.settings.model_dump_json(exclude={"timeout"}), stdout=asyncio.subprocess.PIPE
    )
    assert writer.stdout is not None
    assert b"going\n" == await writer.stdout.readline()
    writer.kill()
    await writer.wait()
    # The server may still execute the last request of the process: a statement of the store comes after it.
    await write(harness.store, [CellChange(Cell("f", "a", "name-0"), 0, 0)], 0, 0, P1)
    progress, rows = (await harness.store.checkpoints())[P0], await harness.rows()
    whole = {(harness.in_rows(progress - 1), progress - 1)}
    begun = set() if harness.has_transactions else {(progress, progress)}
    seen = {(value, version) for _, _, value, version, _ in rows}

    assert (50, set()) == (len(rows), seen - whole - begun)
    assert progress > 20


async def test_two_workers_on_the_same_cells_drop_no_change(harness: StoreHarness) -> None:
    cells = [Cell("f", f"g{group}", f"n{name}") for group in range(3) for name in range(10)]

    async def fill(first: int) -> None:
        store = harness.another()
        for version in range(first, 20, 2):
            changes = [CellChange(cell, version, version) for cell in cells]
            await retry_while_locked(partial(write, store, changes, tp=(P0, P1)[first]))

    await asyncio.gather(fill(0), fill(1))

    assert [(cell.group_key, cell.name, harness.in_rows(19), 19) for cell in cells] == [row[:4] for row in await harness.rows()]
