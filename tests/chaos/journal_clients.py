"""Readers and followers of a chaos run of journals: they begin at random cursors, go away, and come back where they were."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from streams_app.errors import JournalGoneError, TryAgainError
from streams_app.journal.core.cursor import cursor_text, parse_cursor, parse_start
from streams_app.journal.reading.entries import Gap
from streams_app.journal.reading.reader import JournalReader
from streams_app.redis_client import REDIS_ERRORS
from tests.chaos.journal_judge import Reading

VISIT_SECONDS: Final = (1.0, 12.0)
PAUSE_SECONDS: Final = (0.1, 1.0)
MOST_BYTES: Final = 4_000_000
PAGES: Final = 60
"""Pages of one reading, at most."""


@dataclass
class Known:
    """What clients may ask for.

    Attributes:
        keys: Of events that were produced, with repetitions.
        ends: Partition → highest offset that was acknowledged.
    """

    keys: list[bytes] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)

    def cursor(self, chance: random.Random) -> str:
        """One somewhere, in every partition."""
        return cursor_text({partition: chance.randint(0, max(0, end)) for partition, end in self.ends.items()})


@dataclass
class Client:
    """One client; ``follows``: it stays at its key, and waits for what comes.

    Attributes:
        readings: What it was given, one after the other.
        is_settled: It stays from now on.
    """

    reader: Callable[[], JournalReader]
    known: Known
    chance: random.Random
    follows: bool
    readings: list[Reading] = field(default_factory=list)
    is_settled: bool = False

    async def run(self) -> None:
        """Reads until it is cancelled."""
        key, cursor = b"", ""
        while True:
            if self.known.keys and len(self.known.ends) > 1:
                if not (self.follows and cursor):
                    key, cursor = self.chance.choice(self.known.keys), self.known.cursor(self.chance)
                reading = Reading(key, parse_cursor(cursor))
                self.readings.append(reading)
                try:
                    cursor = await self._visit(reading, cursor)
                except (TryAgainError, *REDIS_ERRORS):
                    cursor = self._behind(reading, cursor)
            await asyncio.sleep(self.chance.uniform(*PAUSE_SECONDS))  # it comes back later

    async def _visit(self, reading: Reading, cursor: str) -> str:
        if self.follows:
            await self._follow(reading, cursor)
        elif self.chance.random() < 0.5:
            await self._pages(reading, cursor)
        else:
            await self._read(reading, cursor, follow=False)
        return self._behind(reading, cursor)

    async def _follow(self, reading: Reading, cursor: str) -> None:
        until = asyncio.get_running_loop().time() + self.chance.uniform(*VISIT_SECONDS)
        task = asyncio.create_task(self._read(reading, cursor, follow=True))
        try:
            while not task.done() and (self.is_settled or asyncio.get_running_loop().time() < until):
                await asyncio.wait({task}, timeout=0.2)
        finally:
            while not task.done():  # before Python 3.12 the client of Redis may swallow it
                task.cancel()
                await asyncio.wait({task}, timeout=1)
        if not task.cancelled():
            task.result()

    async def _read(self, reading: Reading, cursor: str, *, follow: bool) -> None:
        from_floor = self.chance.random() < 0.5
        while True:
            # Keys may be any bytes; events without one are asked for by None.
            found = self.reader().read(reading.key or None, cursor, follow=follow, from_floor=from_floor)
            try:
                async with aclosing(found) as items:
                    async for item in items:
                        reading.items.append(item)
            except JournalGoneError as error:
                cursor = self._gone(reading, error)
            else:
                return

    async def _pages(self, reading: Reading, cursor: str) -> None:
        for _ in range(PAGES):
            start = parse_start(cursor, int(time.time() * 1000))
            try:
                page = await self.reader().page(
                    (reading.key,), start, limit=self.chance.randint(1, 100), most_bytes=MOST_BYTES,
                    from_floor=self.chance.random() < 0.5,
                )  # fmt: skip
            except JournalGoneError as error:
                cursor = self._gone(reading, error)
                continue
            reading.items += page.items
            reading.up_to.update(parse_cursor(page.next))
            cursor = page.next
            if page.is_caught_up:
                return

    @staticmethod
    def _gone(reading: Reading, error: JournalGoneError) -> str:
        """What the error says is a gap as any other; where it goes on."""
        reading.items.append(Gap(*error.lost, "removed", error.partition, error.next))
        return error.next

    @staticmethod
    def _behind(reading: Reading, cursor: str) -> str:
        """The cursor behind the last item."""
        return reading.items[-1].cursor if reading.items else cursor
