"""axe-core finds nothing wrong with any page of the console, in light and dark."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files
from importlib.util import find_spec

import pytest
from playwright.async_api import Browser, Page
from redis.asyncio import Redis

from tests.conftest import _unavailable
from tests.helpers.cli.commands import FOLD, Place
from tests.helpers.console.consoles import RunningConsole
from tests.helpers.console.shown import KINDS, LOGIN, PAGES, each_page, seen
from tests.helpers.waiting import wait_until
from tests.integration.console.test_console_browser import browser
from tests.servers.cache import ServerUnavailableError

__all__ = ["browser"]
PACKAGE = "axe_playwright_python"
FOUND = """() => axe.run(document, { resultTypes: ["violations"] }).then(({ violations }) => violations.map(
  ({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map(({ target, failureSummary }) => `${target} ${failureSummary}`).join("; ")}`
))"""


def axe_core() -> str:
    """Return the script; without the package, skip the test, or fail it in CI."""
    if find_spec(PACKAGE) is None:
        _unavailable(ServerUnavailableError("axe-core: pip install axe-playwright-python"))
    return (files(PACKAGE) / "axe.min.js").read_text("utf-8")


async def violations(page: Page, script: str) -> dict[str, list[str]]:
    """Return the violations in each scheme, those without any left out."""
    await page.evaluate(script)
    found = {}
    for scheme in ("light", "dark"):
        await page.emulate_media(color_scheme="light" if scheme == "light" else "dark")
        found[scheme] = await page.evaluate(FOUND)
    return {scheme: texts for scheme, texts in found.items() if texts}


@pytest.mark.parametrize(
    ("are_servers_away", "pages"),
    [(False, KINDS), *(pytest.param(are_away, PAGES, marks=pytest.mark.long) for are_away in (False, True))],
    ids=["each kind", "all", "all without servers"],
)
async def test_no_page_violates_a_rule_of_accessibility(
    app: Place, redis_client: Redis, browser: Browser, are_servers_away: bool, pages: Iterable[str]
) -> None:
    script = axe_core()
    found = {}
    async with seen(app, redis_client, browser, are_servers_away=are_servers_away) as (console, tabs):
        if not are_servers_away:
            await console.post(f"/folds/{FOLD}/window")
            await wait_until(lambda: is_drawn(console), 60, "the curve of the window")
        async for name, page in each_page(app, console, tabs, pages):
            found[name] = await violations(page, script)

    assert {} == {name: texts for name, texts in found.items() if texts}


async def is_drawn(console: RunningConsole) -> bool:
    return 'class="curve"' in (await console.get(f"/folds/{FOLD}"))[1]


async def test_login_violates_no_rule_of_accessibility(app: Place, redis_client: Redis, browser: Browser) -> None:
    script = axe_core()
    async with seen(app, redis_client, browser, has_token=True) as (console, tabs):
        page = await tabs.open(console.url + LOGIN)
        found = await violations(page, script)

    assert {} == found


async def test_rule_of_accessibility_that_is_violated_is_found(app: Place, redis_client: Redis, browser: Browser) -> None:
    async with seen(app, redis_client, browser) as (console, tabs):
        page = await tabs.open(console.url + "/nothing")
        await page.evaluate("() => document.querySelector('#search').removeAttribute('aria-label')")
        await page.evaluate("() => document.querySelector('#search').removeAttribute('placeholder')")
        found = await violations(page, axe_core())

    assert {"light", "dark"} == found.keys()
    assert any(text.startswith("label:") for text in found["dark"])
