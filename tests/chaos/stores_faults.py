"""What breaks a store in PostgreSQL and those who write it: a worker or the server is killed, or the server has no room."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Final

import asyncpg

from tests.chaos.stores_run import Fault, Run
from tests.helpers import wait_until

HOLD_SECONDS: Final = 5.0
NO_SPACE: Final = "No space left on device"


async def worker_killed(run: Run) -> None:
    """SIGKILL of a worker; the supervisor starts another one."""
    worker = run.chance.choice(run.workers)
    worker.kill()
    await wait_until(lambda: worker.exit_code == -signal.SIGKILL, 20, "it is dead")


async def server_killed(run: Run) -> None:
    """SIGKILL of the server, which is away for a while and recovers from its log."""
    run.server.kill()
    await asyncio.sleep(run.chance.uniform(0, HOLD_SECONDS))
    run.server = await asyncio.to_thread(run.server.again)


async def no_connections(run: Run) -> None:
    """Somebody else takes every connection, and those of the workers are ended."""
    taken: list[asyncpg.Connection[asyncpg.Record]] = []
    loop = asyncio.get_running_loop()
    until = loop.time() + HOLD_SECONDS
    refused = 0
    try:
        while loop.time() < until:
            try:
                taken.append(await asyncpg.connect(run.server.url))
            except asyncpg.TooManyConnectionsError:
                refused += 1
                ours = "pid <> pg_backend_pid() AND application_name LIKE 'streams_app%'"
                await taken[0].execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {ours}")
                await asyncio.sleep(0.1)
    finally:
        for connection in taken:
            await connection.close()
    assert refused, "the limit was never reached"


async def disk_full(run: Run) -> None:
    """The disk of the tables is full for a while; a table beside them cannot grow."""
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
        await wait_until(lambda: run.logs().count(NO_SPACE) > before, 60, "a worker has met the full disk")
    finally:
        run.disk.empty()


async def failover(run: Run) -> None:
    """The server is replaced by a copy of its data, taken while it was under load: what it has acknowledged since then is lost."""
    copy = run.folder / "copy"
    run.server.kill()
    await asyncio.to_thread(_copied, run, copy)
    run.server = await asyncio.to_thread(run.server.again)
    taken = await run.progress()

    async def has_gone_on() -> bool:
        return await run.progress() > taken

    await wait_until(has_gone_on, 60, "it goes on after the copy")
    await asyncio.sleep(run.chance.uniform(0.5, 3))
    before = await run.progress()
    run.server.kill()
    await asyncio.to_thread(_restored, run, copy)
    run.server = await asyncio.to_thread(run.server.again)
    run.lost_progress += before - await run.progress()


def _copied(run: Run, copy: Path) -> None:
    _wait_until_free(run)
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    _copy(run.server.directory / "data", copy / "data")
    if run.disk.is_there:
        _copy(run.disk.path, copy / "small")


def _restored(run: Run, copy: Path) -> None:
    _wait_until_free(run)
    shutil.rmtree(run.server.directory / "data")
    _copy(copy / "data", run.server.directory / "data")
    if run.disk.is_there:
        run.disk.replace(copy / "small")


def _wait_until_free(run: Run) -> None:
    """The processes of its connections take a moment to notice that the server was killed, and write until then."""
    again = run.server.again()
    os.kill(again.pid, signal.SIGINT)
    again._child._process.wait(10)


def _copy(source: Path, to: Path) -> None:
    subprocess.run(["cp", "-a", str(source), str(to)], check=True)


FAULTS: Final[dict[str, Fault]] = {
    "worker-killed": worker_killed,
    "server-killed": server_killed,
    "no-connections": no_connections,
    "disk-full": disk_full,
    "failover": failover,
}
