"""What live views cost Redis and a hub, beside the commands of the source document and beside a hub that is pushed every change.

``make bench-live``. It needs no Kafka: the calls are those of a worker and a hub, with their own classes and scripts.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import resource
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click
import redis
import redis.asyncio

from streams_app.embedded import Valkey
from streams_app.live.core.operations import Change
from streams_app.live.core.state import Item
from streams_app.live.store.keys import ViewKeys, view_keys
from streams_app.live.store.view_store import Beginning, Marks, ScriptSet, ViewReader, ViewStore, heads_of

EXPIRY_MS: Final = 86_400_000
PART: Final = 500
EVENTS: Final = 50_000
REQUESTS: Final = 4_000
SETS: Final = 2_000
ITEMS: Final = 25
DUE: Final = 100_000
PUSHED_PER_SECOND: Final = 10_000
SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Shard:
    """One partition of a view and its owner."""

    store: ViewStore
    keys: ViewKeys
    fence: list[int]

    async def apply(self, changes: Iterable[Change]) -> None:
        """Applies one part of the log."""
        await self.store.apply(self.fence[0], self.fence[0] + 1, changes, Marks())
        self.fence[0] += 1


async def shard(client: redis.asyncio.Redis, *, number: int = 0, of: int = 1, has_data: bool = False) -> Shard:
    """A claimed partition that holds nothing."""
    keys = view_keys("bench", "news", "t", number)
    store = ViewStore(ScriptSet(client), keys, f"owner-{number}", has_data=has_data, expiry_ms=EXPIRY_MS, keep=100_000)
    claimed = await store.claim("d", "id", of, begin=Beginning(-1, now_ms(), Marks()))
    assert claimed is not None
    return Shard(store, keys, [claimed.fence])


def now_ms() -> int:
    """Wall clock."""
    return time.time_ns() // 1_000_000


class Meter:
    """What Redis uses."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client

    async def cpu(self) -> float:
        """Seconds of its processor so far."""
        found: Any = await self._client.info("cpu")
        return float(found["used_cpu_user"]) + float(found["used_cpu_sys"])

    async def bytes(self) -> int:
        """Bytes that it holds."""
        found: Any = await self._client.info("memory")
        return int(found["used_memory"])

    async def used(self, work: Callable[[], Awaitable[None]]) -> float:
        """Seconds of its processor that some work takes."""
        before = await self.cpu()
        await work()
        return await self.cpu() - before


def events(pages: int) -> list[tuple[str, str]]:
    """Page and item of each event, over all pages in turn."""
    return [(f"p{number % pages}", f"c{number:08d}") for number in range(EVENTS)]


async def bench_events(client: redis.asyncio.Redis, pages: int) -> dict[str, Any]:
    """Applying events: a script for each part, or ZADD and ZREMRANGEBYSCORE for each event, in pipelines as large."""
    meter, given = Meter(client), events(pages)

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
    return {
        "us_an_event_of_the_document": round(theirs / EVENTS * 1e6, 2),
        "us_an_event_applied": round(own / EVENTS * 1e6, 2),
        "ratio": round(own / theirs, 2),
    }


async def bench_memory(client: redis.asyncio.Redis) -> dict[str, Any]:
    """The data set of the document: 2 000 sets of 25 items, in its layout and in that of a view."""
    meter = Meter(client)
    empty = await meter.bytes()
    for page in range(SETS):
        await client.zadd(f"supporters:{page}", {f"c{page:06d}{item:02d}": now_ms() - item for item in range(ITEMS)})
    theirs = await meter.bytes() - empty
    await client.flushall()
    one = await shard(client)
    empty = await meter.bytes()
    for page in range(SETS):
        await one.apply([Change(str(page), [], [Item(f"c{page:06d}{item:02d}", now_ms() - item) for item in range(ITEMS)])])
    own = await meter.bytes() - empty

    async def their_requests() -> None:
        for number in range(REQUESTS):
            pipeline = client.pipeline(transaction=False)
            pipeline.zremrangebyscore(f"{number % SETS}", "-inf", now_ms() - EXPIRY_MS)
            pipeline.zcard(f"{number % SETS}")
            await pipeline.execute()

    reader = ViewReader(client, ScriptSet(client), 1)

    async def our_requests() -> None:
        for number in range(REQUESTS):
            await heads_of(client, [one.keys])
            await reader.poll(one.keys, {str(number % SETS): ""})

    shares = [await meter.used(work) / REQUESTS * 200 for work in (their_requests, our_requests)]
    await client.flushall()
    return {
        "mb_of_the_document": round(theirs / 1e6, 2),
        "mb": round(own / 1e6, 2),
        "share_of_a_core_at_200_requests_of_the_document": round(shares[0], 4),
        "share_of_a_core_at_200_requests": round(shares[1], 4),
    }


async def bench_due(client: redis.asyncio.Redis) -> dict[str, Any]:
    """All items due in the same instant."""
    one, meter, at_ms = await shard(client), Meter(client), now_ms()
    for at in range(0, DUE, PART):
        await one.apply([Change(f"p{at // PART}", [], [Item(f"c{at + number}", at_ms) for number in range(PART)])])
    scripts = 0

    async def expire() -> None:
        nonlocal scripts
        while (await one.store.expire(one.fence[0], at_ms + EXPIRY_MS, moves_clock=True)).is_more:
            scripts += 1

    began = time.monotonic()
    used = await meter.used(expire)
    left = await client.zcard(f"{one.keys.items_prefix}p0")
    await client.flushall()
    return {
        "items": DUE,
        "seconds": round(time.monotonic() - began, 2),
        "cpu_seconds": round(used, 2),
        "scripts": scripts + 1,
        "left": left,
    }


async def bench_polls(client: redis.asyncio.Redis, show: int) -> dict[str, Any]:
    """1 000 open pages of 8 shards, each page moves in one of them between two polls; four polls a second."""
    shards = [await shard(client, number=number, of=8, has_data=show > 1) for number in range(8)]
    pages = [f"p{number}" for number in range(1_000)]
    reader, meter, known = ViewReader(client, ScriptSet(client), show), Meter(client), [dict.fromkeys(pages, "") for _ in shards]
    tokens = [""] * len(shards)

    async def move(turn: int) -> None:
        for number, one in enumerate(shards):
            mine = pages[number::8]
            await one.apply([Change(page, [], [Item(f"n{turn}", now_ms(), b'{"title":"t"}')]) for page in mine])

    async def poll() -> None:
        await heads_of(client, [one.keys for one in shards])
        for number, one in enumerate(shards):
            for at in range(0, len(pages), 500):
                part = {page: known[number][page] for page in pages[at : at + 500]}
                found = await reader.poll(one.keys, part, tokens[number])
                assert found is not None
                tokens[number] = found.head.token
                known[number] |= {page: held.version for page, held in found.pages.items()}

    await move(0)
    await poll()
    used = 0.0
    for turn in range(1, 21):
        await move(turn)
        used += await meter.used(poll)
    await client.flushall()
    return {"pages": len(pages), "shards": len(shards), "items_a_page": show, "share_of_the_core_of_redis": round(used / 20 * 4, 4)}


def push(url: str, seconds: float) -> None:
    """Publishes changes that nobody looks at, as a hub that is pushed each of them would be sent."""
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


async def bench_pushed(client: redis.asyncio.Redis, url: str) -> dict[str, Any]:
    """10 000 changes a second of pages that nobody has open: a hub that subscribes to them, and one that polls what is open."""
    one = await shard(client)
    pushing = multiprocessing.get_context("spawn").Process(target=push, args=(url, SECONDS + 2))
    pubsub = client.pubsub()
    await pubsub.subscribe("changes")
    pushing.start()
    received = 0
    await pubsub.get_message(ignore_subscribe_messages=True, timeout=10)
    before, began = _own_cpu(), time.monotonic()
    while time.monotonic() - began < SECONDS:
        message = await pubsub.get_message(ignore_subscribe_messages=True, timeout=0.1)
        if message and message["type"] == "message":
            json.loads(message["data"])
            received += 1
    pushed = (_own_cpu() - before) / SECONDS
    await pubsub.aclose()  # type: ignore[no-untyped-call]  # redis-py has no type for it
    await asyncio.to_thread(pushing.join)
    before, began = _own_cpu(), time.monotonic()
    while time.monotonic() - began < SECONDS:
        await heads_of(client, [one.keys])
        await asyncio.sleep(0.25)
    polled = (_own_cpu() - before) / SECONDS
    await client.flushall()
    return {
        "changes_received_a_second": round(received / SECONDS),
        "share_of_a_core_of_the_hub_pushed": round(pushed, 3),
        "share_of_a_core_of_the_hub_polling": round(polled, 3),
    }


def _own_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def run(url: str) -> Sequence[tuple[str, dict[str, Any]]]:
    """All of them, one after the other."""
    async with redis.asyncio.Redis.from_url(url) as client:
        if await client.dbsize():
            raise click.ClickException("this Redis holds something, and the benchmark empties it: give it one of its own")
        version = (await client.info("server"))["redis_version"]
        return [
            ("server", {"redis": version}),
            ("events on 10 pages", await bench_events(client, 10)),
            ("events on 1 000 pages", await bench_events(client, 1_000)),
            ("2 000 sets of 25 items", await bench_memory(client)),
            ("due at once", await bench_due(client)),
            ("polls of a count", await bench_polls(client, 1)),
            ("polls of a list", await bench_polls(client, 10)),
            ("watched by nobody", await bench_pushed(client, url)),
        ]


@click.command()
@click.option("--redis", "url", metavar="URL", help="An empty Redis; default: an embedded Valkey.")
def main(url: str | None) -> None:
    """What live views cost, beside the document's own commands and beside being pushed each change."""
    if url is not None:
        found = asyncio.run(run(url))
    else:
        with Valkey.start() as valkey:
            found = asyncio.run(run(valkey.url))
    for name, figures in found:
        click.echo(f"{name:24} " + "  ".join(f"{key} {value}" for key, value in figures.items()))


if __name__ == "__main__":
    main()
