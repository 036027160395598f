"""The example page in a real browser, Debian's headless Chromium; the test acts as the worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from playwright.async_api import Browser

from streams_app.embedded import Valkey
from streams_app.embedded.ports import free_port
from streams_app.live.hub.tokens import COOKIE, signed
from streams_app.live.store.view_store import ViewMetadata
from streams_app.settings import LiveView
from tests.conftest import Names
from tests.helpers.live.browsers import CONTRAST, SHIFT, WATCH, Tabs, opened_tabs, shows, started_browser
from tests.helpers.live.hubs import SECRET, Owner, RunningHub, now_ms, running_hub, secret_file
from tests.helpers.waiting import wait_until

LIMIT_SECONDS = 60
COUNT = LiveView(name="contributions", kind="count", source="c", page="p", expiry="24h", public=True)
NEWS = LiveView(name="news", kind="list", source="n", page="p", expiry="10s", show=5, public=True)
VISITORS = LiveView(name="visitors", kind="presence", expiry="60s", public=True)
PRIVATE = LiveView(name="private", kind="presence", expiry="60s")

Start = Callable[..., AbstractAsyncContextManager[RunningHub]]


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with started_browser() as started:
        yield started


@pytest.fixture
async def tabs(browser: Browser) -> AsyncIterator[Tabs]:
    async with opened_tabs(browser) as opened:
        yield opened


@pytest.fixture
def start(names: Names, valkey: Valkey) -> Start:
    def made(*views: LiveView, **options: Any) -> AbstractAsyncContextManager[RunningHub]:
        return running_hub(names.app_id, valkey.url, views, **{"has_page": True, **options})

    return made


class Worker:
    """Keeps views until it is killed."""

    def __init__(self, client: redis.asyncio.Redis, app_id: str, *views: LiveView) -> None:
        self.owners = {view.name: Owner(client, app_id, view) for view in views}
        self._ticking: asyncio.Task[None] | None = None

    async def start(self, **options: Any) -> None:
        for owner in self.owners.values():
            await owner.claim(**options)
        self._ticking = asyncio.create_task(self._tick())

    async def _tick(self) -> None:
        while True:
            for owner in self.owners.values():
                await owner.tick()
            await asyncio.sleep(0.1)

    async def kill(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
            with suppress(asyncio.CancelledError):
                await self._ticking


@pytest.fixture
async def worker(client: redis.asyncio.Redis, names: Names) -> AsyncIterator[Worker]:
    made = Worker(client, names.app_id, COUNT, NEWS)
    await made.start()
    yield made
    await made.kill()


NUMBER, STATE, VISITOR, LINE = ".count .number", ".count .state", ".presence .number", "#connection"


async def test_two_tabs_count_as_two_and_a_reload_keeps_its_tab_and_a_closed_one_is_removed(start: Start, tabs: Tabs) -> None:
    async with start(VISITORS) as hub:
        first = await tabs.open(f"{hub.url}/?page=7")
        await shows(first, VISITOR, "1")
        second = await tabs.open(f"{hub.url}/?page=7")
        await shows(first, VISITOR, "2")
        await first.evaluate(WATCH, VISITOR)
        await second.reload()
        await shows(second, VISITOR, "2")
        during = await first.evaluate("window.numbers")
        await second.close()
        await shows(first, VISITOR, "1")
        numbers = await first.evaluate("window.numbers")

    assert [] == during
    assert ["1"] == numbers


async def test_item_expires_while_idle_and_nothing_else_moves(start: Start, tabs: Tabs, worker: Worker) -> None:
    async with start(NEWS, COUNT, VISITORS) as hub:
        await worker.owners["news"].put("7", "a", {"title": "Soon gone", "url": "/x"}, now_ms() - 5_000)
        await worker.owners["news"].put("7", "b", {"title": "<b>Stays</b>", "url": "javascript:alert(1)"}, now_ms() + 100_000)
        page = await tabs.open(f"{hub.url}/?page=7")
        await shows(page, "[role=log]", "Soon gone")
        assert 1 == await page.locator("li a").count()
        places = "() => [...document.querySelectorAll('section')].map((card) => JSON.stringify(card.getBoundingClientRect()))"
        before = await page.evaluate(places)
        await page.wait_for_function("() => document.querySelectorAll('li').length === 1")
        after = await page.evaluate(places)
        left = await page.locator("li").inner_text()
        shift = await page.evaluate(SHIFT)

    assert before == after
    assert left.startswith("<b>Stays</b>")
    assert shift < 0.01


async def test_empty_list_is_as_high_as_its_text(start: Start, tabs: Tabs, worker: Worker) -> None:
    height = "() => document.querySelector('[role=log]').closest('section').offsetHeight"
    async with start(NEWS) as hub:
        page = await tabs.open(f"{hub.url}/?page=7")
        await shows(page, "[role=log]", "Nothing at the moment.")
        empty = await page.evaluate(height)
        await worker.owners["news"].put("7", "n", {"title": "Fresh"})
        await shows(page, "[role=log]", "Fresh")
        full = await page.evaluate(height)

    assert empty < 150 < full


async def test_ages_are_correct_for_any_browser_clock(start: Start, tabs: Tabs, client: redis.asyncio.Redis, names: Names) -> None:
    await tabs.context.add_init_script("{ const real = Date.now; Date.now = () => real() + 7200e3 }")
    long = NEWS.model_copy(update={"expiry": COUNT.expiry})
    owner = Owner(client, names.app_id, long)
    await owner.claim()
    async with start(long) as hub:
        await owner.put("7", "a", {"title": "A"}, now_ms() - 300_500)
        page = await tabs.open(f"{hub.url}/?page=7")
        await shows(page, "time", "5 minutes ago")


async def test_first_state_replaces_a_dash_and_no_zero_is_shown_before(start: Start, tabs: Tabs, worker: Worker) -> None:
    async with start(COUNT, NEWS) as hub:
        await worker.owners["contributions"].put("7", "a")
        await worker.owners["news"].put("7", "m", {"title": "First"})
        page = await tabs.open(f"{hub.url}/?page=7", watch=NUMBER)
        await shows(page, NUMBER, "1")
        await worker.owners["contributions"].put("7", "b")
        await worker.owners["news"].put("7", "n", {"title": "Fresh"})
        await shows(page, NUMBER, "2")
        await shows(page, "[role=log]", "Fresh")
        numbers = await page.evaluate("window.numbers")
        shift = await page.evaluate(SHIFT)

    assert ["\u2013", "1", "2"] == numbers
    assert shift < 0.01


async def test_offline_browser_says_so_and_reconnects_by_itself(start: Start, tabs: Tabs, worker: Worker) -> None:
    async with start(COUNT, beat="5s") as hub:
        await worker.owners["contributions"].put("7", "a")
        page = await tabs.open(f"{hub.url}/?page=7")
        await shows(page, NUMBER, "1")
        await tabs.context.set_offline(True)
        # Chromium keeps an open stream; the hub no longer writes to it.
        for stream in hub.server._streams:
            stream.connection.end()
        await shows(page, LINE, "Offline")
        await worker.owners["contributions"].put("7", "b")
        assert "1" == await page.locator(NUMBER).inner_text()
        await tabs.context.set_offline(False)
        await shows(page, NUMBER, "2")
        await shows(page, LINE, "Connected")


async def test_killed_hub_keeps_its_content_on_the_page_and_its_successor_continues(
    start: Start, tabs: Tabs, worker: Worker
) -> None:
    port = free_port()
    async with start(COUNT, port=port) as hub:
        await worker.owners["contributions"].put("7", "a")
        page = await tabs.open(f"{hub.url}/?page=7")
        await shows(page, NUMBER, "1")
    await shows(page, LINE, "Offline")
    assert "1" == await page.locator(NUMBER).inner_text()
    await worker.owners["contributions"].put("7", "b")
    async with start(COUNT, port=port):
        await shows(page, NUMBER, "2")
        await shows(page, LINE, "Connected")


async def test_killed_worker_is_reported_in_words_until_another_takes_over(start: Start, tabs: Tabs, worker: Worker) -> None:
    async with start(COUNT) as hub:
        await worker.owners["contributions"].put("7", "a")
        page = await tabs.open(f"{hub.url}/?page=7")
        await shows(page, STATE, "Up to date")
        await worker.kill()
        await shows(page, STATE, "Behind: as it was at")
        assert "1" == await page.locator(NUMBER).inner_text()
        await worker.start()
        await shows(page, STATE, "Up to date")


async def test_wiped_redis_keeps_the_content_of_the_page_and_never_shows_a_zero(
    start: Start, tabs: Tabs, worker: Worker, client: redis.asyncio.Redis
) -> None:
    async with start(COUNT) as hub:
        await worker.owners["contributions"].put("7", "a")
        page = await tabs.open(f"{hub.url}/?page=7")
        await shows(page, NUMBER, "1")
        await page.evaluate(WATCH, NUMBER)
        await worker.kill()
        await client.flushall()
        await shows(page, STATE, "Being read")
        owner = worker.owners["contributions"]
        await owner.claim(metadata=ViewMetadata(reading=9))
        for item in "abc":
            await owner.put("7", item)
        owner.metadata = ViewMetadata()
        await owner.change("another")
        await shows(page, STATE, "Up to date")
        numbers = await page.evaluate("window.numbers")

    assert ["3"] == numbers


OWN_PAGE = """<!doctype html><link rel="icon" href="data:,"><p class="count"></p><p class="said"></p>
<script type="module">
  import { live } from "/live.js"
  live("/live/7?view=private", {
    view: ({ count }) => { document.querySelector(".count").textContent = count },
    state: (name, status) => { document.querySelector(".said").textContent += ` ${name}${status ?? ""}` },
    renew: () => renewed(),
  })
</script>"""


async def test_expired_cookie_is_renewed_by_the_page(start: Start, tabs: Tabs, tmp_path: Path) -> None:
    renewals: list[int] = []

    async with start(PRIVATE, has_page=False, secret_file=secret_file(tmp_path)) as hub:

        async def give(seconds: int) -> None:
            text = signed(SECRET, ["7"], "ada", now_ms() + seconds * 1000)
            await tabs.context.add_cookies([{"name": COOKIE, "value": text, "url": hub.url, "httpOnly": True}])

        async def renewed() -> None:
            renewals.append(1)
            await give(3_600)

        await tabs.context.expose_function("renewed", renewed)
        await tabs.context.route("**/own", lambda route: route.fulfill(body=OWN_PAGE, content_type="text/html"))
        await give(3)
        page = await tabs.open(f"{hub.url}/own")
        await shows(page, ".count", "1")
        await wait_until(lambda: bool(renewals), LIMIT_SECONDS, "the page asks for a new token")
        await page.wait_for_function(r"() => /offline401\s*live$/.test(document.querySelector('.said').textContent)")
        states = await page.locator(".said").inner_text()

    assert [1] == renewals
    assert states.split() == ["live", "offline401", "live"]


@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.long), "dark"])
async def test_page_is_readable_on_a_small_screen_in_the_dark_by_keyboard_and_screen_reader(
    start: Start, browser: Browser, worker: Worker, scheme: Any
) -> None:
    options: Any = {"viewport": {"width": 360, "height": 700}, "color_scheme": scheme, "reduced_motion": "reduce"}
    async with opened_tabs(browser, **options) as tabs, start(COUNT, NEWS, VISITORS) as hub:
        await worker.owners["news"].put("7", "a", {"title": "T" * 200, "url": "/x"}, now_ms() + 60_000)
        page = await tabs.open(f"{hub.url}/?page={'long-name-' * 20}7")
        await page.goto(f"{hub.url}/?page=7")
        await shows(page, STATE, "Up to date")
        await worker.kill()
        await shows(page, STATE, "Behind")
        poor = await page.evaluate(CONTRAST)
        width = await page.evaluate("document.documentElement.scrollWidth")
        focused = []
        for _ in range(4):
            await page.keyboard.press("Tab")
            focused.append(
                await page.evaluate("[document.activeElement.tagName, getComputedStyle(document.activeElement).outlineStyle]")
            )
        spoken = await page.evaluate(
            """() => [...document.querySelectorAll("[aria-live], [role=log], [role=status]")].map((node) =>
              [node.getAttribute("role"), node.getAttribute("aria-live"), Boolean(node.closest(".count, .presence"))])"""
        )
        moving = await page.evaluate("getComputedStyle(document.querySelector('li')).transitionDuration")
        named = await page.get_by_role("log", name="News in the last 10 seconds").count()

    assert [] == poor
    assert 360 == width
    assert [["INPUT", "solid"], ["BUTTON", "solid"], ["DIV", "solid"], ["A", "solid"]] == focused
    assert [["status", None, False], ["log", "polite", False]] == spoken
    assert "0s" == moving
    assert 1 == named
