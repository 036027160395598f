"""Fixtures of the integration tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams_app.embedded.ports import free_port
from tests.conftest import KafkaServer, Names, RedisServer
from tests.integration.commands import Place
from tests.integration.site import Site


@pytest.fixture
def site(kafka: KafkaServer, redis_server: RedisServer, names: Names, tmp_path: Path) -> Site:
    return Site(names, kafka.bootstrap_servers, redis_server.url, tmp_path)


@pytest.fixture
def place(kafka: KafkaServer, redis_server: RedisServer, names: Names, tmp_path: Path) -> Place:
    return Place(names, kafka.bootstrap_servers, redis_server.url, tmp_path)


@pytest.fixture
def away(names: Names, tmp_path: Path) -> Place:
    """No server answers."""
    return Place(names, f"127.0.0.1:{free_port()}", f"redis://127.0.0.1:{free_port()}/0", tmp_path)
