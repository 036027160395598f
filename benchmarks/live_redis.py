"""What live views cost Redis, beside the commands of the source document and beside a hub that is pushed every change.

This needs no Kafka: the calls are those of a worker and a hub, with their classes and scripts.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import redis
import redis.asyncio

from benchmarks.live_rows import Row, Sizes
from streams_app.live.core.operations import Change
from streams_app.live.core.state import Item
from streams_app.live.hub.polling import PAGES_A_SCRIPT
from streams_app.live.store.keys import ViewKeys, view_keys
from streams_app.live.store.view_store import LiveScripts, ViewMetadata, ViewReader, ViewStart, ViewStore, heads_of

EXPIRY_MS: Final = 86_400_000
PART: Final = 500
ITEMS: Final = 25
SHARDS: Final = 8
POLLS: Final = 20
POLLS_A_SECOND: Final = 4
PUSHED_PER_SECOND: Final = 10_000
PAYLOAD: Final = b'{"title":"%s"}' % (b"t" * 188)


@dataclass(frozen=True, slots=True)
class Shard:
    """One partition of a view and its owner."""

    store: ViewStore
    keys: ViewKeys
    fence: list[int]

    async def apply(self, changes: Iterable[Change]) -> None:
        """Apply one part of the log."""
        await self.store.apply(self.fence[0], self.fence[0] + 1, changes, ViewMetadata())
        self.fence[0] += 1


async def claimed(store: ViewStore, keys: ViewKeys, partitions: int = 1) -> Shard:
    """Return an empty partition that is claimed by its owner."""
    found = await store.claim("d", "id", partitions, begin=ViewStart(-1, now_ms(), ViewMetadata()))
    assert found is not None
    return Shard(store, keys, [found.fence])


async def shard(client: redis.asyncio.Redis, *, number: int = 0, of: int = 1, has_data: bool = False) -> Shard:
    """Return a claimed partition of a new view."""
    keys = view_keys("bench", "news", "t", number)
    store = ViewStore(LiveScripts(client), keys, f"owner-{number}", has_data=has_data, expiry_ms=EXPIRY_MS, keep=100_000)
    return await claimed(store, keys, of)


def now_ms() -> int:
    """Wall clock."""
    return time.time_ns() // 1_000_000


class Meter:
    """The resources that Redis uses."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client

    async def cpu(self) -> float:
        """Return its CPU seconds so far."""
        found: Any = await self._client.info("cpu")
        return float(found["used_cpu_user"]) + float(found["used_cpu_sys"])

    async def bytes(self) -> int:
        """Return its allocated bytes."""
        found: Any = await self._client.info("memory")
        return int(found["used_memory"])

    async def used(self, work: Callable[[], Awaitable[None]]) -> float:
        """Return the CPU seconds of some work."""
        before = await self.cpu()
        await work()
        return await self.cpu() - before


async def events(client: redis.asyncio.Redis, sizes: Sizes, pages: int, goal: float) -> Row:
    """Apply events: a script for each part, or ZADD and ZREMRANGEBYSCORE for each event, in pipelines of the same size."""
    meter = Meter(client)
    given = [(f"p{number % pages}", f"c{number:08d}") for number in range(sizes.events)]

    async def document() -> None:
        for at in range(0, len(given), PART):
            pipeline = client.pipeline(transaction=False)
            for page, item in given[at : at + PART]:
                pipeline.zadd(f"supporters:{page}", {item: now_ms()})
                pipeline.zremrangebyscore(f"supporters:{page}", "-inf", now_ms() - EXPIRY_MS)
            await pipeline.execute()

    one = await shard(client)

    async def ours() -> None:
        for at in range(0, len(given), PART):
            changes: dict[str, list[Item]] = {}
            for page, item in given[at : at + PART]:
                changes.setdefault(page, []).append(Item(item, now_ms()))
            await one.apply([Change(page, [], put) for page, put in changes.items()])

    theirs, own = await meter.used(document), await meter.used(ours)
    await client.flushall()
    beside = f"{own / sizes.events * 1e6:.2f} us, the document's two commands {theirs / sizes.events * 1e6:.2f} us"
    return Row(f"Redis' CPU of an event, {pages:,} pages", own / max(theirs, 1e-9), goal, "x", beside)


async def sets(client: redis.asyncio.Redis, sizes: Sizes) -> list[Row]:
    """Measure sets of 25 items in the simple layout and in that of a view, and requests for them."""
    meter = Meter(client)
    names = [[f"c{page:06d}{item:02d}" for item in range(ITEMS)] for page in range(sizes.sets)]
    empty = await meter.bytes()
    for page, items in enumerate(names):
        await client.zadd(f"supporters:{page}", {item: now_ms() - number for number, item in enumerate(items)})
    theirs = await meter.bytes() - empty

    async def their_requests() -> None:
        for number in range(sizes.requests):
            pipeline = client.pipeline(transaction=False)
            pipeline.zremrangebyscore(f"supporters:{number % sizes.sets}", "-inf", now_ms() - EXPIRY_MS)
            pipeline.zcard(f"supporters:{number % sizes.sets}")
            await pipeline.execute()

    their_share = await meter.used(their_requests) / sizes.requests * 200
    await client.flushall()
    one = await shard(client)
    empty = await meter.bytes()
    for page, items in enumerate(names):
        await one.apply([Change(str(page), [], [Item(item, now_ms() - number) for number, item in enumerate(items)])])
    own = await meter.bytes() - empty
    reader = ViewReader(client, LiveScripts(client), 1, has_data=False)

    async def our_requests() -> None:
        for number in range(sizes.requests):
            await heads_of(client, [one.keys])
            await reader.poll(one.keys, {str(number % sizes.sets): ""})

    our_share = await meter.used(our_requests) / sizes.requests * 200
    await client.flushall()
    return [
        Row(f"{sizes.sets:,} sets of {ITEMS} items", own / 1e6, 6, "MB", f"the document's layout {theirs / 1e6:.2f} MB"),
        Row("200 requests/s for one of them, part of Redis' core", our_share, 0.05, "%", f"the document's {their_share:.1%}"),
    ]


async def item_bytes(client: redis.asyncio.Redis, sizes: Sizes) -> list[Row]:
    """Measure the bytes of an item, by items per page; the goals are those of the prototype plus 10 %."""
    rows = []
    for name, a_page, payload, prototype in (
        ("a count, 128 a page", 128, b"", 28),
        ("a count, 1 000 a page", 1_000, b"", 102),
        ("a list with payloads of 200 B, 1 000 a page", 1_000, PAYLOAD, 384),
    ):
        meter, one, pages = Meter(client), await shard(client, has_data=bool(payload)), max(1, sizes.items // a_page)
        empty = await meter.bytes()
        for number in range(pages):
            put = [Item(f"c{number * a_page + item:08d}", now_ms(), payload) for item in range(a_page)]
            await one.apply([Change(f"p{number}", [], put)])
        own = (await meter.bytes() - empty) / (pages * a_page)
        await client.flushall()
        empty = await meter.bytes()
        for number in range(pages):
            scores = {f"c{number * a_page + item:08d}": now_ms() for item in range(a_page)}
            await client.zadd(f"supporters:p{number}", scores)
            if payload:
                await client.hset(f"items:p{number}", mapping=dict.fromkeys(scores, payload))
        theirs = (await meter.bytes() - empty) / (pages * a_page)
        await client.flushall()
        rows.append(
            Row(f"bytes an item, {name}", own, prototype * 1.1, "B", f"in sets{' and hashes' * bool(payload)} {theirs:.0f} B")
        )
    return rows


async def due(client: redis.asyncio.Redis, sizes: Sizes) -> Row:
    """Measure the expiry of items that are all due at the same instant."""
    one, meter, at_ms = await shard(client), Meter(client), now_ms()
    for at in range(0, sizes.due, PART):
        await one.apply([Change(f"p{at // PART}", [], [Item(f"c{at + number}", at_ms) for number in range(PART)])])
    scripts, expired = 0, 0

    async def expire() -> None:
        nonlocal scripts, expired
        is_more = True
        while is_more:
            items, is_more, _ = await one.store.expire(one.fence[0], at_ms + EXPIRY_MS, moves_clock=True)
            scripts, expired = scripts + 1, expired + items

    began = time.monotonic()
    used = await meter.used(expire)
    seconds = time.monotonic() - began
    if await client.exists(f"{one.keys.items_prefix}p0", one.keys.due):
        raise RuntimeError("items that are due are still there")
    await client.flushall()
    return Row(f"{expired:,} items due at once are gone", seconds, 5, "s", f"{used:.2f} s of Redis' CPU, {scripts} scripts")


class Polled:
    """Open pages in 8 shards, each page in one of them."""

    def __init__(self, client: redis.asyncio.Redis, shards: Sequence[Shard], pages: int, show: int) -> None:
        self.shards = shards
        self._pages = [f"p{number}" for number in range(pages)]
        self._client = client
        self._reader = ViewReader(client, LiveScripts(client), show, has_data=show > 1)
        self._versions, self._tokens = [dict.fromkeys(self._pages, "") for _ in shards], [""] * len(shards)

    async def move(self, turn: int) -> None:
        """Change each page."""
        for number, one in enumerate(self.shards):
            mine = self._pages[number :: len(self.shards)]
            await one.apply([Change(page, [], [Item(f"n{turn}", now_ms(), b'{"title":"t"}')]) for page in mine])

    async def poll(self) -> None:
        """Poll as a hub does."""
        await heads_of(self._client, [one.keys for one in self.shards])
        for number, one in enumerate(self.shards):
            versions = self._versions[number]
            for at in range(0, len(self._pages), PAGES_A_SCRIPT):
                part = {page: versions[page] for page in self._pages[at : at + PAGES_A_SCRIPT]}
                found = await self._reader.poll(one.keys, part, self._tokens[number])
                assert found is not None
                self._tokens[number] = found.head.token
                versions |= {page: state.version for page, state in found.pages.items()}


async def polls(client: redis.asyncio.Redis, sizes: Sizes, show: int, *, others: int = 0) -> Row:
    """Measure four polls a second; each page changes in one shard between two polls.

    Args:
        client: Client of an empty Redis.
        sizes: Number of pages.
        show: Items of a page; 1: a count.
        others: Number of pages in each shard that no browser has open.
    """
    shards = [await shard(client, number=number, of=SHARDS, has_data=show > 1) for number in range(SHARDS)]
    for one in shards:
        for at in range(0, others, PART):
            await one.apply([Change(f"x{number}", [], [Item("n", now_ms(), b"{}")]) for number in range(at, at + PART)])
    meter, polled = Meter(client), Polled(client, shards, sizes.pages, show)
    for turn in range(show):
        await polled.move(turn)
    await polled.poll()
    used = unmoved = 0.0
    for turn in range(show, show + POLLS):
        await polled.move(turn)
        used += await meter.used(polled.poll)
        unmoved += await meter.used(polled.poll)
    await client.flushall()
    kind = "a count" if show == 1 else f"a list of {show}"
    beside = f"of Redis' core; {unmoved / POLLS * POLLS_A_SECOND:.1%} to find that none has moved"
    name = f"polls of {sizes.pages:,} pages x {SHARDS} shards of {kind}" + (f", {others:,} others a shard" if others else "")
    return Row(name, used / POLLS * POLLS_A_SECOND, 0.03, "%", beside)


def push(url: str, seconds: float) -> None:
    """Publish changes of pages that no browser has open, as a hub with PUBLISH would receive them."""
    with redis.Redis.from_url(url) as client:
        began = time.monotonic()
        sent = 0
        while (passed := time.monotonic() - began) < seconds:
            pipeline = client.pipeline(transaction=False)
            for _ in range(max(0, int(passed * PUSHED_PER_SECOND) - sent)):
                pipeline.publish("changes", json.dumps({"page": f"p{sent % 1000}", "put": ["c1", 1], "seq": sent}))
                sent += 1
            pipeline.execute()
            time.sleep(0.01)


async def pushed(client: redis.asyncio.Redis, sizes: Sizes, url: str) -> Row:
    """Measure 10 000 changes a second of pages that no browser has open, for a hub that subscribes and a hub that polls."""
    seconds = sizes.seconds / 2
    one = await shard(client)
    pushing = multiprocessing.get_context("spawn").Process(target=push, args=(url, seconds + 1))
    pubsub = client.pubsub()
    await pubsub.subscribe("changes")
    pushing.start()
    received = 0
    async with asyncio.timeout(30):  # until the other process publishes
        while not await pubsub.get_message(ignore_subscribe_messages=True, timeout=1):
            pass
    before, began = time.process_time(), time.monotonic()
    while time.monotonic() - began < seconds:
        message = await pubsub.get_message(ignore_subscribe_messages=True, timeout=0.1)
        if message and message["type"] == "message":
            json.loads(message["data"])
            received += 1
    theirs = (time.process_time() - before) / seconds
    await pubsub.aclose()  # type: ignore[no-untyped-call]  # redis-py has no type for it
    await asyncio.to_thread(pushing.join)
    before, began = time.process_time(), time.monotonic()
    while time.monotonic() - began < seconds:
        await heads_of(client, [one.keys])
        await asyncio.sleep(1 / POLLS_A_SECOND)
    own = (time.process_time() - before) / seconds
    await client.flushall()
    beside = f"pushed {theirs:.1%}, which took {received / seconds:,.0f} changes/s"
    return Row("10 000 changes/s of pages nobody has open, part of the hub's core", own, 0.01, "%", beside)


async def cost_of_redis(url: str, sizes: Sizes) -> list[Row]:
    """Run all measurements one after the other."""
    async with redis.asyncio.Redis.from_url(url) as client:
        if await client.dbsize():
            raise RuntimeError("this Redis holds something, and the benchmark empties it: give it one of its own")
        return [
            await events(client, sizes, 10, 1),
            await events(client, sizes, 1_000, 4),
            *await sets(client, sizes),
            *await item_bytes(client, sizes),
            await due(client, sizes),
            await polls(client, sizes, 1),
            await polls(client, sizes, 1, others=5 * sizes.pages),
            await polls(client, sizes, 10),
            await pushed(client, sizes, url),
        ]
