"""Claims of a shard of a journal on a real Redis: what an owner finds, and what begins anew."""

from __future__ import annotations

from typing import Any

import pytest

from streams_app.delivery.fingerprints import Fingerprint
from streams_app.journal.core.block import encode
from streams_app.journal.store.journal_store import (
    InitialState,
    JournalClaim,
    NoEventsReply,
    NoStateReply,
    RemovedReply,
)
from tests.helpers.journal.journals import blocks_of
from tests.integration.journal.store.shards import CLOCK_MS, Shard, fill, rows, segment, three_days


async def test_claim_creates_a_state_only_on_request_and_the_next_owner_finds_it(shard: Shard) -> None:
    assert await shard.store("a").claim("", 4) is None
    assert NoStateReply() == await shard.reader.read(shard.keys, b"a", -1)
    assert await shard.reader.status(shard.keys) is None

    created = await shard.store("a").claim("", 4, begin=InitialState(9, CLOCK_MS))
    taken = await shard.store("b").claim("id", 4, begin=InitialState(20, 0))
    other = await shard.store("c").claim("other", 4)

    assert JournalClaim(9, CLOCK_MS, "", (), (), is_new=True) == created
    assert JournalClaim(9, CLOCK_MS, "id", (), (), is_new=False) == taken == other
    assert NoEventsReply(9, 9, 10) == await shard.reader.read(shard.keys, b"a", 9)
    assert RemovedReply(10, 9) == await shard.reader.read(shard.keys, b"a", 8)


async def test_new_owner_finds_all_segments_as_written(shard: Shard) -> None:
    await three_days(shard)
    claimed = await shard.store("b").claim("id", 4)

    first, second, third = segment(10, "2026-08-18", last=19), segment(20, "2026-08-19", last=29), segment(30, last=35)
    assert JournalClaim(35, CLOCK_MS + 35, "id", (Fingerprint(35, 7),), (first, second, third), is_new=False) == claimed
    status = await shard.reader.status(shard.keys)
    assert status is not None
    assert (4, 35, 10, CLOCK_MS + 35, "id", (first, second, third)) == status[:6]
    assert 35 == await shard.reader.fence(shard.keys)


async def test_claim_removes_staged_blocks_and_segments_above_the_fence(shard: Shard) -> None:
    store = await three_days(shard)
    await store.stage(segment(10, generation="ap"), [encode(rows(b"a", 10))], begins=True)
    await shard.client.hset(shard.keys.meta, "fence", "25")
    claimed = await shard.store("b").claim("id", 4)

    assert claimed is not None
    assert (25, [10, 20]) == (claimed.fence, [one.first for one in claimed.segments])
    assert {"meta", "segments", "about", "blocks:10:a", "blocks:20:a"} == await shard.names()


@pytest.mark.parametrize(
    ("other", "fence", "firsts"),
    [(36, 35, [10, 20, 30]), (35, 29, [10, 20]), (30, 29, [10, 20]), (29, 19, [10]), (10, 9, []), (5, 4, [])],
)
async def test_log_that_went_back_is_reread_from_the_differing_segment(
    shard: Shard, other: int, fence: int, firsts: list[int]
) -> None:
    await three_days(shard)
    claimed = await shard.store("b").claim("id", 4, fence_at_most=other)

    assert claimed is not None
    assert (fence, firsts) == (claimed.fence, [one.first for one in claimed.segments])
    assert {"meta", *(("segments", "about") if firsts else ()), *(f"blocks:{first}:a" for first in firsts)} == await shard.names()
    assert fence == await shard.reader.fence(shard.keys)
    assert all(one.offset <= fence for one in claimed.log)


@pytest.mark.parametrize("deleted", ["meta", "about", "segments"])
async def test_incomplete_state_is_recreated(shard: Shard, deleted: str) -> None:
    await three_days(shard)
    await shard.client.delete(getattr(shard.keys, deleted))
    assert await shard.store("b").claim("id", 4) is None
    claimed = await shard.store("b").claim("id", 4, begin=InitialState(99, CLOCK_MS))

    assert JournalClaim(99, CLOCK_MS, "id", (), (), is_new=True) == claimed
    assert {"meta"} == {name for name in await shard.names() if deleted == "meta" or not name.startswith("blocks")}


async def test_unlisted_segment_above_the_fence_does_not_indicate_data_loss(shard: Shard) -> None:
    store = await shard.claimed()
    await fill(store, 9, 12, segment(10))
    await shard.client.delete(shard.keys.segments)
    await shard.client.hset(shard.keys.meta, "fence", "9")

    assert JournalClaim(9, CLOCK_MS + 12, "id", (), (), is_new=False) == await shard.store("b").claim("id", 4)
    assert {"meta"} == await shard.names()


async def test_events_of_an_interrupted_append_are_not_counted_by_the_next_owner(shard: Shard) -> None:
    store = await shard.claimed()
    await fill(store, 9, 11, segment(10, entries=2, last=11), blocks_of(rows(b"a", 10, 11)))
    await fill(store, 11, 15, segment(10, entries=6, last=15))
    await shard.client.hset(shard.keys.meta, "fence", "11")
    claimed = await shard.store("b").claim("id", 4)

    assert claimed is not None
    assert [(11, 2)] == [(one.last, one.entries) for one in claimed.segments]


async def test_segment_names_as_many_largest_keys_as_there_is_room_for(shard: Shard) -> None:
    store = await shard.claimed()
    largest = tuple((bytes([n]) * 250, 9 - n) for n in range(9))
    await fill(store, 9, 12, segment(10, largest=largest))

    assert largest[:2] == (await shard.segments())[0].largest


@pytest.mark.parametrize("options", [{"fence_at_most": 5}, {"begin": InitialState(9, CLOCK_MS)}], ids=["went back", "lost"])
async def test_many_segments_are_removed_by_several_scripts(shard: Shard, options: dict[str, Any]) -> None:
    store = await shard.claimed()
    for first in range(10, 2_600):
        await fill(store, first - 1, first, segment(first, part=first), blocks_of(rows(b"a", first)) if first > 2_500 else ())
    if "begin" in options:
        await shard.client.hdel(shard.keys.meta, "clock")
    claimed = await shard.store("b").claim("id", 4, **options)

    assert claimed is not None
    assert () == claimed.segments
    assert {"meta"} == await shard.names()
