"""Pages of the console in Chromium: both schemes, a small screen, without JavaScript, and while they change."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser
from redis.asyncio import Redis

from streams_app.clock import SystemClock
from streams_app.folding.core.event import FoldEvent
from streams_app.settings import Settings
from tests.helpers.cli.commands import FOLD, Place
from tests.helpers.console.consoles import RunningConsole, running_console, token_file, with_components, with_console
from tests.helpers.folding.scripts import open_in
from tests.helpers.kafka.topics import create_topics
from tests.helpers.live.browsers import CONTRAST, SHIFT, Tabs, opened_tabs, shows, started_browser
from tests.helpers.waiting import wait_until

PAGES = {
    "overview": "/",
    "fold": f"/folds/{FOLD}",
    "group": f"/folds/{FOLD}/group?key=anna",
    "record": f"/folds/{FOLD}/record?id={FOLD}:SOURCE:0:0-0&key=anna",
    "read store": "/read-stores/dashboard",
    "live": "/live/newest?page=anna",
    "presence": "/live/visitors?page=anna",
    "journal": "/journals/events?key=anna",
    "workers": "/workers",
    "settings": "/settings?check=run",
    "search": f"/search?q={FOLD}",
    "missing": "/nothing",
}
TOPIC = "topic"
VIEWS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "small": {"viewport": {"width": 360, "height": 740}},
    "wide": {"viewport": {"width": 2000, "height": 1100}},
    "without-javascript": {"java_script_enabled": False},
}
OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with started_browser() as started:
        yield started


@asynccontextmanager
async def seen(app: Place, client: Redis, browser: Browser, **options: Any) -> AsyncIterator[tuple[RunningConsole, Tabs]]:
    """Serve a console of three open groups, and open a browser."""
    now_ms = SystemClock().now_ms()
    await create_topics(app.bootstrap, app.topics, partitions=1)
    keys = ("anna", "<b>bold</b>", "k" * 400)
    events = [FoldEvent(number, now_ms + number, b"s" + key.encode(), {"likes": 1}) for number, key in enumerate(keys)]
    await open_in(app.names.app_id, FOLD, app.topics[0], client, 0, events)
    settings = with_components(Settings.load(Path(app.config()), {}), app.folder)
    async with running_console(settings) as console, opened_tabs(browser, **options) as tabs:
        yield console, tabs
        tabs.errors[:] = [error for error in tabs.errors if "status of 404" not in error]


@pytest.mark.parametrize(
    "view", [view if view in ("dark", "small") else pytest.param(view, marks=pytest.mark.long) for view in VIEWS]
)
async def test_every_page_is_legible_and_fits(app: Place, redis_client: Redis, browser: Browser, view: str) -> None:
    poor: dict[str, Any] = {}
    overflow = {}
    async with seen(app, redis_client, browser, **VIEWS[view]) as (console, tabs):
        for name, path in (PAGES | {TOPIC: f"/topics/{app.topics[0]}"}).items():
            page = await tabs.open(console.url + path.replace("SOURCE", app.topics[0]))
            await page.wait_for_selector("h1, .says, .verdict")
            assert await page.title()
            if view != "without-javascript":
                poor[name] = await page.evaluate(CONTRAST)
                overflow[name] = await page.evaluate(OVERFLOW)
            await page.close()  # a browser keeps six connections to a host, and each live page has one

    assert {} == {name: found for name, found in poor.items() if found}
    assert {} == {name: pixels for name, pixels in overflow.items() if pixels > 0}


async def test_pages_have_the_same_facts_without_javascript(app: Place, redis_client: Redis, browser: Browser) -> None:
    async with seen(app, redis_client, browser, java_script_enabled=False) as (console, tabs):
        page = await tabs.open(console.url)
        await page.click("text=account-metrics >> nth=0")
        rows = await page.locator(".groups tbody th").all_inner_texts()
        await page.fill("#key", "anna")
        await page.click("form:has(#key) button")
        verdict = await page.inner_text(".says")

    assert {"anna", "<b>bold</b>", "k" * 400} == set(rows)
    assert verdict.startswith("anna of fold account-metrics is open")


async def test_page_changes_by_itself_without_moving_what_is_read(app: Place, redis_client: Redis, browser: Browser) -> None:
    async with seen(app, redis_client, browser) as (console, tabs):
        page = await tabs.open(console.url + PAGES["fold"])
        await shows(page, "#connection", "live")
        await page.fill("#key", "half a k")
        await page.focus("#key")
        drawn = await page.locator(".plot.drawn canvas").count()
        await redis_client.delete(*[key async for key in redis_client.scan_iter(match=f"{{{app.names.app_id}/*")])
        await shows(page, ".groups tbody", "No group is open")
        await page.wait_for_function("() => document.querySelectorAll('.plot.drawn canvas').length === 8")
        typed, focused = await page.input_value("#key"), await page.evaluate("document.activeElement.id")
        shift = await page.evaluate(SHIFT)

    assert (8, "half a k", "key") == (drawn, typed, focused)
    assert 0.1 > shift


async def test_times_are_in_the_zone_of_the_viewer(app: Place, redis_client: Redis, browser: Browser) -> None:
    async with seen(app, redis_client, browser, timezone_id="Asia/Kathmandu") as (console, tabs):
        page = await tabs.open(console.url + PAGES["fold"])
        time = page.locator(".groups time").first
        await page.wait_for_function("() => !document.querySelector('.groups time').textContent.endsWith('Z')")
        shown, exact = await time.inner_text(), await time.get_attribute("title")

    assert exact is not None
    minutes = [int(text[14:16]) for text in (shown, exact)]
    assert (minutes[1] + 45) % 60 == minutes[0]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", shown)


async def test_lost_console_is_said_and_the_page_stays(app: Place, redis_client: Redis, browser: Browser) -> None:
    async with opened_tabs(browser) as tabs:
        async with seen(app, redis_client, browser) as (console, _):
            page = await tabs.open(console.url + PAGES["fold"])
            await shows(page, "#connection", "live")
        await shows(page, "#connection", "not connected")
        rows = await page.locator(".groups tbody th").count()
        tabs.errors.clear()  # of the lost connection

    assert 3 == rows


async def test_login_is_by_keyboard_alone(app: Place, browser: Browser, tmp_path: Path) -> None:
    settings = with_console(Settings.load(Path(app.config()), {}), token_file=token_file(tmp_path))
    async with running_console(settings) as console, opened_tabs(browser) as tabs:
        page = await tabs.open(console.url + PAGES["fold"])
        await page.keyboard.type("wrong")
        await page.keyboard.press("Enter")
        await shows(page, "#fault", "This is not the token")
        await page.keyboard.type("right")
        await page.keyboard.press("Enter")
        await shows(page, "h1", FOLD)
        cookies = await tabs.context.cookies()
        await page.click("text=Log out")
        await page.wait_for_url("**/login")
        tabs.errors[:] = [error for error in tabs.errors if "status of 403" not in error]

    assert [(True, "Lax")] == [(cookie.get("httpOnly"), cookie.get("sameSite")) for cookie in cookies]


async def test_everything_is_reached_by_the_tab_key(app: Place, redis_client: Redis, browser: Browser) -> None:
    async with seen(app, redis_client, browser) as (console, tabs):
        page = await tabs.open(console.url + PAGES["fold"])
        await shows(page, "#connection", "live")
        wanted = await page.locator("a[href], button, input, [tabindex='0']").count()
        reached = set()
        for _ in range(wanted + 5):
            await page.keyboard.press("Tab")
            reached.add(
                await page.evaluate("""() => {
              const all = [...document.querySelectorAll("a[href], button, input, [tabindex='0']")]
              return all.indexOf(document.activeElement)
            }""")
            )

    assert set(range(wanted)) <= reached


async def test_search_is_reached_by_its_keys_and_a_slash_in_a_field_is_a_character(
    app: Place, redis_client: Redis, browser: Browser
) -> None:
    async with seen(app, redis_client, browser) as (console, tabs):
        page = await tabs.open(console.url + "/settings")
        await page.keyboard.press("/")
        await page.keyboard.type("a/b")
        typed = await page.input_value("#search")
        await page.evaluate("document.activeElement.blur()")
        await page.keyboard.press("Control+k")
        focused = await page.evaluate("document.activeElement.id")
        await page.keyboard.type("anna")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/group?key=anna")

    assert ("a/b", "search") == (typed, focused)


async def test_read_store_is_compared_without_javascript(app: Place, redis_client: Redis, browser: Browser) -> None:
    async with seen(app, redis_client, browser, java_script_enabled=False) as (console, tabs):
        page = await tabs.open(console.url + PAGES["read store"])
        await page.click("button:has-text('Compare')")

        async def is_over() -> bool:
            await page.reload()
            return await page.locator("text=Compare again").count() == 1

        await wait_until(is_over, 60, "the comparison has ended")
        address, text = page.url, await page.inner_text("#main")

    assert address.endswith("/read-stores/dashboard#comparison")
    assert "The comparison cannot be read now." in text and "the file does not exist" in text
