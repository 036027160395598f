"""Reads of a shard of a journal on a real Redis: what is found, and what a script that died half-way leaves."""

from __future__ import annotations

import random
from typing import Any

import pytest

from streams_app.journal.core.block import encode, last_of
from streams_app.journal.core.entry import Row
from streams_app.journal.store.journal_store import BlocksReply, GapReply, JournalStore, NoEventsReply, RemovedReply
from streams_app.journal.store.segment import Segment
from tests.helpers.journal.journals import blocks_of
from tests.integration.journal.store.shards import NEXT, Shard, fill, rows, segment, three_days


async def test_reader_crosses_segments_in_one_call(shard: Shard) -> None:
    await three_days(shard)
    reply = await shard.reader.read(shard.keys, b"a", 10)

    assert isinstance(reply, BlocksReply)
    assert (35, 35, 10) == (reply.up_to, reply.fence, reply.floor)
    assert [12, 15, 22, 25, 32] == [last_of(block)[1] for block in reply.blocks]
    assert RemovedReply(10, 35) == await shard.reader.read(shard.keys, b"a", 3)


async def test_read_starts_after_the_offset_and_stops_at_its_byte_bound(shard: Shard) -> None:
    await three_days(shard)
    reply = await shard.reader.read(shard.keys, b"a", 12, max_bytes=1)

    assert isinstance(reply, BlocksReply)
    assert (15, [15]) == (reply.up_to, [last_of(block)[1] for block in reply.blocks])
    assert [10, 12, 15, 20, 22, 25, 30, 32] == await shard.offsets(b"a", 9, max_bytes=1)
    assert NoEventsReply(35, 35, 10) == await shard.reader.read(shard.keys, b"a", 32)
    assert NoEventsReply(35, 35, 10) == await shard.reader.read(shard.keys, b"c", 9)
    assert NoEventsReply(40, 35, 10) == await shard.reader.read(shard.keys, b"a", 40)


async def test_keys_with_a_common_prefix_are_kept_apart(shard: Shard) -> None:
    store = await shard.claimed()
    keys = [b"", b"\0", b"a", b"a\0", b"a\0\xff", b"a\xff", b"aa", b"b"]
    await fill(store, 9, 20, segment(10), blocks_of([Row(key, 10 + n, 0, None) for n, key in enumerate(keys)]))

    assert [[10 + n] for n in range(len(keys))] == [await shard.offsets(key) for key in keys]


async def scan_all(store: JournalStore, of: Segment) -> list[list[bytes]]:
    """Return the blocks of each reply."""
    scanned: list[list[bytes]] = []
    while some := await store.scan(of, scanned[-1][-1] if scanned else b""):
        scanned.append(some)
    return scanned


@pytest.mark.parametrize(
    ("largest", "pages"),
    [((), 1), (((b"k", 7),), 1), (((b"k", 39_900),), 5), (((b"k", 1_000_000),), 1)],
    ids=["unknown", "small", "at-most-100", "large"],
)
@pytest.mark.parametrize("count", [1, 100, 101, 450])
async def test_scan_returns_all_blocks_in_order_for_any_page_size(
    shard: Shard, count: int, largest: tuple[tuple[bytes, int], ...], pages: int
) -> None:
    store, of = await shard.claimed(), segment(10, last=500, largest=largest)
    members = blocks_of(Row(b"k%04d\0\xff" % n, 10 + n, 0, b"\xff") for n in range(count))
    await fill(store, 9, 500, of, members)
    scanned = await scan_all(store, of)

    assert sorted(members) == [block for some in scanned for block in some]
    assert min(pages, -(-count // 100)) == len(scanned)


@pytest.mark.parametrize("largest", [7, 1_000_000], ids=["small", "large"])
async def test_scan_reports_that_the_segment_was_removed_meanwhile(
    shard: Shard, monkeypatch: pytest.MonkeyPatch, largest: int
) -> None:
    store, of = await shard.claimed(), segment(10, last=15, largest=((b"a", largest),))
    await fill(store, 9, 15, of, blocks_of(rows(b"a", 10, 12)))
    await fill(store, 15, 20, segment(16, NEXT), blocks_of(rows(b"a", 17)))
    read = type(shard.client).zrangebylex

    async def overtaken(*args: Any, **options: Any) -> Any:
        found = await read(*args, **options)
        assert await store.drop(10)
        return found

    assert await store.scan(of, b"")
    monkeypatch.setattr(type(shard.client), "zrangebylex", overtaken)
    if largest == 1_000_000:
        assert await store.drop(10)
    assert await store.scan(of, b"") is None


async def test_scan_returns_one_large_block_beyond_its_bound_even_after_small_ones(shard: Shard) -> None:
    store = await shard.claimed()
    values = [random.randbytes(20 if n < 6 else 900_000) for n in range(10)]
    members = blocks_of(Row(b"k%04d" % n, 10 + n, 0, value) for n, value in enumerate(values))
    of = segment(10, last=500, largest=((b"k0009", 900_000),))
    await fill(store, 9, 500, of, members)
    scanned = await scan_all(store, of)

    assert sorted(members) == [block for some in scanned for block in some]
    assert [7, 1, 1, 1] == [len(some) for some in scanned]


async def test_gap_is_reported_at_its_position_and_only_once(shard: Shard) -> None:
    store = await shard.claimed()
    await fill(store, 9, 14, segment(10), blocks_of(rows(b"a", 12)))
    await fill(store, 14, 99, segment(15, form="gap", entries=0))
    await fill(store, 99, 110, segment(100), blocks_of(rows(b"a", 105)))

    found = await shard.reader.read(shard.keys, b"a", 9)
    assert isinstance(found, BlocksReply)
    assert 14 == found.up_to
    assert GapReply(15, 99, 110, 10) == await shard.reader.read(shard.keys, b"a", 14)
    assert GapReply(21, 99, 110, 10) == await shard.reader.read(shard.keys, b"a", 20)
    assert [12, 105] == await shard.offsets(b"a")


@pytest.mark.parametrize("evicted", ["blocks:20:a", "about"])
async def test_blocks_evicted_by_redis_are_a_gap(shard: Shard, evicted: str) -> None:
    await three_days(shard)
    await shard.client.delete(shard.keys.meta.removesuffix("meta") + evicted)

    reply = await shard.reader.read(shard.keys, b"a", 19)
    assert GapReply(20, 29, 35, 10, "damaged") == reply


async def test_blocks_of_an_interrupted_script_are_not_shown(shard: Shard) -> None:
    store = await shard.claimed()
    await fill(store, 9, 12, segment(10), blocks_of(rows(b"a", 10)))
    await shard.client.zadd(f"{shard.keys.blocks_prefix}10:a", {encode(rows(b"a", 13, 14)): 0, encode(rows(b"b", 13)): 0})

    assert NoEventsReply(12, 12, 10) == await shard.reader.read(shard.keys, b"a", 10)
    await fill(store, 12, 13, segment(10), blocks_of(rows(b"a", 13)))
    assert [10, 13] == await shard.offsets(b"a", 9)
    await fill(store, 13, 15, segment(10), blocks_of(rows(b"a", 14, 15)))
    assert [10, 13, 14, 15] == await shard.offsets(b"a", 9)


async def test_append_interrupted_before_its_segment_was_listed_is_repeated(shard: Shard) -> None:
    store = await three_days(shard)
    opened = segment(36, NEXT)
    await fill(store, 35, 40, opened, blocks_of(rows(b"a", 37)))
    await shard.client.zrem(shard.keys.segments, 36)
    await shard.client.hset(shard.keys.meta, "fence", "35")
    await fill(store, 35, 40, opened, blocks_of(rows(b"a", 37)))

    assert [b"10", b"20", b"30", b"36"] == await shard.client.zrange(shard.keys.segments, 0, -1)
    assert [32, 37] == await shard.offsets(b"a", 30)
