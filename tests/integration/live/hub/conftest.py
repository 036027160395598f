"""Fixtures of the hub."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import redis.asyncio

from streams_app.embedded import Valkey
from streams_app.settings import LiveView
from tests.conftest import Names, RedisServer
from tests.helpers.live.hubs import RunningHub, running_hub
from tests.integration.live.hub.views import Start


@pytest.fixture
async def client(valkey: Valkey) -> AsyncIterator[redis.asyncio.Redis]:
    """Yield a client of a Redis that the test may wipe and stop."""
    made = redis.asyncio.Redis.from_url(valkey.url)
    yield made
    await made.aclose()


@pytest.fixture
def start(names: Names, redis_server: RedisServer) -> Start:
    def made(*views: LiveView, **options: Any) -> AbstractAsyncContextManager[RunningHub]:
        return running_hub(names.app_id, redis_server.url, views, **options)

    return made
