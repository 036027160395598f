"""The read store in OpenSearch, on a real one and in both shapes: never back, equal values left alone, values as they are."""

from __future__ import annotations

import asyncio
import random

import pytest

from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.read_store.core.merge import Cell, Change
from streams_app.read_store.targets.port import Counts, ProgressError, Step
from tests.integration.searching import Search
from tests.integration.targets import P0, P1, write

LIKES, SHARES = Cell("f", "a", "likes"), Cell("f", "a", "shares")


# Indices


async def test_initialising_makes_everything_once(bare_search: Search) -> None:
    missing = await bare_search.store.missing()
    first = await bare_search.store.initialise()
    await write(bare_search.store, [Change(LIKES, 1, 7)], 2)
    again = await bare_search.another().initialise()
    table = bare_search.table

    assert [f"index template {table}", f"alias {table}", f"alias {table}-progress"] == missing[-3:]
    assert [
        f"created index template {table}",
        *(f"created alias {alias} of index {alias}-000001" for alias in (table, f"{table}-progress")),
    ] == first[1:]
    assert {"is there already"} == {line[-16:] for line in again}
    assert ([], {("a", "likes"): (7, 1)}) == (await bare_search.store.missing(), bare_search.cells())


async def test_two_workers_initialise_at_once(bare_search: Search) -> None:
    await asyncio.gather(bare_search.store.initialise(), bare_search.another().initialise())

    assert [] == await bare_search.store.missing()


async def test_index_of_another_shape_or_other_fields_is_refused_and_left_as_it_is(bare_search: Search) -> None:
    other = {"cells": "groups", "groups": "cells"}[bare_search.shape]
    theirs = Search(bare_search.port, bare_search.table, other).store
    await theirs.initialise()
    await theirs.close()
    with pytest.raises(
        ConfigurationError, match=rf"the index {bare_search.table}-000001 behind {bare_search.table} has other fields: .*, expected"
    ):
        await bare_search.store.initialise()

    assert [f"alias {bare_search.table}"] == [line for line in await bare_search.store.missing() if "script" not in line]


async def test_index_in_the_place_of_the_alias_is_refused(bare_search: Search) -> None:
    bare_search.ask("PUT", f"/{bare_search.table}")
    with pytest.raises(ConfigurationError, match=f"there is an index {bare_search.table}; {bare_search.table} is to be an alias"):
        await bare_search.store.initialise()
    bare_search.ask("DELETE", f"/{bare_search.table}")


@pytest.mark.parametrize("gone", ["index", "progress", "alias", "script"])
async def test_what_is_missing_is_said_with_what_to_do_and_works_once_it_is_there(search: Search, gone: str) -> None:
    table = search.table
    script = next(line for line in await search.store.initialise() if "script" in line).split()[1]
    search.ask(
        "DELETE",
        {
            "index": f"/{table}-000001", "progress": f"/{table}-progress-000001",
            "alias": f"/{table}-000001/_alias/{table}", "script": f"/_scripts/{script}",
        }[gone],
    )  # fmt: skip
    step = Step(P0, None, 2)
    for call in (search.store.probe(), search.store.apply([Change(LIKES, 1, 7)], step, 0)):
        with pytest.raises(TryAgainError, match="run `streams-app read-store init --store dashboard`"):
            await call

    assert [] != await search.store.missing()

    if gone == "alias":
        search.ask("PUT", f"/{table}-000001/_alias/{table}")
    await search.store.initialise()
    await search.store.probe()

    assert Counts(written=1) == await search.store.apply([Change(LIKES, 1, 7)], step, 0)


# Batches


async def test_changes_and_progress_are_written_and_counted(search: Search) -> None:
    store = search.store
    counts = [
        await write(store, [Change(LIKES, 5, 1), Change(SHARES, 5, 2)], 6, 100),
        await write(store, [], 3, 150, P1),
        await write(store, [Change(LIKES, 4, 9), Change(SHARES, 7, 2)], 8, 200),
        await write(store, [Change(SHARES, 6, 9), Change(LIKES, 8, None)], 9, 300),
        await write(store, [Change(SHARES, 7, 2), Change(LIKES, 8, 3)], 9, 400),
    ]

    assert [
        Counts(written=2), Counts(), Counts(stale=1, unchanged=1), Counts(written=1, stale=1), Counts(stale=1, unchanged=1)
    ] == counts  # fmt: skip
    assert {("a", "likes"): (None, 8), ("a", "shares"): (2, 7)} == search.cells()
    assert {P0: 9, P1: 3} == await store.progress()


async def test_repeated_and_stale_records_write_no_document(search: Search) -> None:
    await write(search.store, [Change(LIKES, 5, 1), Change(SHARES, 5, 2)], 6)
    before = search.written()
    await write(search.store, [Change(LIKES, 5, 1), Change(SHARES, 4, 9)], 7)

    assert before == search.written()


async def test_a_name_that_is_gone_does_not_come_back_with_an_older_record(search: Search) -> None:
    await write(search.store, [Change(LIKES, 5, 1)])
    await write(search.store, [Change(LIKES, 7, None)])
    counts = await write(search.store, [Change(LIKES, 6, 3)])

    assert (Counts(stale=1), {("a", "likes"): (None, 7)}) == (counts, search.cells())
    assert [] == search.searched({"exists": {"field": "likes" if search.shape == "groups" else "number"}})


@pytest.mark.parametrize("seed", range(2))
async def test_a_shuffled_and_duplicated_topic_ends_in_the_same_state_as_in_order(search: Search, seed: int) -> None:
    choice = random.Random(seed)
    topic = [Change(Cell("f", f"g{choice.randrange(5)}", f"n{choice.randrange(5)}"), n, choice.randrange(3)) for n in range(300)]
    expected = {(change.cell.group_key, change.cell.name): (change.value, change.version) for change in topic}
    shuffled = [*topic, *choice.sample(topic, 150)]
    choice.shuffle(shuffled)
    for begin in range(0, len(shuffled), 50):
        batch = {change.cell: change for change in sorted(shuffled[begin : begin + 50], key=lambda change: change.version)}
        await write(search.store, list(batch.values()))

    assert expected == search.cells()


async def test_two_workers_on_the_same_documents_lose_nothing(search: Search) -> None:
    names = [f"n{number}" for number in range(20)]

    async def run(first: int) -> None:
        store = search.another()
        for version in range(first, 20, 2):
            await write(store, [Change(Cell("f", "a", name), version, version) for name in names], tp=(P0, P1)[first])

    await asyncio.gather(run(0), run(1))

    assert {("a", name): (19, 19) for name in names} == search.cells()


# Progress


async def test_store_that_stands_elsewhere_takes_nothing_and_says_where_it_is(search: Search) -> None:
    await write(search.store, [Change(LIKES, 1, 1)], 3)
    for after in (None, 2, 4):
        with pytest.raises(ProgressError, match=rf"goes on with .*s\.f.* at 3, not at {after} where it was left"):
            await search.store.apply([Change(LIKES, 2, 2)], Step(P0, after, 9), 0)
    with pytest.raises(ProgressError, match="at None, not at 3"):
        await search.store.apply([Change(LIKES, 2, 2)], Step(P1, 3, 9), 0)

    assert ({P0: 3}, {("a", "likes"): (1, 1)}) == (await search.store.progress(), search.cells())


async def test_transaction_whose_reply_was_lost_is_repeated_without_harm(search: Search) -> None:
    counts = [await search.store.apply([Change(LIKES, 2, 2)], Step(P0, None, 9), 0) for _ in range(2)]

    assert ([Counts(written=1), Counts(unchanged=1)], {P0: 9}) == (counts, await search.store.progress())


async def test_of_owners_that_go_on_from_one_place_only_one_moves_the_progress(search: Search) -> None:
    await write(search.store, [], 3)

    async def go_on(number: int) -> int | None:
        try:
            await search.another().apply([Change(Cell("f", f"g{number}", "n"), 1, 1)], Step(P0, 3, 10 + number), 0)
        except ProgressError:
            return None
        return 10 + number

    moved = [to for to in await asyncio.gather(*map(go_on, range(4))) if to is not None]

    assert ([(await search.store.progress())[P0]], 1) == (moved, len(moved))


async def test_partition_is_begun_anywhere_whatever_its_progress(search: Search) -> None:
    await search.store.begin(P0, 90, 0)
    await search.store.begin(P0, 4, 0)

    assert {P0: 4} == await search.store.progress()


async def test_a_probe_leaves_nothing(search: Search) -> None:
    await search.store.probe()

    assert ({}, []) == (await search.store.progress(), search.documents())


async def test_a_lowered_guard_lets_lower_versions_through_and_keeps_the_values(search: Search) -> None:
    other = Cell("g", "a", "likes")
    await write(search.store, [Change(LIKES, 9, 7), Change(SHARES, 8, 1), Change(other, 9, 7)])
    before = await search.store.guarded("f")
    await search.store.lower("f")
    after = await search.store.guarded("f"), await search.store.guarded("g")
    counts = await write(search.store, [Change(LIKES, 1, 2), Change(other, 1, 2)])

    assert (2, (0, 1), Counts(written=1, stale=1)) == (before, after, counts)
    assert 1 == await search.store.guarded("f")


async def test_a_store_that_was_closed_is_opened_again(search: Search) -> None:
    await write(search.store, [Change(LIKES, 1, 7)], 2)
    await search.store.close()

    assert {P0: 2} == await search.store.progress()


async def test_a_store_without_indices_guards_nothing(bare_search: Search) -> None:
    assert None is await bare_search.store.guarded("f")
