"""``GET /journal/NAME``, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis.asyncio

from streams_app.clock import SystemClock
from streams_app.embedded.ports import free_port
from streams_app.health.http import HttpServer
from streams_app.health.metrics import Metrics
from streams_app.health.status import Status
from streams_app.journal.reading import page
from streams_app.journal.reading.page import add_journal_pages
from streams_app.settings import HttpSettings, Settings
from tests.conftest import Names, RedisServer
from tests.helpers import wait_until
from tests.integration.health.asking import get
from tests.journals import JournalShard, at, row


class Journals:
    """A worker's server with the page of one journal, and its first partition."""

    def __init__(self, client: redis.asyncio.Redis, settings: Settings, server: HttpServer) -> None:
        self.shard = JournalShard(client, settings)
        self.server = server

    async def __call__(self, query: str, name: str = "accounts") -> tuple[int, Any]:
        return await get(f"{self.server.url}/journal/{name}?{query}")


def served(names: Names, url: str, status: Status) -> tuple[Settings, HttpServer]:
    settings = Settings.model_validate(
        {
            "app_id": names.app_id,
            "redis": {"url": url},
            "journals": [{"name": "accounts", "source": "events", "key": "account_id"}],
        }
    )
    clock = SystemClock()
    server = HttpServer(HttpSettings(port=0), status, Metrics(settings), clock)
    add_journal_pages(server, settings, clock)
    server.start()
    return settings, server


@pytest.fixture
async def journals(
    redis_client: redis.asyncio.Redis, redis_server: RedisServer, names: Names, status: Status
) -> AsyncIterator[Journals]:
    settings, server = served(names, redis_server.url, status)
    made = Journals(redis_client, settings, server)
    await made.shard.claim()
    yield made
    server.stop()


async def test_entries_have_a_cursor_to_continue_and_the_retained_range(journals: Journals) -> None:
    await journals.shard.append([row("a", 0), row("b", 1), row("a", 2, 1, None), row("b", 3, 1)])
    first = await journals("key=a&limit=1")
    rest = await journals(f"key=a&from={first[1]['next']}")

    assert (200, [{"cursor": "0-0", "at_ms": at(0), "value": "{}", "headers": []}], "0-0", False) == (
        first[0], first[1]["entries"], first[1]["next"], first[1]["caught_up"],
    )  # fmt: skip
    assert (
        200,
        {
            "entries": [{"cursor": "0-2", "at_ms": at(1, 2), "value": None, "headers": []}],
            "next": "0-3", "floor": "0-0", "fence": "0-3", "caught_up": True, "gaps": [], "unread": [],
        },
    ) == rest  # fmt: skip


async def test_removed_offsets_are_410_with_the_floor_and_a_cursor_to_continue(journals: Journals) -> None:
    await journals.shard.append([row("a", 0), row("a", 1), row("a", 2, 1)])
    await journals.shard.store.drop(0)
    status, gone = await journals("key=a&from=0-0")
    _, went_on = await journals(f"key=a&from={gone['next']}")
    _, with_gap = await journals("key=a&from=0-0&from_floor=1")

    assert (410, "0-2", "0-1") == (status, gone["floor"], gone["next"])
    assert ["0-2"] == [one["cursor"] for one in went_on["entries"]]
    assert [{"partition": 0, "first": 1, "last": 1, "why": "removed", "cursor": "0-1"}] == with_gap["gaps"]


async def test_request_waits_until_an_event_arrives(journals: Journals) -> None:
    await journals.shard.append([row("b", 0)])
    waiting = asyncio.create_task(journals("key=a&wait=30s"))
    quick = await journals("key=a")
    await journals.shard.append([row("a", 1)])
    status, found = await waiting

    assert (200, [], "0-0", True) == (quick[0], quick[1]["entries"], quick[1]["next"], quick[1]["caught_up"])
    assert (200, ["0-1"]) == (status, [one["cursor"] for one in found["entries"]])


async def test_response_is_bounded_in_bytes_and_says_where_to_continue(journals: Journals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MAX_BYTES", 2_500)
    await journals.shard.append([row("a", offset, 0, b"x" * 1_000) for offset in range(5)])
    _, found = await journals("key=a&limit=1000")

    assert (3, "0-2", False) == (len(found["entries"]), found["next"], found["caught_up"])


async def test_unread_journal_is_reported(journals: Journals) -> None:
    await journals.shard.wipe()

    nothing = {"entries": [], "next": "earliest", "floor": "", "fence": "", "caught_up": False, "gaps": [], "unread": [0]}
    assert (200, nothing) == await journals("key=a")
    assert f"since-{at(1)}" == (await journals(f"key=a&from={at(1)}"))[1]["next"]


async def test_latest_of_an_empty_journal_returns_everything_that_arrives(journals: Journals) -> None:
    await journals.shard.wipe()
    await journals.shard.claim()
    begin = (await journals("key=a&from=latest"))[1]["next"]
    await journals.shard.append([row("a", 0)])

    assert 1 == len((await journals(f"key=a&from={begin}"))[1]["entries"])


@pytest.mark.parametrize(
    "query",
    [
        "",
        "key=a&from=x",
        "key=a&from=",
        "key=a&limit=1001",
        "key=a&wait=61s",
        "key=a&from=9-1",
        "key=a&from=99999-1",
        "key=a&key=b",
    ],
)
async def test_invalid_request_is_400_and_explains_what_to_write(journals: Journals, query: str) -> None:
    await journals.shard.append([row("a", 0)])
    status, body = await journals(query)

    assert (400, ["error"]) == (status, list(body))


async def test_key_of_any_bytes_is_answered(journals: Journals) -> None:
    await journals.shard.append([row(b"s\xff", 0), row("a\0{", 1)])

    assert [["0-0"], ["0-1"]] == [
        [one["cursor"] for one in (await journals(query))[1]["entries"]] for query in ("key=%FF", "key=a%00%7B")
    ]


async def test_unknown_journal_is_404_and_the_index_lists_the_declared_ones(journals: Journals) -> None:
    assert 404 == (await journals("key=a", "others"))[0]
    assert 'href="/journal/accounts"' in (await get(journals.server.url))[1]


async def test_unavailable_redis_is_503(names: Names, status: Status) -> None:
    _, server = served(names, f"redis://127.0.0.1:{free_port()}/0", status)
    try:
        code, body = await get(f"{server.url}/journal/accounts?key=a")
    finally:
        server.stop()

    assert (503, True) == (code, "does not answer" in body["error"])


async def test_disconnected_client_ends_its_wait_and_the_server_stops_at_once(journals: Journals) -> None:
    waiting = asyncio.create_task(journals("key=a&wait=60s"))
    await wait_until(lambda: len(journals.server._connections) == 1, 10, "the request")
    waiting.cancel()
    await wait_until(lambda: len(journals.server._connections) == 0, 10, "its end")
    journals.server.stop()
