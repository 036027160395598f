"""Servers and names for every test.

``STREAMS_APP_TEST_KAFKA``: ``embedded`` (default), ``apache``, or ``host:port`` of one that runs.
``STREAMS_APP_TEST_REDIS``: ``embedded`` (default: Valkey), ``redis`` (Redis 7), or a ``redis://`` URL.
``STREAMS_APP_TEST_MYSQL``: the URL of a MySQL or MariaDB in which the tests may create databases; without it, they start a MariaDB.
If a server is not available, its tests are skipped with the reason; with ``CI=true`` they fail.
``STREAMS_APP_TEST_AT_MOST``: ``long=60 simulation=40`` runs at most so many tests that are ``long`` or a simulation: those nearest
to the change that the file ``STREAMS_APP_TEST_REACHED`` describes. ``short`` limits all others, but those marked
``apache`` or ``redis7``.
``STREAMS_APP_TEST_EXAMPLES``: ``few``, ``quick``, ``usual`` or ``thorough``, of each property; ``usual`` with ``CI=true``.
"""

from __future__ import annotations

import gc
import os
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol

import hypothesis
import pytest
import redis
import redis.asyncio
import redis.utils

from streams_app.embedded import Broker, Valkey
from streams_app.errors import ConfigurationError
from streams_app.health.status import Status
from tests.checkout.choice import Candidate, Reached, chosen, fault_of, limits_of
from tests.checkout.imports import ROOT
from tests.checkout.order import ordered
from tests.helpers.read_store.mysql import execute_mysql
from tests.helpers.waiting import wait_until_sync
from tests.helpers.worker import fork_server
from tests.servers import prometheus
from tests.servers.apache_kafka import ApacheKafka
from tests.servers.apicurio import Apicurio
from tests.servers.apicurio import is_fetched as is_registry_fetched
from tests.servers.cache import ServerUnavailableError
from tests.servers.mariadb import MariaDB
from tests.servers.opensearch import OpenSearch, is_fetched
from tests.servers.postgresql import PostgreSQL
from tests.servers.redis7 import Redis7

if TYPE_CHECKING:
    from tests.helpers.tracing.spans import Spans

KAFKA_CHOICE = os.environ.get("STREAMS_APP_TEST_KAFKA") or "embedded"
REDIS_CHOICE = os.environ.get("STREAMS_APP_TEST_REDIS") or "embedded"
AT_MOST = limits_of(os.environ.get("STREAMS_APP_TEST_AT_MOST") or "")

TRANSPORT = frozenset({"kafka", "redis_server", "broker"})
SLOW_TO_START = frozenset({"opensearch", "apicurio", "browser", "tabs"})
"""Beginnings of fixtures that start a JVM or a browser. Tests that use one are marked `long`, except :data:`OFTEN_RUN`."""
OFTEN_RUN = (
    "schemas/test_registry.py",
    "console/test_console_browser.py::test_page_changes_by_itself_without_moving_what_is_read",
    "live/hub/test_browser.py::test_first_state_replaces_a_dash_and_no_zero_is_shown_before",
)
"""Tests of a schema registry and of pages in a browser that `make test` runs."""

_RUN_VARIABLE = "STREAMS_APP_TEST_RUN"
_PROC = Path("/proc")
_END_LIMIT_SECONDS = 30.0


class KafkaServer(Protocol):
    """The interface of the fixture `kafka`."""

    bootstrap_servers: str
    description: str
    is_apache: bool


class RedisServer(Protocol):
    """The interface of the fixture `redis_server`."""

    url: str
    description: str


@dataclass(slots=True)
class GivenKafka:
    """An external Kafka of unknown version, which must support everything."""

    bootstrap_servers: str
    is_apache: bool = True

    @property
    def description(self) -> str:
        return f"Kafka at {self.bootstrap_servers}"


@dataclass(slots=True)
class GivenRedis:
    """An external Redis."""

    url: str

    @property
    def description(self) -> str:
        return f"Redis at {self.url}"


@dataclass(frozen=True, slots=True)
class Names:
    """Unique names, because a test shares its servers with all other tests."""

    app_id: str

    def topic(self, suffix: str) -> str:
        """A topic of this test."""
        return f"{self.app_id}.{suffix}"


# Examples of each property: few in `make test`, more in `make check`, which runs few tests, and in CI, many each night.
hypothesis.settings.register_profile("few", max_examples=20, deadline=None)
hypothesis.settings.register_profile("quick", max_examples=50, deadline=None)
hypothesis.settings.register_profile("usual", max_examples=150, deadline=None)
hypothesis.settings.register_profile("thorough", max_examples=400, deadline=None)


def pytest_configure(config: pytest.Config) -> None:
    # Rejected here, because a wrong one ends the processes of xdist while they collect, and xdist does not show why.
    for option, words in (("-k", config.option.keyword), ("-m", config.option.markexpr)):
        if fault := fault_of(option, words):
            raise pytest.UsageError(fault)
    is_ci = os.environ.get("CI") == "true"
    hypothesis.settings.load_profile(os.environ.get("STREAMS_APP_TEST_EXAMPLES") or ("usual" if is_ci else "few"))
    if KAFKA_CHOICE not in ("embedded", "apache") and ":" not in KAFKA_CHOICE:
        raise pytest.UsageError(f"STREAMS_APP_TEST_KAFKA={KAFKA_CHOICE}: must be embedded, apache or host:port")
    if REDIS_CHOICE not in ("embedded", "redis") and "://" not in REDIS_CHOICE:
        raise pytest.UsageError(f"STREAMS_APP_TEST_REDIS={REDIS_CHOICE}: must be embedded, redis or a redis:// URL")
    # redis-py reads the metadata of its package for the version that each connection sends.
    redis.utils.get_lib_version = cache(redis.utils.get_lib_version)
    # A shell that runs the tests in the background ignores SIGINT; the processes that tests start and interrupt would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    return f"streams_app: kafka={KAFKA_CHOICE} redis={REDIS_CHOICE}"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None]:
    """Exempt thousands of modules and tests from garbage collection: each full one would visit them all."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    """Add the markers that follow from the fixtures of a test, choose tests, and order those of several processes.

    CI runs the tests that use a Kafka or Redis on several; on all others the choice has no effect. Of a read store the transport is
    tried there with SQLite: those of other databases differ in what they do with the database.
    """
    for item in items:
        used = set(getattr(item, "fixturenames", ()))
        kept_in = _started_by(item, {"opensearch", "postgresql", "mysql"})
        if any(map(item.get_closest_marker, ("apache", "redis7"))) or (used & TRANSPORT and not kept_in):
            item.add_marker(pytest.mark.servers)
        if _started_by(item, SLOW_TO_START) and not item.nodeid.removeprefix("tests/integration/").startswith(OFTEN_RUN):
            item.add_marker(pytest.mark.long)
    if AT_MOST:
        reached = Reached.of((ROOT / os.environ["STREAMS_APP_TEST_REACHED"]).read_text("utf-8"))
        names = chosen(map(_candidate, items), AT_MOST, reached)
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in names])
        items[:] = [item for item in items if item.nodeid in names]
    yield
    if xdist := getattr(config, "workerinput", None):
        items[:] = ordered(items, xdist["workercount"])


def _candidate(item: pytest.Item) -> Candidate:
    kind = "short"
    if item.get_closest_marker("long"):
        kind = "long"
    elif item.nodeid.startswith("tests/simulation/"):
        kind = "simulation"
    elif any(map(item.get_closest_marker, ("apache", "redis7"))):
        kind = "needs servers"
    parameters = getattr(item, "callspec", None)
    mutant = parameters.params.get("mutant") if parameters else None
    return Candidate(item.nodeid, kind, tuple(change.file for change in mutant.changes) if mutant else ())


def _started_by(item: pytest.Item, servers: AbstractSet[str]) -> set[str]:
    """Return which servers a test starts, by the beginnings of the names or of the parameters of its fixtures."""
    parameters = getattr(item, "callspec", None)
    given = [value for value in parameters.params.values() if isinstance(value, str)] if parameters else []
    words = [*getattr(item, "fixturenames", ()), *given]
    return {name for name in servers if any(word.startswith(name) for word in words)}


def _wanted(item: pytest.Item) -> None:
    if item.get_closest_marker("apache") and KAFKA_CHOICE == "embedded":
        pytest.skip("needs Apache Kafka: set STREAMS_APP_TEST_KAFKA=apache")
    if item.get_closest_marker("redis7") and REDIS_CHOICE == "embedded":
        pytest.skip("needs Redis 7: set STREAMS_APP_TEST_REDIS=redis")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    with _decided():
        _wanted(item)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    with _decided():
        yield


@contextmanager
def _decided() -> Iterator[None]:
    """Skip or fail a test whose server is not available, whether a fixture or the test itself starts it."""
    try:
        yield
    except ServerUnavailableError as error:
        _unavailable(error)


def _unavailable(error: Exception) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(f"a server cannot be had: {error}", pytrace=False)
    pytest.skip(f"a server cannot be had: {error}")


@contextmanager
def _started(
    server: type[Broker]
    | type[Valkey]
    | type[ApacheKafka]
    | type[Redis7]
    | type[PostgreSQL]
    | type[MariaDB]
    | type[OpenSearch]
    | type[Apicurio],
) -> Iterator[object]:
    try:
        running = server.start()
    except ConfigurationError as error:  # a wheel is not installed
        _unavailable(error)
    with running:
        yield running


@pytest.fixture
def status() -> Status:
    """Return the status of a worker that has started."""
    made = Status()
    made.clear("start")
    return made


@pytest.fixture
def spans() -> Spans:
    """Return the spans that this process records in the test."""
    from tests.helpers.tracing.spans import Spans  # needs the SDK, which few tests use

    return Spans()


@pytest.fixture(scope="session")
def kafka() -> Iterator[object]:
    """A broker for the whole session, see `KafkaServer`."""
    if ":" in KAFKA_CHOICE:
        yield GivenKafka(KAFKA_CHOICE)
        return
    with _started({"embedded": Broker, "apache": ApacheKafka}[KAFKA_CHOICE]) as running:
        yield running


@pytest.fixture(scope="session")
def redis_server() -> Iterator[object]:
    """A Valkey or Redis for the whole session, see `RedisServer`."""
    if "://" in REDIS_CHOICE:
        yield GivenRedis(REDIS_CHOICE)
        return
    with _started(Redis7 if REDIS_CHOICE == "redis" else Valkey) as running:
        yield running


@pytest.fixture(scope="session")
def postgresql() -> Iterator[object]:
    """A PostgreSQL for the whole session; under xdist one for each worker."""
    with _started(PostgreSQL) as running:
        yield running


@pytest.fixture
async def postgresql_url(postgresql: PostgreSQL) -> AsyncIterator[str]:
    """A database of this test alone."""
    async with postgresql.database() as url:
        yield url


@pytest.fixture(scope="session")
def mysql_server() -> Iterator[str]:
    """The URL of a MariaDB for the whole session, under xdist of one for each worker; or of the server that is given."""
    if given := os.environ.get("STREAMS_APP_TEST_MYSQL"):
        yield given
        return
    with _started(MariaDB) as running:
        assert isinstance(running, MariaDB)
        yield running.url


@pytest.fixture
async def mysql_url(mysql_server: str) -> AsyncIterator[str]:
    """A database of this test alone, whose default collation folds case."""
    name = f"test_{secrets.token_hex(6)}"
    await execute_mysql(mysql_server, f"CREATE DATABASE {name} DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci")
    yield f"{mysql_server.rpartition('/')[0]}/{name}"
    await execute_mysql(mysql_server, f"DROP DATABASE {name}")


@pytest.fixture(scope="session")
def apicurio() -> Iterator[object]:
    """A schema registry for the whole session; it is fetched in CI, or on request."""
    if not is_registry_fetched() and os.environ.get("CI") != "true":
        pytest.skip("Apicurio Registry is not there: `python -m tests.servers` fetches it with Maven")
    with _started(Apicurio) as running:
        yield running


@pytest.fixture(scope="session")
def opensearch() -> Iterator[object]:
    """An OpenSearch for the whole session; under xdist one for each worker. It is fetched in CI, or on request."""
    if not is_fetched() and os.environ.get("CI") != "true":
        pytest.skip("OpenSearch is not there: `python -m tests.servers` fetches it with Maven")
    with _started(OpenSearch) as running:
        yield running


@pytest.fixture(scope="session")
def promtool() -> Callable[..., str]:
    """Run ``promtool``, see :func:`tests.servers.prometheus.promtool`. It is fetched in CI, or on request."""
    if not prometheus.is_fetched() and os.environ.get("CI") != "true":
        pytest.skip("Prometheus is not there: `python -m tests.servers` fetches it")
    prometheus.fetch()
    return prometheus.promtool


@pytest.fixture
def names(request: pytest.FixtureRequest) -> Iterator[Names]:
    """Names of this test alone; the keys under them are deleted at its end."""
    mine = Names(f"test-{secrets.token_hex(6)}")
    server: RedisServer | None = None
    if "redis_server" in request.fixturenames:
        server = request.getfixturevalue("redis_server")
    yield mine
    if server is not None:
        with redis.Redis.from_url(server.url) as client:
            for key in client.scan_iter(f"*{mine.app_id}*", count=1_000):
                client.delete(key)


@pytest.fixture
async def redis_client(redis_server: RedisServer) -> AsyncIterator[redis.asyncio.Redis]:
    """A client of `redis_server`; answers in bytes."""
    async with redis.asyncio.Redis.from_url(redis_server.url, decode_responses=False) as client:
        yield client


@pytest.fixture(scope="session", autouse=True)
def _no_process_is_left() -> Iterator[None]:
    """No process that a test started, or that one of those started, outlives the session.

    Processes are identified by their parent or, if another process has adopted them, by an inherited variable. Remaining
    processes are killed, then reported. This is the first session fixture, so that it ends after the servers.
    """
    token = secrets.token_hex(8)
    os.environ[_RUN_VARIABLE] = token
    before = set(_descendants(token))
    yield
    if not _PROC.is_dir():
        return
    try:
        wait_until_sync(lambda: not set(_descendants(token)) - before, _END_LIMIT_SECONDS, "all processes have ended")
    except AssertionError:
        left = {pid: command for pid, command in _descendants(token).items() if pid not in before}
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        pytest.fail(f"processes left by the tests: {left}", pytrace=False)


@pytest.fixture(scope="session", autouse=True)
def _fork_server(_no_process_is_left: None) -> Iterator[None]:
    """Processes of the program are forked, see :mod:`tests.helpers.worker.fork_server`."""
    with fork_server.session():
        yield


def _descendants(token: str) -> dict[int, str]:
    """Return pid → command line, without zombies."""
    marker = f"{_RUN_VARIABLE}={token}".encode()
    found = {}
    for entry in _PROC.glob("[0-9]*"):
        pid = int(entry.name)
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            is_ours = int(parent) == os.getpid() or marker in (entry / "environ").read_bytes().split(b"\0")
            if pid != os.getpid() and state != "Z" and is_ours:
                found[pid] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has ended meanwhile, or belongs to another user
    return found
