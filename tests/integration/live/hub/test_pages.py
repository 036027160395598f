"""The events that raw clients of the hub receive, on a real Redis; the test acts as the worker."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
import redis.asyncio
from yarl import URL

from streams_app.embedded import Valkey
from streams_app.live.core.state import Item
from streams_app.live.store.keys import presence_keys, view_keys
from streams_app.live.store.view_store import ViewMetadata
from tests.conftest import Names
from tests.helpers.live.hubs import LIMIT_SECONDS, Owner, RunningHub, now_ms, running_hub
from tests.helpers.waiting import wait_until
from tests.integration.health.odd_requests import answer_to
from tests.integration.live.hub.views import NEWS, SUPPORTERS, TAB_A, TAB_B, VISITORS, Start


async def test_page_shows_put_removed_and_expired_items_while_it_is_open(
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


async def test_json_response_matches_the_stream(start: Start, redis_client: redis.asyncio.Redis, names: Names) -> None:
    owner = Owner(redis_client, names.app_id, SUPPORTERS)
    await owner.claim()
    await owner.put("a/b ü", "x")
    async with start(SUPPORTERS, VISITORS) as hub:
        found = await hub.json("/live/a%2Fb%20%C3%BC?view=supporters&view=visitors")
        never_seen = await hub.json("/live/other?view=supporters")

    assert ["supporters", "visitors"] == [view["view"] for view in found["views"]]
    assert [("ok", 1), ("ok", 0)] == [(view["state"], view["count"]) for view in found["views"]]
    assert [("ok", 0)] == [(view["state"], view["count"]) for view in never_seen["views"]]


ODD_NAMES = [
    "{7}", "{", "}", "}{", "{3F2504E0-4F89-11D3-9A0C-0305E82C3301}", "a/b", "/", "a%2Fb", "%", "%7B", "%252F", "?view=x", "#",
    "a+b c", "&=;,:@!$'()*~", "[x]", "\"<i>\\`|^", "ü", "日本", "🦊", "e\u0301", "events", "7/events", "a\nb\t", "\x00\x7f", "...",
    "*", "a" * 512,
]  # fmt: skip


async def test_page_of_any_name_is_opened(start: Start, redis_client: redis.asyncio.Redis, names: Names) -> None:
    owner = Owner(redis_client, names.app_id, SUPPORTERS)
    await owner.claim()
    for name in ODD_NAMES:
        await owner.put(name, name)
    found = {}
    async with start(SUPPORTERS) as hub:
        port = urlsplit(hub.url).port
        for name in ODD_NAMES:
            for path in (quote(name, safe=""), "".join(f"%{byte:02x}" for byte in name.encode())):
                request = f"GET /live/{path}?view=supporters HTTP/1.1\r\nHost: x\r\n\r\n"
                found[path] = await answer_to(port, request.encode())
            page = await hub.events(URL(f"{hub.url}/live/{quote(name, safe='')}/events?view=supporters", encoded=True))
            await page.until("supporters", count=1)

    wrong = {path: answer for path, answer in found.items() if answer[0] != 200 or answer[1]["views"][0]["count"] != 1}
    assert {} == wrong


async def test_view_without_a_worker_is_reading_and_has_no_value(start: Start) -> None:
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


async def test_view_has_no_values_while_a_shard_is_reading_and_all_afterwards(
    start: Start, redis_client: redis.asyncio.Redis, names: Names
) -> None:
    owner = Owner(redis_client, names.app_id, SUPPORTERS)
    await owner.claim(metadata=ViewMetadata(reading=3))
    async with start(SUPPORTERS) as hub:
        page = await hub.events("/live/7/events?view=supporters")
        await page.until("supporters", state="reading")
        await owner.put("7", "a")
        await owner.put("7", "b")
        owner.metadata = ViewMetadata()
        await owner.change("another")
        await page.until("supporters", state="ok", count=2)

    assert [2] == [state["count"] for state in page.views("supporters") if "count" in state]


async def test_page_is_reread_after_a_takeover_and_a_redis_wipe(valkey: Valkey, client: redis.asyncio.Redis, names: Names) -> None:
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
        await owner.claim(metadata=ViewMetadata(reading=9))
        for item in "abc":
            await owner.put("7", item)
        owner.metadata = ViewMetadata()
        await owner.change("another")
        await page.until("supporters", state="ok", count=3)

    assert [1, 2, 3] == [state["count"] for state in page.views("supporters") if "count" in state]


async def test_view_with_a_stalled_clock_is_behind_and_says_since_when(
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


async def test_page_receives_heartbeats_and_is_marked_during_a_redis_outage(
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

    assert {1_000} == {data["beat_ms"] for name, data in page.events if name == "beat"}
    assert "reading" == of_another_page["views"][0]["state"]


async def test_slow_client_does_not_delay_others_and_receives_the_newest_state(
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


async def test_tabs_of_two_hubs_are_counted_and_a_reload_keeps_its_tab(
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
        await wait_until(lambda: is_lapsing_or_ours(two), LIMIT_SECONDS, "the other hub has reported that its tab has closed")
        kept: list[Any] = await redis_client.zrange(key, 0, -1, withscores=True)
        await reloaded.close()
        await first.until("visitors", count=1)

    assert {1, 2} == {state["count"] for state in first.views("visitors")}
    assert all(until_ms > now_ms() + 20_000 for tab, until_ms in kept)


async def is_lapsing_or_ours(hub: RunningHub) -> bool:
    presence = hub.hub._presence["visitors"]
    return not presence._open and not presence._closed


async def test_presence_is_rewritten_after_a_redis_wipe_and_no_wrong_number_is_shown(
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


async def test_poll_with_an_unexpected_error_marks_pages_and_is_logged_once_with_its_traceback(
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
            await wait_until(lambda: failed > 3, LIMIT_SECONDS, "it continues to poll")
        await owner.put("7", "a")
        await page.until("supporters", state="ok", count=1)
        await newcomer.until("supporters", state="ok", count=0)

    traces = [record for record in caplog.records if record.exc_info and record.exc_info[0] is UnicodeEncodeError]
    assert 1 == len(traces)


async def test_unsendable_state_does_not_end_the_polls(
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
            await wait_until(lambda: failed > 3, LIMIT_SECONDS, "it continues to poll")
        await page.until("visitors", state="ok", count=2)
        await newcomer.until("visitors", state="ok", count=2)

    assert 1 == len([record for record in caplog.records if record.exc_info and record.exc_info[0] is TypeError])


async def test_hub_reports_state_of_a_newer_version_and_does_not_blame_redis(
    start: Start, redis_client: redis.asyncio.Redis, names: Names
) -> None:
    owner = Owner(redis_client, names.app_id, NEWS)
    await owner.claim()
    async with start(NEWS) as running:
        await (await running.events(f"/live/p/events?view=news&tab={TAB_A}")).until("news", count=0)
        await redis_client.hset(view_keys(names.app_id, "news", "t", 0).meta, "format", "99")
        running.hub._poller.forget()  # as the hub does every 30 s
        (why,) = await wait_until(
            lambda: [one for one in running.hub._status.ready_reasons() if "has format 99" in one],
            LIMIT_SECONDS,
            "the hub is not ready",
        )

    assert "does not answer" not in why
