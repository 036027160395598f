"""Fixtures of the integration tests."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import redis.asyncio

from streams_app.embedded import Broker, Valkey
from streams_app.embedded.ports import free_port
from tests.conftest import KAFKA_CHOICE, KafkaServer, Names, RedisServer
from tests.helpers import create_topics
from tests.integration.commands import Place
from tests.integration.journal_desk import Desk, desk_settings
from tests.integration.orders import Orders
from tests.integration.searching import Search
from tests.integration.site import Site, Stage
from tests.integration.stores import Postgres, SqlHarness, Sqlite, StoreHarness
from tests.servers.apache_kafka import ApacheKafka
from tests.servers.opensearch import OpenSearch


@pytest.fixture
def site(kafka: KafkaServer, redis_server: RedisServer, names: Names, tmp_path: Path) -> Site:
    return Site(names, kafka.bootstrap_servers, redis_server.url, tmp_path)


@pytest.fixture
def orders(site: Site) -> Orders:
    return Orders(site)


@pytest.fixture
async def stage(kafka: KafkaServer, redis_server: RedisServer, names: Names, tmp_path: Path) -> AsyncIterator[Stage]:
    made = Stage(names, kafka.bootstrap_servers, redis_server.url, tmp_path)
    await create_topics(kafka.bootstrap_servers, [made.source, made.output, made.dead])
    made.config()
    yield made


@pytest.fixture
def place(kafka: KafkaServer, redis_server: RedisServer, names: Names, tmp_path: Path) -> Place:
    return Place(names, kafka.bootstrap_servers, redis_server.url, tmp_path)


@pytest.fixture
async def desk(redis_client: redis.asyncio.Redis, redis_server: RedisServer, names: Names, tmp_path: Path) -> Desk:
    made = Desk(redis_client, desk_settings(names, redis_server.url, "127.0.0.1:9"), tmp_path)
    await made.shard.claim()
    return made


@pytest.fixture
def away(names: Names, tmp_path: Path) -> Place:
    """Return settings with addresses at which no server answers."""
    return Place(names, f"127.0.0.1:{free_port()}", f"redis://127.0.0.1:{free_port()}/0", tmp_path)


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[Valkey]:
    """Yield a Valkey for this test alone, which persists its data."""
    with Valkey.start(directory=tmp_path / "valkey", appendonly=True) as running:
        yield running


@pytest.fixture
def broker() -> Iterator[Broker | ApacheKafka]:
    """Yield a broker for this test alone."""
    running = Broker.start() if KAFKA_CHOICE == "embedded" else ApacheKafka.start()
    with running:
        yield running


CELLS, GROUPS = ["sqlite", "postgresql"], ["sqlite-groups", "postgresql-groups"]
OPENSEARCH = ["opensearch", "opensearch-groups"]

of_sql = pytest.mark.parametrize("bare", CELLS + GROUPS, indirect=True)
"""For a test that uses SQL, or a transaction; its ``bare`` and ``harness`` are a ``SqlHarness``."""
of_groups = pytest.mark.parametrize("bare", GROUPS, indirect=True)


@pytest.fixture(params=CELLS + GROUPS + OPENSEARCH)
def bare(request: pytest.FixtureRequest, tmp_path: Path) -> StoreHarness:
    """Return a target whose tables or indices are not created yet."""
    kept_in, _, shape = request.param.partition("-")
    if kept_in == "sqlite":
        return Sqlite(tmp_path / "read.db", shape or "cells")
    if kept_in == "opensearch":
        return searching(request.getfixturevalue("opensearch"), shape or "cells")
    return Postgres(request.getfixturevalue("postgresql_url"), shape or "cells")


@pytest.fixture(params=["sqlite", "postgresql"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., SqlHarness]:
    """Return a function that opens a store on a table which the test creates."""
    if request.param == "postgresql":
        url = request.getfixturevalue("postgresql_url")
        return lambda **columns: Postgres(url, "groups", columns)
    (tmp_path / "read.db").touch()
    return lambda **columns: Sqlite(tmp_path / "read.db", "groups", columns)


@pytest.fixture
async def harness(bare: StoreHarness) -> AsyncIterator[StoreHarness]:
    await bare.store.initialise()
    yield bare
    await bare.close()


@pytest.fixture(params=["cells", "groups"])
async def bare_search(request: pytest.FixtureRequest, opensearch: OpenSearch) -> AsyncIterator[Search]:
    """Yield a store in OpenSearch whose indices are not created yet."""
    made = searching(opensearch, request.param)
    yield made
    await made.close()


@pytest.fixture
async def search(bare_search: Search) -> Search:
    await bare_search.store.initialise()
    return bare_search


def searching(opensearch: OpenSearch, shape: str) -> Search:
    """Open a store under a unique name."""
    return Search(opensearch.port, f"t_{secrets.token_hex(6)}", shape)
