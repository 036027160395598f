"""Readers and followers of a chaos run of journals: they begin at a random position, disconnect, and continue there later."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from streams_app.errors import JournalGoneError, TryAgainError
from streams_app.journal.core.cursor import parse_start
from streams_app.journal.reading.entries import Gap
from streams_app.journal.reading.reader import JournalReader
from streams_app.redis_access.client import REDIS_ERRORS
from tests.chaos.journal.judge import Reading
from tests.chaos.journal.load import DAY_MS, DAYS, ProducedPositions
from tests.chaos.stage import PARTITIONS

VISIT_SECONDS: Final = (1.0, 12.0)
PAUSE_SECONDS: Final = (0.1, 1.0)
MAX_BYTES: Final = 4_000_000
PAGES: Final = 60
"""Maximum number of pages of one reading."""


@dataclass
class Client:
    """One client; if ``follows``, it keeps its key and waits for new events.

    Attributes:
        readings: What it received, one reading after the other.
        begins: Kind of start → number of times.
        wrong: Violations.
        is_settled: Whether it stays connected from now on.
    """

    reader: Callable[[], JournalReader]
    produced: ProducedPositions
    chance: random.Random
    follows: bool
    readings: list[Reading] = field(default_factory=list)
    begins: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    is_settled: bool = False
    _at: str = ""

    async def run(self) -> None:
        """Read until cancelled."""
        key = b""
        while True:
            if self.produced.keys and len(self.produced.ends) > 1:
                if not (self.follows and self._at):
                    key, self._at = self.chance.choice(self.produced.keys), self._start()
                with suppress(TryAgainError, *REDIS_ERRORS):
                    await self._visit(key)
            await asyncio.sleep(self.chance.uniform(*PAUSE_SECONDS))  # until it returns

    async def _visit(self, key: bytes) -> None:
        if self._at == "latest":
            self._at = await self._latest(key)
        floors, fences = await self._ranges()
        self._add_reading(key, floors, fences)
        try:
            if self.follows:
                await self._follow(key)
            elif self.chance.random() < 0.5:
                await self._pages(key)
            else:
                await self._read(key, follow=False)
        finally:
            if items := self.readings[-1].items:
                self._at = items[-1].cursor
                self.readings[-1].up_to.update(_positions(self._at))

    def _add_reading(self, key: bytes, floors: Mapping[int, int], fences: Mapping[int, int]) -> None:
        begin = parse_start(self._at, int(time.time() * 1000))
        unnamed = {number: floor for number, floor in floors.items() if number not in begin.positions}
        since_ms = begin.since_ms if begin.kind == "moment" else None
        self.readings.append(Reading(key, dict(begin.positions), floors=unnamed, since_ms=since_ms, fences=dict(fences)))

    def _continue_at(self, cursor: str) -> None:
        """Begin another reading at a cursor; the former one has received everything up to there."""
        former, self._at = self.readings[-1], cursor
        former.up_to.update(_positions(cursor))
        self._add_reading(former.key, former.floors, former.fences)

    def _start(self) -> str:
        chance = self.chance
        kind = chance.choices(["cursor", "earliest", "latest", "day", "moment", "ago"], [10, 3, 2, 2, 2, 1])[0]
        self.begins[kind] += 1
        at_ms = int(time.time() * 1000 - chance.uniform(0, DAYS + 1) * DAY_MS)
        match kind:
            case "cursor":
                return self.produced.cursor(chance) or "earliest"
            case "day":
                return datetime.fromtimestamp(at_ms / 1000, UTC).date().isoformat()
            case "moment":
                return str(at_ms)
            case "ago":
                return f"-{chance.randint(1, DAYS * 24)}h"
            case _:
                return kind

    async def _latest(self, key: bytes) -> str:
        """Return the cursor of a client that requests only future events."""
        before = await self._fences()
        start = parse_start("latest", int(time.time() * 1000))
        page = await self.reader().page((key,), start, limit=100, max_bytes=MAX_BYTES)
        after, begun = await self._fences(), _positions(page.next) if page.next else {}
        # If Redis has lost data meanwhile, a fence may have decreased.
        for number in before.keys() & after.keys() & begun.keys():
            if before[number] <= after[number] and not before[number] <= begun[number] <= after[number]:
                self.wrong.append(f"the latest of {number} was {begun[number]}, its fence from {before[number]} to {after[number]}")
        return page.next or "earliest"

    async def _ranges(self) -> tuple[dict[int, int], dict[int, int]]:
        """Return the first stored offset of each partition, 0 without state, and the fences of partitions that have state."""
        ranges = await self.reader().shards.ranges(range(PARTITIONS))
        floors = {number: floor or 0 for number, (_, floor) in ranges.items()}
        return floors, {number: fence for number, (fence, _) in ranges.items() if fence is not None}

    async def _fences(self) -> dict[int, int]:
        return (await self._ranges())[1]

    async def _follow(self, key: bytes) -> None:
        until = asyncio.get_running_loop().time() + self.chance.uniform(*VISIT_SECONDS)
        task = asyncio.create_task(self._read(key, follow=True))
        try:
            while not task.done() and (self.is_settled or asyncio.get_running_loop().time() < until):
                await asyncio.wait({task}, timeout=0.2)
        finally:
            while not task.done():  # before Python 3.12 the client of Redis may swallow it
                task.cancel()
                await asyncio.wait({task}, timeout=1)
        if not task.cancelled():
            task.result()

    async def _read(self, key: bytes, *, follow: bool) -> None:
        from_floor = self.chance.random() < 0.5
        while True:
            # Keys may be any bytes; events without one are asked for by None.
            found = self.reader().read(key or None, self._at, follow=follow, from_floor=from_floor)
            try:
                async with aclosing(found) as items:
                    async for item in items:
                        self.readings[-1].items.append(item)
            except JournalGoneError as error:
                self._add_gap(error)
            else:
                return

    async def _pages(self, key: bytes) -> None:
        for _ in range(PAGES):
            start = parse_start(self._at, int(time.time() * 1000))
            try:
                page = await self.reader().page(
                    (key,), start, limit=self.chance.randint(1, 100), max_bytes=MAX_BYTES, from_floor=self.chance.random() < 0.5
                )
            except JournalGoneError as error:
                self._add_gap(error)
                continue
            self.readings[-1].items += page.items
            if page.next:
                self._continue_at(page.next)
            if page.is_caught_up:
                return

    def _add_gap(self, error: JournalGoneError) -> None:
        """Add the gap that the error reports, and continue after it."""
        self.readings[-1].items.append(Gap(*error.lost, "removed", error.partition, error.next))
        self._continue_at(error.next)


def _positions(cursor: str) -> Mapping[int, int]:
    return parse_start(cursor, 0).positions
