"""Reads what the pages show: workers over HTTP, Redis and Kafka, each in bounded steps and shared among all browsers."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Hashable, Sequence
from copy import copy
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final, TypeVar, cast

import msgspec

from streams_app.clock import Clock
from streams_app.console.reading.comparing import StoreComparisons
from streams_app.console.reading.history import EVERY_MS, History
from streams_app.console.reading.samples import Samples, samples_in
from streams_app.console.reading.tuning import TuningRuns
from streams_app.delivery.dependency_errors import DEPENDENCY_ERRORS
from streams_app.errors import StreamsAppError, TryAgainError, text_of
from streams_app.operations.worker_pages import Readiness, pages, readiness, usual_url
from streams_app.settings import Settings

T = TypeVar("T")

SHARED_MS: Final = 2_000
"""Time for which an answer is shared. One that took longer than a fifth of it is shared for five times as long as it took, so that
no question takes more than about a sixth of the time of a server."""

LONGEST_MS: Final = 60_000
TAKEN: Final = 5
MOST_WAITING: Final = 200
MOST: Final = 300
"""Maximum number of answers that are kept; the oldest is forgotten first."""

LIMIT_SECONDS: Final = 20.0
"""A question without an answer after this time has failed."""


@dataclass(slots=True)
class _Entry:
    task: asyncio.Task[Any]
    began_ms: int
    shared_ms: int
    until_ms: int | None = None


class SharedAnswers:
    """Runs a question once for all who ask it at about the same time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[Hashable, _Entry] = {}

    async def get(self, key: Hashable, ask: Callable[[], Awaitable[T]], shared_ms: int = SHARED_MS) -> T:
        """Return the shared answer, or ask; an error is shared like an answer.

        The question goes on if this caller is cancelled, because others may wait for it.

        Raises:
            TryAgainError: Too many questions wait for an answer.
        """
        now_ms = self._clock.monotonic_ms()
        entry = self._entries.get(key)
        if entry is None or (entry.until_ms is not None and entry.until_ms <= now_ms):
            if sum(other.until_ms is None for other in self._entries.values()) >= MOST_WAITING:
                raise TryAgainError("too many questions wait for an answer")
            entry = _Entry(asyncio.create_task(self._ask(ask)), now_ms, shared_ms)
            self._entries.pop(key, None)
            self._entries[key] = entry
            entry.task.add_done_callback(lambda _: self._done(entry))
            self._forget()
        found: T = await asyncio.shield(entry.task)
        return found

    async def close(self) -> None:
        """Cancel the questions that are not answered yet."""
        tasks = [entry.task for entry in self._entries.values()]
        self._entries.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @staticmethod
    async def _ask(ask: Callable[[], Awaitable[T]]) -> T:
        async with asyncio.timeout(LIMIT_SECONDS):
            return await ask()

    def _done(self, entry: _Entry) -> None:
        if not entry.task.cancelled():
            entry.task.exception()  # retrieved, so that asyncio reports nothing if all who asked have left
        now_ms = self._clock.monotonic_ms()
        entry.until_ms = now_ms + min(LONGEST_MS, max(entry.shared_ms, TAKEN * (now_ms - entry.began_ms)))

    def _forget(self) -> None:
        done = [key for key, entry in self._entries.items() if entry.until_ms is not None]
        for key in done[: max(0, len(self._entries) - MOST)]:
            del self._entries[key]


logger = logging.getLogger(__name__)

REDIS_AT_ONCE: Final = 2
"""Maximum number of questions to Redis that run at the same time, whatever the number of browsers."""

PART_SECONDS: Final = 2.5
"""Time for which a page waits for one of its parts. The question goes on, and the next request has its answer."""

FAILING_SECONDS: Final = 0.5
"""The same for a part whose last question has failed."""

JSON_SECONDS: Final = 10.0
"""The same for JSON: a program cannot look again as easily."""

STALE_MS: Final = 60_000
"""A part whose question takes long is shown as it was, for at most this time."""

MOST_PARTS: Final = 200

MOST_WORKERS: Final = 64
DEFAULT_PORT: Final = 8080
RESOLVE_SECONDS: Final = 2.0


class Missing(msgspec.Struct, frozen=True, tag="missing"):
    """A part of a page that cannot be read now.

    Attributes:
        why: The reason, as a sentence without its end.
        since_ms: Time of the first failure in a row.
    """

    what: str
    why: str
    since_ms: int


class ServerState(msgspec.Struct, frozen=True):
    """A worker or live view server as it answers now.

    Attributes:
        fault: Why it does not answer, as the end of a sentence that begins with its address; empty if it does.
        samples: Its metrics; empty if it does not answer.
    """

    url: str
    samples: Samples
    page: str
    health: Readiness
    fault: str
    since_ms: int


class ConsoleReader:
    """Reads what the pages show, for one application: from workers, live view servers, Redis and Kafka."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.settings = settings
        self.clock = clock
        self.started_ms = clock.now_ms()
        self.history = History()
        self.shared = SharedAnswers(clock)
        self.tuning = TuningRuns(settings, clock)
        self.comparisons = StoreComparisons(settings, clock)
        self._redis = asyncio.Semaphore(REDIS_AT_ONCE)
        self._failing: dict[Hashable, int] = {}
        self._last: dict[Hashable, tuple[int, object]] = {}
        self.part_seconds = PART_SECONDS
        self._away: dict[str, int] = {}
        self._hubs_away: dict[str, int] = {}

    async def close(self) -> None:
        await self.tuning.close()
        await self.comparisons.close()
        await self.shared.close()

    def patient(self) -> ConsoleReader:
        """Return the same reader, which waits longer for a part."""
        found = copy(self)
        found.part_seconds = JSON_SECONDS
        return found

    async def keep_history(self) -> None:
        """Store the metrics of the workers every 5 s, for ever."""
        while True:
            await self.remember_once()
            await asyncio.sleep(EVERY_MS / 1_000 - self.clock.now_ms() % EVERY_MS / 1_000)

    async def remember_once(self) -> None:
        """Store the present metrics of all workers that answer."""
        for worker in await self.workers():
            if not worker.fault:
                self.history.add(worker.url, self.clock.now_ms(), worker.samples)

    async def workers(self) -> tuple[ServerState, ...]:
        """Return all workers that the settings name, whether they answer or not."""
        return await self.shared.get("workers", self._workers)

    async def workers_part(self) -> tuple[tuple[ServerState, ...], list[Missing]]:
        """Return all workers as a part of a page; if they cannot be asked, return none, and why."""
        found = await self.part("the workers", "workers-part", self.workers)
        return ((), [found]) if isinstance(found, Missing) else (found, [])

    async def hubs(self) -> tuple[ServerState, ...]:
        """Return all live view servers that the settings name, whether they answer or not."""
        return await self.shared.get("hubs", self._hubs)

    async def part(self, what: str, key: Hashable, ask: Callable[[], Awaitable[T]]) -> T | Missing:
        """Ask for a part of a page, or share the answer of another browser; if that fails, return why and since when.

        Args:
            what: Name of the part for readers, such as "the open groups".
            key: Identifies the question among all pages.
        """
        seconds = FAILING_SECONDS if key in self._failing else self.part_seconds
        try:
            async with asyncio.timeout(seconds):
                found = await self.shared.get(key, ask)
        except TimeoutError:
            at_ms, before = self._last.get(key, (0, None))
            if before is not None and self.clock.monotonic_ms() - at_ms < STALE_MS:
                return cast(T, before)
            why = f"no answer within {seconds:g} s, the question goes on"
        except StreamsAppError as error:
            why = str(error)
        except DEPENDENCY_ERRORS as error:
            why = f"a server failed: {text_of(error)}"
        except Exception as error:  # any error of a part is shown in its place, and the rest of the page stays
            logger.warning("a part of a page failed what=%s", what, exc_info=error)
            why = f"an unexpected error, see the log of the console: {type(error).__name__}"
        else:
            self._failing.pop(key, None)
            self._remember(key, found)
            return found
        self._last.pop(key, None)
        if len(self._failing) >= MOST_PARTS and key not in self._failing:
            self._failing.pop(next(iter(self._failing)))
        return Missing(what, why, self._failing.setdefault(key, self.clock.now_ms()))

    def _remember(self, key: Hashable, found: object) -> None:
        self._last.pop(key, None)
        self._last[key] = self.clock.monotonic_ms(), found
        if len(self._last) > MOST_PARTS:
            self._last.pop(next(iter(self._last)))

    async def redis_part(self, what: str, key: Hashable, ask: Callable[[], Awaitable[T]]) -> T | Missing:
        """Ask for a part that reads Redis, at most :data:`REDIS_AT_ONCE` at the same time."""

        async def in_turn() -> T:
            async with self._redis:
                return await ask()

        return await self.part(what, key, in_turn)

    async def _workers(self) -> tuple[ServerState, ...]:
        named = self.settings.console.workers
        usual = usual_url(self.settings.http)
        return await self._states(await _urls(named) if named else [usual] if usual else [], self._away)

    async def _hubs(self) -> tuple[ServerState, ...]:
        return await self._states(await _urls(self.settings.console.hubs), self._hubs_away)

    async def _states(self, urls: Sequence[str], away: dict[str, int]) -> tuple[ServerState, ...]:
        answers, healths = await asyncio.gather(pages(self.settings, urls), readiness(urls))
        now_ms = self.clock.now_ms()
        found = []
        for page, health in zip(answers, healths, strict=True):
            if not page.fault:
                away.pop(page.url, None)
            since_ms = away.setdefault(page.url, now_ms) if page.fault else now_ms
            found.append(ServerState(page.url, samples_in(page.text or ""), page.text or "", health, page.fault, since_ms))
        for url in away.keys() - set(urls):
            del away[url]
        return tuple(found)


async def _urls(named: Sequence[str]) -> list[str]:
    found = await asyncio.gather(*map(resolved, named))
    return list(dict.fromkeys(url for urls in found for url in urls))[:MOST_WORKERS]


async def resolved(worker: str) -> list[str]:
    """Return the URL of each address for which the address of a worker stands; the name itself if it cannot be resolved."""
    scheme, _, rest = worker.rstrip("/").rpartition("://")
    scheme = scheme or "http"
    host, _, port = rest.rpartition(":") if rest.rpartition(":")[2].isdigit() else (rest, "", str(DEFAULT_PORT))
    as_named = [f"{scheme}://{host}:{port}"]
    if scheme == "https" or _is_address(host.strip("[]")):
        return as_named
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            infos = await asyncio.get_running_loop().getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except (OSError, TimeoutError):
        return as_named
    hosts = {str(info[4][0]) for info in infos}
    ipv4 = sorted(host for host in hosts if ":" not in host)
    return [f"{scheme}://{host}:{port}" for host in ipv4] or [f"{scheme}://[{host}]:{port}" for host in sorted(hosts)]


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
