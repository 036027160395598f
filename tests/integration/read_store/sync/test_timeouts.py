"""A store or a source that cannot finish a whole batch within its timeout gets smaller ones, and makes progress."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from streams_app.embedded.ports import LOOPBACK
from streams_app.errors import TryAgainError
from streams_app.read_store.core.store import CheckpointStep
from streams_app.read_store.sync.store_sync import StoreSync
from tests.helpers.kafka.records import Raw
from tests.helpers.read_store.mysql import Mysql
from tests.helpers.read_store.stores import P0, Postgres, SqlHarness, Sqlite, StoreHarness
from tests.integration.conftest import CELLS, OTHERS
from tests.integration.read_store.sync.test_folded_records import folded, sync_of

pytestmark = pytest.mark.timeout(300)

CELL_SECONDS = 0.008
CELLS_SENT = 60
TIMEOUT = "200ms"
LIMIT_SECONDS = 120


async def slow_down(harness: SqlHarness) -> None:
    """Make each written row take at least some 8 ms, also on a fast machine: a batch then exceeds the timeout, a row does not."""
    if isinstance(harness, Sqlite):
        await harness.run("CREATE TABLE busy (value)")
        await harness.run(f"INSERT INTO busy VALUES {', '.join(['(0)'] * 65)}")
        count = "SELECT count(*) FROM busy a, busy b, busy c WHERE a.value + b.value + c.value > 9"
        await harness.run(f"CREATE TRIGGER slow BEFORE INSERT ON cells BEGIN {count}; END")
    elif isinstance(harness, Mysql):
        await harness.run(f"CREATE TRIGGER slow BEFORE INSERT ON cells FOR EACH ROW DO SLEEP({CELL_SECONDS})")
    else:
        assert isinstance(harness, Postgres)
        async with harness.connected() as connection:
            await connection.execute(
                "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS "
                f"$$ BEGIN PERFORM pg_sleep({CELL_SECONDS}); RETURN NEW; END $$;"
                "CREATE TRIGGER slow BEFORE INSERT ON cells FOR EACH ROW EXECUTE FUNCTION wait()"
            )


@asynccontextmanager
async def slow_front(port: int) -> AsyncIterator[int]:
    """Yield a proxy of OpenSearch in which each document of a bulk request takes a while."""
    async with aiohttp.ClientSession(f"http://{LOOPBACK}:{port}") as client:

        async def serve(request: web.BaseRequest) -> web.Response:
            body = await request.read()
            if "_bulk" in str(request.rel_url):
                await asyncio.sleep(CELL_SECONDS * body.count(b"\n") / 2)  # the simulated slowness
            content = {"Content-Type": request.headers.get("Content-Type", "application/json")}
            async with client.request(request.method, request.rel_url, data=body, headers=content) as answer:
                return web.Response(status=answer.status, body=await answer.read(), content_type=answer.content_type)

        runner = web.ServerRunner(web.Server(serve))
        await runner.setup()
        site = web.TCPSite(runner, LOOPBACK, 0)
        await site.start()
        try:
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()


@asynccontextmanager
async def slow_sync(harness: StoreHarness) -> AsyncIterator[StoreSync]:
    if isinstance(harness, SqlHarness):
        await slow_down(harness)
        sync, _ = sync_of(harness, timeout=TIMEOUT)
        yield sync
        await sync.close()
    else:
        async with slow_front(harness.port) as port:  # type: ignore[attr-defined]  # of OpenSearch
            sync, _ = sync_of(harness, timeout=TIMEOUT, url=f"opensearch+http://{LOOPBACK}:{port}")
            yield sync
            await sync.close()


async def advance(sync: StoreSync, records: Sequence[Raw], to: int) -> int:
    """Sync as an agent does; return the number of retries."""
    failures = 0
    async with asyncio.timeout(LIMIT_SECONDS):
        while True:
            try:
                stands = (await sync.store.checkpoints()).get(P0)
                if stands == to:
                    return failures
                await sync.sync_once(CheckpointStep(P0, stands, to), [one for one in records if one.offset >= (stands or 0)])
            except TryAgainError:
                failures += 1


async def test_batch_of_many_records_is_split_until_the_store_is_fast_enough(
    harness: StoreHarness, caplog: pytest.LogCaptureFixture
) -> None:
    records = [folded(at, {"likes": at}, at + 1, group=f"g{at:02}") for at in range(CELLS_SENT)]
    async with slow_sync(harness) as sync:
        failures = await advance(sync, records, CELLS_SENT)
    rows = await harness.rows()
    logged = [line for line in caplog.messages if "the store exceeds its timeout" in line]

    assert [(f"g{at:02}", "likes", at + 1) for at in range(CELLS_SENT)] == [
        (group, name, version) for group, name, _, version, _ in rows
    ]
    assert failures
    assert len(logged) == 1
    assert "store=dashboard cells=60 timeout_ms=200" in logged[0]


@pytest.mark.parametrize("bare", CELLS + OTHERS, indirect=True)
async def test_single_record_of_many_names_is_split_until_the_store_is_fast_enough(harness: StoreHarness) -> None:
    record = folded(7, {f"n{at:02}": at for at in range(CELLS_SENT)}, 8)
    async with slow_sync(harness) as sync:
        failures = await advance(sync, [record], 8)
    rows = await harness.rows()

    assert [f"n{at:02}" for at in range(CELLS_SENT)] == [name for _, name, *_ in rows]
    assert failures


async def test_slow_source_receives_smaller_requests(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def current(fold: str, pairs: Any) -> dict[Any, Any]:
        time.sleep(CELL_SECONDS * len(pairs))  # the simulated slowness
        return dict.fromkeys(pairs, 1)

    harness = Sqlite(tmp_path / "read.db")
    await harness.store.initialise()
    sync, _ = sync_of(harness, timeout=TIMEOUT, source="python", current=current)
    records = [folded(at, {"likes": None}, at + 1, group=f"g{at:02}") for at in range(CELLS_SENT)]
    await advance(sync, records, CELLS_SENT)
    await sync.close()
    rows = await harness.rows()
    await harness.close()

    assert [1] * CELLS_SENT == [value for _, _, value, *_ in rows]
    assert 1 == sum("the source exceeds its timeout" in line for line in caplog.messages)
