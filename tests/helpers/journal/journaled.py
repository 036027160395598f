"""A journal of a test: an application that has nothing else, and what Redis holds of it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import orjson
import redis.asyncio

from streams_app.journal.core.block import decode
from streams_app.journal.core.entry import Row
from streams_app.journal.store.journal_store import (
    BlocksReply,
    GapReply,
    JournalScripts,
    JournalShardReader,
    NoStateReply,
    RemovedReply,
)
from streams_app.journal.store.keys import journal_keys
from streams_app.journal.store.segment import Segment
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import LIMIT_SECONDS, Site

NAME = "accounts"


class Journaled:
    """An application with the journal ``accounts`` of the topic ``events``."""

    def __init__(self, site: Site) -> None:
        self.site = site

    @property
    def source(self) -> str:
        return self.site.names.topic("events")

    def config(self, name: str = "streams.toml", more: str = "", **options: Any) -> Path:
        table = {"source": self.source, "key": "account_id", **options}
        lines = "".join(f"{key} = {orjson.dumps(value).decode()}\n" for key, value in table.items())
        return self.site.config(f"[journals.{NAME}]\n{lines}{more}", name)

    async def topics(self, **options: Any) -> None:
        await self.site.topics("events", **options)

    async def put(self, numbers: Collection[int], account: str = "a", **options: Any) -> None:
        """Events of an account, each with its number."""
        events = [orjson.dumps({"account_id": account, "n": number}) for number in numbers]
        await self.site.send("events", [(account.encode(), event) for event in events], **options)

    def redis(self) -> redis.asyncio.Redis:
        return redis.asyncio.Redis.from_url(self.site.redis_url)

    async def segments(self, partition: int = 0) -> tuple[Segment, ...]:
        async with self.redis() as client:
            reader = JournalShardReader(JournalScripts(client))
            status = await reader.status(journal_keys(self.site.names.app_id, NAME, self.source, partition))
        return () if status is None else status.segments

    async def rows(self, key: bytes = b"sa", partition: int = 0, after: int | None = None) -> tuple[list[Row], list[GapReply]]:
        """The events of a key in a partition, and the gaps: as a reader is given them, from the floor on."""
        async with self.redis() as client:
            reader = JournalShardReader(JournalScripts(client))
            keys = journal_keys(self.site.names.app_id, NAME, self.source, partition)
            status = await reader.status(keys)
            if status is None:
                return [], []
            at = status.floor - 1 if after is None else after
            rows: list[Row] = []
            gaps: list[GapReply] = []
            while at < status.fence:
                reply = await reader.read(keys, key, at, 1_000_000)
                if isinstance(reply, BlocksReply):
                    rows += [row for block in reply.blocks for row in decode(block) if row.key == key and row.offset > at]
                    at = reply.up_to
                elif isinstance(reply, GapReply):
                    gaps.append(reply)
                    at = reply.last
                elif isinstance(reply, RemovedReply | NoStateReply):
                    return rows, gaps
                else:
                    at = reply.up_to
        return rows, gaps

    async def numbers(self, account: str = "a", partitions: int = 1) -> list[int]:
        """Numbers of the events of an account, partition by partition."""
        found = await asyncio.gather(*(self.rows(b"s" + account.encode(), partition) for partition in range(partitions)))
        return [orjson.loads(row.value or b"{}")["n"] for rows, _ in found for row in rows]

    async def has(self, numbers: Sequence[int], account: str = "a", partitions: int = 1) -> None:
        """Returns once the journal has these events of an account, each once."""

        async def found() -> bool:
            return sorted(await self.numbers(account, partitions)) == sorted(numbers)

        try:
            await wait_until(found, LIMIT_SECONDS, f"the journal has {len(numbers)} events of {account}")
        except AssertionError as error:
            raise AssertionError(f"{error}; it has {await self.numbers(account, partitions)}") from error

    async def filed(self, entries: int) -> None:
        """Returns once the first partition has so many entries."""

        async def found() -> bool:
            return sum(segment.entries for segment in await self.segments()) >= entries

        await wait_until(found, LIMIT_SECONDS, f"{entries} are filed")

    async def filed_up_to(self, offset: int) -> None:
        """Returns once the first partition is filed up to an offset."""

        async def found() -> bool:
            segments = await self.segments()
            return bool(segments) and (segments[-1].last or 0) >= offset

        await wait_until(found, LIMIT_SECONDS, f"offset {offset} is filed")
