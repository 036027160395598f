"""Fixtures of the scripts of journals."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import redis.asyncio

from tests.conftest import Names
from tests.integration.journal.store.shards import Shard


@pytest.fixture
async def shard(redis_client: redis.asyncio.Redis, names: Names) -> AsyncIterator[Shard]:
    yield Shard(redis_client, names)
