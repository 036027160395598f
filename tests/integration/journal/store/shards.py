"""What tests of the scripts of journals share: one partition, its owners and a reader."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import redis.asyncio

from streams_app.delivery.fingerprints import Fingerprint
from streams_app.journal.core.block import decode
from streams_app.journal.core.entry import Row
from streams_app.journal.store.journal_store import (
    BlocksReply,
    GapReply,
    InitialState,
    JournalScripts,
    JournalShardReader,
    JournalStore,
    NoEventsReply,
    NoStateReply,
    RemovedReply,
)
from streams_app.journal.store.keys import journal_keys
from streams_app.journal.store.segment import Segment
from tests.conftest import Names
from tests.helpers.journal.journals import blocks_of

DAY = "2026-08-20"
NEXT = "2026-08-21"
CLOCK_MS = 1_787_000_000_000


class Shard:
    """One partition of a journal, its owners and a reader."""

    def __init__(self, client: redis.asyncio.Redis, names: Names) -> None:
        self.client = client
        self.keys = journal_keys(names.app_id, "accounts", "t", 0)
        self.scripts = JournalScripts(client)
        self.reader = JournalShardReader(self.scripts)

    def store(self, token: str) -> JournalStore:
        return JournalStore(self.scripts, self.keys, token)

    async def claimed(self, token: str = "a", *, fence: int = 9) -> JournalStore:
        store = self.store(token)
        await store.claim("id", 4, begin=InitialState(fence, CLOCK_MS))
        return store

    async def segments(self) -> tuple[Segment, ...]:
        status = await self.reader.status(self.keys)
        assert status is not None
        return status.segments

    async def offsets(self, key: bytes, after: int = -1, max_bytes: int = 1_000_000) -> list[int]:
        """What a reader that follows all replies sees."""
        found: list[int] = []
        while True:
            match await self.reader.read(self.keys, key, after, max_bytes):
                case BlocksReply(blocks, up_to):
                    for block in blocks:
                        rows = [row for row in decode(block) if row.key == key and after < row.offset]
                        found += [row.offset for row in rows]
                        after = max([after, *(row.offset for row in rows)])
                    after = up_to
                case NoEventsReply(up_to, fence):
                    after = up_to
                    if after >= fence:
                        return found
                case GapReply(_, last):
                    after = last
                case RemovedReply(floor):
                    after = floor - 1
                case NoStateReply():
                    return found

    async def names(self) -> set[str]:
        base = self.keys.meta.removesuffix("meta")
        return {key.decode().removeprefix(base) async for key in self.client.scan_iter(f"{base}*")}


def rows(key: bytes, *offsets: int, size: int = 1) -> list[Row]:
    return [Row(key, offset, CLOCK_MS + offset, b"x" * size) for offset in offsets]


def segment(first: int, day: str = DAY, **changed: object) -> Segment:
    whole = Segment(first=first, day=day, generation="a", largest=((b"k\0\xff", 7),), entries=1)
    return replace(whole, **changed)  # type: ignore[arg-type]  # names of attributes


async def fill(store: JournalStore, fence: int, to: int, of: Segment, blocks: Iterable[bytes] = ()) -> bool:
    return await store.append(fence, to, list(blocks), of, CLOCK_MS + to, (Fingerprint(to, 7),))


async def three_days(shard: Shard) -> JournalStore:
    """Segments that begin at 10, 20 and 30, the last one open up to 35, with events of two keys."""
    store = await shard.claimed()
    for first, day in ((10, "2026-08-18"), (20, "2026-08-19"), (30, DAY)):
        of = segment(first, day)
        await fill(store, first - 1, first + 4, of, blocks_of([*rows(b"a", first, first + 2), *rows(b"b", first + 3)]))
        if first < 30:
            await fill(store, first + 4, first + 9, of, blocks_of(rows(b"a", first + 5)))
        else:
            await fill(store, 34, 35, of)
    return store
