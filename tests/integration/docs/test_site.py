"""The site of the documentation, as Zensical builds it, and as Chromium shows it."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import json
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.async_api import Browser

from tests.checkout.site import navigation, publish
from tests.helpers.live.browsers import CONTRAST, started_browser

if importlib.util.find_spec("zensical") is None and not os.environ.get("CI"):
    pytest.skip("zensical is not installed: `make install`", allow_module_level=True)

ANSWERS = {
    "choose a window": "how-to/choose-a-window",
    "debounce": "how-to/debounce-per-user",
    "webhook": "how-to/absorb-a-webhook-storm",
    "add partitions": "how-to/add-partitions",
    "move to another kafka": "how-to/move-to-another-cluster",
    "erase data": "how-to/erase-a-persons-data",
    "redis memory": "how-to/size-redis",
    "history of a key": "how-to/read-the-history-of-a-key",
    "exit code 75": "reference/errors",
    "oauth": "reference/servers",
    "late events": "explained/time",
    "django": "reference/subscribers",
    "how do I debounce": "how-to/debounce-per-user",
    "how large must redis be": "how-to/size-redis",
    "how do I test my fold": "how-to/test-your-folds",
    "kubernetes": "how-to/deploy",
    "go consumer": "reference/record",
    "my redis lost data": "#my-redis-lost-its-data",
    "what happens on kill -9": "#what-happens-on-kill--9",
    "exactly once?": "#is-it-exactly-once",
    "erase user data": "how-to/erase-a-persons-data",
    "change the window of a running fold": "#can-i-change-the-window",
    "why is my group still open?": "#why-is-my-group-still-open",
    "replay dead letters": "how-to/replay-after-a-fix",
    "kafka rebalance lost events": "#what-happens-on-kill--9",
    "change window of running job": "#can-i-change-the-window",
    "upgrade version": "how-to/upgrade",
    "metrics prometheus alert": "reference/alerts",
    "two workers same key": "#can-two-workers-fold-the-same-key",
    "retry failed webhook": "#how-do-i-retry-a-failed-call",
    "backfill old events": "#how-do-i-backfill",
    "consumer lag growing": "#why-is-consumer-lag-growing",
    "does it work with elasticsearch": "reference/read-stores",
}
"""What a reader types into the search → the page that is among the first three results."""
RESULTS = """() => {
  const found = []
  const visit = (root) => root.querySelectorAll("*").forEach((one) => {
    if (one.shadowRoot) visit(one.shadowRoot)
    if (one.tagName === "A" && one.closest("ol")) found.push(one.getAttribute("href"))
  })
  visit(document)
  return found
}"""
"""The addresses of the results of the search, which are in a shadow tree."""
HIDDEN = ("A.md-skip", "INPUT.md-option")
"""Elements of the theme that are shown to keyboards only, or never."""
OURS = ("http://127.0.0.1:", "data:", "blob:")
FITS = "() => document.documentElement.scrollWidth <= innerWidth"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published")
    publish(folder, "0.1.0")
    return folder


@pytest.fixture
def address(published: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(published)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/0.1.0"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with started_browser() as started:
        yield started


@pytest.mark.long
def test_published_site_has_each_page_its_markdown_the_search_and_its_version(published: Path) -> None:
    site = published / "0.1.0"
    found = {entry["location"].partition("#")[0] for entry in json.loads((site / "search.json").read_text("utf-8"))["items"]}

    assert [] == [name for _, name in navigation() if not (site / name).is_file()]
    pages = {name.replace(".md", ".html") for _, name in navigation()}
    assert pages - {"changelog.html", "contributing.html"} == found
    assert [{"version": "0.1.0", "title": "0.1.0", "aliases": []}] == json.loads((published / "versions.json").read_text("utf-8"))
    assert "llms.txt" in {path.name for path in site.iterdir()}


@pytest.mark.long
async def test_search_finds_the_page_that_answers_a_question(address: str, browser: Browser) -> None:
    page = await browser.new_page()
    await page.goto(f"{address}/index.html")
    await page.wait_for_load_state("networkidle")
    await page.keyboard.press("Control+k")
    field = page.locator("input:visible").first
    for question, answer in ANSWERS.items():
        await field.fill(question)
        await page.wait_for_function(f"() => ({RESULTS})().slice(0, 3).some((one) => one.includes({answer!r}))", timeout=20_000)


@pytest.mark.long
async def test_search_works_in_a_page_that_is_opened_as_a_file(published: Path, browser: Browser) -> None:
    page = await browser.new_page()
    await page.goto((published / "0.1.0" / "explained" / "time.html").as_uri())
    await page.keyboard.press("Control+k")
    await page.locator("input:visible").first.fill("debounce")
    await page.wait_for_function(f"() => ({RESULTS})().some((one) => one.includes('how-to/debounce-per-user'))", timeout=20_000)


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_pages_are_readable_and_fit_a_telephone(scheme: Literal["light", "dark"], address: str, browser: Browser) -> None:
    context = await browser.new_context(color_scheme=scheme, viewport={"width": 360, "height": 800})
    page = await context.new_page()
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: errors.append(request.url) if not request.url.startswith(OURS) else None)
    for name in ("index", "how-to/choose-a-window", "reference/settings", "reference/metrics", "explained/compared"):
        await page.goto(f"{address}/{name}.html")
        await page.wait_for_load_state("networkidle")

        assert await page.evaluate(FITS), name
        assert [] == [one for one in await page.evaluate(CONTRAST) if not one.startswith(HIDDEN)], name
    assert [] == errors
    await context.close()
