"""Journals as their workers leave them in Redis, made by the store alone."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import Any

import redis.asyncio

from streams_app.codec import member_of
from streams_app.delivery.fingerprints import Fingerprint
from streams_app.journal.core.block import ShortRow, encode, encode_by_key, short_of
from streams_app.journal.core.day import begin_of, day_of
from streams_app.journal.core.entry import Row
from streams_app.journal.store.journal_store import InitialState, JournalScripts, JournalShardReader, JournalStore
from streams_app.journal.store.keys import journal_keys
from streams_app.journal.store.segment import Segment
from streams_app.settings import Settings

FIRST_DAY = "2026-08-18"
DAY_MS = 86_400_000


def at(day: int, offset: int = 0) -> int:
    """A moment on one of the days, 0 the first; later with each offset."""
    return begin_of(FIRST_DAY) + day * DAY_MS + offset


def row(key: str | bytes, offset: int, day: int = 0, value: bytes | None = b"{}") -> Row:
    return Row(member_of((key,)) if isinstance(key, str) else key, offset, at(day, offset), value)


def blocks_of(rows: Iterable[Row]) -> list[bytes]:
    """One block for each key, as an append writes them."""
    found: dict[bytes, list[ShortRow]] = {}
    for one in rows:
        found.setdefault(one.key, []).append(short_of(one))
    return encode_by_key(found)


class JournalShard:
    """One partition, in the hands of whoever claimed it last."""

    def __init__(self, client: redis.asyncio.Redis, settings: Settings, partition: int = 0, partitions: int = 1) -> None:
        journal = settings.journals[0]
        self.client = client
        self.keys = journal_keys(settings.app_id, journal.name, journal.source, partition)
        self.scripts = JournalScripts(client)
        self.reader = JournalShardReader(self.scripts)
        self._partitions = partitions
        self.fence, self.clock_ms = -1, at(0)

    async def claim(self, begin: int = 0) -> None:
        """Take the partition; what is created begins at an offset."""
        self.store = JournalStore(self.scripts, self.keys, secrets.token_hex(8))
        claimed = await self.store.claim("id", self._partitions, begin=InitialState(begin - 1, at(0)))
        assert claimed is not None
        self.fence, self.clock_ms = claimed.fence, claimed.clock_ms

    async def segments(self) -> tuple[Segment, ...]:
        status = await self.reader.status(self.keys)
        return () if status is None else status.segments

    async def append(self, rows: Iterable[Row], *, to: int | None = None) -> None:
        """Files rows by their day, each in the newest segment or in a new one, and moves the fence."""
        for day, of_day in groupby(rows, lambda one: day_of(one.time_ms)):
            chunk = list(of_day)
            segments = await self.segments()
            newest = segments[-1] if segments else None
            if newest is None or newest.day < day or newest.form == "gap":
                newest = Segment(first=self.fence + 1, day=day, generation=secrets.token_hex(4))
            size = sum(len(one.value or b"") for one in chunk)
            about = replace(
                newest, entries=newest.entries + len(chunk), newest_ms=max(newest.newest_ms, *(one.time_ms for one in chunk)),
                received_bytes=newest.received_bytes + size, last=None,
                largest=tuple((key, sum(len(one.value or b"") for one in of_key)) for key, of_key in by_key(chunk)),
            )  # fmt: skip
            await self._append(chunk[-1].offset, blocks_of(chunk), about)
        if to is not None and to > self.fence:
            await self._append(to, [], replace((await self.segments())[-1], last=None))

    async def gap(self, last: int) -> None:
        """Add a gap behind the fence, as a claim does where retention was faster."""
        segments = await self.segments()
        day = segments[-1].day if segments else FIRST_DAY
        await self._append(last, [], Segment(first=self.fence + 1, day=day, form="gap", is_closed=True))

    async def _append(self, to: int, blocks: Sequence[bytes], about: Segment) -> None:
        self.clock_ms = max(self.clock_ms, about.newest_ms)
        await self.store.append(self.fence, to, blocks, about, self.clock_ms, (Fingerprint(to, 7),))
        self.fence = to

    async def pack(self, first: int, rows: Iterable[Row]) -> None:
        """Put packed blocks in the place of raw ones; all keys share one block."""
        (segment,) = [one for one in await self.segments() if one.first == first]
        packed = replace(segment, form="packed", generation=secrets.token_hex(4), is_closed=True)
        block = encode(sorted(rows, key=lambda one: one[:2]), 3)
        assert await self.store.stage(packed, [block], begins=True)
        assert await self.store.swap(packed, 1)

    async def blocks_key(self, first: int) -> str:
        (segment,) = [one for one in await self.segments() if one.first == first]
        return f"{self.keys.blocks_prefix}{first}:{segment.generation}"

    async def damage(self, first: int, change: bytes = b"\xff", *, at_byte: int = -1) -> None:
        """Overwrites a byte in the first block of a segment, whose checksum no longer matches."""
        key = await self.blocks_key(first)
        found: Any = await self.client.zrange(key, 0, 0)
        (block,) = found
        changed = bytearray(block)
        changed[at_byte] ^= change[0]
        await self.client.zrem(key, block)
        await self.client.zadd(key, {bytes(changed): 0})

    async def evict(self, first: int) -> None:
        """Remove the blocks of a segment, as Redis does without ``noeviction``."""
        await self.client.delete(await self.blocks_key(first))

    async def wipe(self) -> None:
        base = self.keys.meta.removesuffix("meta")
        names = [name async for name in self.client.scan_iter(f"{base}*")]
        await self.client.delete(*names)


def by_key(rows: Iterable[Row]) -> Iterable[tuple[bytes, list[Row]]]:
    return ((key, list(of_key)) for key, of_key in groupby(sorted(rows, key=lambda one: one[:2]), attrgetter("key")))
