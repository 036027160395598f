"""A read store in MySQL or MariaDB in tests, and access to its data that does not use our code."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import asyncmy

from streams_app.settings import UrlParts
from tests.helpers.read_store.stores import COLUMNS, SqlHarness


@asynccontextmanager
async def connected_mysql(url: str) -> AsyncIterator[Any]:
    """Yield a connection in autocommit mode, with names in double quotes."""
    parts = UrlParts.of(url)
    ((server, port),) = parts.hosts
    connection = await asyncmy.connect(
        host=server, port=port or 3306, user=parts.username, password=parts.password or "", database=parts.path.strip("/"),
        charset="utf8mb4", autocommit=True, init_command="SET SESSION sql_mode = 'ANSI_QUOTES,STRICT_ALL_TABLES'",
    )  # fmt: skip
    try:
        yield connection
    finally:
        await connection.ensure_closed()


async def execute_mysql(url: str, *statements: str) -> list[tuple[Any, ...]]:
    """Execute statements over a separate connection; return the rows of the last one."""
    async with connected_mysql(url) as connection, connection.cursor() as cursor:
        for sql in statements:
            await cursor.execute(sql)
        return [tuple(row) for row in await cursor.fetchall()] if cursor.description else []


@asynccontextmanager
async def global_setting(url: str, name: str, value: str) -> AsyncIterator[None]:
    """Change a setting of the server for the block."""
    ((former,),) = await execute_mysql(url, f"SELECT @@global.{name}")
    await execute_mysql(url, f"SET GLOBAL {name} = {value}")
    try:
        yield
    finally:
        await execute_mysql(url, f"SET GLOBAL {name} = {former if isinstance(former, int) else repr(former)}")


class Mysql(SqlHarness):
    """A database of a MySQL or MariaDB server."""

    system_columns = (
        "fold VARBINARY(64) NOT NULL, group_key VARBINARY(704) NOT NULL, versions longtext NOT NULL DEFAULT ('{}'), "
        "updated_ms bigint NOT NULL DEFAULT 0"
    )

    cell_columns = (
        "fold VARBINARY(64) NOT NULL, group_key VARBINARY(704) NOT NULL, name VARBINARY(256) NOT NULL, value longtext, "
        "version bigint NOT NULL, updated_ms bigint NOT NULL"
    )
    integer = "signed"

    def __init__(self, url: str, shape: str = "cells", columns: Mapping[str, str] = COLUMNS) -> None:
        self.url = url
        super().__init__(url, shape, columns)

    async def run(self, sql: str) -> list[tuple[Any, ...]]:
        return [
            tuple(value.decode() if isinstance(value, bytes) else value for value in row)
            for row in await execute_mysql(self.url, sql)
        ]

    def in_rows(self, value: int) -> Any:
        return str(value)

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        async with connected_mysql(self.url) as other, other.cursor() as cursor:
            await cursor.execute("LOCK TABLES cells READ, cells_progress READ")
            yield

    async def reject_writes(self, table: str) -> None:
        await self.run(
            f"CREATE TRIGGER broken BEFORE INSERT ON {table} FOR EACH ROW "
            "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'the disk is full'"
        )
        await self.run(
            f"CREATE TRIGGER broken_too BEFORE UPDATE ON {table} FOR EACH ROW "
            "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'the disk is full'"
        )

    async def allow(self, table: str) -> None:
        await execute_mysql(self.url, "DROP TRIGGER broken", "DROP TRIGGER broken_too")
