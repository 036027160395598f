"""A project page and what happens on it: it renders the first state itself, and publishes an event for each form.

``python -m examples.project_page.app`` serves it at port 8000; the README says what has to run beside it.
"""

from __future__ import annotations

import html
import os
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import aiohttp
from aiohttp import web
from yarl import URL

from examples.project_page.rendering import placeholders
from streams_app import Catalogue, Event, Events, Settings
from streams_app.errors import BadEventError, NotPublishedError

HERE = Path(__file__).parent
CONFIG = Path(os.environ.get("STREAMS_APP_CONFIG", HERE / "streams.toml"))
HUB = os.environ.get("LIVE_URL", "http://localhost:8090")
"""Where ``streams-app live serve`` is, as browsers find it."""

VIEWS = "view=supporters&view=names&view=news&view=visitors"
NAMED = re.compile(r"\{([A-Z_]+)\}")
LIVE_JS = (files("streams_app.live") / "web" / "live.js").read_text("utf-8")
"""The module that ``streams-app live script`` prints."""

FIRST_SECONDS = 2.0
"""A page is not kept waiting for a hub: without a first state it shows dashes until the stream has come."""

OPENED: web.AppKey[Events] = web.AppKey("events")


@dataclass(frozen=True)
class Contribution:
    """Made or cancelled."""

    project_id: str
    contribution_id: str
    name: str = ""


@dataclass(frozen=True)
class News:
    """Published or unpublished."""

    project_id: str
    news_id: str
    author: str = ""
    title: str = ""
    url: str = ""


# Keyed by the project: all events of an item are in one partition, in order.
made = Event("contribution.made", Contribution, description="Somebody gives.", keyed_by="project_id", topic="contributions")
cancelled = Event(
    "contribution.cancelled", Contribution, description="Somebody takes it back.", keyed_by="project_id", topic="contributions"
)
published = Event("news.published", News, description="There is a news.", keyed_by="project_id", topic="news")
unpublished = Event("news.unpublished", News, description="It was taken down.", keyed_by="project_id", topic="news")

catalogue = Catalogue(events=(made, cancelled, published, unpublished))


async def show(request: web.Request) -> web.Response:
    """The page, with the state that it had when it was asked for."""
    project = request.match_info["project"]
    path = quote(project, safe="")
    live = f"{HUB}/live/{path}?{VIEWS}"
    values = {"PROJECT": html.escape(project), "PATH": path, "LIVE": html.escape(live)}
    values |= placeholders(project, await first_state(live))
    text = (HERE / "page.html").read_text("utf-8")
    # All at once: a value may contain the name of another one in braces.
    return web.Response(text=NAMED.sub(lambda found: values[found[1]], text), content_type="text/html")


async def script(_: web.Request) -> web.Response:
    """``live.js``, from this server: a page that is loaded while the hub is away connects once the hub is there."""
    return web.Response(text=LIVE_JS, content_type="text/javascript")


async def first_state(live: str) -> dict[str, Any]:
    """What the page shows now, from the hub; nothing while the hub is away."""
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=FIRST_SECONDS)) as session,
            session.get(URL(live, encoded=True)) as answer,
        ):
            found: dict[str, Any] = await answer.json() if answer.ok else {}
            return found
    except (aiohttp.ClientError, TimeoutError):
        return {}


async def act(request: web.Request) -> web.Response:
    """Publishes what a form says; the page hears of it by its stream, as everybody does who has it open."""
    project, form = request.match_info["project"], {name: str(value) for name, value in (await request.post()).items()}
    try:
        await publish(request.app[OPENED], request.match_info["action"], project, form)
    except (BadEventError, KeyError) as error:
        raise web.HTTPBadRequest(text=str(error)) from error
    except NotPublishedError as error:
        raise web.HTTPServiceUnavailable(text=str(error)) from error
    raise web.HTTPSeeOther(f"/project/{quote(project, safe='')}")


async def publish(events: Events, action: str, project: str, form: Mapping[str, str]) -> None:
    """One event for one form."""
    if action == "contribute":
        await events.publish(made, Contribution(project, uuid4().hex, form["name"]))
    elif action == "cancel":
        await events.publish(cancelled, Contribution(project, form["item"]))
    elif action == "publish":
        news_id = uuid4().hex
        url = f"/project/{quote(project, safe='')}#{news_id}"
        await events.publish(published, News(project, news_id, form["name"], form["title"], url))
    else:
        await events.publish(unpublished, News(project, form["item"]))


async def home(_: web.Request) -> web.Response:
    """Some project."""
    raise web.HTTPFound("/project/noob-le-film")


async def opened(app: web.Application) -> AsyncIterator[None]:
    """Opens what forms publish by."""
    async with Events(Settings.load(CONFIG, os.environ), catalogue) as events:
        app[OPENED] = events
        yield


def application() -> web.Application:
    """The routes."""
    app = web.Application()
    app.cleanup_ctx.append(opened)
    app.router.add_get("/", home)
    app.router.add_get("/live.js", script)
    app.router.add_get("/project/{project:[^/]+}", show)
    app.router.add_post("/project/{project:[^/]+}/{action:contribute|cancel|publish|unpublish}", act)
    return app


if __name__ == "__main__":
    web.run_app(application(), host="localhost", port=int(os.environ.get("PORT", "8000")))
