"""Browsers of a chaos run of live views: clients of server-sent events that disconnect, stall, and connect to another hub."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

VIEWS: Final = ("supporters", "news", "visitors")
VISIT_SECONDS: Final = (2.0, 25.0)
STALL_SHARE: Final = 0.05
STALL_SECONDS: Final = (1.0, 8.0)
RETRY_SECONDS: Final = (0.2, 1.5)


@dataclass(frozen=True, slots=True)
class Shown:
    """A message that a browser received.

    Attributes:
        at_ms: Time of receipt, by the wall clock.
        page: Page of the browser.
        state: State of a view.
        beat_ms: Time at which the hub sent the last beat before it; None: unknown.
    """

    at_ms: int
    page: str
    state: dict[str, Any]
    beat_ms: int | None = None


@dataclass
class Client:
    """One browser.

    Attributes:
        page: The open page.
        shown: Every message, without repetitions within a second.
        latest: View → the newest message.
        connects: Number of connections so far.
    """

    page: str
    tab: str
    chance: random.Random
    urls: Callable[[], Sequence[str]]
    shown: list[Shown] = field(default_factory=list)
    latest: dict[str, Shown] = field(default_factory=dict)
    connects: int = 0
    is_settled: bool = False

    async def run(self, session: aiohttp.ClientSession) -> None:
        """Stay connected to any of the hubs, until cancelled."""
        while True:
            urls = self.urls()
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
                if urls:
                    await self._visit(session, self.chance.choice(urls))
            await asyncio.sleep(self.chance.uniform(*RETRY_SECONDS))  # as the script of a page does, with jitter

    async def _visit(self, session: aiohttp.ClientSession, url: str) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self.chance.uniform(*VISIT_SECONDS)
        query = "&".join(["tab=" + self.tab, *(f"view={view}" for view in VIEWS)])
        async with session.get(f"{url}/live/{self.page}/events?{query}") as response:
            if response.status != 200:
                return
            self.connects += 1
            name, beat_ms = "", None
            while self.is_settled or loop.time() < until:
                # The hub sends a heartbeat every second: silence means that the connection is dead. No wait_for: before
                # Python 3.12 it may swallow the cancellation of the browser.
                async with asyncio.timeout(5.0):
                    line = await response.content.readline()
                if not line:
                    return
                if line.startswith(b"event: "):
                    name = line[7:].strip().decode()
                elif line.startswith(b"data: ") and name == "beat":
                    beat_ms = json.loads(line[6:])["now_ms"]
                elif line.startswith(b"data: ") and name == "view":
                    self._receive(json.loads(line[6:]), beat_ms)
                    if not self.is_settled and self.chance.random() < STALL_SHARE:
                        # It is unknown when the messages in the socket buffers were written, so the visit ends.
                        await asyncio.sleep(self.chance.uniform(*STALL_SECONDS))  # the browser does not read
                        return

    def _receive(self, state: dict[str, Any], beat_ms: int | None) -> None:
        shown = Shown(int(time.time() * 1000), self.page, state, beat_ms)
        self.shown.append(shown)
        self.latest[state["view"]] = shown
