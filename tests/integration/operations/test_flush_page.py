"""``POST /groups/flush`` over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from redis.asyncio import Redis

from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.event import FoldEvent
from streams_app.folding.store.keys import shard_keys
from streams_app.folding.store.shard_store import ShardStore
from streams_app.health.http import MAX_BODY_BYTES, HttpServer
from streams_app.health.metrics import Metrics
from streams_app.health.status import Status
from streams_app.operations.flush_page import FLUSH_PAGE, RequestRate, add_flush_page
from streams_app.settings import HttpSettings, Settings
from tests.conftest import Names, RedisServer
from tests.helpers.folding.scripts import open_in
from tests.helpers.manual_clock import ManualClock

BOUNDS = Bounds(1_000, 3_600_000)
TOKEN = "close-the-tab"
FOLD = "account-metrics"


@dataclass
class Page:
    """A worker's server with the page, and the state of its application in Redis."""

    settings: Settings
    clock: ManualClock
    client: Redis
    servers: list[HttpServer] = field(default_factory=list)
    fences: dict[ShardStore, int] = field(default_factory=dict)

    def start(self) -> HttpServer:
        server = HttpServer(self.settings.http, Status(), Metrics(self.settings), self.clock)
        add_flush_page(server, self.settings, self.clock)
        server.start()
        self.servers.append(server)
        return server

    async def open_in(self, partition: int, *members: bytes) -> ShardStore:
        events = [FoldEvent(number, 5_000 + number, member, {"likes": 1}) for number, member in enumerate(members)]
        fold = self.settings.fold(FOLD)
        store = await open_in(self.settings.app_id, FOLD, fold.source, self.client, partition, events, BOUNDS)
        self.fences[store] = len(members) - 1
        return store

    async def sealed(self, store: ShardStore) -> list[tuple[bytes, str]]:
        """Return which groups the owner emits now, with the reason."""
        done = await store.seal("me", self.fences[store], 5_000, BOUNDS, quiet=False, limit=10, partitions=4)
        return sorted((group.member, group.reason) for group in done.sealed)


async def post(server: HttpServer, body: object, token: str | None = TOKEN, method: str = "POST") -> tuple[int, Any, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session,
        session.request(method, f"{server.url}{FLUSH_PAGE}", data=data, headers=headers) as reply,
    ):
        return reply.status, await reply.json(), reply.headers


@pytest.fixture
async def page(redis_client: Redis, redis_server: RedisServer, names: Names, tmp_path: Path) -> AsyncIterator[Page]:
    (tmp_path / "token").write_text(TOKEN, "utf-8")
    (tmp_path / "other").write_text("read-the-metrics", "utf-8")
    given: dict[str, Any] = {
        "app_id": names.app_id,
        "redis": {"url": redis_server.url},
        "http": {"port": 0, "token_file": tmp_path / "other", "flush_token_file": tmp_path / "token", "flush_per_second": 50},
        "folds": [
            {"name": FOLD, "source": "events", "group_key": ["account", "post"], "changed": "fields", "quiet_period": "1s"},
            {"name": "empty", "source": "events", "group_key": "id", "changed": "fields", "quiet_period": "1s"},
        ],
    }
    made = Page(Settings.model_validate(given), ManualClock(), redis_client)
    yield made
    for server in made.servers:
        server.stop()


@pytest.mark.parametrize(
    ("group", "member"),
    [
        ("anna", b"sanna"),
        ("7", b"s7"),
        (7, b"j7"),
        (7.0, b"j7"),
        (["a", 1], b'j["a",1]'),
        (True, b"jtrue"),
        ("é\n", "sé\n".encode()),
    ],
)
async def test_open_group_is_emitted_by_its_owner(page: Page, group: object, member: bytes) -> None:
    store = await page.open_in(3, member, b"sother")
    await page.open_in(0, b"sother")
    status, found, _ = await post(page.start(), {"fold": FOLD, "group": group})

    assert (202, {"fold": FOLD, "partitions": [3]}) == (status, found)
    assert [(member, "flush")] == await page.sealed(store)


async def test_group_that_is_open_in_two_partitions_is_emitted_in_both(page: Page) -> None:
    stores = [await page.open_in(partition, b"sanna") for partition in (0, 2)]
    status, found, _ = await post(page.start(), {"fold": FOLD, "group": "anna"})

    assert (202, [0, 2]) == (status, found["partitions"])
    assert [[(b"sanna", "flush")]] * 2 == [await page.sealed(store) for store in stores]


async def test_repeated_request_emits_once_and_later_finds_nothing_open(page: Page) -> None:
    store, server = await page.open_in(0, b"sanna"), page.start()
    codes = [(await post(server, {"fold": FOLD, "group": "anna"}))[0] for _ in range(3)]
    emitted = await page.sealed(store)
    after = await post(server, {"fold": FOLD, "group": "anna"})

    assert ([202] * 3, [(b"sanna", "flush")]) == (codes, emitted)
    assert (200, {"fold": FOLD, "partitions": []}) == after[:2]
    assert not await page.client.exists(shard_keys(page.settings.app_id, FOLD, "events", 0).flush)


async def test_every_worker_answers_for_all_partitions(page: Page) -> None:
    store, servers = await page.open_in(1, b"sanna", b"sbert"), [page.start(), page.start()]
    codes = [
        (await post(server, {"fold": FOLD, "group": group}))[0] for server, group in zip(servers, ("anna", "bert"), strict=True)
    ]

    assert [202, 202] == codes
    assert [(b"sanna", "flush"), (b"sbert", "flush")] == await page.sealed(store)


async def test_partition_that_has_state_only_now_is_found(page: Page) -> None:
    server = page.start()
    before = await post(server, {"fold": FOLD, "group": "anna"})
    await page.open_in(0, b"sanna")
    page.clock.advance_ms(1_000)

    assert (200, 202) == (before[0], (await post(server, {"fold": FOLD, "group": "anna"}))[0])


async def test_group_of_a_fold_without_state_is_not_open(page: Page) -> None:
    assert (200, {"fold": "empty", "partitions": []}) == (await post(page.start(), {"fold": "empty", "group": "x"}))[:2]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "the body: "),
        (b"{", "the body: "),
        (b"\xff", "the body: "),
        (b"[]", "the body: "),
        (b"[" * 5_000, "the body: "),
        (b'{"fold":' + b"[" * 5_000 + b"]" * 5_000 + b',"group":1}', "the body: "),
        ({}, "the field 'fold' is missing"),
        ({"fold": FOLD}, "the field 'group' is missing"),
        ({"fold": FOLD, "grup": "anna"}, "there is no field 'grup', did you mean 'group'?"),
        ({"fold": FOLD, "group": None}, "group: "),
        ({"fold": FOLD, "group": []}, "group: "),
        ({"fold": FOLD, "group": ["a"]}, "group: "),
        ({"fold": FOLD, "group": {"a": 1}}, "group: "),
        ({"fold": FOLD, "group": ["a", ["b"]]}, "group: "),
        ({"fold": FOLD, "group": 2**60}, "group: "),
        ({"fold": FOLD, "group": "\ud800"}, "the body: "),
    ],
)
async def test_invalid_request_is_400_with_a_valid_one(page: Page, body: object, why: str) -> None:
    await page.open_in(0, b"sanna")
    status, found, _ = await post(page.start(), body)

    assert status == 400
    assert why in found["error"]
    assert '"group": "account_1"' in found["error"]
    assert not await page.client.exists(shard_keys(page.settings.app_id, FOLD, "events", 0).flush)


@pytest.mark.parametrize("fold", ["nothing", "", "x" * 5_000])
async def test_undeclared_fold_is_404_and_the_declared_ones_are_named(page: Page, fold: str) -> None:
    status, found, _ = await post(page.start(), {"fold": fold, "group": "anna"})

    assert status == 404
    assert f"declared: {FOLD}, empty" in found["error"]
    assert len(found["error"]) < 200


async def test_body_that_is_too_long_is_413(page: Page) -> None:
    assert 413 == (await post(page.start(), b'"' + b"x" * MAX_BODY_BYTES + b'"'))[0]


@pytest.mark.parametrize("token", [None, "", "wrong", "read-the-metrics"])
async def test_token_of_other_pages_does_not_flush(page: Page, token: str | None) -> None:
    await page.open_in(0, b"sanna")

    assert 401 == (await post(page.start(), {"fold": FOLD, "group": "anna"}, token))[0]
    assert not await page.client.exists(shard_keys(page.settings.app_id, FOLD, "events", 0).flush)


async def test_token_for_flushing_opens_no_other_page(page: Page) -> None:
    server = page.start()
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        codes = [(await session.get(f"{server.url}{path}")).status for path in ("/", "/metrics", "/groups")]

    assert [401] * 3 == codes


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
async def test_other_methods_do_not_flush(page: Page, method: str) -> None:
    await page.open_in(0, b"sanna")
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session:
        reply = await session.request(method, f"{page.start().url}{FLUSH_PAGE}", json={"fold": FOLD, "group": "anna"})

    assert 405 == reply.status
    assert not await page.client.exists(shard_keys(page.settings.app_id, FOLD, "events", 0).flush)


async def test_without_its_setting_there_is_no_such_page(page: Page) -> None:
    page.settings = page.settings.model_copy(update={"http": HttpSettings(port=0)})

    assert 404 == (await post(page.start(), {"fold": FOLD, "group": "anna"}))[0]


async def test_requests_above_the_rate_are_429_until_time_passes(page: Page) -> None:
    server = page.start()
    answers = [await post(server, {"fold": FOLD, "group": "anna"}) for _ in range(51)]
    page.clock.advance_ms(20)
    after = [(await post(server, {"fold": FOLD, "group": "anna"}))[0] for _ in range(2)]

    assert [200] * 50 + [429] == [status for status, _, _ in answers]
    assert "1" == answers[-1][2]["Retry-After"]
    assert [200, 429] == after


def test_rate_never_exceeds_what_a_second_allows() -> None:
    clock = ManualClock()
    rate = RequestRate(10, clock)
    first = sum(rate.is_allowed() for _ in range(100))
    clock.advance_ms(3_600_000)
    second = sum(rate.is_allowed() for _ in range(100))
    allowed = 0
    for _ in range(1_000):
        clock.advance_ms(1)
        allowed += rate.is_allowed()

    assert (10, 10, 10) == (first, second, allowed)


async def test_redis_that_does_not_answer_is_503(page: Page) -> None:
    url = "redis://127.0.0.1:1/0"
    page.settings = page.settings.model_copy(update={"redis": page.settings.redis.model_copy(update={"url": url})})
    status, found, _ = await post(page.start(), {"fold": FOLD, "group": "anna"})

    assert status == 503
    assert "Redis" in found["error"]


async def test_state_of_a_newer_version_is_left_alone(page: Page) -> None:
    await page.open_in(0, b"sanna")
    keys = shard_keys(page.settings.app_id, FOLD, "events", 0)
    await page.client.hset(keys.meta, "format", "999")
    status, found, _ = await post(page.start(), {"fold": FOLD, "group": "anna"})

    assert (503, True) == (status, "newer" in found["error"])
    assert not await page.client.exists(keys.flush)


async def test_body_that_does_not_arrive_is_408(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams_app.operations.flush_page.BODY_SECONDS", 0.2)
    reader, writer = await asyncio.open_connection("127.0.0.1", page.start().port)
    head = f"POST {FLUSH_PAGE} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 20\r\n\r\n{{"
    writer.write(head.encode())
    line = await reader.readline()
    writer.close()
    await writer.wait_closed()

    assert line.startswith(b"HTTP/1.1 408 ")
