"""Pages of the console in Chromium: both schemes, a small screen, without JavaScript, and while they change."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Route
from redis.asyncio import Redis

from streams_app.settings import Settings
from tests.helpers.cli.commands import FOLD, Place
from tests.helpers.console.consoles import running_console, token_file, with_console
from tests.helpers.console.shown import KINDS, PAGES, each_page, seen
from tests.helpers.live.browsers import CONTRAST, SHIFT, opened_tabs, shows, started_browser
from tests.helpers.waiting import wait_until

VIEWS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "small": {"viewport": {"width": 360, "height": 740}},
    "wide": {"viewport": {"width": 2000, "height": 1100}},
    "without-javascript": {"java_script_enabled": False},
}
FOCUSABLE = "a[href], button, input:not([type=hidden]), textarea, select, summary, [tabindex='0']"
STILL = f"""() => {{
  const shown = (one) => one.checkVisibility({{ visibilityProperty: true }})
  window.wanted = [...document.querySelectorAll("{FOCUSABLE}")].filter(shown)
  document.activeElement.blur()
}}"""
FOCUSED = """() => {
  const one = document.activeElement
  const style = getComputedStyle(one)
  const isSeen = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1
  return [window.wanted.indexOf(one), isSeen, one.outerHTML.slice(0, 120)]
}"""
"""Position of the focused element among those that want to be reached, and whether its focus is visible."""

OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"

OVERFLOW_OF_RECORDS = """() => Math.max(0, ...[...document.querySelectorAll(".scroll:has(.records)")].map(
  (one) => one.scrollWidth - one.clientWidth
))"""


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with started_browser() as started:
        yield started


@pytest.mark.parametrize(
    ("view", "pages"),
    [("dark", KINDS), *(pytest.param(view, PAGES, marks=[] if view == "small" else pytest.mark.long) for view in VIEWS)],
    ids=["dark: each kind", *VIEWS],
)
async def test_every_page_is_legible_and_fits(
    app: Place, redis_client: Redis, browser: Browser, view: str, pages: Iterable[str]
) -> None:
    poor: dict[str, Any] = {}
    overflow = {}
    async with seen(app, redis_client, browser, **VIEWS[view]) as (console, tabs):
        async for name, page in each_page(app, console, tabs, pages):
            assert await page.title()
            if view != "without-javascript":
                poor[name] = await page.evaluate(CONTRAST)
                overflow[name] = await page.evaluate(OVERFLOW)
                overflow[f"{name}: records"] = await page.evaluate(OVERFLOW_OF_RECORDS)

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
        await page.wait_for_function("() => document.querySelectorAll('.plot.drawn canvas').length === 5")
        typed, focused = await page.input_value("#key"), await page.evaluate("document.activeElement.id")
        shift = await page.evaluate(SHIFT)

    assert (5, "half a k", "key") == (drawn, typed, focused)
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


async def test_page_is_live_also_if_the_script_of_its_stream_loads_last(app: Place, redis_client: Redis, browser: Browser) -> None:
    async def late(route: Route) -> None:
        await route.request.frame.page.wait_for_function("() => window.htmx && new Promise(done => setTimeout(done, 100, true))")
        await route.continue_()

    async with seen(app, redis_client, browser) as (console, tabs):
        await tabs.context.route("**/hx-sse.min.js*", late)
        page = await tabs.open(console.url + PAGES["fold"])
        await shows(page, "#connection", "live")


async def test_lost_console_is_said_and_the_page_stays(app: Place, redis_client: Redis, browser: Browser) -> None:
    async with opened_tabs(browser) as tabs:
        async with seen(app, redis_client, browser) as (console, _):
            page = await tabs.open(console.url + PAGES["fold"])
            await shows(page, "#connection", "live")
        await shows(page, "#connection", "not connected")
        await page.set_viewport_size({"width": 1280, "height": 360})  # lower than the list of pages
        box = await page.locator("#connection").bounding_box()
        rows = await page.locator(".groups tbody th").count()
        tabs.errors.clear()  # of the lost connection

    assert 3 == rows
    assert box is not None
    assert 0 <= box["y"] <= 360 - box["height"]


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


@pytest.mark.parametrize("pages", [KINDS, pytest.param(PAGES, marks=pytest.mark.long)], ids=["each kind", "all"])
async def test_everything_on_every_page_is_reached_by_the_tab_key_in_its_order_and_seen(
    app: Place, redis_client: Redis, browser: Browser, pages: Iterable[str]
) -> None:
    found = {}
    async with seen(app, redis_client, browser) as (console, tabs):
        async for name, page in each_page(app, console, tabs, pages):
            await page.evaluate(STILL)
            reached = []
            for _ in range(await page.evaluate("() => window.wanted.length")):
                await page.keyboard.press("Tab")
                reached.append(await page.evaluate(FOCUSED))
            await page.keyboard.press("/")
            slash = await page.evaluate("document.activeElement.id")
            await page.evaluate("document.activeElement.blur()")
            await page.keyboard.press("Control+k")
            keys = (slash, await page.evaluate("document.activeElement.id"))
            wrong = [one for number, one in enumerate(reached) if one[:2] != [number, True]]
            if wrong or keys != ("search", "search"):
                found[name] = (wrong, keys)

    assert {} == found


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
