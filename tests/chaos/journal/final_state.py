"""Checks a journal at the end of a chaos run: it has all events of the topic, packed, and no key in Redis is left over."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import cast

import redis.asyncio

from streams_app.journal.core.cursor import cursor_text
from streams_app.journal.reading.entries import Entry, Gap
from streams_app.journal.reading.reader import JournalReader
from streams_app.journal.store.journal_store import JournalScripts, JournalShardReader, ShardStatus
from streams_app.journal.store.keys import JournalKeys, journal_keys, journal_pattern
from streams_app.settings import JournalSettings
from tests.chaos.journal.judge import Judge, Reading, Topic
from tests.chaos.journal.load import TOPIC
from tests.chaos.journal.removals import Removals
from tests.chaos.stage import APP_ID, Stage
from tests.helpers.waiting import wait_until
from tests.servers.cache import ROOT

DRAIN_SECONDS = 120.0
ATTEMPTS = 5
"""On a busy machine, as long as there is progress, it may take so many times :data:`DRAIN_SECONDS`."""


class FinalState:
    """Checks the journal after the load and the faults have ended.

    Attributes:
        wrong: Violations.
        floors: Partition → first stored offset.
        segments: Number of segments.
        days: Days of the segments.
    """

    def __init__(self, stage: Stage, journal: JournalSettings, topic: Topic) -> None:
        self.wrong: list[str] = []
        self.floors: dict[int, int] = {}
        self.segments = 0
        self.days: set[str] = set()
        self._stage = stage
        self._journal = journal
        self._topic = topic
        self._keys = {number: journal_keys(APP_ID, journal.name, TOPIC, number) for number in topic}

    async def settle(self) -> None:
        """Wait until everything is stored, and closed segments are packed, as long as there is progress.

        Raises:
            AssertionError: It is not, so that what readers received cannot be judged.
        """
        async with redis.asyncio.Redis(port=self._stage.primary_port) as client:
            found: list[str] = []
            before: list[str] | None = None

            async def is_settled() -> bool:
                found[:] = await self._unsettled(client)
                return not found

            for attempts_left in reversed(range(ATTEMPTS)):
                try:
                    await wait_until(is_settled, DRAIN_SECONDS, "everything is stored and packed")
                    break
                except AssertionError as error:
                    if found == before or not attempts_left:
                        raise AssertionError(f"{error}: {found}") from error
                    before = list(found)
            self.wrong += await self._left_over(client)

    async def _unsettled(self, client: redis.asyncio.Redis) -> list[str]:
        found: list[str] = []
        self.segments = 0
        for number, keys in self._keys.items():
            status = await self._status(client, keys)
            end = max(self._topic[number], default=-1)
            if status is None or status.fence < end:
                found.append(f"partition {number} is stored up to {status and status.fence}, the topic ends at {end}")
                continue
            self.floors[number] = status.floor
            self.segments += len(status.segments)
            self.days |= {one.day for one in status.segments}
            newest = status.segments[-1:]
            raw = [one.first for one in status.segments if one.form == "raw" and (one.is_closed or one not in newest)]
            if raw or await client.hexists(keys.about, "staged"):
                found.append(f"partition {number} has segments that are not packed: {raw}, or staged blocks")
            # As Keeper.drop_once: the open segment counts, and stays.
            is_open = any(one.form == "raw" and not one.is_closed for one in newest)
            stored = sum(one.stored_bytes for one in status.segments)
            if len(status.segments) > is_open and stored > self._journal.share(len(self._topic)):
                found.append(f"partition {number} takes {stored} bytes, so that its oldest closed segment will be removed")
        return found

    async def _left_over(self, client: redis.asyncio.Redis) -> list[str]:
        found: list[str] = []
        actual = {name.decode() async for name in client.scan_iter(journal_pattern(APP_ID, self._journal.name), count=1_000)}
        for number, keys in self._keys.items():
            status = await self._status(client, keys)
            if status is None:
                continue
            blocks = {f"{keys.blocks_prefix}{one.first}:{one.generation}": one for one in status.segments}
            missing = [name for name, one in blocks.items() if one.entries and name not in actual]
            found += [f"{name} of partition {number} has no blocks" for name in missing]
            actual -= {keys.meta, keys.segments, keys.about, *blocks}
            indexed = [int(name) for name in cast("list[bytes]", await client.zrange(keys.segments, 0, -1))]
            described = [one.first for one in status.segments]
            if indexed != described:
                found.append(f"partition {number} indexes segments {indexed}, but describes {described}")
        return [*found, *(f"{name} is left over in Redis" for name in sorted(actual))]

    def removed(self, *, may_be_full: bool) -> Removals:
        """Return the removals; check that the journal begins where they end."""
        found = Removals(self._stage.logs(), self._topic, self._journal, int(time.time() * 1000), may_be_full=may_be_full)
        self.wrong += found.wrong
        self.wrong += [
            f"partition {number} begins at {floor}, but no removal of earlier events was reported"
            for number, floor in self.floors.items()
            if not found.begins(number, floor)
        ]
        return found

    async def judge(self, judge: Judge, reader: JournalReader) -> None:
        """Read and judge every key from the floor on."""
        cursor = cursor_text({number: floor - 1 for number, floor in self.floors.items()})
        after = {number: floor - 1 for number, floor in self.floors.items()}
        ends = {number: max(events, default=-1) for number, events in self._topic.items()}
        for key in sorted(judge.keys):
            items: Sequence[Entry | Gap] = [item async for item in reader.read(key or None, cursor or "earliest")]
            judge.judge(Reading(key, dict(after), list(items), dict(ends)))
            self.wrong += [f"{key!r} has a gap at the end: {item}" for item in items if isinstance(item, Gap)]

    async def verify(self) -> None:
        """Check that ``journal verify`` finds no difference."""
        command = [sys.executable, "-m", "streams_app", "journal", "verify", "--config", str(self._stage.config)]
        ran = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=120, cwd=ROOT)
        if ran.returncode:
            self.wrong.append(f"journal verify ended with {ran.returncode}: {ran.stdout[:1_000]}{ran.stderr[-1_000:]}")

    @staticmethod
    async def _status(client: redis.asyncio.Redis, keys: JournalKeys) -> ShardStatus | None:
        return await JournalShardReader(JournalScripts(client)).status(keys)
