"""What a journal takes of Redis, beside a plain stream a key and beside the source document: a stream a key and day, and a set.

It needs no Kafka: the calls are those of a worker and a reader, with their own classes and scripts.
"""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import redis.asyncio

from benchmarks.journal_rows import DAY_MS, DAYS, LOADS, TOLERANCE, Load, Record, Sizes, large, mixed, month
from benchmarks.live_redis import Meter
from benchmarks.live_rows import Row, percentile
from benchmarks.servers import SLOW_MS, Servers
from streams_app.delivery.batch import TP
from streams_app.journal.agents.keeper import Keeper, KeeperContext
from streams_app.journal.agents.shard import JournalShard
from streams_app.journal.core.block import MAX_CHUNK_EVENTS, rows_of_key
from streams_app.journal.core.day import begin_of, day_of
from streams_app.journal.reading.reader import JournalReader
from streams_app.journal.store.journal_store import (
    BlocksReply,
    InitialState,
    JournalScripts,
    JournalShardReader,
    JournalStore,
)
from streams_app.journal.store.keys import journal_keys
from streams_app.settings import JournalSettings, Limits, Settings
from tests.helpers.waiting import wait_until

APP_ID: Final = "bench"
NAME: Final = "accounts"
SOURCE: Final = "events"
PARTITIONS: Final = 8
KEYS: Final = journal_keys(APP_ID, NAME, SOURCE, 0)
PIPELINE: Final = 500
_LOGGED_US: Final = 10
"""Redis logs what takes longer: every script."""

_COUNTED_MS: Final = 0.1
"""Shorter calls would make the median look good."""

Show = Callable[[list[Row]], None]


@dataclass
class Longest:
    """The longest time of each script, by the log of Redis: that of its clock, waiting for a core included.

    Attributes:
        by_script: Script → its times in ms.
    """

    by_script: dict[str, list[float]] = field(default_factory=dict)

    async def begin(self, client: redis.asyncio.Redis) -> None:
        """Makes Redis log what is not very short."""
        await client.config_set("slowlog-log-slower-than", _LOGGED_US)
        await client.config_set("slowlog-max-len", 20_000)
        await client.slowlog_reset()

    async def collect(self, client: redis.asyncio.Redis) -> None:
        """Takes what is logged, and frees its memory."""
        for entry in await client.slowlog_get(20_000):
            words = entry["command"].split(maxsplit=2)
            if len(words) > 1 and (name := _SHAS.get(words[1])) is not None:
                self.by_script.setdefault(name, []).append(entry["duration"] / 1000)
        await client.slowlog_reset()

    def rows(self) -> list[Row]:
        """One for each script."""
        return [self._row(name) for name in JournalScripts.names()]

    def _row(self, name: str) -> Row:
        times = self.by_script.get(name, [0.0])
        counted = [took for took in times if took > _COUNTED_MS]
        median, over = statistics.median(counted or [0.0]), sum(took > SLOW_MS for took in times)
        beside = f"{len(counted):,} calls over {_COUNTED_MS} ms: median {median:.1f} ms, {over} over {SLOW_MS} ms"
        return Row(f"longest time of {name}.lua in Redis", max(times), SLOW_MS, "ms", beside)


_SHAS: Final = {
    hashlib.sha1(JournalScripts.source(name).encode(), usedforsecurity=False).hexdigest().encode(): name
    for name in JournalScripts.names()
}


@dataclass(frozen=True, slots=True)
class Packed:
    """What packing a segment took.

    Attributes:
        received_bytes: Of the segment.
        seconds: By the clock.
        cpu_seconds: Of this process and of Redis.
    """

    received_bytes: int
    seconds: float
    cpu_seconds: float


@dataclass
class Filled:
    """A shard with its keeper.

    Attributes:
        shard: As its owner knows it.
        keeper: Its keeper.
    """

    shard: JournalShard
    keeper: Keeper

    @classmethod
    async def begun(cls, scripts: JournalScripts, begin_ms: int) -> Filled:
        """Claims a shard that holds nothing."""
        journal = JournalSettings(
            name=NAME, source=SOURCE, key="account_id", keep="365d", max_bytes=64_000_000_000, compress_rate=10**12
        )
        store = JournalStore(scripts, KEYS, "token", "owner")
        claimed = await store.claim("", PARTITIONS, begin=InitialState(-1, begin_ms))
        assert claimed is not None
        shard = JournalShard(journal, TP(SOURCE, 0), PARTITIONS, Limits(), store, "token", claimed)
        shard.lag = 0
        return cls(shard, Keeper(shard, KeeperContext()))

    async def file(self, records: Iterable[Record]) -> None:
        """Files events, as a processor does it."""
        given, now_ms = list(records), time.time_ns() // 1_000_000
        at = 0
        while at < len(given):
            part = given[at : at + MAX_CHUNK_EVENTS]
            filing = self.shard.filing_of(part, part[-1].offset + 1, now_ms)
            await self.shard.write(filing)
            at += filing.chunk.entries

    async def close(self) -> None:
        """Ends the day."""
        self.shard.clock_ms += DAY_MS
        await self.shard.close_day()

    async def pack(self) -> None:
        """Packs all segments that are over."""
        while await self.keeper.pack_once():
            pass
        if any(one.form == "raw" for one in self.shard.closed):
            raise RuntimeError("a segment that is over was not packed")

    async def drop(self) -> None:
        """Removes what is over, segment by segment."""
        while await self.keeper.drop_oldest("size"):
            pass


def days_ago(days: int) -> int:
    """When that day began, UTC."""
    return begin_of(day_of(time.time_ns() // 1_000_000 - days * DAY_MS))


class Bench:
    """Measures on one empty Redis, which is empty between two measurements."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client
        self._scripts = JournalScripts(client)
        self._meter = Meter(client)
        self.longest = Longest()
        self._packs: dict[str, Packed] = {}

    async def bytes(self) -> int:
        """What Redis holds, without its log and what it is still freeing in the background."""
        await self.longest.collect(self._client)
        await wait_until(self._is_freed, 60, "Redis has freed what was removed")
        return await self._meter.bytes()

    async def _is_freed(self) -> bool:
        found: dict[str, Any] = await self._client.info("memory")
        return not found["lazyfree_pending_objects"]

    async def empty(self) -> int:
        """Empties Redis; what it uses then."""
        await self._client.flushall()
        return await self.bytes()

    async def streams(self, records: Iterable[Record], *, by_day: bool) -> int:
        """Bytes of the same events in a stream a key, or in one a key and day and the set that names them."""
        empty = await self.empty()
        pipeline = self._client.pipeline(transaction=False)
        for record in records:
            name = record.key.decode()
            stream = f"bench_{name}_{day_of(record.timestamp)}" if by_day else f"bench_{name}"
            pipeline.xadd(stream, {"message": record.value}, id=f"{record.offset + 1}-0")
            if by_day:
                pipeline.sadd(f"bench_{name}_streams", stream)
            if len(pipeline) >= PIPELINE:
                await pipeline.execute()
        await pipeline.execute()
        found = await self.bytes() - empty
        await self.empty()
        return found

    async def load(self, load: Load, events: int) -> list[Row]:
        """A day of one kind: its bytes while it is open and once it is packed, and how fast it was appended."""
        begin_ms = days_ago(2)
        records = list(mixed(events, load.a_key, load.size, begin_ms))
        plain = await self.streams(records, by_day=False) / events
        document = await self.streams(records, by_day=True) / events
        empty = await self.empty()
        filled = await Filled.begun(self._scripts, begin_ms)
        used = await self._meter.used(lambda: filled.file(records))
        opened = (await self.bytes() - empty) / events
        await filled.close()
        self._packs[load.name] = await self._timed(filled)
        packed = (await self.bytes() - empty) / events
        beside = f"a stream a key {plain:.0f} B, a stream a key and day {document:.0f} B"
        rows = [
            Row(f"Redis bytes an event, open, {load.name}", opened, load.opened * TOLERANCE, "B", beside),
            Row(f"Redis bytes an event, packed, {load.name}", packed, load.packed * TOLERANCE, "B", beside),
        ]
        if load is LOADS[0]:
            rows.append(Row("quiet keys, packed, of a stream a key and day", packed / document, 0.05, "x"))
        if load.append:
            name = f"appended a second of Redis' core, {load.name}"
            rows.append(Row(name, events / max(used, 1e-6), load.append / TOLERANCE, "events", at_least=True))
        await filled.drop()
        await self.empty()
        return rows

    def packing(self) -> Row:
        """How fast segments were packed: read, compressed, written, read back and swapped."""
        packs = self._packs.values()
        received = sum(one.received_bytes for one in packs) / 1e6
        seconds, cpu = sum(one.seconds for one in packs), sum(one.cpu_seconds for one in packs)
        each = ", ".join(f"{name} {one.received_bytes / one.cpu_seconds / 1e6:.0f}" for name, one in self._packs.items())
        beside = f"a second of the CPU of keeper and Redis {received / cpu:.0f} MB: {each}"
        return Row("received MB packed a second", received / seconds, 40, "MB/s", beside, at_least=True)

    async def _timed(self, filled: Filled) -> Packed:
        received = sum(one.received_bytes for one in filled.shard.closed)
        cpu, began = time.process_time(), time.monotonic()
        of_redis = await self._meter.used(filled.pack)
        return Packed(received, time.monotonic() - began, time.process_time() - cpu + of_redis)

    async def large(self, events: int) -> None:
        """Large events go through all scripts: for their longest times, and so that Redis has loaded them before it is measured."""
        filled = await Filled.begun(self._scripts, days_ago(2))
        await filled.file(large(events, days_ago(2)))
        await self._read_all(3)
        await filled.close()
        await filled.pack()
        await self._read_all(3)
        await filled.drop()
        await self.empty()

    async def _read_all(self, keys: int) -> None:
        reader = JournalShardReader(self._scripts)
        for account in range(keys):
            at = -1
            while isinstance(reply := await reader.read(KEYS, b"saccount_%d" % account, at), BlocksReply):
                at = reply.up_to

    async def month(self, settings: Path, sizes: Sizes) -> list[Row]:
        """30 days of quiet keys, of which the last is open, and reads of them."""
        begin_ms = days_ago(DAYS)
        records = list(month(sizes.keys, begin_ms))
        plain = await self.streams(records, by_day=False)
        document = await self.streams(records, by_day=True)
        empty = await self.empty()
        filled = await Filled.begun(self._scripts, begin_ms)
        await filled.file(records)
        await filled.pack()
        own = await self.bytes() - empty
        each = f"{own / len(records):.0f} B an event, stream a key {plain / len(records):.0f} B"
        beside = f"{each}, a stream a key and day {document / len(records):.0f} B"
        rows = [
            Row("30 days, of a stream a key", own / plain, 0.3, "x", beside),
            await self.first_entry(settings, sizes),
            await self.one_key(filled, sizes),
        ]
        # A takeover: the claim finds all segments.
        await JournalStore(self._scripts, KEYS, "next", "owner").claim("", PARTITIONS)
        await self.empty()
        return rows

    async def first_entry(self, settings: Path, sizes: Sizes) -> Row:
        """How long a reader of all partitions waits for the first entry of a key."""
        for partition in range(1, PARTITIONS):
            keys = journal_keys(APP_ID, NAME, SOURCE, partition)
            await JournalStore(self._scripts, keys, "token").claim("", PARTITIONS, begin=InitialState(-1, days_ago(DAYS)))
        took = []
        async with JournalReader(Settings.load(settings, {})) as reader:
            for number in range(sizes.reads):
                began = time.perf_counter()
                found = reader.read(f"account_{number % sizes.keys}")
                await anext(found)
                took.append((time.perf_counter() - began) * 1000)
                await found.aclose()
        beside = f"p99 {percentile(took, 0.99):.1f} ms, {PARTITIONS} partitions, {DAYS} days; {took[0]:.1f} ms with the connection"
        return Row("first entry of a key, median", statistics.median(took), 20, "ms", beside)

    async def one_key(self, filled: Filled, sizes: Sizes) -> Row:
        """How long one key of a packed segment takes, decoded."""
        reader, segment, took, count = JournalShardReader(self._scripts), filled.shard.segments[0], [], 0
        assert segment.form == "packed"
        for number in range(sizes.reads):
            key = b"saccount_%d" % (number % sizes.keys)
            began = time.perf_counter()
            at = segment.first - 1
            while at < (segment.last or 0):
                # A block at a time: a reply of the usual size has those of later days, too.
                reply = await reader.read(KEYS, key, at, 1)
                if not isinstance(reply, BlocksReply):
                    break
                count += sum(at < row.offset for block in reply.blocks for row in rows_of_key(block, key))
                at = reply.up_to
            took.append((time.perf_counter() - began) * 1000)
        if not count:
            raise RuntimeError("no key was found in the packed segment")
        beside = f"request and decoding, p99 {percentile(took, 0.99):.1f} ms"
        return Row("one key of a packed segment, median", statistics.median(took), 0.3 * TOLERANCE, "ms", beside)


async def cost_of_redis(servers: Servers, folder: Path, sizes: Sizes, show: Show) -> None:
    """All of it, one after the other."""
    settings = folder / "reader.toml"
    settings.write_text(
        f'app_id = "{APP_ID}"\n[redis]\nurl = "{servers.redis_url}"\n'
        f'[journals.{NAME}]\nsource = "{SOURCE}"\nkey = "account_id"\nkeep = "365d"\n',
        "utf-8",
    )
    async with redis.asyncio.Redis.from_url(servers.redis_url) as client:
        if await client.dbsize():
            raise RuntimeError("this Redis holds something, and the benchmark empties it: give it one of its own")
        before: Any = await client.config_get("slowlog-*")
        bench = Bench(client)
        await bench.longest.begin(client)
        try:
            await bench.large(1)
            for load in LOADS:
                show(await bench.load(load, sizes.events))
            show([bench.packing()])
            show(await bench.month(settings, sizes))
            await bench.large(sizes.large)
            await bench.longest.collect(client)
            show(bench.longest.rows())
        finally:
            for name, value in before.items():
                await client.config_set(name, value)
