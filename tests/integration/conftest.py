"""Fixtures of the integration tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import KafkaServer, Names, RedisServer
from tests.integration.site import Site


@pytest.fixture
def site(kafka: KafkaServer, redis_server: RedisServer, names: Names, tmp_path: Path) -> Site:
    return Site(names, kafka.bootstrap_servers, redis_server.url, tmp_path)
