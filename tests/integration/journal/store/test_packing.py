"""Compression and removal of segments on a real Redis."""

from __future__ import annotations

import pytest

from streams_app.delivery.scripts import FencedError
from streams_app.journal.core.block import decode, encode, position
from streams_app.journal.core.entry import Row
from streams_app.journal.store.journal_store import JournalStore, NoEventsReply, RemovedReply
from streams_app.journal.store.segment import Segment
from tests.helpers.journal.journals import blocks_of
from tests.integration.journal.store.shards import CLOCK_MS, NEXT, Shard, fill, rows, segment, three_days

PACKED = [Row(b"a", n, CLOCK_MS + n, b"x") for n in (10, 12, 15)], [Row(b"b", 13, CLOCK_MS + 13, b"x")]


async def pack(shard: Shard, store: JournalStore) -> Segment:
    packed = segment(10, "2026-08-18", form="packed", generation="ap", is_closed=True, last=19)
    await store.stage(packed, [encode(PACKED[0][:1])], begins=True)
    await store.stage(packed, [encode([*PACKED[0][1:], *PACKED[1]], 3)], begins=False)
    return packed


async def test_swap_is_invisible_to_readers(shard: Shard) -> None:
    store = await three_days(shard)
    before = [await shard.offsets(key, after) for key in (b"a", b"b", b"c") for after in range(9, 35)]
    packed = await pack(shard, store)

    assert before == [await shard.offsets(key, after) for key in (b"a", b"b", b"c") for after in range(9, 35)]
    assert [True, True] == [await store.swap(packed, 2) for _ in range(2)]
    assert before == [await shard.offsets(key, after) for key in (b"a", b"b", b"c") for after in range(9, 35)]
    assert packed == (await shard.segments())[0]
    assert {"meta", "segments", "about", "blocks:10:ap", "blocks:20:a", "blocks:30:a"} == await shard.names()


async def test_staged_blocks_are_read_back_and_former_ones_exist_until_the_swap(shard: Shard) -> None:
    store = await three_days(shard)
    raw = (await shard.segments())[0]
    packed = await pack(shard, store)

    staged = await store.scan(packed, b"")
    assert staged is not None
    assert [*PACKED[0], *PACKED[1]] == [row for block in staged for row in decode(block)]
    assert [staged[1]] == await store.scan(packed, staged[0]) == await store.scan(packed, position(b"a", 11))
    assert [] == await store.scan(packed, staged[1])
    assert 3 == len(await store.scan(raw, b"") or ())
    await store.swap(packed, 2)
    assert None is await store.scan(raw, b"")
    assert staged == await store.scan(packed, b"")


async def test_swap_is_rejected_if_redis_lacks_the_end_of_the_segment(shard: Shard) -> None:
    store = await three_days(shard)
    packed = await pack(shard, store)
    await shard.client.hset(shard.keys.meta, "fence", "18")

    with pytest.raises(FencedError, match="fence"):
        await store.swap(packed, 2)
    await shard.client.hset(shard.keys.meta, "fence", "19")
    assert await store.swap(packed, 2)


async def test_delayed_duplicate_of_a_request_does_not_make_a_swap_drop_blocks(shard: Shard) -> None:
    store = await three_days(shard)
    packed = await pack(shard, store)
    await store.stage(packed, [encode(PACKED[0][:1])], begins=True)

    assert not await store.swap(packed, 2)
    assert [10, 12, 15] == (await shard.offsets(b"a"))[:3]
    packed = await pack(shard, store)
    assert await store.swap(packed, 2)
    assert not await store.stage(packed, [encode(PACKED[0][:1])], begins=True)
    await shard.store("b").claim("id", 4)
    assert [10, 12, 15] == (await shard.offsets(b"a"))[:3]


async def test_delayed_duplicate_of_a_request_leaves_no_orphaned_blocks(shard: Shard) -> None:
    store = await three_days(shard)
    packed = await pack(shard, store)
    await store.stage(segment(10, generation="aq"), [encode(rows(b"a", 10))], begins=True)

    assert not await store.stage(packed, [encode(PACKED[0][:1])], begins=False)
    assert {"meta", "segments", "about", "blocks:10:a", "blocks:10:aq", "blocks:20:a", "blocks:30:a"} == await shard.names()


async def test_interrupted_swap_keeps_the_new_blocks_and_removes_the_old_ones(shard: Shard) -> None:
    store = await three_days(shard)
    packed = await pack(shard, store)
    raw = f"{shard.keys.blocks_prefix}10:a"
    staged = await shard.client.hget(shard.keys.about, "staged")
    await shard.client.copy(raw, f"{raw}.copy")
    await store.swap(packed, 2)
    await shard.client.rename(f"{raw}.copy", raw)
    await shard.client.hset(shard.keys.about, "staged", staged)
    await shard.store("b").claim("id", 4)

    assert {"meta", "segments", "about", "blocks:10:ap", "blocks:20:a", "blocks:30:a"} == await shard.names()
    assert [10, 12, 15] == (await shard.offsets(b"a"))[:3]


async def test_stage_closes_the_segment_and_removes_blocks_staged_before(shard: Shard) -> None:
    store = await three_days(shard)
    await pack(shard, store)
    await store.stage(segment(30, generation="aq"), [encode(rows(b"a", 30))], begins=True)

    assert [True, False, True] == [one.is_closed for one in await shard.segments()]
    assert {"meta", "segments", "about", "blocks:10:a", "blocks:20:a", "blocks:30:a", "blocks:30:aq"} == await shard.names()


async def test_drop_removes_only_the_oldest_closed_segment(shard: Shard) -> None:
    store = await three_days(shard)
    await pack(shard, store)

    assert [False, False, True, True, True] == [await store.drop(first) for first in (20, 30, 10, 10, 20)]
    assert RemovedReply(30, 35) == await shard.reader.read(shard.keys, b"a", 19)
    assert {"meta", "segments", "about", "blocks:30:a"} == await shard.names()
    assert not await store.drop(30)
    await store.close(30)
    assert await store.drop(30)
    assert RemovedReply(36, 35) == await shard.reader.read(shard.keys, b"a", 33)
    assert NoEventsReply(35, 35, 36) == await shard.reader.read(shard.keys, b"a", 35)
    assert {"meta"} == await shard.names()


async def test_dropped_segment_is_neither_staged_nor_swapped(shard: Shard) -> None:
    store = await three_days(shard)
    packed = await pack(shard, store)
    await store.drop(10)

    assert [False, False] == [await store.stage(packed, [], begins=True), await store.swap(packed, 2)]
    assert {"meta", "segments", "about", "blocks:20:a", "blocks:30:a"} == await shard.names()


async def test_offsets_beyond_32_bits_are_stored_exactly(shard: Shard) -> None:
    far = 2**52
    store = await shard.claimed(fence=far)
    await fill(store, far, far + 5, segment(far + 1), blocks_of(rows(b"a", far + 1, far + 3)))
    await fill(store, far + 5, far + 9, segment(far + 6, NEXT), blocks_of(rows(b"a", far + 7)))

    assert [far + 3, far + 7] == await shard.offsets(b"a", far + 2)
    assert [far + 1, far + 6] == [one.first for one in await shard.segments()]
