"""``read-store rebuild`` of a store in OpenSearch: another index takes the alias, and workers go on from there."""

from __future__ import annotations

import asyncio
import json
import secrets
from typing import Any

import pytest

from streams_app.errors import TryAgainError
from streams_app.read_store.core.merge import Cell, Change
from streams_app.read_store.targets.port import Counts, ProgressError, Step
from streams_app.read_store.targets.rebuilding import OvertakenError, new_of, open_rebuilding
from tests.helpers import produce, wait_until
from tests.integration.commands import run
from tests.integration.searching import Search
from tests.integration.site import LIMIT_SECONDS, Stage
from tests.integration.targets import P0, write
from tests.servers.opensearch import OpenSearch

pytestmark = pytest.mark.timeout(200)

LIKES = Cell("f", "a", "likes")


def folded(group: str, version: int, names: Any) -> tuple[bytes, bytes]:
    fold = {"id": f"x{version}", "name": "account-metrics", "version": version}
    return group.encode(), json.dumps({"account_id": group, "metrics": names, "fold": fold}).encode()


@pytest.mark.long
async def test_the_alias_moves_in_one_step_and_what_is_behind_is_not_switched(search: Search) -> None:
    rebuilding, new = open_rebuilding(search.settings)
    await write(search.store, [Change(LIKES, 1, 1)], 5)
    for _ in range(2):
        left = await rebuilding.prepare()
    await new.begin(P0, 3, 0)
    behind = await rebuilding.switch(())
    await new.apply([Change(LIKES, 2, 2)], Step(P0, 3, 6), 0)
    before = search.cells()
    switched = await rebuilding.switch(())
    again = await rebuilding.switch(())
    with pytest.raises(ProgressError, match="at 6, not at 5"):
        await search.store.apply([Change(LIKES, 3, 3)], Step(P0, 5, 7), 0)
    await rebuilding.close()
    await new.close()

    assert [f"removed index {search.table}{part}-000002, which a former rebuild has left" for part in ("", "-progress")] == left
    assert ({P0}, set(), set()) == (set(behind), switched, again)
    assert ({("a", "likes"): (1, 1)}, {("a", "likes"): (2, 2)}) == (before, search.cells())
    assert Counts(written=1) == await write(search.store, [Change(LIKES, 3, 3)], 7)


@pytest.mark.long
async def test_of_two_at_once_the_one_whose_index_was_removed_switches_nothing(search: Search) -> None:
    first, first_new = open_rebuilding(search.settings)
    second, second_new = open_rebuilding(search.settings)
    await write(search.store, [Change(LIKES, 1, 1)], 5)
    await first.prepare()
    await first_new.begin(P0, 5, 0)
    left = await second.prepare()
    with pytest.raises(OvertakenError, match="is not the table that this one has filled"):
        await first.switch(())
    before = search.cells()
    await second_new.begin(P0, 5, 0)
    switched = await second.switch(())
    with pytest.raises(OvertakenError):
        await first.switch(())
    for each in (first, first_new, second, second_new):
        await each.close()

    assert [f"removed index {search.table}{part}-000002, which a former rebuild has left" for part in ("", "-progress")] == left
    assert ({("a", "likes"): (1, 1)}, set(), {}) == (before, switched, search.cells())
    assert [f"{search.table}-000003"] == list(search.ask("GET", f"/_alias/{search.table}"))
    assert {P0: 5} == await search.store.progress()


@pytest.mark.long
async def test_indices_that_look_alike_and_those_with_an_alias_of_somebody_else_stay(search: Search) -> None:
    alike, shown = f"{search.table}-0815-notes", f"{search.table}-000007"
    search.ask("PUT", f"/{alike}")
    search.ask("PUT", f"/{shown}", {"aliases": {f"{search.table}_shown": {}}})
    rebuilding, new = open_rebuilding(search.settings)
    left = [await rebuilding.prepare() for _ in range(2)]
    await rebuilding.close()
    await new.close()
    found = search.ask("GET", f"/{search.table}-0*/_alias")

    assert [f"removed index {search.table}-000008, which a former rebuild has left"] == left[1][:1]
    assert [] == left[0]
    assert {alike, shown} < found.keys()


@pytest.mark.long
async def test_a_batch_under_way_at_the_switch_does_not_move_the_progress_of_the_new_index(search: Search) -> None:
    """Even where both documents of the progress look the same: same offset, same number of writes."""
    rebuilding, new = open_rebuilding(search.settings)
    await search.store.begin(P0, 5, 0)
    await rebuilding.prepare()
    await new.begin(P0, 5, 0)
    store: Any = search.store
    index, condition, _ = await store._place(Step(P0, 5, 9))
    await rebuilding.switch(())
    with pytest.raises(TryAgainError, match="blocked"):
        await store._note(Step(P0, 5, 9), index, condition, 0)

    assert {P0: 5} == await search.store.progress()
    await rebuilding.close()
    await new.close()


@pytest.mark.long
async def test_a_block_that_a_killed_rebuild_has_left_is_lifted_by_the_next(search: Search) -> None:
    rebuilding, new = open_rebuilding(search.settings)
    search.ask("PUT", f"/{search.table}/_block/write")
    with pytest.raises(TryAgainError, match="blocked"):
        await write(search.store, [Change(LIKES, 1, 1)])
    await rebuilding.prepare()
    await rebuilding.close()
    await new.close()

    assert Counts(written=1) == await write(search.store, [Change(LIKES, 1, 1)])
    assert f"{search.table}_new" == new_of(search.settings).table


@pytest.mark.long
@pytest.mark.parametrize("shape", ["cells", "groups"])
async def test_a_rebuild_beside_a_worker_ends_in_the_same_state(stage: Stage, opensearch: OpenSearch, shape: str) -> None:
    search = Search(opensearch.port, f"t_{secrets.token_hex(6)}", shape)
    config = stage.config(
        fold='keep = "last"',
        extra=f'[read_stores.dashboard]\nurl = "{search.settings.url}"\nfolds = ["account-metrics"]\nsource = "carried"\n'
        f'dead_letters = "{stage.dead}"\ntable = "{search.table}"\nshape = "{shape}"\n',
    )
    await search.store.initialise()
    expected: dict[tuple[str, str], tuple[Any, int]] = {}

    async def send(versions: range) -> None:
        expected.update({(f"g{n % 7}", f"n{n % 3}"): (n, n) for n in versions})
        await produce(stage.bootstrap, stage.output, [folded(f"g{n % 7}", n, {f"n{n % 3}": n}) for n in versions])

    with stage.worker(config) as worker:
        await worker.wait_ready()
        await send(range(1, 200))
        await wait_until(lambda: search.cells() == expected, LIMIT_SECONDS, "the store is synced")
        search.ask("POST", f"/{search.table}/_delete_by_query?refresh", {"query": {"match_all": {}}})
        rebuilt = await asyncio.to_thread(run, "read-store", "rebuild", "--config", str(config))
        await send(range(200, 260))
        await wait_until(lambda: search.cells() == expected, LIMIT_SECONDS, "the rebuilt store is synced")
        code = await worker.terminate()
    used = list(search.ask("GET", f"/_alias/{search.table}"))
    await search.close()

    assert (0, 0, [f"{search.table}-000002"]) == (rebuilt.code, code, used), rebuilt.text
