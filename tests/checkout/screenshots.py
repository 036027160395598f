"""Writes pictures of the console into docs/pictures: the demo runs, and Chromium looks at it in both schemes. ``make screenshots``.

With a folder as argument, more pictures are written there: all pages, and each at 360 px.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import aiohttp
from PIL import Image
from playwright.async_api import Browser, Page

from streams_app.demo.explaining import HOT_KEY
from tests.checkout.imports import ROOT
from tests.helpers.kafka.topics import produce
from tests.helpers.live.browsers import started_browser
from tests.helpers.waiting import wait_until

PICTURES: Final = ROOT / "docs" / "pictures"
URL: Final = re.compile(r"^ +console +(http://\S+)", re.MULTILINE)
LOAD_SECONDS: Final = 45
FOLD: Final = "/folds/account-metrics"
SHOWN: Final = {"overview": "light", "fold": "light", "group": "dark", "dead-letter": "dark"}
"""Pictures of the docs, each with its scheme."""


@contextmanager
def demo(log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        process = subprocess.Popen([sys.executable, "-m", "streams_app", "demo", "--live", "--verbose"], stdout=out, stderr=out)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


async def bad_events(broker: str, source: str) -> None:
    """Produce events that the fold rejects, so that there are dead letters."""
    good = {"account_id": HOT_KEY, "metrics": {"likes": 1}}
    for number in range(24):
        bad = {"metrics": {"likes": 1, "shares": 7}, "post": number} if number % 3 else good | {"metrics": None, "post": number}
        await produce(broker, source, [(HOT_KEY.encode(), json.dumps(bad).encode())])
        await asyncio.sleep(LOAD_SECONDS / 24)


async def taken(page: Page, path: Path, *, whole: bool) -> None:
    """Take a picture of 256 colors, which is half as large."""
    await page.wait_for_selector("h1, .says, .verdict")
    await page.wait_for_function("() => [...document.querySelectorAll('[data-plot]')].every((box) => box.querySelector('canvas'))")
    taken = Image.open(BytesIO(await page.screenshot(full_page=whole)))
    taken.convert("RGB").quantize(256, kmeans=1, dither=Image.Dither.NONE).save(path, optimize=True)


async def pictures(browser: Browser, url: str, paths: dict[str, str], more: Path | None) -> None:
    for scheme in ("light", "dark"):
        for width in (1280, 360):
            if width < 1280 and more is None:
                continue
            context = await browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 860})
            for name, path in paths.items():
                page = await context.new_page()
                await page.goto(url + path)
                if SHOWN.get(name) == scheme and width == 1280:
                    await taken(page, PICTURES / f"console-{name}-{scheme}.png", whole=False)
                if more is not None:
                    await taken(page, more / f"{name}-{scheme}-{width}.png", whole=True)
                await page.close()
            await context.close()


async def take(log: Path, more: Path | None) -> None:
    """Wait for the console of the demo, give it something to show, and take the pictures."""
    found = await wait_until(lambda: URL.search(log.read_text("utf-8")), 120, "the console of the demo")
    assert found is not None
    url = found[1]
    async with aiohttp.ClientSession(url) as session:

        async def model(path: str) -> Any:
            async with session.get(path) as answer:
                return await answer.json()

        values = {row["path"]: row["value"] for part in (await model("/settings.json"))["sections"] for row in part["settings"]}
        rules = {rule["what"]: rule["text"] for rule in (await model(f"{FOLD}.json"))["definition"]}
        await bad_events(values["kafka.bootstrap_servers"].strip('"'), rules["reads"])
        async with session.post(f"{FOLD}/window"):
            pass
        await wait_until(lambda: is_computed(model), 60, "the window")
        topic = f"/topics/{rules['rejects to']}"
        rows = (await model(f"{topic}.json"))["records"]["rows"]
        links = set(re.findall(r'"(/(?:subscribers|read-stores|live|journals)/[^"]+)"', json.dumps(await model("/overview.json"))))
    one = next(row for row in rows if row["reason"] == "no-group")
    paths = {
        "overview": "/", "fold": FOLD, "group": f"{FOLD}/group?key={HOT_KEY}",
        "dead-letter": f"{topic}/dead-letter?partition={one['partition']}&offset={one['offset']}",
    }  # fmt: skip
    if more is not None:
        paths |= {
            "dead-letters": topic, "workers": "/workers", "settings": "/settings?check=run", "partitions": f"{FOLD}?partitions=yes",
            "source-topic": f"/topics/{rules['reads']}", "search": "/search?q=account", "not-found": "/nothing",
        }  # fmt: skip
        paths |= {link.strip("/").replace("/", "-"): link for link in links}
    async with started_browser() as browser:
        await pictures(browser, url, paths, more)


async def is_computed(model: Callable[[str], Awaitable[Any]]) -> bool:
    window = (await model(f"{FOLD}.json"))["window"]
    return window["computed"] is not None and window["progress"] is None


def main() -> None:
    more = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    log = ROOT / ".cache" / "screenshots.log"
    for folder in (log.parent, *([more] if more else [])):
        folder.mkdir(parents=True, exist_ok=True)
    with demo(log):
        asyncio.run(take(log, more))


if __name__ == "__main__":
    main()
