"""Fixtures for the schedules and the broken variants."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests.conftest import RedisServer


@pytest.fixture(scope="module")
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_server.url) as made:
        yield made
