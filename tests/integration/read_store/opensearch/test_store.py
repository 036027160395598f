"""The read store in OpenSearch alone, in both shapes: its indices, and which documents are written and found."""

from __future__ import annotations

import pytest

from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.read_store.core.merge import Cell, CellChange
from streams_app.read_store.core.store import CheckpointStep, Counts
from tests.helpers.read_store.searching import Search
from tests.helpers.read_store.stores import P0, write

LIKES, SHARES = Cell("f", "a", "likes"), Cell("f", "a", "shares")


# Indices


async def test_initialising_creates_everything_once(bare_search: Search) -> None:
    missing = [line for line in await bare_search.store.missing() if "script" not in line]
    first = await bare_search.store.initialise()
    await write(bare_search.store, [CellChange(LIKES, 1, 7)], 2)
    repeated = await bare_search.another().initialise()
    table = bare_search.table
    aliases = [f"alias {table}{part}" for part in ("", "-progress", f"-{bare_search.shape}")]

    assert [f"index template {table}", *aliases] == missing
    assert [
        f"created index template {table}",
        *(f"created alias {alias} of index {alias}-000001" for alias in (table, f"{table}-progress")),
    ] == first[1:]
    assert {"already exists"} == {line[-14:] for line in repeated}
    assert ([], {("a", "likes"): (7, 1)}) == (await bare_search.store.missing(), bare_search.cells())


async def test_index_of_another_shape_or_other_fields_is_rejected_and_unchanged(bare_search: Search) -> None:
    other = {"cells": "groups", "groups": "cells"}[bare_search.shape]
    theirs = Search(bare_search.port, bare_search.table, other).store
    await theirs.initialise()
    await theirs.close()
    with pytest.raises(
        ConfigurationError, match=rf"the index {bare_search.table}-000001 behind {bare_search.table} has other fields: .*, expected"
    ):
        await bare_search.store.initialise()

    missing = [line for line in await bare_search.store.missing() if "script" not in line]

    assert [f"alias {bare_search.table}", f"alias {bare_search.table}-{bare_search.shape}"] == missing


async def test_index_in_the_place_of_the_alias_is_rejected(bare_search: Search) -> None:
    bare_search.ask("PUT", f"/{bare_search.table}")
    with pytest.raises(ConfigurationError, match=f"there is an index {bare_search.table}; {bare_search.table} is to be an alias"):
        await bare_search.store.initialise()
    bare_search.ask("DELETE", f"/{bare_search.table}")


@pytest.mark.parametrize("gone", ["index", "progress", "alias", "script"])
async def test_missing_resource_is_reported_with_a_fix_and_the_store_works_once_it_exists(search: Search, gone: str) -> None:
    table = search.table
    script = next(line for line in await search.store.initialise() if "script" in line).split()[1]
    search.ask(
        "DELETE",
        {
            "index": f"/{table}-000001", "progress": f"/{table}-progress-000001",
            "alias": f"/{table}-000001/_alias/*", "script": f"/_scripts/{script}",
        }[gone],
    )  # fmt: skip
    step = CheckpointStep(P0, None, 2)
    for call in (search.store.probe(), search.store.apply([CellChange(LIKES, 1, 7)], step, 0)):
        with pytest.raises(TryAgainError, match="run `streams-app read-store init --store dashboard`"):
            await call

    assert [] != await search.store.missing()

    if gone == "alias":
        search.ask("PUT", f"/{table}-000001/_alias/{table}")
    await search.store.initialise()
    await search.store.probe()

    assert Counts(written=1) == await search.store.apply([CellChange(LIKES, 1, 7)], step, 0)


# Documents


async def test_repeated_and_stale_records_write_no_document(search: Search) -> None:
    await write(search.store, [CellChange(LIKES, 5, 1), CellChange(SHARES, 5, 2)], 6)
    before = search.written()
    await write(search.store, [CellChange(LIKES, 5, 1), CellChange(SHARES, 4, 9)], 7)

    assert before == search.written()


async def test_deleted_name_is_found_by_no_query(search: Search) -> None:
    query = {"exists": {"field": "likes" if search.shape == "groups" else "number"}}
    await write(search.store, [CellChange(LIKES, 5, 1)])
    before = search.searched(query)
    await write(search.store, [CellChange(LIKES, 7, None)])

    assert (["a"], []) == (before, search.searched(query))
