"""Debian's Chromium in headless mode, and what tests read from its pages."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from playwright.async_api import Browser, BrowserContext, Page, async_playwright
from playwright.async_api import TimeoutError as PlaywrightTimeoutError

from tests.conftest import _unavailable
from tests.servers.cache import ServerUnavailableError

LIMIT_MS = 60_000

EXPECTED = ("net::ERR_", "status of 401")
"""Console messages of Chromium itself for a page whose server is unavailable, or rejects it."""

WATCH = """(selector) => {
  window.numbers = []
  const observed = { childList: true, characterData: true, subtree: true }
  let before
  const write = () => {
    const text = document.querySelector(selector)?.textContent
    if (text !== undefined && text !== before) numbers.push(before = text)
  }
  before = document.querySelector(selector)?.textContent
  new MutationObserver(write).observe(document, observed)
}"""
"""Records each later text of an element in ``window.numbers``."""

SHIFT = """() => new Promise((done) => {
  const sum = (list) => done(list.getEntries().reduce((total, entry) => total + entry.value, 0))
  new PerformanceObserver(sum).observe({ type: "layout-shift", buffered: true })
  setTimeout(() => done(0), 500)
})"""
"""Cumulative layout shift since the page was opened, as Chromium computes it."""

CONTRAST = """() => {
  const channel = (value) => (value /= 255) <= .03928 ? value / 12.92 : ((value + .055) / 1.055) ** 2.4
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number)
  const light = ([r, g, b]) => .2126 * channel(r) + .7152 * channel(g) + .0722 * channel(b)
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const found = rgb(getComputedStyle(node).backgroundColor)
      if ((found[3] ?? 1) === 1) return found
    }
    return [255, 255, 255]
  }
  const poor = []
  for (const node of document.body.querySelectorAll("*")) {
    const hasText = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim())
    if (!(hasText || node.tagName === "INPUT") || ["SCRIPT", "STYLE"].includes(node.tagName)) continue
    const [a, b] = [light(rgb(getComputedStyle(node).color)), light(behind(node))].sort((x, y) => y - x)
    const ratio = (a + .05) / (b + .05)
    if (ratio < 4.5) poor.push(`${node.tagName}.${node.className} ${ratio}`)
  }
  return poor
}"""
"""Elements whose text has a contrast below 4.5 to its background."""


@asynccontextmanager
async def started_browser() -> AsyncIterator[Browser]:
    """Start Chromium. If it is missing, skip the test, or fail it in CI."""
    path = shutil.which("chromium")
    if path is None:
        _unavailable(ServerUnavailableError("Chromium: apt-get install chromium"))
    async with async_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        started = await playwright.chromium.launch(executable_path=path, args=options)
        try:
            yield started
        finally:
            await started.close()


class Tabs:
    """Tabs of one browser, whose consoles are read."""

    def __init__(self, context: BrowserContext) -> None:
        self.context = context
        self.errors: list[str] = []

    async def open(self, url: str, *, watch: str | None = None) -> Page:
        """Open a page in a new tab; with ``watch``, record the texts of that element from the beginning."""
        page = await self.context.new_page()
        page.set_default_timeout(LIMIT_MS)
        if watch is not None:
            await page.add_init_script(f"({WATCH})({watch!r})")
        page.on("console", lambda line: self.errors.append(line.text) if line.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        await page.goto(url)
        return page

    @property
    def unexpected(self) -> list[str]:
        return [error for error in self.errors if not any(part in error for part in EXPECTED)]


@asynccontextmanager
async def opened_tabs(browser: Browser, **options: Any) -> AsyncIterator[Tabs]:
    """Yield a browser without cookies; unexpected console messages fail the test at the end."""
    context = await browser.new_context(**options)
    try:
        tabs = Tabs(context)
        yield tabs
    finally:
        await context.close()

    assert [] == tabs.unexpected


async def shows(page: Page, selector: str, text: str) -> None:
    try:
        await page.wait_for_function(
            "([selector, text]) => document.querySelector(selector)?.textContent.includes(text)", arg=[selector, text]
        )
    except PlaywrightTimeoutError as error:
        raise AssertionError(f"no {text!r} in {selector}: {await page.inner_text('body')}") from error
