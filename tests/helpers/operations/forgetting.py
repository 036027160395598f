"""An application for tests of ``streams-app forget``, and where it still has traces of a key."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from redis.asyncio import Redis

from streams_app.clock import SystemClock
from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.event import FoldEvent
from streams_app.folding.store.shard_store import ShardStore
from streams_app.journal.core.block import decode
from streams_app.journal.core.entry import Row
from streams_app.operations.forget import Request, forget, plan_forget
from streams_app.operations.forget.part import Receipt
from streams_app.settings import Settings
from tests.helpers.folding.scripts import open_in
from tests.helpers.journal.journals import JournalShard
from tests.helpers.kafka.topics import produce

PERSON = "person-4711-xq"
"""A key that no other test has, and that occurs in no other text."""

BOUNDS = Bounds(1_000, 3_600_000)


class Application:
    """An application without workers, with state that its workers left."""

    def __init__(self, client: Redis, given: dict[str, Any]) -> None:
        self.client, self._given = client, given
        self.settings = Settings.model_validate(given)

    def with_read_store(self, **declared: Any) -> None:
        (fold,) = self._given["folds"]
        stores = [{"name": "rows", "folds": ["f"], "source": "carried", **declared}]
        self.settings = Settings.model_validate(self._given | {"folds": [fold | {"keep": "last"}], "read_stores": stores})

    def with_fold(self, **declared: Any) -> None:
        (fold,) = self._given["folds"]
        self.settings = Settings.model_validate(self._given | {"folds": [fold | declared]})

    def with_journal(self, **declared: Any) -> None:
        self.settings = Settings.model_validate(self._given | {"journals": [declared]})

    def redeclare(self, fold: str, folder: Path) -> None:
        """Declare only a fold with another name, and the read store."""
        folds = [self._given["folds"][0] | {"name": fold, "keep": "last"}]
        stores = [{"name": "rows", "folds": [fold], "source": "carried", "url": f"sqlite:///{folder}/read.db"}]
        given = {name: self._given[name] for name in ("app_id", "redis", "kafka")}
        self.settings = Settings.model_validate(given | {"folds": folds, "read_stores": stores})

    async def forget(self, key: str = PERSON, wait_seconds: float = 0, **wanted: Any) -> Receipt:
        return await forget(self.settings, Request(key, **wanted), SystemClock(), wait_seconds)

    async def plan(self, key: str = PERSON, **wanted: Any) -> Receipt:
        return await plan_forget(self.settings, Request(key, **wanted), SystemClock())

    async def open_groups(self, *keys: str, first: int = 0) -> ShardStore:
        events = [FoldEvent(first + at, 5_000 + at, b"s" + key.encode(), {"likes": 1}) for at, key in enumerate(keys)]
        return await open_in(self.settings.app_id, "f", self.settings.folds[0].source, self.client, 0, events, BOUNDS)

    async def everything(self) -> dict[bytes, bytes]:
        """Return each key of the application in Redis with its content; compressed blocks are decompressed."""
        found = {}
        async for key in self.client.scan_iter(match=f"{{{self.settings.app_id}/*", count=1_000):
            found[key] = await self._content(key)
        return found

    async def _content(self, key: bytes) -> bytes:
        client: Any = self.client
        match await client.type(key):
            case b"hash":
                fields = await client.hgetall(key)
                return b"|".join(part for pair in sorted(fields.items()) for part in pair)
            case b"set":
                return b"|".join(sorted(await client.smembers(key)))
            case b"zset":
                members = [member for member, _ in await client.zrange(key, 0, -1, withscores=True)]
                if b":blocks:" in key:
                    return b"|".join(repr(rows).encode() for member in members for rows in decode(member))
                return b"|".join(members)
        return bytes(await client.get(key))

    async def traces(self, key: str = PERSON) -> list[bytes]:
        return [name for name, content in (await self.everything()).items() if key.encode() in name + content]


def in_files(folder: Path, text: str) -> list[str]:
    return [path.name for path in sorted(folder.iterdir()) if text.encode() in path.read_bytes()]


async def produced(application: Application, events: int, topic: str = "") -> None:
    settings = application.settings
    await produce(settings.kafka.bootstrap_servers, topic or settings.folds[0].source, [(b"k", b"{}")] * events)


def of_others(rows: list[Row]) -> list[Row]:
    return [one for one in rows if one.key != b"s" + PERSON.encode()]


async def rows_in(shard: JournalShard) -> list[Row]:
    """Return every row of a journal, by segment, key and offset."""
    return [
        found
        for segment in await shard.segments()
        if segment.form != "gap"
        for block in cast("Any", await shard.client.zrange(await shard.blocks_key(segment.first), 0, -1))
        for found in decode(block)
    ]
