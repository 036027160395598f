"""Hubs and browsers in a simulation: the real hub over a lossy connection, and browsers that connect, stall and disconnect."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from redis.exceptions import ConnectionError as RedisConnectionError

from streams_app.health.metrics import Metrics
from streams_app.health.status import Status
from streams_app.live.core.state import ViewState
from streams_app.live.hub.connection import Connection, StateMessage
from streams_app.live.hub.hub import Hub
from streams_app.live.store.keys import PresenceKeys, presence_keys
from streams_app.settings import Settings
from tests.helpers.virtual_loop import LoopClock
from tests.simulation.view_model import ViewModel

if TYPE_CHECKING:
    from tests.simulation.world import World

HUBS = 2
BROWSERS = 3
VISIT_SECONDS = (0.5, 8.0)
STALL_SECONDS = 4.0
COUNTED_SECONDS = 4.0
"""Time after which an open tab is counted: its hub writes it within a second, and another hub counts once a second."""

MISCOUNTED_SECONDS = 3.0
"""Time for which a hub may count too few tabs, if it had no tab of the page when Redis lost the tabs."""

STALE_SECONDS = 10.0
"""Time for which browsers may differ from Redis after the last fault; a hub gives up on Redis after a shorter time."""


class HubLink:
    """The client of one hub: the part of ``redis.asyncio.Redis`` that it uses."""

    def __init__(self, world: World, rng: random.Random | None = None) -> None:
        self._world = world
        self._rng = rng

    async def call(self, execute: Callable[[], Any]) -> Any:
        """Send a command over the simulated network."""
        for step in (lambda: None, execute):
            await asyncio.sleep(self._world.latency_seconds(self._rng))  # virtual time: the way to the server, and back
            if self._world.loses_message("hub", self._rng):
                raise RedisConnectionError("lost on the way")
            reply = step()
        return reply

    def register_script(self, text: str) -> Callable[..., Any]:
        """As redis-py does."""
        script = self._world.server.client.register_script(text)

        async def run(keys: Sequence[str], args: Sequence[Any]) -> Any:
            return await self.call(lambda: script(keys=keys, args=args))

        return run

    def pipeline(self, *, transaction: bool) -> _Pipeline:
        """As redis-py does."""
        return _Pipeline(self, self._world)

    async def time(self) -> tuple[int, int]:
        """Return the time of the server, which is correct, as redis-py does."""
        now_ms = await self.call(LoopClock().now_ms)
        return now_ms // 1_000, now_ms % 1_000 * 1_000


class _Pipeline:
    """Commands of a hub to all shards in one request."""

    def __init__(self, link: HubLink, world: World) -> None:
        self._link = link
        self._asked: list[tuple[str, list[str]]] = []
        self._client = world.server.client

    def hmget(self, name: str, fields: list[str]) -> None:
        """Add a command."""
        self._asked.append((name, fields))

    async def execute(self) -> Any:
        """Return all replies, executed at one time."""
        return await self._link.call(lambda: [self._client.hmget(name, fields) for name, fields in self._asked])


class _Checked(Connection):
    """A connection that checks every message."""

    browser: Browser

    def push(self, message: StateMessage) -> None:
        self.browser.on_sent(message.state)
        super().push(message)


class Browser:
    """A browser with one open page, whose connections end.

    Attributes:
        page: The page.
        tab: Tab id for presence.
        shown: View → the state that it shows.
        is_here: Whether it has the page open.
        came_at: Time at which it opened the page.
        sent: View → the state that a hub sent last.
    """

    def __init__(self, world: World, hubs: Sequence[Hub], settings: Settings, models: Mapping[str, ViewModel], number: int) -> None:
        """Create a browser; the first one leaves for good at the end."""
        self._rng = rng = world.rng_of(f"browser {number}")
        self.page = rng.choice("pqrs")
        self.tab = f"tab-{number:08d}"
        self.shown: dict[str, ViewState] = {}
        self.is_here = False
        self.came_at = 0.0
        self._world = world
        self._hubs = hubs
        self._views = settings.live
        self._models = models
        self._stays = number > 0
        self._place: dict[str, int] = {}
        self.sent: dict[str, ViewState] = {}

    def on_sent(self, state: ViewState) -> None:
        """Handle a message of a hub."""
        self.sent[state.view] = state
        if (model := self._models.get(state.view)) is not None:
            self._place[state.view] = model.on_shown(state, self.page, self._place.get(state.view, 0))

    async def run(self) -> None:
        """Connect and disconnect; after the last fault, stay or leave for good."""
        world = self._world
        while self._stays or world.is_faulty:
            connection = _Checked(self.page, self._views, self.tab)
            connection.browser = self
            hub = self._rng.choice(self._hubs)
            hub.open(connection)
            self.is_here, self.came_at = True, world.now()
            until = world.now() + self._rng.uniform(*VISIT_SECONDS)
            while (self._stays and not world.is_faulty) or world.now() < until:
                await asyncio.wait([waiting := asyncio.create_task(connection.changed.wait())], timeout=1.0)
                waiting.cancel()
                self._take(connection)
                if world.has_fault(0.1, self._rng):
                    await asyncio.sleep(self._rng.uniform(0.0, STALL_SECONDS))  # virtual time: it reads nothing
            hub.close(connection)
            self.is_here = False
            if self._rng.random() < 0.5:  # otherwise it is a reload
                await asyncio.sleep(self._rng.uniform(0.0, STALL_SECONDS))  # virtual time: until it returns

    def _take(self, connection: Connection) -> None:
        for message in connection.take():
            state = message.state
            if state != self.sent.get(state.view):
                self._world.report_fault("queued", f"{self.page} is written {state} after {self.sent.get(state.view)}")
            if state.state != "reading":
                self.shown[state.view] = state


class Audience:
    """The hubs of a schedule and their browsers."""

    def __init__(self, world: World, settings: Settings, models: Mapping[str, ViewModel]) -> None:
        """Start them, within the event loop."""
        self._world = world
        self._models = models
        self._presence = [view.name for view in settings.live if not view.is_of_topic]
        self._same_at: float | None = None
        stop = asyncio.Event()
        links: list[Any] = [HubLink(world, world.rng_of(f"hub {number}")) for number in range(HUBS)]
        hubs = [Hub(settings, link, LoopClock(), Metrics(settings), Status()) for link in links]
        self._browsers = [Browser(world, hubs, settings, models, number) for number in range(BROWSERS)]
        loop = asyncio.get_running_loop()
        works = [*(hub.run(stop) for hub in hubs), *(browser.run() for browser in self._browsers)]
        if world.mix.has_true_hubs:
            works.append(self._count_tabs())
        if "tabs" in world.mix.faults:
            works.append(self._lose_tabs([presence_keys(world.app_id, name) for name in self._presence]))
        self._tasks = [loop.create_task(work, context=contextvars.Context()) for work in works]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._world.report_fault("crash", f"{task} {error!r}")

    async def _lose_tabs(self, here: Sequence[PresenceKeys]) -> None:
        """Remove only the tabs from Redis."""
        world = self._world
        rng = world.rng_of("tabs")
        while world.is_faulty:
            await asyncio.sleep(rng.expovariate(0.2))  # virtual time: until the next loss
            for keys in here:
                world.server.client.delete(keys.marker, *(keys.here_prefix + page for page in "pqrs"))
            world.count("tabs")

    async def _count_tabs(self) -> None:
        """Check that each open tab is counted, regardless of its hub and of the number of its connections."""
        right_at: dict[tuple[Browser, str], float] = {}
        while True:
            await asyncio.sleep(0.25)  # virtual time: the interval of a check
            now = self._world.now()
            for browser in self._browsers:
                there = [one for one in self._browsers if one.is_here and one.page == browser.page]
                least = sum(now - one.came_at > COUNTED_SECONDS for one in there)
                for name in self._presence:
                    sent = browser.sent.get(name)
                    if not browser.is_here or sent is None or sent.state != "ok" or (sent.count or 0) >= least:
                        right_at[browser, name] = now
                    elif now - right_at.get((browser, name), now) > MISCOUNTED_SECONDS:
                        self._world.report_fault("tabs", f"{browser.page} shows {sent}, {least} are open")

    def differing(self) -> str:
        """Return a wrong state that a browser shows after the last fault; empty if all browsers show the current state."""
        differing, now = self._differing(), self._world.now()
        if self._same_at is None or not differing or not all(model.is_whole() for model in self._models.values()):
            self._same_at = now
        elif now - self._same_at > STALE_SECONDS:
            self._world.report_fault("stale", differing)
        return differing

    def _differing(self) -> str:
        for browser in self._browsers:
            if not browser.is_here:
                continue
            for name, model in self._models.items():
                shown = browser.shown.get(name)
                if shown is None or shown.state == "behind" or not model.stored[-1].shows(shown, browser.page):
                    return f"{browser.page} shows {shown}, Redis has {model.stored[-1]}"
            here = sum(other.is_here and other.page == browser.page for other in self._browsers)
            for name in self._presence:
                if (shown := browser.shown.get(name)) is None or shown.count != here:
                    return f"{browser.page} shows {shown}, {here} are open"
        return ""
