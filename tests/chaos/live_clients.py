"""Browsers of a chaos run of live views: raw clients of server-sent events that drop, stall, and go to another hub."""

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
    """A message that a browser got.

    Attributes:
        at_ms: When, by the wall clock.
        page: Of the browser.
        state: What it says.
    """

    at_ms: int
    page: str
    state: dict[str, Any]


@dataclass
class Client:
    """One browser.

    Attributes:
        page: What it has open.
        shown: Every message, each once where the same is said again within a second.
        latest: View → the newest message.
        connects: How often it was connected.
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
        """Stays connected, somewhere; until it is cancelled."""
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
            name = ""
            while self.is_settled or loop.time() < until:
                # The hub beats every second: silence means that the connection is dead. No wait_for: before Python 3.12 it
                # may swallow that the browser is told to end.
                async with asyncio.timeout(5.0):
                    line = await response.content.readline()
                if not line:
                    return
                if line.startswith(b"event: "):
                    name = line[7:].strip().decode()
                elif line.startswith(b"data: ") and name == "view":
                    self._take(json.loads(line[6:]))
                    if not self.is_settled and self.chance.random() < STALL_SHARE:
                        # Nobody knows afterwards when what lay in the sockets meanwhile was written: the visit ends.
                        await asyncio.sleep(self.chance.uniform(*STALL_SECONDS))  # it does not read
                        return

    def _take(self, state: dict[str, Any]) -> None:
        shown = Shown(int(time.time() * 1000), self.page, state)
        self.shown.append(shown)
        self.latest[state["view"]] = shown
