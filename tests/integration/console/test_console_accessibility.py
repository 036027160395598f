"""axe-core finds nothing wrong with any page of the console, in light and dark."""

from __future__ import annotations

from importlib.resources import files
from importlib.util import find_spec

from playwright.async_api import Browser, Page
from redis.asyncio import Redis

from tests.conftest import _unavailable
from tests.helpers.cli.commands import FOLD, Place
from tests.helpers.kafka.topics import produce
from tests.integration.console.test_console_browser import PAGES, browser, seen
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


async def test_no_page_violates_a_rule_of_accessibility(app: Place, redis_client: Redis, browser: Browser) -> None:
    script, dead = axe_core(), app.topics[2]
    headers = {"reason": "no-group", "detail": "account_id is missing or null", "fold": FOLD, "source-topic": app.topics[0]}
    found = {}
    async with seen(app, redis_client, browser) as (console, tabs):
        packed = [(name, text.encode()) for name, text in headers.items()]
        await produce(app.bootstrap, dead, [(b"k", b'{"metrics": {"likes": 1}}')], headers=packed, partition=0)
        others = {
            "topic": f"/topics/{app.topics[0]}",
            "dead letters": f"/topics/{dead}",
            "dead letter": f"/topics/{dead}/dead-letter?partition=0&offset=0",
            "partitions": f"/folds/{FOLD}?partitions=yes",
        }
        for name, path in (PAGES | others).items():
            page = await tabs.open(console.url + path.replace("SOURCE", app.topics[0]))
            await page.wait_for_selector("h1, .says, .verdict")
            found[name] = await violations(page, script)
            await page.close()

    assert {} == {name: texts for name, texts in found.items() if texts}


async def test_rule_of_accessibility_that_is_violated_is_found(app: Place, redis_client: Redis, browser: Browser) -> None:
    async with seen(app, redis_client, browser) as (console, tabs):
        page = await tabs.open(console.url + "/nothing")
        await page.evaluate("() => document.querySelector('#search').removeAttribute('aria-label')")
        await page.evaluate("() => document.querySelector('#search').removeAttribute('placeholder')")
        found = await violations(page, axe_core())

    assert {"light", "dark"} == found.keys()
    assert any(text.startswith("label:") for text in found["dark"])
