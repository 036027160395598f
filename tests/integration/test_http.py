"""The pages of a worker, over real sockets, while its main loop runs, hangs or fails."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

import streams_app.http
from streams_app import Fold
from streams_app.clock import ManualClock
from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.http import GROUPS_MAX, HttpServer
from streams_app.metrics import METRICS, Metrics
from streams_app.operating.groups import groups_of_worker
from streams_app.settings import HttpSettings, Settings
from streams_app.status import LIVE_MS, Status

FOLD = {"name": "f", "source": "events", "group_key": "id", "changed": "fields", "quiet_period": "1s"}
PAGES = ["/metrics", "/health/live", "/health/ready", "/groups"]

Start = Callable[..., HttpServer]


@pytest.fixture
def status() -> Status:
    made = Status()
    made.clear("start")
    return made


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(Settings.model_validate({"app_id": "a", "folds": [FOLD]}))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def start(status: Status, metrics: Metrics, clock: ManualClock) -> AsyncIterator[Start]:
    """Starts servers on any free port, stops them at the end."""
    servers: list[HttpServer] = []

    def started(**options: Any) -> HttpServer:
        server = HttpServer(HttpSettings(**{"port": 0, **options}), status, metrics, clock)
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


async def get(url: str, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    """Status and JSON of a page, or its text."""
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session,
        session.get(url, headers=headers) as reply,
    ):
        is_json = reply.content_type == "application/json"
        return reply.status, await reply.json() if is_json else await reply.text()


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which somebody else listens, with a free one above it."""
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


# Metrics


async def test_the_metrics_page_is_read_by_prometheus_and_has_every_metric(start: Start, metrics: Metrics) -> None:
    metrics.resyncs.labels(fold="f", cause="fence").inc()
    async with aiohttp.ClientSession() as session, session.get(f"{start().url}/metrics") as reply:
        text = await reply.text()
        assert reply.status == 200
        assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    families = list(text_string_to_metric_families(text))
    samples = {(sample.name, sample.labels.get("cause")): sample.value for family in families for sample in family.samples}

    assert {metric.name.removesuffix("_total") for metric in METRICS} <= {family.name for family in families}
    assert samples["streams_app_resyncs_total", "fence"] == 1


async def test_an_unknown_page_is_not_found(start: Start) -> None:
    assert (await get(f"{start().url}/nothing"))[0] == 404


# Health


async def test_a_worker_without_reasons_is_live_and_ready(start: Start) -> None:
    url = start().url

    assert await get(f"{url}/health/live") == (200, {"live": True})
    assert await get(f"{url}/health/ready") == (200, {"ready": True, "reasons": []})


async def test_ready_says_every_reason_why_not(start: Start, status: Status) -> None:
    status.set_not_ready("redis", "Redis is away")
    status.set_not_ready("events-0", "claiming")
    url = start().url

    assert await get(f"{url}/health/ready") == (503, {"ready": False, "reasons": ["Redis is away", "claiming"]})
    assert await get(f"{url}/health/live") == (200, {"live": True})
    status.clear("redis")
    assert await get(f"{url}/health/ready") == (503, {"ready": False, "reasons": ["claiming"]})


async def test_a_worker_that_has_not_beaten_for_thirty_seconds_is_dead(start: Start, status: Status, clock: ManualClock) -> None:
    url = start().url
    status.beat(clock.monotonic_ms())
    clock.advance_ms(LIVE_MS - 1)
    assert (await get(f"{url}/health/live"))[0] == 200
    clock.advance_ms(1)

    assert await get(f"{url}/health/live") == (503, {"live": False})
    assert await get(f"{url}/health/ready") == (503, {"ready": False, "reasons": ["the main loop hangs"]})
    status.beat(clock.monotonic_ms())
    assert (await get(f"{url}/health/live"))[0] == 200


async def test_health_and_metrics_are_answered_while_the_main_loop_hangs(start: Start) -> None:
    url = start().url
    found: list[int] = []

    def ask() -> None:
        for page in ("/health/live", "/metrics"):
            with urllib.request.urlopen(f"{url}{page}", timeout=5) as reply:
                found.append(reply.status)

    asker = threading.Thread(target=ask)
    asker.start()
    asker.join(10)  # this thread is the main loop's: it hangs here

    assert [200, 200] == found


# Groups


async def test_groups_are_those_of_the_provider(start: Start, status: Status) -> None:
    asked: list[tuple[str | None, int]] = []
    loops: list[asyncio.AbstractEventLoop] = []

    async def provider(fold: str | None, limit: int) -> list[dict[str, Any]]:
        asked.append((fold, limit))
        loops.append(asyncio.get_running_loop())
        return [{"group": "anna", "events": 3}]

    status.groups_provider = provider
    url = start().url

    assert await get(f"{url}/groups") == (200, {"groups": [{"group": "anna", "events": 3}]})
    assert (await get(f"{url}/groups?fold=f&limit=7"))[0] == 200
    assert (await get(f"{url}/groups?limit={GROUPS_MAX}"))[0] == 200
    assert [(None, 100), ("f", 7), (None, GROUPS_MAX)] == asked
    assert {asyncio.get_running_loop()} == set(loops)


async def test_groups_of_a_fold_nobody_declared_are_not_found(start: Start, status: Status) -> None:
    ownership: Any = SimpleNamespace(folds=(Fold(**FOLD),), partitions={})
    status.groups_provider = lambda fold, limit: groups_of_worker(ownership, cast("Any", None), "a", fold, limit)
    url = start().url

    assert await get(f"{url}/groups?fold=zz") == (404, {"error": "there is no fold 'zz'; declared: f"})
    assert await get(f"{url}/groups?fold=f") == (200, {"groups": []})


async def test_groups_before_there_is_a_provider_are_not_known_yet(start: Start) -> None:
    assert await get(f"{start().url}/groups") == (503, {"error": "the worker is starting"})


@pytest.mark.parametrize("limit", ["0", "-1", "1001", "many", "", "1.5", "%C2%B2", "+5", "9999999999999999999999"])
async def test_a_bad_limit_is_refused(start: Start, status: Status, limit: str) -> None:
    async def provider(*_: Any) -> list[dict[str, Any]]:
        raise AssertionError("asked in spite of it")

    status.groups_provider = provider
    code, body = await get(f"{start().url}/groups?limit={limit}")

    assert code == 400
    assert "1 to 1000" in body["error"]


async def test_zeros_before_a_limit_do_not_hide_its_size(start: Start, status: Status) -> None:
    limits: list[int] = []

    async def provider(_: str | None, limit: int) -> list[dict[str, Any]]:
        limits.append(limit)
        return []

    status.groups_provider = provider
    await get(f"{start().url}/groups?limit=0000000019999")

    assert [] == [limit for limit in limits if limit > GROUPS_MAX]


async def test_groups_of_a_provider_that_fails_are_not_to_be_had_now(start: Start, status: Status) -> None:
    async def provider(*_: Any) -> list[dict[str, Any]]:
        raise ConnectionError("Redis is away")

    status.groups_provider = provider
    url = start().url

    assert await get(f"{url}/groups") == (503, {"error": "cannot list groups now: Redis is away"})
    assert (await get(f"{url}/health/live"))[0] == 200


async def test_groups_of_a_provider_that_hangs_time_out(start: Start, status: Status, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams_app.http, "GROUPS_SECONDS", 0.2)
    cancelled = asyncio.Event()

    async def provider(*_: Any) -> list[dict[str, Any]]:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return []

    status.groups_provider = provider
    code, body = await get(f"{start().url}/groups")

    assert code == 503
    assert "cannot list groups now" in body["error"]
    async with asyncio.timeout(5):
        await cancelled.wait()  # nothing keeps asking Redis


async def test_an_error_without_a_text_is_told_by_its_name(start: Start, status: Status) -> None:
    async def provider(*_: Any) -> list[dict[str, Any]]:
        raise TimeoutError

    status.groups_provider = provider

    assert await get(f"{start().url}/groups") == (503, {"error": "cannot list groups now: TimeoutError"})


# Token


@pytest.mark.parametrize(
    "authorization", [None, "", "Bearer", "Bearer wrong", "Bearer open-sesame2", "open-sesame", "Basic open-sesame"]
)
async def test_without_the_token_only_health_is_told(start: Start, token_file: Path, authorization: str | None) -> None:
    url = start(token_file=token_file).url
    headers = {} if authorization is None else {"Authorization": authorization}
    codes = {page: (await get(f"{url}{page}", headers))[0] for page in PAGES}

    assert codes == {"/metrics": 401, "/health/live": 200, "/health/ready": 200, "/groups": 401}


async def test_with_the_token_every_page_is_told(start: Start, status: Status, token_file: Path) -> None:
    async def provider(*_: Any) -> list[dict[str, Any]]:
        return []

    status.groups_provider = provider
    url = start(token_file=token_file).url
    codes = [(await get(f"{url}{page}", {"Authorization": "Bearer open-sesame"}))[0] for page in PAGES]

    assert [200, 200, 200, 200] == codes


async def test_an_unknown_page_tells_nothing_without_the_token(start: Start, token_file: Path) -> None:
    code, body = await get(f"{start(token_file=token_file).url}/nothing")

    assert code == 401
    assert "open-sesame" not in str(body)


async def test_a_token_of_any_bytes_is_refused(start: Start, token_file: Path) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", start(token_file=token_file).port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xff\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()

    assert answer.startswith(b"HTTP/1.1 401 ")


async def test_an_empty_token_file_opens_nothing(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("\n", "utf-8")
    try:
        server = start(token_file=path)
    except ConfigurationError:
        return  # refused at the start: as good

    assert (await get(f"{server.url}/metrics"))[0] == 401


def test_a_token_file_that_is_not_there_is_a_fault_of_the_settings(tmp_path: Path, status: Status, metrics: Metrics) -> None:
    with pytest.raises(ConfigurationError, match=r"http\.token_file"):
        HttpServer(HttpSettings(token_file=tmp_path / "nothing"), status, metrics, ManualClock())


# Start and stop


async def test_a_port_that_is_taken_gives_way_to_the_next_one(start: Start, taken: int, caplog: pytest.LogCaptureFixture) -> None:
    server = start(port=taken)

    assert server.port is not None
    assert taken < server.port < taken + 100
    assert f"port taken, trying the next one port={taken}" in caplog.text
    assert (await get(f"{server.url}/health/live"))[0] == 200


async def test_two_workers_on_one_machine_have_a_port_each(start: Start) -> None:
    one = start()
    other = start(port=one.port)

    assert one.port != other.port
    assert (await get(f"{other.url}/health/live"))[0] == 200


async def test_an_address_that_is_not_ours_is_told(start: Start) -> None:
    with pytest.raises(TryAgainError, match=r"cannot listen on 192\.0\.2\.1"):
        start(host="192.0.2.1")


async def test_without_any_free_port_it_says_so(start: Start, taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams_app.http, "PORTS_TRIED", 1)

    with pytest.raises(TryAgainError, match=str(taken)):
        start(port=taken)


async def test_after_stop_nobody_listens_and_the_thread_is_gone(start: Start) -> None:
    server = start()
    thread = server._thread
    server.stop()
    server.stop()

    assert thread is not None
    assert not thread.is_alive()
    with pytest.raises(aiohttp.ClientConnectorError):
        await get(f"{server.url}/health/live")


async def test_stop_does_not_wait_for_a_page_that_hangs(start: Start, status: Status) -> None:
    asked = asyncio.Event()

    async def provider(*_: Any) -> list[dict[str, Any]]:
        asked.set()
        await asyncio.Event().wait()
        return []

    status.groups_provider = provider
    server = start()
    asking = asyncio.create_task(get(f"{server.url}/groups"))
    await asked.wait()
    begin = time.monotonic()
    await asyncio.to_thread(server.stop)

    assert time.monotonic() - begin < streams_app.http.GROUPS_SECONDS
    with pytest.raises(aiohttp.ClientError):
        await asking
