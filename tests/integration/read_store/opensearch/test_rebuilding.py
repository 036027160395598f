"""``read-store rebuild`` of a store in OpenSearch: another index takes the alias, and workers continue with it."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from streams_app.errors import TryAgainError
from streams_app.read_store.core.merge import Cell, CellChange
from streams_app.read_store.core.rebuilding import OvertakenError
from streams_app.read_store.core.store import CheckpointError, CheckpointStep, Counts
from streams_app.read_store.opensearch.connection import OpenSearchClient
from streams_app.read_store.opensearch.indices import WriteBlock
from streams_app.read_store.opensearch.store import SWITCH_MS
from streams_app.read_store.registry import open_rebuilding
from tests.helpers.cli.commands import run
from tests.helpers.kafka.topics import produce
from tests.helpers.read_store.searching import Search
from tests.helpers.read_store.stores import P0, write
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import LIMIT_SECONDS, Stage
from tests.servers.opensearch import OpenSearch

pytestmark = pytest.mark.timeout(200)

LIKES = Cell("f", "a", "likes")


def section(search: Search, port: int, dead: str) -> str:
    """Return settings of a store with carried values."""
    return (
        f'[read_stores.dashboard]\nurl = "opensearch+http://127.0.0.1:{port}"\nfolds = ["account-metrics"]\nsource = "carried"\n'
        f'dead_letters = "{dead}"\ntable = "{search.table}"\nshape = "{search.shape}"\n'
    )


@asynccontextmanager
async def passing(port: int, before: Callable[[bytes], Awaitable[None]]) -> AsyncIterator[int]:
    """Yield a proxy of OpenSearch that calls a function with the body of each change of aliases before forwarding it."""
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:

        async def serve(request: web.BaseRequest) -> web.Response:
            body = await request.read()
            if request.method == "POST" and request.path == "/_aliases":
                await before(body)
            content = {"Content-Type": request.headers.get("Content-Type", "application/json")}
            async with client.request(request.method, request.rel_url, data=body, headers=content) as answer:
                return web.Response(status=answer.status, body=await answer.read(), content_type=answer.content_type)

        runner = web.ServerRunner(web.Server(serve))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()


def folded(group: str, version: int, names: Any) -> tuple[bytes, bytes]:
    fold = {"id": f"x{version}", "name": "account-metrics", "version": version}
    return group.encode(), json.dumps({"account_id": group, "metrics": names, "fold": fold}).encode()


@pytest.mark.long
async def test_alias_moves_atomically_and_an_outdated_index_is_not_switched(search: Search) -> None:
    rebuilding, new = open_rebuilding(search.settings)
    await write(search.store, [CellChange(LIKES, 1, 1)], 5)
    for _ in range(2):
        left = await rebuilding.prepare()
    await new.set_checkpoint(P0, 3, 0)
    behind = await rebuilding.switch(())
    await new.apply([CellChange(LIKES, 2, 2)], CheckpointStep(P0, 3, 6), 0)
    before = search.cells()
    switched = await rebuilding.switch(())
    repeated = await rebuilding.switch(())
    with pytest.raises(CheckpointError, match=r"has progress 6 for .*, expected 5"):
        await search.store.apply([CellChange(LIKES, 3, 3)], CheckpointStep(P0, 5, 7), 0)
    await rebuilding.close()
    await new.close()

    assert [f"removed index {search.table}{part}-000002, left by an earlier rebuild" for part in ("", "-progress")] == left
    assert ({P0}, set(), set()) == (set(behind), switched, repeated)
    assert ({("a", "likes"): (1, 1)}, {("a", "likes"): (2, 2)}) == (before, search.cells())
    assert Counts(written=1) == await write(search.store, [CellChange(LIKES, 3, 3)], 7)


@pytest.mark.long
async def test_overtaken_rebuild_whose_index_was_removed_switches_nothing(search: Search) -> None:
    first, first_new = open_rebuilding(search.settings)
    second, second_new = open_rebuilding(search.settings)
    await write(search.store, [CellChange(LIKES, 1, 1)], 5)
    await first.prepare()
    await first_new.set_checkpoint(P0, 5, 0)
    left = await second.prepare()
    with pytest.raises(OvertakenError, match="is not the table that this one has filled"):
        await first.switch(())
    before = search.cells()
    await second_new.set_checkpoint(P0, 5, 0)
    switched = await second.switch(())
    with pytest.raises(OvertakenError):
        await first.switch(())
    for each in (first, first_new, second, second_new):
        await each.close()

    assert [f"removed index {search.table}{part}-000002, left by an earlier rebuild" for part in ("", "-progress")] == left
    assert ({("a", "likes"): (1, 1)}, set(), {}) == (before, switched, search.cells())
    assert [f"{search.table}-000003"] == list(search.ask("GET", f"/_alias/{search.table}"))
    assert {P0: 5} == await search.store.checkpoints()


@pytest.mark.long
async def test_similar_indices_and_those_with_a_foreign_alias_stay(search: Search) -> None:
    alike, shown = f"{search.table}-0815-notes", f"{search.table}-000007"
    search.ask("PUT", f"/{alike}")
    search.ask("PUT", f"/{shown}", {"aliases": {f"{search.table}_shown": {}}})
    rebuilding, new = open_rebuilding(search.settings)
    left = [await rebuilding.prepare() for _ in range(2)]
    await rebuilding.close()
    await new.close()
    found = search.ask("GET", f"/{search.table}-0*/_alias")

    assert [f"removed index {search.table}-000008, left by an earlier rebuild"] == left[1][:1]
    assert [] == left[0]
    assert {alike, shown} < found.keys()


@pytest.mark.long
async def test_batch_in_progress_at_the_switch_does_not_move_the_progress_of_the_new_index(search: Search) -> None:
    """Even if both progress documents are equal: same offset, same number of writes."""
    rebuilding, new = open_rebuilding(search.settings)
    await search.store.set_checkpoint(P0, 5, 0)
    await rebuilding.prepare()
    await new.set_checkpoint(P0, 5, 0)
    store: Any = search.store
    index, condition, _ = await store._locate_checkpoint(CheckpointStep(P0, 5, 9))
    await rebuilding.switch(())
    with pytest.raises(TryAgainError, match="blocked"):
        await store._write_checkpoint(CheckpointStep(P0, 5, 9), index, condition, 0)

    assert {P0: 5} == await search.store.checkpoints()
    await rebuilding.close()
    await new.close()


@pytest.mark.long
@pytest.mark.parametrize("who", ["a worker", "init", "rebuild"])
async def test_write_block_of_a_killed_rebuild_is_lifted(search: Search, who: str) -> None:
    client = OpenSearchClient(search.settings)
    await WriteBlock(client, search.table).put()
    for now_ms in (1_000, 1_000 + SWITCH_MS - 1):
        with pytest.raises(TryAgainError, match="blocked"):
            await write(search.store, [CellChange(LIKES, 1, 1)], now_ms=now_ms)
    match who:
        case "a worker":
            with pytest.raises(TryAgainError, match="blocked"):
                await write(search.store, [CellChange(LIKES, 1, 1)], now_ms=1_000 + SWITCH_MS)
        case "init":
            assert "lifted the block of an interrupted rebuild" in await search.another().initialise()
        case _:
            rebuilding, new = open_rebuilding(search.settings)
            await rebuilding.prepare()
            await rebuilding.close()
            await new.close()
    await client.close()

    assert Counts(written=1) == await write(search.store, [CellChange(LIKES, 1, 1)])
    assert 404 == search.ask("GET", f"/_alias/{search.table}_switching")["status"]


@pytest.mark.long
async def test_write_block_that_is_no_rebuilds_is_kept(search: Search) -> None:
    async with search.locked():
        for now_ms in (0, SWITCH_MS):
            with pytest.raises(TryAgainError, match="blocked"):
                await write(search.store, [CellChange(LIKES, 1, 1)], now_ms=now_ms)
        await search.another().initialise()
        with pytest.raises(TryAgainError, match="blocked"):
            await write(search.store, [CellChange(LIKES, 1, 1)], now_ms=SWITCH_MS)


@pytest.mark.long
async def test_rebuild_frozen_until_its_block_is_lifted_repeats_the_switch(search: Search) -> None:
    client = OpenSearchClient(search.settings)

    async def lift_first(body: bytes) -> None:
        if f"{search.table}_new".encode() in body:
            await WriteBlock(client, search.table).lift()

    async with passing(search.port, lift_first) as port:
        rebuilding, new = open_rebuilding(search.settings.model_copy(update={"url": f"opensearch+http://127.0.0.1:{port}"}))
        await rebuilding.prepare()
        with pytest.raises(TryAgainError, match="missing"):
            await rebuilding.switch(())
        before = list(search.ask("GET", f"/_alias/{search.table}"))
        await rebuilding.close()
        await new.close()
    await client.close()

    assert [f"{search.table}-000001"] == before
    assert Counts(written=1) == await write(search.store, [CellChange(LIKES, 1, 1)])


@pytest.mark.long
async def test_rebuild_of_another_shape_does_not_change_the_index_in_use_until_it_switches(search: Search) -> None:
    await write(search.store, [CellChange(LIKES, 1, 1)], 5)
    before = search.ask("GET", f"/{search.table}/_mapping")
    other = Search(search.port, search.table, {"cells": "groups", "groups": "cells"}[search.shape])
    rebuilding, new = open_rebuilding(other.settings)
    changes = await rebuilding.prepare()
    during = search.ask("GET", f"/{search.table}/_mapping")
    await write(search.store, [CellChange(LIKES, 2, 2)], 6)
    with pytest.raises(TryAgainError, match=f"no such index .{search.table}-{other.shape}."):
        await other.store.apply([CellChange(LIKES, 3, 3)], CheckpointStep(P0, 6, 7), 0)
    await new.set_checkpoint(P0, 6, 0)
    await new.apply([CellChange(LIKES, 2, 2)], CheckpointStep(P0, 6, 6), 0)
    switched = await rebuilding.switch(())
    with pytest.raises(TryAgainError, match=f"no such index .{search.table}-{search.shape}."):
        await search.store.apply([CellChange(LIKES, 3, 3)], CheckpointStep(P0, 6, 7), 0)
    written = await write(other.store, [CellChange(LIKES, 3, 3)], 7)
    missing = await other.store.missing()
    fields = search.ask("GET", f"/{search.table}/_mapping")[f"{search.table}-000002"]["mappings"]["properties"]
    for each in (rebuilding, new, other.store):
        await each.close()

    assert ([f"index template {search.table} has the fields of shape {other.shape} from now on"], set()) == (changes, switched)
    assert (before, Counts(written=1), {("a", "likes"): (3, 3)}) == (during, written, other.cells())
    assert ([], other.shape == "cells") == (missing, "number" in fields)


@pytest.mark.long
async def test_rebuild_killed_in_its_switch_has_its_block_lifted_and_nothing_is_missing(
    stage: Stage, opensearch: OpenSearch
) -> None:
    search = Search(opensearch.port, f"t_{secrets.token_hex(6)}", "cells")
    await search.store.initialise()
    await produce(stage.bootstrap, stage.output, [folded("a", 1, {"likes": 1})])
    killed: list[int] = []

    async def kill(body: bytes) -> None:
        if b"_new" in body:
            os.kill(process.pid, signal.SIGKILL)
            killed.append(await process.wait())
            raise web.HTTPServiceUnavailable

    async with passing(search.port, kill) as port:
        config = stage.config(fold='keep = "last"', extra=section(search, port, stage.dead))
        command = (sys.executable, "-m", "streams_app", "read-store", "rebuild", "--config", str(config))
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )
        await wait_until(lambda: bool(killed), LIMIT_SECONDS, "the rebuild is killed in its switch")
    for now_ms in (0, SWITCH_MS):
        with pytest.raises(TryAgainError, match="blocked"):
            await write(search.store, [CellChange(LIKES, 2, 2)], 5, now_ms)
    written, found = await write(search.store, [CellChange(LIKES, 2, 2)], 5, SWITCH_MS), search.cells()
    await search.close()

    assert ([-signal.SIGKILL], Counts(written=1), {("a", "likes"): (2, 2)}) == (killed, written, found)


@pytest.mark.long
@pytest.mark.parametrize("shape", ["cells", "groups"])
async def test_rebuild_beside_a_worker_ends_in_the_same_state(stage: Stage, opensearch: OpenSearch, shape: str) -> None:
    search = Search(opensearch.port, f"t_{secrets.token_hex(6)}", shape)
    config = stage.config(
        fold='keep = "last"',
        extra=section(search, search.port, stage.dead),
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
