"""A worker with a read store in OpenSearch, from its absence at the start to the documents."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress

import pytest

from streams_app.embedded.ports import LOOPBACK, free_port
from tests.helpers.cli.commands import run
from tests.helpers.read_store.searching import Search
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import GROUPS, LIMIT_SECONDS, Stage, metric, unhelpful_lines
from tests.servers.opensearch import OpenSearch

pytestmark = pytest.mark.timeout(200)


@asynccontextmanager
async def forwarding(port: int, to: int) -> AsyncIterator[None]:
    """Forward new connections to ``port`` to another port."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(LOOPBACK, to)
        await asyncio.gather(pump(reader, back), pump(there, writer))

    server = await asyncio.start_server(serve, LOOPBACK, port)
    try:
        yield
    finally:
        server.close()


@pytest.mark.long
async def test_worker_folds_while_opensearch_is_absent_and_updates_it_once_it_returns(stage: Stage, opensearch: OpenSearch) -> None:
    with closing(sqlite3.connect(stage.folder / "write.db")) as source, source:
        source.execute("CREATE TABLE m (account_id TEXT, metric TEXT, value INTEGER)")
        source.executemany("INSERT INTO m VALUES (?, ?, ?)", [(f"account_{n % GROUPS}", f"n{n}", n) for n in range(48)])
    port, table = free_port(), f"t_{secrets.token_hex(6)}"
    config = stage.config(
        extra=f'[read_stores.search]\nurl = "opensearch+http://u:s3cret@127.0.0.1:{port}"\nfolds = ["account-metrics"]\n'
        f'dead_letters = "{stage.dead}"\ntable = "{table}"\nshape = "groups"\nsource_url = "sqlite:///{stage.folder}/write.db"\n'
        'sql = "SELECT account_id, metric, value FROM m WHERE account_id IN (SELECT value FROM json_each(:groups))"\n'
    )
    search = Search(opensearch.port, table, "groups")
    with stage.worker(config) as worker:
        await worker.wait_ready()
        await stage.send(48)
        outcome = await stage.outcome()
        await wait_until(lambda: metric(worker, "streams_app_read_store_lag_records") > 0, LIMIT_SECONDS, "the store is behind")
        ready, _ = await worker.get("/health/ready")
        absent = await asyncio.to_thread(run, "check", "--config", str(config))
        async with forwarding(port, opensearch.port):
            made = await asyncio.to_thread(run, "read-store", "init", "--config", str(config))
            await wait_until(lambda: len(search.cells()) == 48, LIMIT_SECONDS, "the store has caught up")
            await wait_until(lambda: metric(worker, "streams_app_read_store_lag_records") == 0, LIMIT_SECONDS, "and logs it")
            verified = await asyncio.to_thread(run, "read-store", "verify", "--config", str(config))
            values = {name: value for (_, name), (value, _) in search.cells().items()}
            code = await worker.terminate()
    await search.close()

    assert ([], 200, 1, 0, 0) == (outcome.faults(stage.sent), ready, absent.code, made.code, code)
    assert {f"n{n}": n for n in range(48)} == values
    assert 0 == verified.code, verified.text
    assert [] == unhelpful_lines(worker.log())
    assert "s3cret" not in worker.log() + absent.text + made.text
