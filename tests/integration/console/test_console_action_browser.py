"""Forms of actions in Chromium: both schemes, a small screen, with and without JavaScript."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page
from redis.asyncio import Redis

from streams_app.settings import Settings
from tests.helpers.cli.commands import FOLD, Place
from tests.helpers.console.consoles import running_console, with_console
from tests.helpers.kafka.topics import create_topics
from tests.helpers.live.browsers import CONTRAST, opened_tabs, shows, started_browser
from tests.integration.console.test_console_actions import opened, owned
from tests.integration.console.test_console_browser import OVERFLOW, VIEWS
from tests.integration.console.test_console_component_actions import write_dead_letters

LONG = "k" * 400


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with started_browser() as started:
        yield started


@asynccontextmanager
async def acted(app: Place, browser: Browser, view: str) -> AsyncIterator[tuple[str, Page]]:
    settings = with_console(Settings.load(Path(app.config()), {}), allow_actions=True)
    async with running_console(settings) as console, opened_tabs(browser, **VIEWS[view]) as tabs:
        yield console.url, await tabs.open(console.url)
        tabs.errors[:] = [error for error in tabs.errors if "status of 4" not in error]


@pytest.mark.parametrize("view", ["dark", "small", "without-javascript"])
async def test_forms_are_legible_and_fit_and_a_group_is_dropped(
    app: Place, redis_client: Redis, browser: Browser, view: str
) -> None:
    store = await opened(app, redis_client, ("anna", LONG))
    poor: dict[str, Any] = {}
    wide: dict[str, Any] = {}
    async with acted(app, browser, view) as (url, page), owned(store, 1):

        async def measure(name: str) -> None:
            await page.wait_for_selector("h1")
            if view != "without-javascript":
                poor[name], wide[name] = await page.evaluate(CONTRAST), await page.evaluate(OVERFLOW)

        for name, path in (
            ("drop", f"drop?fold={FOLD}&key={LONG}"), ("all", f"flush-all?fold={FOLD}"), ("replay", f"replay?of=fold:{FOLD}"),
            ("closed", f"flush?fold={FOLD}&key=nothing"),
        ):  # fmt: skip
            await page.goto(f"{url}/actions/{path}")
            await measure(name)
        await page.goto(f"{url}/actions/drop?fold={FOLD}&key=anna")
        await page.fill("#f-reason", "a loop")
        await page.fill("#f-confirm", "ann")
        await page.keyboard.press("Enter")
        await shows(page, "#fault", "write anna to confirm it")
        await measure("unconfirmed")
        kept = await page.input_value("#f-reason")
        await page.fill("#f-confirm", "anna")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/actions/jobs/*")
        while view == "without-javascript" and not await page.locator(".printed").count():
            await page.click("text=Show the progress now")
        await shows(page, ".printed", "dropped 1 group with 1 event, without a record")
        await measure("done")

    assert "a loop" == kept
    assert {} == {name: found for name, found in poor.items() if found}
    assert {} == {name: pixels for name, pixels in wide.items() if pixels > 0}


async def test_selection_stays_while_the_page_changes(app: Place, browser: Browser) -> None:
    await create_topics(app.bootstrap, app.topics, partitions=1)
    await write_dead_letters(app, 4)
    async with acted(app, browser, "light") as (url, page):
        await page.goto(f"{url}/topics/{app.topics[2]}")
        await shows(page, "#connection", "live")
        await page.check('input[value="0:1"]')
        await page.check('input[value="0:2"]')
        await write_dead_letters(app, 1, 4)
        await page.wait_for_selector('input[value="0:4"]')
        await page.click("text=Replay the selected")
        await page.wait_for_selector("#f-offset")
        selected = await page.input_value("#f-offset")

    assert ["0:1", "0:2"] == sorted(selected.split())
