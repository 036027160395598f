"""Reading cells back from OpenSearch, with names and groups of any characters and any length, in both shapes."""

from __future__ import annotations

from streams_app.read_store.core.merge import Cell, CellChange
from tests.helpers.read_store.searching import Search
from tests.helpers.read_store.stores import write


async def test_pages_have_every_cell_of_one_fold_once_in_key_order(search: Search) -> None:
    odd = [Cell("f", group, name) for group in ("", "a", "ä", "[1]", "z" * 600) for name in ("", "x", "a.b", "'\"")]
    await write(search.store, [CellChange(cell, 1, 1) for cell in (Cell("g", "a", "likes"), *odd)])
    found: list[Cell] = []
    while page := await search.store.cells("f", found[-1] if found else None, 3):
        found += [cell for cell, _ in page]

    assert sorted(odd) == found
