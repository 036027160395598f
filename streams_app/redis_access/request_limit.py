"""Limits how many requests of a client run at the same time, so that a process needs few connections to Redis.

A worker may have hundreds of shards, each with requests of its own. Redis executes one command at a time, so more connections would
not make it faster. Further requests wait for their turn, in the order in which they were made. The wait has no timeout of its own,
because every running request has one.

No command of this project waits in Redis for data, so no request delays others for long. A command that did, such as ``BLPOP``,
would need a client of its own.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

MAX_REQUESTS: Final = 16
"""Maximum number of concurrent requests of one client to one server; each uses a connection."""

PROCESS_CONNECTIONS: Final = 2 * MAX_REQUESTS + 8
"""Maximum number of connections of one process to one server: those of requests, in a cluster also those of pipelines, and a few of
the watchdog and of the discovery of nodes."""


class LimitedRedis(Redis):
    """Client of a single server that runs at most :data:`MAX_REQUESTS` requests at the same time."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.turns: Final = asyncio.Semaphore(MAX_REQUESTS)

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        async with self.turns:
            return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]  # redis-py gives it no types

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline:
        pipeline = _LimitedPipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)
        pipeline.turns = self.turns
        return pipeline


class _LimitedPipeline(Pipeline):
    turns: asyncio.Semaphore

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        async with self.turns:
            return await super().execute(raise_on_error)
