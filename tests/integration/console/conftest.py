"""What tests of the console share."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams_app.settings import Settings
from tests.conftest import KafkaServer, Names, RedisServer
from tests.helpers.cli.commands import Place


@pytest.fixture
def app(kafka: KafkaServer, redis_server: RedisServer, names: Names, tmp_path: Path) -> Place:
    """Return the settings and topics of an application."""
    return Place(names, kafka.bootstrap_servers, redis_server.url, tmp_path)


@pytest.fixture
def settings(app: Place) -> Settings:
    return Settings.load(Path(app.config()), {})
