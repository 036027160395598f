"""The page of a live view: equal to the command and to what a browser gets, with names that attack, and without Redis and hubs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from redis.asyncio import Redis

from streams_app.clock import SystemClock
from streams_app.embedded.ports import free_port
from streams_app.health.http import HttpServer
from streams_app.health.status import Status
from streams_app.live.core.state import Item
from streams_app.settings import HttpSettings, LiveView, Settings
from tests.helpers.cli.commands import Place, run
from tests.helpers.console.consoles import running_console, with_console
from tests.helpers.kafka.topics import create_topics, produce
from tests.helpers.live.hubs import Owner, now_ms, running_hub
from tests.helpers.waiting import wait_until

NEWS = {"kind": "list", "page": "p", "expiry": "1h", "show": 3, "public": True}
ATTACKS = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "\u202eabc", "a\0b", "a/../b?c#d&e=f", "漢字", "k" * 500]


@pytest.fixture
def config(app: Place) -> Path:
    """Return settings with a list and a presence view."""
    path = Path(app.config())
    views = f'[live.news]\nsource = "{app.topics[0]}"\ndead_letters = "{app.topics[2]}"\n'
    views += "".join(f"{name} = {json.dumps(value)}\n" for name, value in NEWS.items())
    path.write_text(path.read_text() + views + '[live.visitors]\nkind = "presence"\nexpiry = "60s"\npublic = true\n')
    return path


@pytest.fixture
def settings(config: Path) -> Settings:
    return Settings.load(config, {})


def news(settings: Settings) -> LiveView:
    return settings.live_view("news")


async def owners(settings: Settings, client: Redis) -> list[Owner]:
    found = [Owner(client, settings.app_id, news(settings), partition, 2) for partition in range(2)]
    for owner in found:
        await owner.claim(clock_ms=now_ms() + 600_000)  # never behind, however slow the machine is
    return found


async def test_page_of_a_view_equals_the_command_and_what_a_browser_gets(
    config: Path, settings: Settings, redis_client: Redis
) -> None:
    first, second = await owners(settings, redis_client)
    for number in range(4):
        await first.put("7", f"item-{number}", {"title": number})
    await second.put("7", "other", None)
    ran = await asyncio.to_thread(run, "live", "show", "7", "--view", "news", "--json", "--config", str(config))
    async with running_hub(settings.app_id, settings.redis.url, [news(settings)]) as hub, running_console(settings) as console:
        browser = (await hub.json("/live/7?view=news"))["views"][0]
        page = await console.json("/live/news.json?page=7")
        _, text, _ = await console.get("/live/news?page=7")

    shown = page["shown"]
    assert json.loads(ran.out) == browser == json.loads(shown["message"])
    assert ("ok", 5, 5) == (shown["word"], shown["count"], len(shown["items"]))
    assert [("7", 5)] == [(one["name"], one["items"]) for one in page["contents"]["largest"]]
    assert "leaves in" in text.lower() and "item-3" in text


async def test_pages_with_most_items_come_first_over_all_partitions(settings: Settings, redis_client: Redis) -> None:
    first, second = await owners(settings, redis_client)
    for page, count in (("few", 1), ("many", 3)):
        await first.change(page, [Item(f"a{number}", now_ms(), b"{}") for number in range(count)])
        await second.change(page, [Item(f"b{number}", now_ms(), b"{}") for number in range(count)])
    async with running_console(settings) as console:
        found = (await console.json("/live/news.json"))["contents"]

    assert [("many", 6), ("few", 2)] == [(one["name"], one["items"]) for one in found["largest"]]
    assert (2, 4, True, "ok") == (found["pages"], found["read"], found["is_whole"], found["word"])


async def test_servers_are_listed_with_their_connections(settings: Settings, redis_client: Redis) -> None:
    await owners(settings, redis_client)
    views = [settings.live_view(name) for name in ("news", "visitors")]
    async with running_hub(settings.app_id, settings.redis.url, views) as hub:
        http = HttpServer(HttpSettings(port=0), Status(), hub.metrics, SystemClock())
        http.start()
        events = await hub.events("/live/7/events?view=news&view=visitors")
        await events.until("visitors", count=1)
        named = [f"127.0.0.1:{http.port}", f"127.0.0.1:{free_port()}"]

        async def rows() -> Any:
            async with running_console(with_console(settings, hubs=named)) as console:
                return (await console.json("/live/news.json"))["hubs"], await console.json("/live/visitors.json?page=7")

        async def is_counted() -> bool:
            return bool((await rows())[0][0]["connections"] == 1)

        await wait_until(is_counted, 30, "the connection is in the metrics")
        (here, away), visitors = await rows()
        http.stop()

    assert (1, 1, True) == (here["connections"], here["pages"], here["messages"] >= 1)
    assert ("away", None, True) == (away["word"], away["connections"], away["says"].startswith("it "))
    assert [("7", 1)] == [(one["name"], one["items"]) for one in visitors["contents"]["largest"]]
    assert (1, 1) == (visitors["shown"]["count"], len(visitors["shown"]["items"]))


@pytest.mark.parametrize("name", ATTACKS, ids=range(len(ATTACKS)))
async def test_name_that_attacks_is_shown_as_text_and_its_page_is_found(settings: Settings, redis_client: Redis, name: str) -> None:
    first, _ = await owners(settings, redis_client)
    await first.change(name, [Item(name, now_ms(), json.dumps({"title": name}, ensure_ascii=False).encode())])
    async with running_console(settings) as console:
        (row,) = (await console.json("/live/news.json"))["contents"]["largest"]
        status, text, _ = await console.get(row["link"])
        page = await console.json(row["link"].replace("/live/news?", "/live/news.json?"))

    assert (200, 1) == (status, page["shown"]["count"])
    assert not any(raw in text for raw in ("<script>alert", "<img src=x", "\u202e", "\0"))


async def test_page_without_items_is_searched_in_its_topic(app: Place, settings: Settings, redis_client: Redis) -> None:
    await create_topics(app.bootstrap, app.topics, partitions=2)
    await produce(app.bootstrap, app.topics[0], [(b"7", b'{"p": 7}')])
    await owners(settings, redis_client)
    async with running_console(settings) as console:
        found = [(await console.json(f"/live/news.json?page={page}"))["shown"]["history"] for page in ("7", "8")]

    assert ["empty: the newest record of this page is of", "no such page was ever seen"] == [
        found[0][:43], found[1][:26]
    ]  # fmt: skip


async def test_hidden_values_are_nowhere(settings: Settings, redis_client: Redis) -> None:
    first, _ = await owners(settings, redis_client)
    await first.put("secret-page", "secret-item", {"secret": 1})
    async with running_console(with_console(settings, hide_values=True)) as console:
        page = await console.json("/live/news.json?page=secret-page")
        _, text, _ = await console.get("/live/news?page=secret-page")

    assert (None, "", False) == (page["shown"], page["asked"], page["may_ask"])
    assert "secret" not in json.dumps(page) and "secret" not in text.partition("<main")[2].partition(">")[2]
    assert page["contents"]["largest"][0]["name"].startswith("#")


async def test_view_without_state_and_without_redis_says_so(settings: Settings) -> None:
    away = Settings.model_validate({**dict(settings), "redis": {"url": f"redis://127.0.0.1:{free_port()}/0"}})
    async with running_console(settings) as console:
        empty = await console.json("/live/news.json")
        presence = await console.json(f"/live/visitors.json?page={quote('7')}")
        _, text, _ = await console.get("/live/news?page=%ff%00")
        unknown = (await console.get("/live/another"))[0]
    async with running_console(away) as console:
        missing = [await console.json(f"/live/{name}.json?page=7") for name in ("news", "visitors")]
        status, page, _ = await console.get("/live/news?page=7")

    assert ("reading", [], True) == (empty["contents"]["word"], empty["contents"]["largest"], "Redis was wiped" in text)
    assert ("ok", 0, 404) == (presence["shown"]["word"], presence["shown"]["count"], unknown)
    assert ["missing"] * 4 == [one[part]["type"] for one in missing for part in ("contents", "shown")]
    assert (200, 2) == (status, page.count("cannot be read now"))
