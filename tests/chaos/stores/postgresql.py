"""A store in PostgreSQL under faults: its connections are used up, its disk is full, or a copy replaces it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Final

import asyncpg

from tests.chaos.stores.faults import HOLD_SECONDS, server_killed, worker_killed
from tests.chaos.stores.run import Cells, StoreRun
from tests.chaos.stores.small_disk import SmallDisk
from tests.helpers.waiting import wait_until
from tests.servers.postgresql import PostgreSQL

CONNECTIONS: Final = 20
CELLS: Final = "SELECT group_key, name, version, value::text::bigint FROM folded_values"
NO_SPACE: Final = "No space left on device"


class PostgresRun(StoreRun):
    """A run with PostgreSQL; its tables are on a small disk, if one can be mounted."""

    async def start(self) -> str:
        self.disk = SmallDisk.mounted(self.folder)
        self.server = PostgreSQL.start(options=(f"max_connections={CONNECTIONS}", "synchronous_commit=on"))
        if self.disk.is_there:
            connection = await asyncpg.connect(self.server.url)
            await connection.execute(f"CREATE TABLESPACE small LOCATION '{self.disk.path}'")
            await connection.execute("ALTER DATABASE postgres SET default_tablespace = small")
            await connection.close()
        return self.server.url

    def stop(self) -> None:
        self.server.stop()
        self.disk.unmount()

    async def stored(self) -> Cells:
        connection = await asyncpg.connect(self.server.url)
        try:
            return {(group, name): (version, value) for group, name, version, value in await connection.fetch(CELLS)}
        finally:
            await connection.close()

    async def progress(self) -> int:
        """Return the sum of the offsets in the progress of the store."""
        connection = await asyncpg.connect(self.server.url)
        try:
            return int(await connection.fetchval("SELECT coalesce(sum(next_offset), 0) FROM folded_values_progress"))
        finally:
            await connection.close()


async def no_connections(run: PostgresRun) -> None:
    """Use up every connection, and end those of the workers."""
    connections: list[asyncpg.Connection[asyncpg.Record]] = []
    loop = asyncio.get_running_loop()
    until = loop.time() + HOLD_SECONDS
    rejected = 0
    try:
        while loop.time() < until:
            try:
                connections.append(await asyncpg.connect(run.server.url))
            except asyncpg.TooManyConnectionsError:
                rejected += 1
                ours = "pid <> pg_backend_pid() AND application_name LIKE 'streams_app%'"
                await connections[0].execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {ours}")
                await asyncio.sleep(0.1)  # the limit stays in effect: new connections are rejected, too
    finally:
        for connection in connections:
            await connection.close()
    assert rejected, "the limit was never reached"


async def disk_full(run: PostgresRun) -> None:
    """Fill the disk of the tables for a while, so that no table can grow. Do nothing if no disk can be mounted."""
    if not run.disk.is_there:
        return
    run.disk.fill()
    try:
        before = run.logs().count(NO_SPACE)
        connection = await asyncpg.connect(run.server.url)
        try:
            await connection.execute("CREATE TABLE ballast AS SELECT repeat('x', 1000) FROM generate_series(1, 9999)")
        except asyncpg.DiskFullError:
            pass
        else:
            raise AssertionError("the disk is not full")
        finally:
            await connection.close()
        await wait_until(lambda: run.logs().count(NO_SPACE) > before, 60, "a worker reports the full disk")
    finally:
        run.disk.empty()


async def failover(run: PostgresRun) -> None:
    """Replace the server by a copy of its data that was taken under load: later acknowledged transactions are lost."""
    copy = run.folder / "copy"
    run.server.kill()
    await asyncio.to_thread(_copied, run, copy)
    run.server = await asyncio.to_thread(run.server.restart)
    copied = await run.progress()

    async def has_progressed() -> bool:
        return await run.progress() > copied

    await wait_until(has_progressed, 60, "writes continue after the copy")
    await asyncio.sleep(run.chance.uniform(0.5, 3))  # the fault lasts
    before = await run.progress()
    run.server.kill()
    await asyncio.to_thread(_restored, run, copy)
    run.server = await asyncio.to_thread(run.server.restart)
    run.lost_progress += before - await run.progress()


def _copied(run: PostgresRun, copy: Path) -> None:
    _wait_until_free(run)
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    _copy(run.server.directory / "data", copy / "data")
    if run.disk.is_there:
        _copy(run.disk.path, copy / "small")


def _restored(run: PostgresRun, copy: Path) -> None:
    _wait_until_free(run)
    shutil.rmtree(run.server.directory / "data")
    _copy(copy / "data", run.server.directory / "data")
    if run.disk.is_there:
        run.disk.replace(copy / "small")


def _wait_until_free(run: PostgresRun) -> None:
    """Wait for the processes of its connections, which write until they detect that the server was killed."""
    restarted = run.server.restart()
    os.kill(restarted.pid, signal.SIGINT)
    restarted._child._process.wait(10)


def _copy(source: Path, to: Path) -> None:
    subprocess.run(["cp", "-a", str(source), str(to)], check=True)


PostgresRun.faults_of = {
    "worker-killed": worker_killed,
    "server-killed": server_killed,
    "no-connections": no_connections,
    "disk-full": disk_full,
    "failover": failover,
}
