"""A shard of a journal on a real Redis, as its owner knows it, for tests of its keeper."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import redis.asyncio

from streams_app.delivery.batch import TP
from streams_app.journal.agents.keeper import Keeper, KeeperContext
from streams_app.journal.core.block import decode, stored_bytes
from streams_app.journal.core.entry import Row
from streams_app.journal.store.journal_store import (
    BlocksReply,
    InitialState,
    JournalScripts,
    JournalShardReader,
    JournalStore,
)
from streams_app.journal.store.keys import journal_keys
from streams_app.journal.store.segment import Segment
from streams_app.settings import JournalSettings
from tests.conftest import Names
from tests.helpers.journal.journals import blocks_of

CLOCK_MS = 1_787_000_000_000
HOUR_MS = 3_600_000
KEYS = [b"", b"a", b"a\0", b"b", *(b"k%d" % n for n in range(40))]


class Shard:
    """A shard as its owner knows it."""

    def __init__(self, client: redis.asyncio.Redis, names: Names, **settings: Any) -> None:
        given = {"name": "accounts", "source": "t", "key": "a", "keep": "3h", "compress_rate": 10**12, "max_bytes": 10**9}
        self.journal = JournalSettings(**(given | settings))  # type: ignore[arg-type]  # values of each kind
        self.tp = TP("t", 0)
        self.partitions = 1
        self.keys = journal_keys(names.app_id, "accounts", "t", 0)
        self.client = client
        self.scripts = JournalScripts(client)
        self.store = JournalStore(self.scripts, self.keys, "a")
        self.reader = JournalShardReader(self.scripts)
        self.segments: list[Segment] = []
        self.clock_ms = CLOCK_MS
        self.lag: int | None = 0
        self.fence = -1
        self.rows: list[Row] = []
        self.seen: list[tuple[str, object]] = []
        self.keeper_context = KeeperContext(
            lambda segment, cause: self.seen.append((cause, segment.first)),
            lambda before, after: self.seen.append(("packed", before > after)),
            lambda blocks: self.seen.append(("damaged", blocks)),
        )
        self.keeper = Keeper(self, self.keeper_context)
        self.random = random.Random(7)

    @property
    def closed(self) -> Sequence[Segment]:
        return self.segments[:-1]

    def replace_segment(self, segment: Segment) -> None:
        self.segments = [segment if one.first == segment.first else one for one in self.segments]

    def drop_segment(self, segment: Segment) -> None:
        self.segments = [one for one in self.segments if one.first != segment.first]

    async def add(self, events: int = 300, *, hours: int = 1, size: int = 40) -> Segment:
        """A segment whose newest event is so many hours old."""
        segment = Segment(first=self.fence + 1, day="2026-08-20", part=len(self.segments), generation="a")
        for _ in range(0, events, 50):
            rows = []
            for offset in range(self.fence + 1, self.fence + 51):
                value = None if offset % 11 == 0 else self.random.randbytes(2) * (size // 2)
                headers = (("h", b"1"), ("n", None)) if offset % 7 == 0 else ()
                rows.append(Row(self.random.choice(KEYS), offset, CLOCK_MS, value, headers))
            blocks = blocks_of(rows)
            segment = replace(
                segment,
                entries=segment.entries + 50,
                stored_bytes=segment.stored_bytes + stored_bytes(blocks),
                received_bytes=segment.received_bytes + 50 * size,
                newest_ms=CLOCK_MS - hours * HOUR_MS,
                last=self.fence + 50,
            )
            await self.store.append(self.fence, self.fence + 50, blocks, segment, CLOCK_MS, ())
            self.fence += 50
            self.rows += rows
        self.segments.append(segment)
        return segment

    async def read(self, key: bytes, after: int) -> list[Row]:
        found: list[Row] = []
        while isinstance(reply := await self.reader.read(self.keys, key, after), BlocksReply):
            rows = [row for block in reply.blocks for row in decode(block) if row.key == key]
            found += [row for row in rows if row.offset > (found[-1].offset if found else after)]
            after = reply.up_to
        return found

    async def names(self) -> set[str]:
        base = self.keys.blocks_prefix
        return {key.decode().removeprefix(base) async for key in self.client.scan_iter(f"{base}*")}

    async def forms(self) -> list[str]:
        status = await self.reader.status(self.keys)
        assert status is not None
        assert list(status.segments) == self.segments
        assert await self.names() == {f"{one.first}:{one.generation}" for one in status.segments}
        return [one.form for one in status.segments]

    async def check(self) -> None:
        """Every key is read as it was filed, from the floor on."""
        floor = self.segments[0].first
        for key in KEYS:
            assert [row for row in self.rows if row.key == key and row.offset >= floor] == await self.read(key, floor - 1)


async def made(client: redis.asyncio.Redis, names: Names, **settings: Any) -> Shard:
    shard = Shard(client, names, **settings)
    await shard.store.claim("id", 1, begin=InitialState(-1, CLOCK_MS))
    return shard
