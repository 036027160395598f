"""A store in MariaDB under faults: it is killed, frozen, read-only for a while, or ends every connection."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from asyncmy.errors import MySQLError

from tests.chaos.run import Duration
from tests.chaos.stores.faults import HOLD_SECONDS, server_frozen, server_killed, worker_killed
from tests.chaos.stores.run import Cells, StoreRun
from tests.helpers.read_store.mysql import execute_mysql
from tests.helpers.waiting import wait_until
from tests.servers.mariadb import MariaDB

CELLS: Final = "SELECT group_key, name, version, CAST(value AS SIGNED) FROM folded_values"
RIGHTS: Final = ("CREATE DATABASE reading", "CREATE USER service@'%'", "GRANT ALL ON reading.* TO service@'%'")
CONNECTIONS: Final = "SELECT id FROM information_schema.processlist WHERE user = 'service'"
LIMIT_SECONDS: Final = 60


class MariaDBRun(StoreRun):
    """A run with MariaDB, whose user has no right to write while the server is read-only."""

    full = Duration(2, 40.0)
    share = Duration(1, 20.0)

    async def start(self) -> str:
        self.server = MariaDB.start(options=("innodb-flush-log-at-trx-commit=1",))
        await execute_mysql(self.server.url, *RIGHTS)
        return self.server.url.replace("root@", "service@").replace("/mysql", "/reading")

    def stop(self) -> None:
        self.server.stop()

    async def stored(self) -> Cells:
        rows = await execute_mysql(self.server.url.replace("/mysql", "/reading"), CELLS)
        return {(group, name): (version, value) for group, name, version, value in rows}


async def read_only(run: MariaDBRun) -> None:
    """Make the server read-only for a while, as a failover does."""
    before = run.logs().count("read-only")
    await execute_mysql(run.server.url, "SET GLOBAL read_only = 1")
    try:
        await wait_until(lambda: run.logs().count("read-only") > before, LIMIT_SECONDS, "a worker reports it")
    finally:
        await execute_mysql(run.server.url, "SET GLOBAL read_only = 0")


async def connections_ended(run: MariaDBRun) -> None:
    """End the connections of the workers again and again for a while, also in the middle of a transaction."""
    loop = asyncio.get_running_loop()
    until = loop.time() + HOLD_SECONDS
    while loop.time() < until:
        for (number,) in await execute_mysql(run.server.url, CONNECTIONS):
            with suppress(MySQLError):  # it has ended meanwhile
                await execute_mysql(run.server.url, f"KILL {number}")
        await asyncio.sleep(run.chance.uniform(0, 0.2))  # the fault lasts


MariaDBRun.faults_of = {
    "worker-killed": worker_killed,
    "server-killed": server_killed,
    "server-frozen": server_frozen,
    "read-only": read_only,
    "connections-ended": connections_ended,
}
