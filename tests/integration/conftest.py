"""Fixtures of the integration tests."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import redis.asyncio

from streams_app.embedded import Broker, Valkey
from streams_app.embedded.ports import free_port
from streams_app.settings.databases import DATABASES
from tests.conftest import KAFKA_CHOICE, KafkaServer, Names, RedisServer
from tests.helpers.cli.commands import Place
from tests.helpers.journal.journal_desk import Desk, desk_settings
from tests.helpers.kafka.topics import create_topics
from tests.helpers.read_store.mysql import Mysql
from tests.helpers.read_store.searching import Search
from tests.helpers.read_store.stores import Postgres, SqlHarness, Sqlite, StoreHarness
from tests.helpers.subscribers.orders import Orders
from tests.helpers.worker.site import Site, Stage
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


SQL_HARNESSES: dict[str, Callable[[pytest.FixtureRequest, Path], Callable[..., SqlHarness]]] = {
    "sqlite": lambda request, folder: partial(Sqlite, folder / "read.db"),
    "postgresql": lambda request, folder: partial(Postgres, request.getfixturevalue("postgresql_url")),
    "mysql": lambda request, folder: partial(Mysql, request.getfixturevalue("mysql_url")),
}
"""Folder of each SQL database → function that prepares a database for a test; it returns a function of shape and columns."""
CELLS, GROUPS = list(SQL_HARNESSES), [f"{folder}-groups" for folder in SQL_HARNESSES]
OTHERS = [database.folder for database in DATABASES if database.folder not in SQL_HARNESSES]

of_sql = pytest.mark.parametrize("bare", CELLS + GROUPS, indirect=True)
"""For a test that uses SQL, or a transaction; its ``bare`` and ``harness`` are a ``SqlHarness``."""
of_groups = pytest.mark.parametrize("bare", GROUPS, indirect=True)


@pytest.fixture(params=CELLS + GROUPS + OTHERS + [f"{folder}-groups" for folder in OTHERS])
def bare(request: pytest.FixtureRequest, tmp_path: Path) -> StoreHarness:
    """Return a store whose tables or indices are not created yet, by the folder of its database."""
    folder, _, shape = request.param.partition("-")
    if folder in SQL_HARNESSES:
        return SQL_HARNESSES[folder](request, tmp_path)(shape or "cells")
    assert folder == "opensearch", f"SQL_HARNESSES or the fixture `bare` needs a harness of {folder}"
    return searching(request.getfixturevalue("opensearch"), shape or "cells")


@pytest.fixture(params=CELLS)
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., SqlHarness]:
    """Return a function that opens a store on a table which the test creates."""
    (tmp_path / "read.db").touch()  # SQLite opens no file that does not exist
    harness = SQL_HARNESSES[request.param](request, tmp_path)
    return lambda **columns: harness("groups", columns)


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
