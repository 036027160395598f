"""Answers that all browsers share for some seconds, so that many browsers cost the servers no more than one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from streams_app.clock import Clock
from streams_app.errors import TryAgainError

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
