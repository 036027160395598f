"""A journal of a test, its first partition, and a reader."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import redis.asyncio

from streams_app import JournalReader
from streams_app.settings import Settings
from tests.conftest import Names, RedisServer
from tests.helpers.journal.journals import JournalShard
from tests.integration.journal.reading.readers import declared


@pytest.fixture
def settings(redis_server: RedisServer, names: Names) -> Settings:
    return declared(names, redis_server.url)


@pytest.fixture
async def reader(settings: Settings) -> AsyncIterator[JournalReader]:
    async with JournalReader(settings, "accounts") as made:
        yield made


@pytest.fixture
async def shard(redis_client: redis.asyncio.Redis, settings: Settings) -> JournalShard:
    made = JournalShard(redis_client, settings)
    await made.claim()
    return made
