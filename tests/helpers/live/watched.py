"""Live views of a test, as a user declares them and a visitor opens a page of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson

from streams_app.operations.live import PageOfView, page_of_views
from streams_app.settings import Settings
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import LIMIT_SECONDS, Site

COUNT = {"kind": "count", "page": "project", "item": "id", "expiry": "1h", "public": True}
LIST = {**COUNT, "kind": "list", "payload": ["title"]}


class Watched:
    """An application of live views alone, of the topic ``events``."""

    def __init__(self, site: Site) -> None:
        self.site = site

    @property
    def source(self) -> str:
        return self.site.names.topic("events")

    def config(self, name: str = "streams.toml", **views: dict[str, Any]) -> Path:
        """Return settings with these views; all their dead letters go into one topic of this test."""
        text = ""
        for view, given in views.items():
            table = {"source": self.source, "dead_letters": self.site.names.topic("dead"), **given}
            text += f"[live.{view}]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in table.items())
        return self.site.config(text, name)

    async def topics(self, **options: Any) -> None:
        await self.site.topics("events", "dead", **options)

    async def put(self, *events: dict[str, Any], **options: Any) -> None:
        """Send events keyed by their project."""
        await self.site.send("events", [(str(event["project"]).encode(), orjson.dumps(event)) for event in events], **options)

    async def page(self, config: Path, view: str, page: str = "7") -> PageOfView:
        settings = Settings.load(config, {})
        (found,) = await page_of_views(settings, page, [view])
        return found

    async def shows(self, config: Path, view: str, count: int, page: str = "7") -> PageOfView:
        """Return the view, once it shows this number of items and is current."""
        return await self.has_state(config, view, "ok", count, page)

    async def has_state(self, config: Path, view: str, state: str, count: int | None = None, page: str = "7") -> PageOfView:
        """Return the view, once it is in a state, and shows this number of items if a count is given."""
        seen: list[PageOfView] = []

        async def is_reached() -> bool:
            seen[:] = [await self.page(config, view, page)]
            return seen[0].state.state == state and count in (None, seen[0].state.count)

        try:
            await wait_until(is_reached, LIMIT_SECONDS, f"{view} is {state} and shows {count} on {page}")
        except AssertionError as error:
            raise AssertionError(f"{error}; it shows {seen}") from error
        return seen[0]


def _toml(value: Any) -> str:
    """Return a JSON value as TOML; a table is on one line."""
    if not isinstance(value, dict):
        return json.dumps(value)
    return "{" + ", ".join(f"{json.dumps(key)} = {json.dumps(one)}" for key, one in value.items()) + "}"
