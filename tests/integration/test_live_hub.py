"""What raw clients of the hub are sent, on a real Redis whose worker is the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jwt
import pytest
import redis.asyncio

from streams_app.embedded import Valkey
from streams_app.live.core.state import Item
from streams_app.live.hub.tokens import COOKIE, signed
from streams_app.live.store.keys import presence_keys
from streams_app.live.store.view_store import Marks
from streams_app.settings import LiveView
from tests.conftest import Names, RedisServer
from tests.helpers import wait_until
from tests.integration.http.test_connections import HALF, clients, is_closed
from tests.integration.hubs import LIMIT_SECONDS, SECRET, Owner, RunningHub, now_ms, running_hub, secret_file

NEWS = LiveView(name="news", kind="list", source="t", page="p", expiry="1m", show=3, public=True)
SUPPORTERS = LiveView(name="supporters", kind="count", source="t", page="p", expiry="1m", public=True)
VISITORS = LiveView(name="visitors", kind="presence", expiry="60s", public=True)
PRIVATE = LiveView(name="private", kind="count", source="t", page="p", expiry="1m")
WHO = LiveView(name="who", kind="presence", expiry="60s", people=True)
TAB_A, TAB_B = "tab-aaaaaa", "tab-bbbbbb"

Start = Callable[..., AbstractAsyncContextManager[RunningHub]]


@pytest.fixture
async def client(valkey: Valkey) -> AsyncIterator[redis.asyncio.Redis]:
    """Of a Redis that the test may wipe and stop."""
    made = redis.asyncio.Redis.from_url(valkey.url)
    yield made
    await made.aclose()


@pytest.fixture
def start(names: Names, redis_server: RedisServer) -> Start:
    def made(*views: LiveView, **options: Any) -> AbstractAsyncContextManager[RunningHub]:
        return running_hub(names.app_id, redis_server.url, views, **options)

    return made


def cookie(text: str) -> dict[str, str]:
    return {"Cookie": f"{COOKIE}={text}"}


def token(*pages: str, sub: str = "", after_ms: int = 60_000, secret: str = SECRET) -> dict[str, str]:
    return cookie(signed(secret, pages, sub, now_ms() + after_ms))


async def test_page_shows_what_is_put_removed_and_expired_while_it_is_open(
    start: Start, redis_client: redis.asyncio.Redis, names: Names
) -> None:
    brief = NEWS.model_copy(update={"expiry": NEWS.expiry / 30})
    owner = Owner(redis_client, names.app_id, brief)
    await owner.claim()
    async with start(brief) as hub:
        page = await hub.events("/live/7/events?view=news")
        empty = await page.until("news", state="ok", count=0)
        await owner.put("7", "a", {"title": "A"}, now_ms() - 1_000)
        await owner.put("7", "b", {"title": "B"}, now_ms() + 10_000)
        both = await page.until("news", count=2)

        async def is_gone() -> bool:
            await owner.tick()
            return page.views("news")[-1]["count"] == 1

        await wait_until(is_gone, LIMIT_SECONDS, "the item that nothing happened to has left")
        await owner.change("7", removed=["b"])
        await page.until("news", count=0)

    assert [] == empty["items"]
    assert ["b", "a"] == [item["item"] for item in both["items"]]
    assert {"title": "A"} == both["items"][1]["data"]
    assert both["items"][1]["time_ms"] + 2_000 == both["items"][1]["expires_ms"]
    assert {"view", "kind", "state", "since_ms", "expiry_ms", "count", "more", "items"} == set(both)


async def test_json_answers_what_a_stream_would_say(start: Start, redis_client: redis.asyncio.Redis, names: Names) -> None:
    owner = Owner(redis_client, names.app_id, SUPPORTERS)
    await owner.claim()
    await owner.put("a/b ü", "x")
    async with start(SUPPORTERS, VISITORS) as hub:
        found = await hub.json("/live/a%2Fb%20%C3%BC?view=supporters&view=visitors")
        never_seen = await hub.json("/live/other?view=supporters")

    assert ["supporters", "visitors"] == [view["view"] for view in found["views"]]
    assert [("ok", 1), ("ok", 0)] == [(view["state"], view["count"]) for view in found["views"]]
    assert [("ok", 0)] == [(view["state"], view["count"]) for view in never_seen["views"]]


async def test_view_that_no_worker_ever_kept_is_reading_and_has_no_value(start: Start) -> None:
    async with start(SUPPORTERS) as hub:
        found = await hub.json("/live/7?view=supporters")

    assert "reading" == found["views"][0]["state"]
    assert "count" not in found["views"][0]


async def test_shards_are_summed_and_a_missing_one_makes_the_view_reading(
    start: Start, redis_client: redis.asyncio.Redis, names: Names
) -> None:
    owners = [Owner(redis_client, names.app_id, SUPPORTERS, partition, 2) for partition in (0, 1)]
    await owners[0].claim()
    await owners[0].put("7", "a")
    async with start(SUPPORTERS) as hub:
        page = await hub.events("/live/7/events?view=supporters")
        missing = await page.until("supporters", state="reading")
        await owners[1].claim()
        await owners[1].put("7", "b")
        await page.until("supporters", state="ok", count=2)

    assert "count" not in missing
    assert {2} == {state["count"] for state in page.views("supporters") if "count" in state} - {1}


async def test_while_a_shard_is_read_there_are_no_values_and_afterwards_all(
    start: Start, redis_client: redis.asyncio.Redis, names: Names
) -> None:
    owner = Owner(redis_client, names.app_id, SUPPORTERS)
    await owner.claim(marks=Marks(reading=3))
    async with start(SUPPORTERS) as hub:
        page = await hub.events("/live/7/events?view=supporters")
        await page.until("supporters", state="reading")
        await owner.put("7", "a")
        await owner.put("7", "b")
        owner.marks = Marks()
        await owner.change("another")
        await page.until("supporters", state="ok", count=2)

    assert [2] == [state["count"] for state in page.views("supporters") if "count" in state]


async def test_another_owner_and_a_wiped_redis_are_read_anew(valkey: Valkey, client: redis.asyncio.Redis, names: Names) -> None:
    async with running_hub(names.app_id, valkey.url, [SUPPORTERS]) as hub:
        owner = Owner(client, names.app_id, SUPPORTERS)
        await owner.claim()
        await owner.put("7", "a")
        page = await hub.events("/live/7/events?view=supporters")
        await page.until("supporters", count=1)
        await owner.claim()
        await owner.put("7", "b")
        await page.until("supporters", count=2)
        await client.flushall()
        await page.until("supporters", state="reading")
        await owner.claim(marks=Marks(reading=9))
        for item in "abc":
            await owner.put("7", item)
        owner.marks = Marks()
        await owner.change("another")
        await page.until("supporters", state="ok", count=3)

    assert [1, 2, 3] == [state["count"] for state in page.views("supporters") if "count" in state]


async def test_view_whose_clock_stands_is_behind_and_says_since_when(
    start: Start, redis_client: redis.asyncio.Redis, names: Names
) -> None:
    owner = Owner(redis_client, names.app_id, SUPPORTERS)
    begun_ms = now_ms() - 9_000
    await owner.claim(clock_ms=begun_ms)
    async with start(SUPPORTERS) as hub:
        page = await hub.events("/live/7/events?view=supporters")
        await page.until("supporters", state="ok")
        behind = await page.until("supporters", state="behind", count=0)
        await owner.tick()
        await page.until("supporters", state="ok", since_ms=None)

    assert begun_ms == behind["since_ms"]


async def test_redis_that_is_away_leaves_beats_and_marks_what_is_shown(
    valkey: Valkey, client: redis.asyncio.Redis, names: Names
) -> None:
    async with running_hub(names.app_id, valkey.url, [SUPPORTERS]) as hub:
        owner = Owner(client, names.app_id, SUPPORTERS)
        await owner.claim()
        await owner.put("7", "a")
        page = await hub.events("/live/7/events?view=supporters")
        await page.until("supporters", state="ok", count=1)
        valkey.stop()
        await page.until("supporters", state="behind", count=1)
        beats = page.names().count("beat")
        newcomer = await hub.events("/live/7/events?view=supporters")
        await newcomer.until("supporters", state="behind", count=1)
        of_another_page = await hub.json("/live/8?view=supporters")
        await wait_until(lambda: page.names().count("beat") > beats, LIMIT_SECONDS, "beats go on")

    assert "reading" == of_another_page["views"][0]["state"]


async def test_client_that_reads_nothing_holds_nobody_up_and_gets_the_newest_state(
    start: Start, redis_client: redis.asyncio.Redis, names: Names
) -> None:
    owner = Owner(redis_client, names.app_id, NEWS)
    await owner.claim()
    wide = [Item(f"i{place}", now_ms() + place, b'"%s"' % (b"x" * 900)) for place in range(3)]
    async with start(NEWS) as hub:
        stalled = await hub.session.get(hub.url + "/live/7/events?view=news", read_bufsize=1024)
        reader = await hub.events("/live/7/events?view=news")
        replaced = hub.metrics.live_replaced

        async def is_replaced() -> bool:
            await owner.change("7", [item._replace(payload=b'"%d%s"' % (owner.fence, b"x" * 900)) for item in wide])
            return replaced._value.get() > 3

        await wait_until(is_replaced, 120, "states of the stalled client are replaced")
        await owner.change("7", removed=["i0"])
        await reader.until("news", count=2)
        pending = max(len(connection._pending) for connection in hub.hub.connections)
        text = b""
        while b'"count":2' not in text:
            text += await stalled.content.readany()

    assert pending <= 1


async def test_tabs_of_two_hubs_are_counted_a_reload_is_no_leave_and_a_closed_one_is_gone(
    start: Start, redis_client: redis.asyncio.Redis, names: Names
) -> None:
    async with start(VISITORS) as one, start(VISITORS) as two:
        first = await one.events(f"/live/7/events?view=visitors&tab={TAB_A}")
        await first.until("visitors", count=1)
        second = await two.events(f"/live/7/events?view=visitors&tab={TAB_B}")
        await first.until("visitors", count=2)
        await second.until("visitors", count=2)
        # A reload that reaches the other hub: the former connection closes after the new one has come, or before.
        reloaded = await one.events(f"/live/7/events?view=visitors&tab={TAB_B}")
        await reloaded.until("visitors", count=2)
        await second.close()
        key = presence_keys(names.app_id, "visitors").here_prefix + "7"
        await wait_until(lambda: is_lapsing_or_ours(two), LIMIT_SECONDS, "the other hub has said that its tab has closed")
        kept: list[Any] = await redis_client.zrange(key, 0, -1, withscores=True)
        await reloaded.close()
        await first.until("visitors", count=1)

    assert {1, 2} == {state["count"] for state in first.views("visitors")}
    assert all(until_ms > now_ms() + 20_000 for tab, until_ms in kept)


async def is_lapsing_or_ours(hub: RunningHub) -> bool:
    presence = hub.hub._presence["visitors"]
    return not presence._open and not presence._closed


async def test_presence_is_written_once_more_after_redis_was_wiped_and_no_wrong_number_is_shown(
    valkey: Valkey, client: redis.asyncio.Redis, names: Names
) -> None:
    async with AsyncExitStack() as stack:
        hubs = [await stack.enter_async_context(running_hub(names.app_id, valkey.url, [VISITORS])) for _ in range(2)]
        first = await hubs[0].events(f"/live/7/events?view=visitors&tab={TAB_A}")
        await hubs[1].events(f"/live/7/events?view=visitors&tab={TAB_B}")
        await first.until("visitors", count=2)
        sent = len(first.events)
        await client.flushall()
        await first.until("visitors", state="reading")
        await first.until("visitors", state="ok", count=2)

    assert [2] == [data["count"] for name, data in first.events[sent:] if name == "view" and "count" in data]


async def test_people_are_named_once_each_by_their_tokens(start: Start, tmp_path: Path) -> None:
    async with start(WHO, secret_file=secret_file(tmp_path)) as hub:
        ada = await hub.events(f"/live/7/events?view=who&tab={TAB_A}", headers=token("7", sub="Ada Lovelace"))
        await hub.events("/live/7/events?view=who", headers=token("*", sub="Ada Lovelace"))
        await hub.events("/live/7/events?view=who", headers=token("*", sub="Bob"))
        state = await ada.until("who", count=3)

    assert ["Ada Lovelace", "Bob"] == state["people"]


async def test_token_that_expires_ends_the_stream_with_bye_and_nothing_after(
    start: Start, redis_client: redis.asyncio.Redis, names: Names, tmp_path: Path
) -> None:
    owner = Owner(redis_client, names.app_id, PRIVATE)
    await owner.claim()
    async with start(PRIVATE, secret_file=secret_file(tmp_path)) as hub:
        page = await hub.events("/live/7/events?view=private", headers=token("7", after_ms=2_000))
        await page.until("private", count=0)
        await wait_until(lambda: page.is_over, LIMIT_SECONDS, "the stream ends")
        refused = await hub.refusal("/live/7/events?view=private", headers=token("7", after_ms=-1_000))

    assert "bye" == page.names()[-1]
    assert (401, "the token has expired") == refused


async def test_secrets_rotate_while_the_hub_runs_and_a_withdrawn_one_ends_its_streams(start: Start, tmp_path: Path) -> None:
    new = "n" * 32
    async with start(WHO, secret_file=secret_file(tmp_path)) as hub:
        page = await hub.events("/live/7/events?view=who", headers=token("7"))
        await page.until("who", count=1)
        secret_file(tmp_path, new, SECRET)
        both = [await hub.json("/live/7?view=who", headers=token("7", secret=secret)) for secret in (new, SECRET)]
        assert not page.is_over
        secret_file(tmp_path, new)
        await wait_until(lambda: page.is_over, LIMIT_SECONDS, "the stream of the withdrawn secret ends")

    assert [1, 1] == [found["views"][0]["count"] for found in both]


def forged(claims: dict[str, Any], algorithm: str = "HS256", secret: str = SECRET) -> str:
    return jwt.encode(claims, {"none": "", "HS512": 2 * secret}.get(algorithm, secret), algorithm)


def soon() -> int:
    return now_ms() // 1000 + 3600


@pytest.mark.parametrize(
    ("path", "headers", "status", "says"),
    [
        ("/live/7?view=nwes", {}, 404, "did you mean"),
        ("/live/7", {}, 400, "name 1 to 8 views"),
        ("/live/7?" + "&".join(f"view=v{place}" for place in range(9)), {}, 400, "name 1 to 8 views"),
        ("/live/7/events?view=news&tab=a%20b", {}, 400, "tab must be"),
        (f"/live/{'x' * 513}?view=news", {}, 400, "512 bytes"),
        ("/live/7?view=news", {"Origin": "https://evil.example"}, 403, "origins"),
        ("/live/7?view=news&view=private", {}, 401, "a token is needed"),
        ("/live/7/events?view=private", {}, 401, "a token is needed"),
        ("/live/7?view=private", cookie("x.y.z"), 401, "cannot be read"),
        ("/live/7?view=private", cookie(forged({"pages": ["*"], "exp": 2**31}, "none")), 401, "cannot be read"),
        ("/live/7?view=private", cookie(forged({"pages": ["*"], "exp": 2**31}, "HS512")), 401, "cannot be read"),
        ("/live/7?view=private", cookie(forged({"pages": ["*"], "exp": 2**31}, secret="t" * 32)), 401, "not signed"),
        ("/live/7?view=private", cookie(forged({"pages": ["*"], "exp": 2**31})), 401, "more than 24 h"),
        ("/live/7?view=private", cookie(forged({"pages": ["*"]})), 401, "no exp"),
        ("/live/7?view=private", cookie(forged({"exp": 2**31})), 401, "no pages"),
        ("/live/7?view=private", cookie(forged({"pages": "*", "exp": 2**31})), 401, "list of names"),
        ("/live/7?view=private", cookie(forged({"pages": ["*"], "exp": "soon"})), 401, "time in seconds"),
        ("/live/7?view=private", cookie(forged({"pages": ["*"], "exp": soon(), "sub": "\ud800"})), 401, "sub of the token"),
        ("/live/7?view=private", cookie(forged({"pages": ["*", "\udfff"], "exp": soon()})), 401, "pages of the token"),
        ("/nothing", {}, 404, "Not Found"),
    ],
)  # fmt: skip
async def test_bad_request_is_refused_with_what_to_do(
    start: Start, tmp_path: Path, path: str, headers: dict[str, str], status: int, says: str
) -> None:
    async with start(NEWS, PRIVATE, secret_file=secret_file(tmp_path)) as hub:
        found, text = await hub.refusal(path, headers=headers)

    assert status == found, text
    assert says in text


@pytest.mark.parametrize("name", [b"\xff", b"%FF", b"%ED%A0%80", b"\xed\xa0\x80"])
async def test_name_of_a_page_that_is_no_text_leaves_other_pages_as_they_are(start: Start, name: bytes) -> None:
    async with start(VISITORS) as hub:
        page = await hub.events("/live/7/events?view=visitors")
        await page.until("visitors", state="ok", count=1)
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(hub.url).port)
        writer.write(b"GET /live/%s?view=visitors HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % name)
        answer = await reader.read()
        writer.close()
        other = await hub.events("/live/7/events?view=visitors")
        await page.until("visitors", state="ok", count=2)
        await other.until("visitors", state="ok", count=2)

    assert answer.split()[1] in (b"200", b"400")


async def test_poll_that_fails_as_nobody_expects_marks_pages_and_is_logged_once_with_its_trace(
    start: Start, redis_client: redis.asyncio.Redis, names: Names, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    owner = Owner(redis_client, names.app_id, SUPPORTERS)
    await owner.claim()
    failed = 0

    async def fail(*_: Any) -> Any:
        nonlocal failed
        failed += 1
        raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")

    async with start(SUPPORTERS) as hub:
        page = await hub.events("/live/7/events?view=supporters")
        await page.until("supporters", state="ok", count=0)
        with monkeypatch.context() as patched:
            patched.setattr(hub.hub._poller, "poll_once", fail)
            newcomer = await hub.events("/live/8/events?view=supporters")
            await newcomer.until("supporters", state="reading")
            await wait_until(lambda: failed > 3, LIMIT_SECONDS, "it goes on polling")
        await owner.put("7", "a")
        await page.until("supporters", state="ok", count=1)
        await newcomer.until("supporters", state="ok", count=0)

    traces = [record for record in caplog.records if record.exc_info and record.exc_info[0] is UnicodeEncodeError]
    assert 1 == len(traces)


async def test_state_that_cannot_be_sent_does_not_end_the_polls(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failed = 0

    def fail(*_: Any, **__: Any) -> Any:
        nonlocal failed
        failed += 1
        raise TypeError("no such state")

    async with start(VISITORS) as hub:
        page = await hub.events("/live/7/events?view=visitors")
        await page.until("visitors", state="ok", count=1)
        with monkeypatch.context() as patched:
            patched.setattr("streams_app.live.hub.hub.message_of", fail)
            newcomer = await hub.events("/live/7/events?view=visitors")
            await wait_until(lambda: failed > 3, LIMIT_SECONDS, "it goes on polling")
        await page.until("visitors", state="ok", count=2)
        await newcomer.until("visitors", state="ok", count=2)

    assert 1 == len([record for record in caplog.records if record.exc_info and record.exc_info[0] is TypeError])


async def test_token_is_for_its_pages_alone(start: Start, tmp_path: Path) -> None:
    async with start(PRIVATE, secret_file=secret_file(tmp_path)) as hub:
        allowed = token("7", "team-*")
        other = await hub.refusal("/live/70?view=private", headers=allowed)
        found = [await hub.json(f"/live/{page}?view=private", headers=allowed) for page in ("7", "team-a")]

    assert (403, "the token is not for this page") == other
    assert 2 == len(found)


async def test_origin_that_is_named_may_ask_and_its_own_pages_always(start: Start) -> None:
    async with start(NEWS, origins=("https://www.example.com",)) as hub:
        for origin in ("https://www.example.com", hub.url):
            async with hub.session.get(hub.url + "/live/7?view=news", headers={"Origin": origin}) as response:
                assert (200, origin) == (response.status, response.headers["Access-Control-Allow-Origin"])
                assert "true" == response.headers["Access-Control-Allow-Credentials"]
                assert "default-src 'none'" in response.headers["Content-Security-Policy"]
        refused = await hub.refusal("/live/7?view=news", headers={"Origin": "http://www.example.com"})

    assert 403 == refused[0]


async def test_server_that_is_full_says_when_to_come_back(start: Start) -> None:
    async with start(VISITORS, connections=1) as hub:
        page = await hub.events("/live/7/events?view=visitors")
        await page.until("visitors", count=1)
        waits = set()
        for _ in range(30):
            async with hub.session.get(hub.url + "/live/7/events?view=visitors") as response:
                assert 503 == response.status
                waits.add(int(response.headers["Retry-After"]))

    assert len(waits) > 1
    assert waits <= set(range(1, 11))


@pytest.mark.parametrize(
    "sent", [b"", HALF, b"GET /live.js HTTP/1.1\r\nHost: x\r\n\r\n"], ids=["nothing", "half a request", "one request"]
)
async def test_connection_that_asks_nothing_is_closed_and_an_open_page_is_not(start: Start, sent: bytes) -> None:
    async with start(VISITORS) as hub:
        hub.server.sockets.request_seconds = hub.server.sockets.idle_seconds = 0.25
        page = await hub.events("/live/7/events?view=visitors")
        async with clients(urlsplit(hub.url).port, 3, sent) as silent:
            await wait_until(lambda: all(map(is_closed, silent)), LIMIT_SECONDS, "the connections are closed")
        beats = page.names().count("beat")
        await wait_until(lambda: page.names().count("beat") > beats + 1, LIMIT_SECONDS, "the open page hears beats")

        assert not page.is_over
        assert 1 == len(hub.server.sockets)


async def test_clients_without_number_end_no_open_page(start: Start) -> None:
    async with start(VISITORS, connections=2) as hub:
        page = await hub.events("/live/7/events?view=visitors")
        await page.until("visitors", count=1)
        async with clients(urlsplit(hub.url).port, 3 * hub.server.sockets.limit, HALF):
            other = await hub.events("/live/7/events?view=visitors")
            await other.until("visitors", count=2)
            await page.until("visitors", count=2)

            assert len(hub.server.sockets) <= hub.server.sockets.limit


async def test_end_says_goodbye_and_spreads_when_browsers_come_back(start: Start) -> None:
    async with start(VISITORS) as hub:
        pages = [await hub.events("/live/7/events?view=visitors") for _ in range(3)]
        for page in pages:
            await page.until("visitors", state="ok")
        await hub.server.end()
        await wait_until(lambda: all(page.is_over for page in pages), LIMIT_SECONDS, "all streams end")

    assert ["bye"] * 3 == [page.names()[-1] for page in pages]


async def test_many_who_come_at_once_cost_few_polls(start: Start, redis_client: redis.asyncio.Redis, names: Names) -> None:
    owner = Owner(redis_client, names.app_id, SUPPORTERS)
    await owner.claim()
    async with start(SUPPORTERS, interval="10s") as hub:
        await hub.json("/live/7?view=supporters")
        polls = hub.metrics.live_look_seconds._buckets
        before = sum(bucket.get() for bucket in polls)
        await asyncio.gather(*(hub.json(f"/live/{page}?view=supporters") for page in range(100)))
        made = sum(bucket.get() for bucket in polls) - before

    assert made < 20
