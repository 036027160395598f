"""A read store, its source in the same database, and the topic between them."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import Any

import asyncpg
from asyncmy.errors import ProgrammingError

from streams_app.read_store.registry import open_store
from streams_app.settings import ReadStoreSettings, Settings
from tests.helpers.cli.commands import Ran, run
from tests.helpers.kafka.topics import produce
from tests.helpers.read_store.mysql import execute_mysql
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import LIMIT_SECONDS, Stage, metric

SQLITE = "SELECT account_id, metric, value FROM metrics WHERE account_id IN (SELECT value FROM json_each(:groups))"
MYSQL = "SELECT account_id, metric, value FROM metrics WHERE account_id IN (:groups)"
POSTGRESQL = "SELECT account_id, metric, value FROM metrics WHERE account_id = ANY(:groups)"
FOLD = "account-metrics"


def folded(group: str, version: int, names: Any) -> tuple[bytes, bytes]:
    fold = {"id": f"x{version}", "name": FOLD, "version": version}
    return group.encode(), json.dumps({"account_id": group, "metrics": names, "fold": fold}).encode()


class Compared:
    """A store, its source and the topic between them."""

    def __init__(self, stage: Stage, url: str, *, is_carried: bool = False, **options: Any) -> None:
        self.stage = stage
        self.url = url
        self.is_carried = is_carried
        self.options = options
        self.sent = 0
        self.configure()

    def configure(self, extra: str = "") -> None:
        """Write the settings, with further lines for the store."""
        source = f"source_url = {json.dumps(self.url)}\nsql = {json.dumps(self._sql)}\n"
        dead = f"dead_letters = {json.dumps(self.stage.dead)}\n"
        section = f'[read_stores.dashboard]\nurl = {json.dumps(self.url)}\nfolds = ["{FOLD}"]\n{dead}{extra}'
        self.config = self.stage.config(
            extra=section + ('source = "carried"\n' if self.is_carried else source),
            fold='keep = "last"' if self.is_carried else "",
            **self.options,
        )

    @property
    def _sql(self) -> str:
        return {"sqlite": SQLITE, "mysql": MYSQL}.get(self.url.partition(":")[0], POSTGRESQL)

    async def execute(self, sql: str) -> None:
        if self.url.startswith("sqlite"):
            with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"))) as connection, connection:
                connection.execute(sql)
            return
        if self.is_mysql:
            await execute_mysql(self.url, sql)
            return
        other = await asyncpg.connect(self.url)
        try:
            await other.execute(sql)
        finally:
            await other.close()

    @property
    def is_mysql(self) -> bool:
        return self.url.startswith("mysql")

    @property
    def types(self) -> tuple[str, str, str]:
        """Return the types of ``versions``, of a column of the key, and of ``updated_ms``."""
        if self.is_mysql:
            return "longtext", "varbinary(99)", "bigint"
        return ("text", "text", "integer") if self.url.startswith("sqlite") else ("jsonb", "text", "bigint")

    @property
    def declared(self) -> ReadStoreSettings:
        """Return the settings of the store."""
        return Settings.load(self.config, {}).read_store(None)

    async def prepare(self, *values: tuple[str, str, int]) -> None:
        """Create tables, and insert values into the source."""
        ran = self.run("init")
        assert 0 == ran.code, ran
        await self.execute("CREATE TABLE metrics (account_id VARCHAR(99), metric VARCHAR(99), value INTEGER)")
        for account, name, value in values:
            await self.execute(f"INSERT INTO metrics VALUES ('{account}', '{name}', {value})")

    async def sync(self) -> str:
        """Run a worker for the store alone until it has applied everything in the topic; return its log."""
        store = open_store(self.declared)
        with self.stage.worker(self.config) as worker:
            await worker.wait_ready()

            async def is_synced() -> bool:
                # A partition without a first poll has no lag yet, hence the sum of the offsets.
                progress = await store.checkpoints()
                is_taken = sum(offset for tp, offset in progress.items() if tp.topic == self.stage.output) >= self.sent
                return is_taken and metric(worker, "streams_app_read_store_lag_records") == 0

            await wait_until(is_synced, LIMIT_SECONDS, "the store is synced")
            assert 0 == await worker.terminate()
        await store.close()
        return worker.log()

    async def send(self, *records: tuple[bytes, bytes]) -> None:
        await produce(self.stage.bootstrap, self.stage.output, records)
        self.sent += len(records)

    def run(self, command: str, *arguments: str) -> Ran:
        return run("read-store", command, "--config", str(self.config), *arguments)

    def verify(self, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
        ran = self.run("verify", "--json", "--wait", "0.2", *arguments)
        return ran.code, [json.loads(line) for line in ran.out.splitlines()]

    def run_app(self, command: str, app: str) -> Ran:
        """Run a command with the folder as import path."""
        return run("read-store", command, "--app", app, cwd=self.stage.folder)

    async def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows that a reader sees."""
        if self.url.startswith("sqlite"):
            with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"))) as connection:
                return connection.execute(sql).fetchall()
        if self.is_mysql:
            found = await execute_mysql(self.url, sql.replace(" AS TEXT)", " AS CHAR)"))
            return [tuple(one.decode() if isinstance(one, bytes) else one for one in row) for row in found]
        other = await asyncpg.connect(self.url)
        try:
            return [tuple(row) for row in await other.fetch(sql)]
        finally:
            await other.close()

    async def rows_or_none(self, sql: str) -> list[tuple[Any, ...]] | None:
        """Return the rows, or None if the table does not exist."""
        try:
            return await self.rows(sql)
        except (sqlite3.OperationalError, asyncpg.UndefinedTableError, ProgrammingError):
            return None

    async def indexes(self, table: str) -> list[tuple[Any, ...]]:
        """Return the indexes of a table other than that of its key."""
        if self.url.startswith("sqlite"):
            return await self.rows(f"SELECT name FROM sqlite_master WHERE type = 'index' AND tbl_name = '{table}'")
        if self.is_mysql:
            return await self.rows(
                f"SELECT DISTINCT index_name FROM information_schema.statistics WHERE table_name = '{table}' "
                "AND table_schema = DATABASE() AND index_name <> 'PRIMARY'"
            )
        return await self.rows(f"SELECT indexname FROM pg_indexes WHERE tablename = '{table}' AND indexname NOT LIKE '%pkey%'")
