"""A MariaDB that denies access, becomes read-only, is killed, or requires TLS."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from streams_app.embedded.ports import LOOPBACK, free_port
from streams_app.errors import TryAgainError
from streams_app.read_store.core.errors import AccessDeniedError
from streams_app.read_store.core.merge import Cell, CellChange
from streams_app.read_store.core.store import CheckpointStep, Counts, ReadableStore
from streams_app.read_store.registry import open_store
from streams_app.settings import ReadStoreSettings
from tests.helpers.read_store.mysql import Mysql, execute_mysql
from tests.helpers.read_store.stores import P0, write
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import LIMIT_SECONDS
from tests.servers.mariadb import MariaDB
from tests.servers.tls import Authority

LIKES = Cell("f", "a", "likes")
PASSWORD = "s3cret/@:%-7"
GRANTS = "GRANT SELECT, INSERT, UPDATE ON cells, and ON cells_progress TO service"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def server(authority: Authority) -> Iterator[MariaDB]:
    """A server of these tests alone, which speaks TLS."""
    signed = authority.sign("server")
    options = (f"ssl-ca={authority.certificate}", f"ssl-cert={signed.certificate}", f"ssl-key={signed.key}")
    with MariaDB.start(options=options) as running:
        yield running


async def prepared(url: str, password: str = PASSWORD) -> None:
    """Create the database `reading` with the tables, and a user with the rights of a worker."""
    await execute_mysql(url, "DROP DATABASE IF EXISTS reading", "CREATE DATABASE reading")
    harness = Mysql(url.rpartition("/")[0] + "/reading")
    await harness.store.initialise()
    await harness.close()
    grants = [f"GRANT SELECT, INSERT, UPDATE ON reading.{table} TO service@'%'" for table in ("cells", "cells_progress")]
    await execute_mysql(url, f"CREATE OR REPLACE USER service@'%' IDENTIFIED BY '{password}'", *grants)


def opened(
    folder: Path, *ports: int, query: str = "", database: str = "reading", password: str = PASSWORD, **given: Any
) -> ReadableStore:
    (folder / "password").write_text(f"{password}\n")
    servers = ",".join(f"{LOOPBACK}:{port}" for port in ports)
    url = f"mariadb://service@{servers}/{database}{query}"
    stated = {"table": "cells", "password_file": folder / "password", "timeout": "5s", **given}
    return open_store(
        ReadStoreSettings.model_validate({"name": "dashboard", "url": url, "folds": ["f"], "source": "carried", **stated})
    )


async def fault_of(store: ReadableStore) -> TryAgainError:
    with pytest.raises(TryAgainError) as caught:
        await store.probe()
    await store.close()
    return caught.value


async def test_wrong_password_database_or_right_is_an_error_of_access_with_an_instruction(server: MariaDB, tmp_path: Path) -> None:
    await prepared(server.url)
    store = opened(tmp_path, server.port)
    await store.probe()
    await store.close()
    password = await fault_of(opened(tmp_path, server.port, password="wrong"))
    database = await fault_of(opened(tmp_path, server.port, database="absent"))
    await execute_mysql(server.url, "REVOKE UPDATE ON reading.cells_progress FROM service@'%'")
    store = opened(tmp_path, server.port)
    with pytest.raises(AccessDeniedError, match="UPDATE command denied") as right:
        for to in (1, 2):
            await write(store, [], to)
    await store.close()

    assert [AccessDeniedError] * 2 == [type(password), type(database)]
    assert "check the user in read_stores.dashboard.url and the password in read_stores.dashboard.password_file" in str(password)
    assert "GRANT SELECT, INSERT, UPDATE ON cells" in str(database) or "name a database that exists" in str(database)
    assert GRANTS in str(right.value)
    assert [] == [one for one in (password, database, right.value) if PASSWORD in str(one)]


async def test_server_that_becomes_read_only_is_replaced_by_the_one_that_is_not(server: MariaDB, tmp_path: Path) -> None:
    with MariaDB.start() as second:
        for one in (server, second):
            await prepared(one.url)
        alone, store = opened(tmp_path, server.port), opened(tmp_path, free_port(), server.port, second.port)
        for each in (alone, store):
            await write(each, [], 1)
        await execute_mysql(server.url, "SET GLOBAL read_only = 1")
        try:
            faults = [await attempt(each) for each in (alone, store)]
            moved = await write(store, [CellChange(LIKES, 1, 1)], 3)
            still = await attempt(alone)
        finally:
            await execute_mysql(server.url, "SET GLOBAL read_only = 0")
        back = await write(alone, [CellChange(LIKES, 1, 1)], 2)
        found = await Mysql(second.url.rpartition("/")[0] + "/reading").rows()
        for each in (alone, store):
            await each.close()

    assert [] == [fault for fault in (*faults, still) if "read-only" not in fault]
    assert (Counts(written=1), Counts(written=1)) == (moved, back)
    assert [("a", "likes", "1", 1, 0)] == found


async def attempt(store: ReadableStore) -> str:
    """Write from progress 1; return the error."""
    with pytest.raises(TryAgainError) as caught:
        await store.apply([CellChange(LIKES, 1, 1)], CheckpointStep(P0, 1, 2), 0)
    return str(caught.value)


async def test_server_killed_while_a_batch_is_written_leaves_all_of_it_or_nothing(server: MariaDB, tmp_path: Path) -> None:
    with MariaDB.start(options=("innodb-flush-log-at-trx-commit=1",)) as first:
        await prepared(first.url)
        store = opened(tmp_path, first.port)
        await write(store, [], 1)
        cells = [Cell("f", f"g{number}", "likes") for number in range(3_000)]
        batch = asyncio.create_task(store.apply([CellChange(cell, 1, 1) for cell in cells], CheckpointStep(P0, 1, 2), 0))

        async def has_begun() -> bool:
            return batch.done() or bool(await execute_mysql(first.url, "SELECT 1 FROM information_schema.innodb_trx"))

        await wait_until(has_begun, LIMIT_SECONDS, "the transaction is open")
        first.kill()
        with suppress(TryAgainError):
            await batch
        with pytest.raises(TryAgainError):
            await store.checkpoints()
        with first.restart():
            progress = (await store.checkpoints())[P0]
            found = await store.read(cells)
            counts = await store.apply([CellChange(cell, 1, 1) for cell in cells], CheckpointStep(P0, 1, 2), 0)
            await store.close()

    assert (0 if progress == 1 else 3_000) == len(found)
    assert 3_000 == counts.written + counts.unchanged


async def test_tls_is_verified_with_a_ca_file_and_not_used_without(server: MariaDB, authority: Authority, tmp_path: Path) -> None:
    await prepared(server.url)
    await execute_mysql(server.url, "ALTER USER service@'%' REQUIRE SSL")
    other = Authority.make(tmp_path / "other")
    for given in ({"ssl_cafile": authority.certificate}, {"query": "?ssl-mode=required"}):
        store = opened(tmp_path, server.port, **given)
        await store.probe()
        await store.close()
    distrusted = await fault_of(opened(tmp_path, server.port, ssl_cafile=other.certificate))
    plain = await fault_of(opened(tmp_path, server.port))

    assert "CERTIFICATE_VERIFY_FAILED" in str(distrusted)
    assert "Access denied" in str(plain)


@pytest.mark.long
async def test_full_disk_is_an_error_that_may_pass_and_nothing_of_the_batch_is_written(tmp_path: Path) -> None:
    options = ("innodb-file-per-table=0", "innodb-data-file-path=ibdata1:12M:autoextend:max:24M")
    with MariaDB.start(options=options) as full:
        await prepared(full.url)
        store = opened(tmp_path, full.port)
        await write(store, [], 1)
        batch = [CellChange(Cell("f", f"g{number}", "likes"), 1, "x" * 100_000) for number in range(20)]
        with pytest.raises(TryAgainError, match="is full") as caught:
            for to in range(2, 99):
                batch = [CellChange(one.cell._replace(fold=f"f{to}"), 1, one.value) for one in batch]
                await write(store, batch, to)
        progress = (await store.checkpoints())[P0]
        found = await store.read([change.cell for change in batch])
        await store.close()

    assert ({}, True) == (found, progress < 98)
    assert not isinstance(caught.value, AccessDeniedError)
