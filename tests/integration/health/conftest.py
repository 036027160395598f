"""An HTTP server for each test, and the state that it serves."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from streams_app.health.http import HttpServer
from streams_app.health.metrics import Metrics
from streams_app.health.status import Status
from streams_app.settings import HttpSettings, Settings
from tests.helpers.manual_clock import ManualClock
from tests.integration.health.asking import FOLD, Start


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(Settings.model_validate({"app_id": "a", "folds": [FOLD]}))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def start(status: Status, metrics: Metrics, clock: ManualClock) -> AsyncIterator[Start]:
    """Yield a function that starts servers on any free port; stop them at the end."""
    servers: list[HttpServer] = []

    def started(*, default_port: int | None = None, **options: Any) -> HttpServer:
        settings = HttpSettings(**{"port": 0, **options})
        if default_port is not None:
            settings = HttpSettings.model_construct(_fields_set=set(), **{**dict(settings), "port": default_port})
        server = HttpServer(settings, status, metrics, clock)
        server.start()
        servers.append(server)
        return server

    yield started
    for server in servers:
        server.stop()


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("open-sesame\n", "utf-8")
    return path


@pytest.fixture
def taken() -> Iterator[int]:
    """Yield a port on which another socket listens, with a free one above it."""
    for _ in range(50):
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            try:
                other.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            other.close()
            one.listen()
            yield port
            return
    pytest.fail("no two free ports in a row")
