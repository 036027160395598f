"""Every page of the console, each with content: the one list from which tests look at all of them.

``tests/unit/console/test_every_page_is_shown.py`` is red if a page or an action is missing from the list.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

from playwright.async_api import Browser, Page
from redis.asyncio import Redis

from streams_app.clock import SystemClock
from streams_app.console.reading.history import EVERY_MS
from streams_app.console.reading.samples import samples_in
from streams_app.embedded.ports import free_port
from streams_app.folding.core.event import FoldEvent
from streams_app.health.metrics import Metrics
from streams_app.settings import Settings
from tests.helpers.cli.commands import FOLD, Place
from tests.helpers.console.consoles import RunningConsole, running_console, token_file, with_components, with_console
from tests.helpers.folding.scripts import open_in
from tests.helpers.kafka.topics import create_topics, produce
from tests.helpers.live.browsers import Tabs, opened_tabs

PAGES: Final = {
    "overview": "/",
    "fold": f"/folds/{FOLD}",
    "partitions": f"/folds/{FOLD}?partitions=yes",
    "group": f"/folds/{FOLD}/group?key=anna",
    "record": f"/folds/{FOLD}/record?id={FOLD}:SOURCE:0:0-0&key=anna",
    "subscriber": "/subscribers/ship",
    "event": "/subscribers/ship?event=o-1",
    "read store": "/read-stores/dashboard",
    "live": "/live/newest?page=anna",
    "presence": "/live/visitors?page=anna",
    "journal": "/journals/events?key=anna",
    "topic": "/topics/SOURCE",
    "dead letters": "/topics/DEAD",
    "dead letter": "/topics/DEAD/dead-letter?partition=0&offset=0",
    "workers": "/workers",
    "settings": "/settings?check=run",
    "search": f"/search?q={FOLD}",
    "missing": "/nothing",
    "flush": f"/actions/flush?fold={FOLD}&key=anna",
    "flush all": f"/actions/flush-all?fold={FOLD}",
    "drop": f"/actions/drop?fold={FOLD}&key=anna",
    "replay": f"/actions/replay?of=fold:{FOLD}",
    "retry": "/actions/retry?subscriber=ship",
    "reset": "/actions/reset?subscriber=ship",
    "repair": "/actions/repair?store=dashboard",
}
"""Paths by name; ``SOURCE`` and ``DEAD`` are topics."""

KINDS: Final = ("overview", "fold", "record", "read store", "dead letters", "settings", "flush")
"""One page of each kind: with cards, charts and open groups, a time line, facts, a table to choose from, findings, a form."""

LOGIN: Final = "/login"
"""The only page without a navigation; a console with a token has it."""

READY: Final = "h1, .says, .verdict"

CATALOGUE: Final = """
import msgspec
from streams_app import Catalogue, Event, Received, subscriber

class Paid(msgspec.Struct, frozen=True):
    order_id: str

paid = Event("order.paid", Paid, description="Paid.", keyed_by="order_id", topic="TOPIC")

@subscriber(paid, idempotent="yes", description="Hands the <parcel> over.")
async def ship(event: Received[Paid]) -> None:
    pass

catalogue = Catalogue(events=(paid,), subscribers=(ship,))
"""
_HEADERS: Final = {"reason": "no-group", "detail": "account_id is missing or null", "fold": FOLD}


@contextmanager
def declared(app: Place) -> Iterator[Settings]:
    """Yield settings with components of every kind; the subscriber reads the topic of the settings that ends with ``paid``."""
    module = f"console_shown_{app.names.app_id.replace('-', '_')}"
    (app.folder / f"{module}.py").write_text(CATALOGUE.replace("TOPIC", app.names.topic("paid")), "utf-8")
    sys.path.insert(0, str(app.folder))
    try:
        settings = with_components(Settings.load(Path(app.config()), {}), app.folder)
        yield Settings.model_validate({**dict(settings), "events": {"catalogue": f"{module}:catalogue"}})
    finally:
        sys.path.remove(str(app.folder))


async def filled(app: Place, client: Redis) -> None:
    """Open three groups, of which one attacks, and write an event of each topic."""
    now_ms = SystemClock().now_ms()
    paid = app.names.topic("paid")
    await create_topics(app.bootstrap, [*app.topics, paid, f"{paid}.ship.dead"], partitions=1)
    keys = ("anna", "<b>bold</b>", "k" * 400)
    opened = [FoldEvent(number, now_ms + number, b"s" + key.encode(), {"likes": 1}) for number, key in enumerate(keys)]
    await open_in(app.names.app_id, FOLD, app.topics[0], client, 0, opened)
    value = json.dumps({"account_id": "anna", "metrics": {"likes": 1}}).encode()
    await produce(app.bootstrap, app.topics[0], [(b"anna", value)], partition=0)
    packed = [(name, text.encode()) for name, text in {**_HEADERS, "source-topic": app.topics[0]}.items()]
    await produce(app.bootstrap, app.topics[2], [(b"k", b'{"metrics": {"likes": 1}}')], headers=packed, partition=0)
    headers = [("ce_specversion", b"1.0"), ("ce_type", b"order.paid"), ("ce_id", b"o-1"), ("ce_source", b"test")]
    await produce(app.bootstrap, paid, [(b"o-1", b'{"order_id": "o-1"}')], headers=headers, partition=0)


def without_servers(settings: Settings) -> Settings:
    """Return the settings of an application whose Redis, Kafka and workers are away."""
    return Settings.model_validate(
        {
            **dict(settings), "redis": {"url": f"redis://127.0.0.1:{free_port()}/0"},
            "kafka": {"bootstrap_servers": f"127.0.0.1:{free_port()}"}, "http": {"port": free_port()},
        }
    )  # fmt: skip


def remember_a_worker(console: RunningConsole, settings: Settings) -> None:
    """Let the charts have two samples of a worker that has just started."""
    now_ms, samples = SystemClock().now_ms(), samples_in(Metrics(settings).exposition().decode())
    for at_ms in (now_ms - 2 * EVERY_MS, now_ms):
        console.reader.history.add("http://127.0.0.1:9", at_ms, samples)


@asynccontextmanager
async def seen(
    app: Place, client: Redis, browser: Browser, *, are_servers_away: bool = False, has_token: bool = False, **options: Any
) -> AsyncIterator[tuple[RunningConsole, Tabs]]:
    """Serve a console with content and actions, and open a browser."""
    await filled(app, client)
    with declared(app) as found:
        given: dict[str, Any] = {"token_file": token_file(app.folder)} if has_token else {"allow_actions": True}
        settings = with_console(without_servers(found) if are_servers_away else found, **given)
        async with running_console(settings) as console, opened_tabs(browser, **options) as tabs:
            remember_a_worker(console, settings)
            yield console, tabs
            tabs.errors[:] = [error for error in tabs.errors if "status of 4" not in error and "status of 503" not in error]


async def each_page(
    app: Place, console: RunningConsole, tabs: Tabs, names: Iterable[str] = tuple(PAGES)
) -> AsyncIterator[tuple[str, Page]]:
    """Open pages, one after another: a browser keeps six connections to a host, and each live page has one."""
    for name in names:
        path = PAGES[name]
        page = await tabs.open(console.url + path.replace("SOURCE", app.topics[0]).replace("DEAD", app.topics[2]))
        await page.wait_for_selector(READY)
        yield name, page
        await page.close()
