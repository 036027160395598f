"""``GET /journal/NAME``, over real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis.asyncio

from streams_app.clock import SystemClock
from streams_app.embedded.ports import free_port
from streams_app.errors import NewerFormatError
from streams_app.health.http import HttpServer
from streams_app.health.metrics import Metrics
from streams_app.health.status import Status
from streams_app.journal.reading import page
from streams_app.journal.reading.all_partitions import Reading
from streams_app.journal.reading.entries import Entry, Gap
from streams_app.journal.reading.page import RequestLimit, add_journal_pages
from streams_app.journal.store.keys import journal_keys
from streams_app.settings import HttpSettings, Settings
from tests.conftest import Names, RedisServer
from tests.helpers.journal.journals import JournalShard, at, row
from tests.helpers.waiting import wait_until
from tests.integration.health.asking import get


class Journals:
    """A worker's server with the page of one journal, and its first partition."""

    def __init__(self, client: redis.asyncio.Redis, settings: Settings, server: HttpServer, requests: RequestLimit) -> None:
        self.shard = JournalShard(client, settings)
        self.server = server
        self.requests = requests

    async def __call__(self, query: str, name: str = "accounts") -> tuple[int, Any]:
        return await get(f"{self.server.url}/journal/{name}?{query}")


def served(names: Names, url: str, status: Status) -> tuple[Settings, HttpServer, RequestLimit]:
    settings = Settings.model_validate(
        {
            "app_id": names.app_id,
            "redis": {"url": url},
            "journals": [{"name": "accounts", "source": "events", "key": "account_id"}],
        }
    )
    clock = SystemClock()
    server = HttpServer(HttpSettings(port=0), status, Metrics(settings), clock)
    requests = add_journal_pages(server, settings, clock)
    server.start()
    return settings, server, requests


@pytest.fixture
async def journals(
    redis_client: redis.asyncio.Redis, redis_server: RedisServer, names: Names, status: Status
) -> AsyncIterator[Journals]:
    settings, server, requests = served(names, redis_server.url, status)
    made = Journals(redis_client, settings, server, requests)
    await made.shard.claim()
    yield made
    server.stop()


async def test_entries_have_a_cursor_to_continue_and_the_retained_range(journals: Journals) -> None:
    await journals.shard.append([row("a", 0), row("b", 1), row("a", 2, 1, None), row("b", 3, 1)])
    first = await journals("key=a&limit=1")
    rest = await journals(f"key=a&from={first[1]['next']}")

    entry: dict[str, Any] = {"partition": 0, "key": None, "headers": []}
    assert (200, [{"cursor": "accounts:0-0", "offset": 0, "at_ms": at(0), "value": "{}", **entry}], "accounts:0-0", False) == (
        first[0], first[1]["entries"], first[1]["next"], first[1]["caught_up"],
    )  # fmt: skip
    assert (
        200,
        {
            "entries": [{"cursor": "accounts:0-2", "offset": 2, "at_ms": at(1, 2), "value": None, **entry}],
            "next": "accounts:0-3", "floor": "0-0", "fence": "0-3", "older_removed": False, "caught_up": True, "gaps": [],
            "unread": [],
        },
    ) == rest  # fmt: skip


async def test_removed_offsets_are_410_with_the_floor_and_a_cursor_to_continue(journals: Journals) -> None:
    await journals.shard.append([row("a", 0), row("a", 1), row("a", 2, 1)])
    await journals.shard.store.drop(0)
    status, gone = await journals("key=a&from=0-0")
    _, went_on = await journals(f"key=a&from={gone['next']}")
    _, with_gap = await journals("key=a&from=0-0&from_floor=1")

    assert (410, "0-2", "accounts:0-1") == (status, gone["floor"], gone["next"])
    assert ["accounts:0-2"] == [one["cursor"] for one in went_on["entries"]]
    assert [{"partition": 0, "first": 1, "last": 1, "why": "removed", "cursor": "accounts:0-1"}] == with_gap["gaps"]
    assert [True, True] == [went_on["older_removed"], went_on["entries"][0]["older_removed"]]


async def test_request_waits_until_an_event_arrives(journals: Journals) -> None:
    await journals.shard.append([row("b", 0)])
    waiting = asyncio.create_task(journals("key=a&wait=30s"))
    quick = await journals("key=a")
    await journals.shard.append([row("a", 1)])
    status, found = await waiting

    assert (200, [], "accounts:0-0", True) == (quick[0], quick[1]["entries"], quick[1]["next"], quick[1]["caught_up"])
    assert (200, ["accounts:0-1"]) == (status, [one["cursor"] for one in found["entries"]])


async def test_response_is_bounded_in_bytes_and_says_where_to_continue(journals: Journals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MAX_BYTES", 2_500)
    await journals.shard.append([row("a", offset, 0, b"x" * 1_000) for offset in range(5)])
    _, found = await journals("key=a&limit=1000")

    assert (3, "accounts:0-2", False) == (len(found["entries"]), found["next"], found["caught_up"])


async def test_unread_journal_is_reported(journals: Journals) -> None:
    await journals.shard.wipe()

    nothing = {"entries": [], "next": "earliest", "floor": "", "fence": "", "caught_up": False, "gaps": [], "unread": [0]}
    assert (200, {**nothing, "older_removed": False}) == await journals("key=a")
    assert f"accounts:since-{at(1)}" == (await journals(f"key=a&from={at(1)}"))[1]["next"]


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
        "key=a&from=orders:0-1",
        "key=a&from=-99999d",
        "key=a&from=2099-01-01",
        "key=a&key=b",
    ],
)
async def test_invalid_request_is_400_and_explains_what_to_write(journals: Journals, query: str) -> None:
    await journals.shard.append([row("a", 0)])
    status, body = await journals(query)

    assert (400, ["error"]) == (status, list(body))


async def test_key_of_any_bytes_is_answered(journals: Journals) -> None:
    await journals.shard.append([row(b"s\xff", 0), row("a\0{", 1)])

    assert [["accounts:0-0"], ["accounts:0-1"]] == [
        [one["cursor"] for one in (await journals(query))[1]["entries"]] for query in ("key=%FF", "key=a%00%7B")
    ]


async def test_unknown_journal_is_404_and_the_index_lists_the_declared_ones(journals: Journals) -> None:
    assert 404 == (await journals("key=a", "others"))[0]
    assert 'href="/journal/accounts"' in (await get(journals.server.url))[1]


async def test_key_beyond_the_limit_is_explained(journals: Journals) -> None:
    assert "are kept without a key: unkeyed=1" in (await journals(f"key={'x' * 513}"))[1]["hint"]
    assert "hint" not in (await journals(f"key={'x' * 512}"))[1]


async def test_request_beyond_the_limit_is_503_and_those_that_wait_go_on(
    journals: Journals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals.requests, "maximum", 2)
    waiting = [asyncio.create_task(journals("key=a&wait=60s")) for _ in range(2)]
    await wait_until(lambda: journals.requests.count == 2, 10, "both requests wait")
    busy = await journals("key=a")
    await journals.shard.append([row("a", 0)])

    assert (503, True) == (busy[0], "at most 2 requests for journals at a time: repeat the request later" in busy[1]["error"])
    assert [200, 200] == [(await one)[0] for one in waiting]
    assert 200 == (await journals("key=a"))[0]


async def test_client_that_does_not_read_holds_back_the_reads_of_its_answer(
    journals: Journals, monkeypatch: pytest.MonkeyPatch
) -> None:
    for offset in range(40):
        await journals.shard.append([row("a", offset, 0, b"%d" % offset * 50_000)])
    read: list[int] = []
    as_json = Entry.as_json

    def counted(entry: Entry) -> dict[str, Any]:
        read.append(entry.offset)
        return as_json(entry)

    monkeypatch.setattr(Entry, "as_json", counted)
    monkeypatch.setattr(page, "IDLE_SECONDS", 1.0)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.connect(("127.0.0.1", journals.server.port))
        client.sendall(b"GET /journal/accounts?key=a&limit=1000 HTTP/1.1\r\nHost: x\r\n\r\n")
        await wait_until(lambda: len(read) > 0, 10, "the answer begins")
        await wait_until(lambda: journals.requests.count == 0, 20, "the answer is given up")

    assert len(read) < 40
    monkeypatch.undo()
    _, found = await journals("key=a&limit=1000")
    assert list(range(40)) == [one["offset"] for one in found["entries"]]


async def test_error_after_the_first_bytes_ends_the_answer_with_the_entries_read(
    journals: Journals, monkeypatch: pytest.MonkeyPatch
) -> None:
    await journals.shard.append([row("a", offset, 0, b"1" * 10_000) for offset in range(20)])
    read_on = Reading.limited

    async def interrupted(reading: Reading, limit: int, max_bytes: int) -> AsyncIterator[Entry | Gap]:
        async for found in read_on(reading, limit, max_bytes):
            yield found
            if isinstance(found, Entry) and found.offset == 9:
                raise NewerFormatError("the journal", "99")

    monkeypatch.setattr(Reading, "limited", interrupted)
    code, body = await journals("key=a")

    assert (200, list(range(10)), "accounts:0-9") == (code, [one["offset"] for one in body["entries"]], body["next"])


async def test_head_request_is_answered_without_a_body(journals: Journals) -> None:
    await journals.shard.append([row("a", offset, 0, b"1" * 10_000) for offset in range(20)])
    reader, writer = await asyncio.open_connection("127.0.0.1", journals.server.port)
    writer.write(b"HEAD /journal/accounts?key=a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()

    assert (True, b"") == (head.startswith(b"HTTP/1.1 200"), body)


async def test_unavailable_redis_is_503(names: Names, status: Status) -> None:
    _, server, _ = served(names, f"redis://127.0.0.1:{free_port()}/0", status)
    try:
        code, body = await get(f"{server.url}/journal/accounts?key=a")
    finally:
        server.stop()

    assert (503, True) == (code, "does not answer" in body["error"])


async def test_state_of_a_newer_version_is_503_and_redis_is_not_blamed(
    journals: Journals, redis_client: redis.asyncio.Redis, names: Names
) -> None:
    await journals.shard.append([row("a", 0)])
    await redis_client.hset(journal_keys(names.app_id, "accounts", "events", 0).meta, "format", "99")
    code, body = await journals("key=a")

    assert (503, True, False) == (code, "has format 99" in body["error"], "does not answer" in body["error"])


async def test_disconnected_client_ends_its_wait_and_the_server_stops_at_once(journals: Journals) -> None:
    waiting = asyncio.create_task(journals("key=a&wait=60s"))
    await wait_until(lambda: len(journals.server._connections) == 1, 10, "the request")
    waiting.cancel()
    await wait_until(lambda: len(journals.server._connections) == 0, 10, "its end")
    journals.server.stop()
