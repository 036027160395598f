"""The project page of the examples in Chromium: worker, hub and page are processes, started as in its README."""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import quote

import pytest
from playwright.async_api import Page

from streams_app.embedded.child import Child
from streams_app.embedded.ports import free_port
from tests.helpers.cli.commands import run
from tests.helpers.events.web import web_server
from tests.helpers.live.browsers import CONTRAST, SHIFT, Tabs, opened_tabs, shows, started_browser
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import LIMIT_SECONDS, Site
from tests.servers.cache import ROOT

pytestmark = pytest.mark.timeout(300)

SERVED = re.compile(r"live views are served url=(\S+)")


class Example:
    """The example with topics of its own."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.port = free_port()
        text = (ROOT / "examples" / "project_page" / "streams.toml").read_text("utf-8")
        views = text[text.index("[live.supporters]") :].replace("http://localhost:8000", f"http://127.0.0.1:{self.port}")
        for topic in ("contributions", "news"):
            views = views.replace(f'source = "{topic}"', f'source = "{site.names.topic(topic)}"')
        self.config = site.config(views.replace("[live_server]", "[live_server]\nport = 0"))
        module = (ROOT / "examples" / "project_page" / "app.py").read_text("utf-8")
        for topic in ("contributions", "news"):
            module = module.replace(f'topic="{topic}"', f'topic="{site.names.topic(topic)}"')
        # A foreign producer writes a value that no browser accepts as an address.
        address = "url = f\"/project/{quote(project, safe='')}#{news_id}\""
        assert address in module
        module = module.replace(address, f'{address} if form["title"] != "Broken" else "http://["')
        module = module.replace("HERE = Path(__file__).parent", f"HERE = Path({str(ROOT / 'examples' / 'project_page')!r})")
        (site.folder / "this_page.py").write_text(module.replace('host="localhost"', 'host="127.0.0.1"'))

    @contextmanager
    def hub(self, port: int = 0) -> Iterator[Child]:
        command = [sys.executable, "-m", "streams_app", "live", "serve", "--config", str(self.config)]
        child = Child("live", command, self.site.folder / "live", {"STREAMS_APP_LIVE_SERVER_PORT": str(port)})
        try:
            yield child
        finally:
            child.stop()

    def create_topics(self) -> None:
        created = run("topics", "create", "--config", str(self.config), cwd=None)
        assert 0 == created.code, created.err

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Run worker, hub and page; yield the URL of the page."""
        self.create_topics()
        with self.site.worker(self.config), self.hub() as hub:
            found = await wait_until(lambda: SERVED.search(hub.log_path.read_text("utf-8")), LIMIT_SECONDS, "the hub serves")
            assert found is not None
            with self.page(found[1]) as url:
                yield url

    @contextmanager
    def page(self, hub_url: str) -> Iterator[str]:
        environment = {"STREAMS_APP_CONFIG": str(self.config), "LIVE_URL": hub_url, "PORT": str(self.port)}
        with web_server(("-m", "this_page"), self.site.folder, environment, self.port) as url:
            yield url


@pytest.fixture
async def tabs() -> AsyncIterator[Tabs]:
    options: Any = {"viewport": {"width": 360, "height": 800}, "color_scheme": "dark"}
    async with started_browser() as browser, opened_tabs(browser, **options) as opened:
        yield opened


async def send(page: Page, form: str, button: str, **fields: str) -> None:
    for name, value in fields.items():
        await page.fill(f"form[action$={form}] input[name={name}]", value)
    await page.get_by_role("button", name=button, exact=True).click()


async def plain(tabs: Tabs, url: str) -> str:
    """Return the text of a page in a browser without JavaScript."""
    browser = tabs.context.browser
    assert browser is not None
    context = await browser.new_context(java_script_enabled=False)
    page = await context.new_page()
    await page.goto(url)
    text = await page.inner_text("body")
    await context.close()
    return " ".join(text.split())


async def test_page_of_two_windows_follows_forms_and_withdrawals(site: Site, tabs: Tabs) -> None:
    example = Example(site)
    async with example.running() as url:
        first = await tabs.open(f"{url}/project/noob")
        await shows(first, "#visitors", "1")
        await shows(first, "#supporters", "0")
        empty_height = await first.evaluate("document.querySelector('[role=log]').offsetHeight")
        second = await tabs.open(f"{url}/project/noob")
        await shows(first, "#visitors", "2")
        await send(second, "contribute", "Contribute", name="<i>Ada</i>")
        await send(second, "publish", "Publish", name="Yann", title="The film is shot")
        await shows(first, ".facts", "1 contribution in the last 24 hours")
        await shows(first, "#names", "<i>Ada</i>")
        await shows(first, "#news", "Yann published The film is shot")
        await shows(first, "#state", "Live")
        shift_of_first_items, poor = await first.evaluate(SHIFT), await first.evaluate(CONTRAST)
        width = await first.evaluate("document.documentElement.scrollWidth")
        await send(second, "publish", "Publish", name="Eve", title="Broken")
        await shows(first, "#news", "Eve published Broken")
        shift = await first.evaluate(SHIFT) - shift_of_first_items
        third = await tabs.open(f"{url}/project/noob")
        bare = await plain(tabs, f"{url}/project/noob")
        await send(second, "cancel", "Cancel <i>Ada</i>")
        await send(second, "unpublish", "Unpublish The film is shot")
        await send(second, "unpublish", "Unpublish Broken")
        await shows(first, "#supporters", "0")
        await first.wait_for_function("() => document.querySelectorAll('li').length === 0")
        await second.close()
        await third.close()
        await shows(first, "#visitors", "1")

    assert 0 == empty_height
    assert shift < 0.01
    assert [] == poor
    assert 360 == width
    assert "1 contribution in the last 24 hours" in bare
    assert "1 on this page now" not in bare
    assert "3 on this page now" in bare
    assert "Contributed in the last 30 minutes <i>Ada</i> just now Cancel" in bare
    assert "Eve published Broken just now Unpublish Yann published The film is shot just now Unpublish" in bare
    assert "without JavaScript, reload this page to follow" in bare


async def test_page_loaded_while_the_hub_is_away_connects_once_it_runs(site: Site, tabs: Tabs) -> None:
    example = Example(site)
    example.create_topics()
    port = free_port()
    with site.worker(example.config), example.page(f"http://127.0.0.1:{port}") as url:
        page = await tabs.open(f"{url}/project/noob")
        await shows(page, "#state", "Offline")
        alone = await page.inner_text(".facts")
        with example.hub(port):
            await shows(page, "#state", "Live")
            await shows(page, "#supporters", "0")
            await shows(page, "#visitors", "1")

    assert "\u2013 contributions \u2013 on this page now" == " ".join(alone.split())


@pytest.mark.long
async def test_project_of_any_name_has_a_page(site: Site, tabs: Tabs) -> None:
    example = Example(site)
    names = ["{7}", "{STATE}", "a/b %2F", "<b>ü</b>\"'", "?x=1#y"]
    async with example.running() as url:
        for name in names:
            page = await tabs.open(f"{url}/project/{quote(name, safe='')}")
            await send(page, "contribute", "Contribute", name=name)
            await shows(page, "h1", name)
            await shows(page, "#names", name)
            await shows(page, "#supporters", "1")
            await page.close()
