"""The scripts of journals on a real Redis: who may write, what a reader finds, and what a script that died half-way leaves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from typing import Any

import pytest
import redis.asyncio

from streams_app.delivery.fingerprints import Fingerprint
from streams_app.delivery.scripts import RefusedError
from streams_app.journal.core.block import decode, encode, last_of, position
from streams_app.journal.core.entry import Row
from streams_app.journal.store.journal_store import (
    Beginning,
    Claimed,
    Found,
    GapReply,
    Gone,
    JournalShardReader,
    JournalStore,
    NoState,
    Nothing,
    ScriptSet,
    Segment,
)
from streams_app.journal.store.keys import journal_keys
from tests.conftest import Names
from tests.journals import blocks_of

DAY = "2026-08-20"
NEXT = "2026-08-21"
CLOCK_MS = 1_787_000_000_000


class Shard:
    """One partition of a journal, its owners and a reader."""

    def __init__(self, client: redis.asyncio.Redis, names: Names) -> None:
        self.client = client
        self.keys = journal_keys(names.app_id, "accounts", "t", 0)
        self.scripts = ScriptSet(client)
        self.reader = JournalShardReader(client, self.scripts)

    def store(self, token: str) -> JournalStore:
        return JournalStore(self.scripts, self.keys, token)

    async def claimed(self, token: str = "a", *, fence: int = 9) -> JournalStore:
        store = self.store(token)
        await store.claim("id", 4, begin=Beginning(fence, CLOCK_MS))
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
                case Found(blocks, up_to):
                    for block in blocks:
                        rows = [row for row in decode(block) if row.key == key and after < row.offset]
                        found += [row.offset for row in rows]
                        after = max([after, *(row.offset for row in rows)])
                    after = up_to
                case Nothing(up_to, fence):
                    after = up_to
                    if after >= fence:
                        return found
                case GapReply(_, last):
                    after = last
                case Gone(floor):
                    after = floor - 1
                case NoState():
                    return found

    async def names(self) -> set[str]:
        base = self.keys.meta.removesuffix("meta")
        return {key.decode().removeprefix(base) async for key in self.client.scan_iter(f"{base}*")}


@pytest.fixture
async def shard(redis_client: redis.asyncio.Redis, names: Names) -> AsyncIterator[Shard]:
    yield Shard(redis_client, names)


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


# Claims


async def test_claim_creates_a_state_only_when_asked_and_the_next_owner_finds_it(shard: Shard) -> None:
    assert await shard.store("a").claim("", 4) is None
    assert NoState() == await shard.reader.read(shard.keys, b"a", -1)
    assert await shard.reader.status(shard.keys) is None

    created = await shard.store("a").claim("", 4, begin=Beginning(9, CLOCK_MS))
    taken = await shard.store("b").claim("id", 4, begin=Beginning(20, 0))
    other = await shard.store("c").claim("other", 4)

    assert Claimed(9, CLOCK_MS, "", (), (), is_new=True) == created
    assert Claimed(9, CLOCK_MS, "id", (), (), is_new=False) == taken == other
    assert Nothing(9, 9, 10) == await shard.reader.read(shard.keys, b"a", 9)
    assert Gone(10, 9) == await shard.reader.read(shard.keys, b"a", 8)


async def test_a_new_owner_finds_all_segments_as_they_were_written(shard: Shard) -> None:
    await three_days(shard)
    claimed = await shard.store("b").claim("id", 4)

    first, second, third = segment(10, "2026-08-18", last=19), segment(20, "2026-08-19", last=29), segment(30, last=35)
    assert Claimed(35, CLOCK_MS + 35, "id", (Fingerprint(35, 7),), (first, second, third), is_new=False) == claimed
    status = await shard.reader.status(shard.keys)
    assert status is not None
    assert (4, 35, 10, CLOCK_MS + 35, "id", (first, second, third)) == status[:6]
    assert 35 == await shard.reader.fence(shard.keys)


async def test_claim_removes_what_was_staged_and_segments_that_begin_above_the_fence(shard: Shard) -> None:
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
async def test_a_log_that_went_back_is_read_again_from_the_segment_that_differs(
    shard: Shard, other: int, fence: int, firsts: list[int]
) -> None:
    await three_days(shard)
    claimed = await shard.store("b").claim("id", 4, fence_at_most=other)

    assert claimed is not None
    assert (fence, firsts) == (claimed.fence, [one.first for one in claimed.segments])
    assert {"meta", *(("segments", "about") if firsts else ()), *(f"blocks:{first}:a" for first in firsts)} == await shard.names()
    assert fence == await shard.reader.fence(shard.keys)
    assert all(one.offset <= fence for one in claimed.log)


@pytest.mark.parametrize("lost", ["meta", "about", "segments"])
async def test_a_state_of_which_redis_has_lost_something_begins_anew(shard: Shard, lost: str) -> None:
    await three_days(shard)
    await shard.client.delete(getattr(shard.keys, lost))
    assert await shard.store("b").claim("id", 4) is None
    claimed = await shard.store("b").claim("id", 4, begin=Beginning(99, CLOCK_MS))

    assert Claimed(99, CLOCK_MS, "id", (), (), is_new=True) == claimed
    assert {"meta"} == {name for name in await shard.names() if lost == "meta" or not name.startswith("blocks")}


async def test_a_segment_above_the_fence_that_is_not_listed_is_no_sign_of_a_loss(shard: Shard) -> None:
    store = await shard.claimed()
    await fill(store, 9, 12, segment(10))
    await shard.client.delete(shard.keys.segments)
    await shard.client.hset(shard.keys.meta, "fence", "9")

    assert Claimed(9, CLOCK_MS + 12, "id", (), (), is_new=False) == await shard.store("b").claim("id", 4)
    assert {"meta"} == await shard.names()


async def test_events_of_an_append_that_died_half_way_are_not_counted_by_the_next_owner(shard: Shard) -> None:
    store = await shard.claimed()
    await fill(store, 9, 11, segment(10, entries=2, last=11), blocks_of(rows(b"a", 10, 11)))
    await fill(store, 11, 15, segment(10, entries=6, last=15))
    await shard.client.hset(shard.keys.meta, "fence", "11")
    claimed = await shard.store("b").claim("id", 4)

    assert claimed is not None
    assert [(11, 2)] == [(one.last, one.entries) for one in claimed.segments]


async def test_of_the_largest_keys_a_segment_names_as_many_as_there_is_room_for(shard: Shard) -> None:
    store = await shard.claimed()
    largest = tuple((bytes([n]) * 250, 9 - n) for n in range(9))
    await fill(store, 9, 12, segment(10, largest=largest))

    assert largest[:2] == (await shard.segments())[0].largest


@pytest.mark.parametrize("options", [{"fence_at_most": 5}, {"begin": Beginning(9, CLOCK_MS)}], ids=["went back", "lost"])
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


# Writing


async def test_a_lost_reply_of_an_append_is_made_up_for(shard: Shard) -> None:
    store = await shard.claimed()
    of = segment(10)

    assert [False, True] == [await fill(store, 9, 12, of, blocks_of(rows(b"a", 10))) for _ in range(2)]
    assert [10] == await shard.offsets(b"a")


async def test_append_wants_its_fence(shard: Shard) -> None:
    store = await three_days(shard)

    with pytest.raises(RefusedError, match="fence"):
        await fill(store, 34, 36, segment(30), blocks_of(rows(b"a", 36)))
    with pytest.raises(RefusedError, match="first"):
        await fill(store, 35, 37, segment(37), blocks_of(rows(b"a", 37)))


async def test_nothing_is_appended_to_a_segment_that_is_over(shard: Shard) -> None:
    store = await three_days(shard)
    with pytest.raises(RefusedError, match="closed"):
        await fill(store, 35, 36, segment(20, "2026-08-19"))
    await store.close(30)
    with pytest.raises(RefusedError, match="closed"):
        await fill(store, 35, 36, segment(30))
    await fill(store, 35, 36, segment(36, NEXT), blocks_of(rows(b"a", 36)))

    assert [(30, True), (36, False)] == [(one.first, one.is_closed) for one in (await shard.segments())[2:]]


async def test_whoever_has_lost_the_shard_writes_nothing(shard: Shard) -> None:
    old = await three_days(shard)
    await shard.store("b").claim("id", 4)
    packed = segment(10, generation="ap", form="packed")
    before = await shard.segments()

    for attempt in (
        fill(old, 35, 36, segment(30), blocks_of(rows(b"a", 36))),
        old.close(30),
        old.stage(packed, [encode(rows(b"a", 10))], begins=True),
        old.swap(packed, 1),
        old.drop(10),
    ):
        with pytest.raises(RefusedError, match="token"):
            await attempt
    assert before == await shard.segments()
    assert {"meta", "segments", "about", "blocks:10:a", "blocks:20:a", "blocks:30:a"} == await shard.names()


async def test_what_is_lost_is_refused(shard: Shard) -> None:
    store = await three_days(shard)
    await shard.client.delete(shard.keys.meta)

    with pytest.raises(RefusedError, match="no-state"):
        await fill(store, 35, 36, segment(30))


# Reading


async def test_a_reader_crosses_segments_in_one_call(shard: Shard) -> None:
    await three_days(shard)
    reply = await shard.reader.read(shard.keys, b"a", 10)

    assert isinstance(reply, Found)
    assert (35, 35, 10) == (reply.up_to, reply.fence, reply.floor)
    assert [12, 15, 22, 25, 32] == [last_of(block)[1] for block in reply.blocks]
    assert Gone(10, 35) == await shard.reader.read(shard.keys, b"a", 3)


async def test_a_reader_is_given_what_follows_its_offset_and_stops_where_it_has_enough(shard: Shard) -> None:
    await three_days(shard)
    reply = await shard.reader.read(shard.keys, b"a", 12, max_bytes=1)

    assert isinstance(reply, Found)
    assert (15, [15]) == (reply.up_to, [last_of(block)[1] for block in reply.blocks])
    assert [10, 12, 15, 20, 22, 25, 30, 32] == await shard.offsets(b"a", 9, max_bytes=1)
    assert Nothing(35, 35, 10) == await shard.reader.read(shard.keys, b"a", 32)
    assert Nothing(35, 35, 10) == await shard.reader.read(shard.keys, b"c", 9)
    assert Nothing(40, 35, 10) == await shard.reader.read(shard.keys, b"a", 40)


async def test_keys_that_begin_alike_are_kept_apart(shard: Shard) -> None:
    store = await shard.claimed()
    keys = [b"", b"\0", b"a", b"a\0", b"a\0\xff", b"a\xff", b"aa", b"b"]
    await fill(store, 9, 20, segment(10), blocks_of([Row(key, 10 + n, 0, None) for n, key in enumerate(keys)]))

    assert [[10 + n] for n in range(len(keys))] == [await shard.offsets(key) for key in keys]


@pytest.mark.parametrize("count", [1, 100, 101, 450])
async def test_a_scan_returns_all_blocks_in_their_order_few_or_many(shard: Shard, count: int) -> None:
    store = await shard.claimed()
    members = blocks_of(Row(b"k%04d\0\xff" % n, 10 + n, 0, b"\xff") for n in range(count))
    await fill(store, 9, 500, segment(10, last=500), members)
    scanned = await store.scan(segment(10, last=500), b"")

    assert sorted(members) == scanned
    assert [] == await store.scan(segment(10, last=500), max(members))


async def test_a_gap_is_said_where_it_is_and_only_once(shard: Shard) -> None:
    store = await shard.claimed()
    await fill(store, 9, 14, segment(10), blocks_of(rows(b"a", 12)))
    await fill(store, 14, 99, segment(15, form="gap", entries=0))
    await fill(store, 99, 110, segment(100), blocks_of(rows(b"a", 105)))

    found = await shard.reader.read(shard.keys, b"a", 9)
    assert isinstance(found, Found)
    assert 14 == found.up_to
    assert GapReply(15, 99, 110, 10) == await shard.reader.read(shard.keys, b"a", 14)
    assert GapReply(21, 99, 110, 10) == await shard.reader.read(shard.keys, b"a", 20)
    assert [12, 105] == await shard.offsets(b"a")


@pytest.mark.parametrize("lost", ["blocks:20:a", "about"])
async def test_blocks_that_redis_has_evicted_are_a_gap(shard: Shard, lost: str) -> None:
    await three_days(shard)
    await shard.client.delete(shard.keys.meta.removesuffix("meta") + lost)

    reply = await shard.reader.read(shard.keys, b"a", 19)
    assert GapReply(20, 29, 35, 10, "damaged") == reply


async def test_what_a_script_that_died_half_way_has_written_is_not_shown(shard: Shard) -> None:
    store = await shard.claimed()
    await fill(store, 9, 12, segment(10), blocks_of(rows(b"a", 10)))
    await shard.client.zadd(f"{shard.keys.blocks_prefix}10:a", {encode(rows(b"a", 13, 14)): 0, encode(rows(b"b", 13)): 0})

    assert Nothing(12, 12, 10) == await shard.reader.read(shard.keys, b"a", 10)
    await fill(store, 12, 13, segment(10), blocks_of(rows(b"a", 13)))
    assert [10, 13] == await shard.offsets(b"a", 9)
    await fill(store, 13, 15, segment(10), blocks_of(rows(b"a", 14, 15)))
    assert [10, 13, 14, 15] == await shard.offsets(b"a", 9)


async def test_an_append_that_died_before_its_segment_was_one_is_done_again(shard: Shard) -> None:
    store = await three_days(shard)
    opened = segment(36, NEXT)
    await fill(store, 35, 40, opened, blocks_of(rows(b"a", 37)))
    await shard.client.zrem(shard.keys.segments, 36)
    await shard.client.hset(shard.keys.meta, "fence", "35")
    await fill(store, 35, 40, opened, blocks_of(rows(b"a", 37)))

    assert [b"10", b"20", b"30", b"36"] == await shard.client.zrange(shard.keys.segments, 0, -1)
    assert [32, 37] == await shard.offsets(b"a", 30)


# Packing and removing


PACKED = [Row(b"a", n, CLOCK_MS + n, b"x") for n in (10, 12, 15)], [Row(b"b", 13, CLOCK_MS + 13, b"x")]


async def pack(shard: Shard, store: JournalStore) -> Segment:
    packed = segment(10, "2026-08-18", form="packed", generation="ap", is_closed=True, last=19)
    await store.stage(packed, [encode(PACKED[0][:1])], begins=True)
    await store.stage(packed, [encode([*PACKED[0][1:], *PACKED[1]], 3)], begins=False)
    return packed


async def test_a_swap_changes_nothing_that_a_reader_sees(shard: Shard) -> None:
    store = await three_days(shard)
    before = [await shard.offsets(key, after) for key in (b"a", b"b", b"c") for after in range(9, 35)]
    packed = await pack(shard, store)

    assert before == [await shard.offsets(key, after) for key in (b"a", b"b", b"c") for after in range(9, 35)]
    assert [True, True] == [await store.swap(packed, 2) for _ in range(2)]
    assert before == [await shard.offsets(key, after) for key in (b"a", b"b", b"c") for after in range(9, 35)]
    assert packed == (await shard.segments())[0]
    assert {"meta", "segments", "about", "blocks:10:ap", "blocks:20:a", "blocks:30:a"} == await shard.names()


async def test_staged_blocks_are_read_back_and_those_of_before_are_there_until_the_swap(shard: Shard) -> None:
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


async def test_a_late_copy_of_a_request_never_makes_a_swap_lose_blocks(shard: Shard) -> None:
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


async def test_a_late_copy_of_a_request_leaves_no_blocks_that_nobody_names(shard: Shard) -> None:
    store = await three_days(shard)
    packed = await pack(shard, store)
    await store.stage(segment(10, generation="aq"), [encode(rows(b"a", 10))], begins=True)

    assert not await store.stage(packed, [encode(PACKED[0][:1])], begins=False)
    assert {"meta", "segments", "about", "blocks:10:a", "blocks:10:aq", "blocks:20:a", "blocks:30:a"} == await shard.names()


async def test_a_swap_that_died_half_way_keeps_the_new_blocks_and_removes_the_old_ones(shard: Shard) -> None:
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


async def test_stage_closes_and_takes_what_was_staged_before_away(shard: Shard) -> None:
    store = await three_days(shard)
    await pack(shard, store)
    await store.stage(segment(30, generation="aq"), [encode(rows(b"a", 30))], begins=True)

    assert [True, False, True] == [one.is_closed for one in await shard.segments()]
    assert {"meta", "segments", "about", "blocks:10:a", "blocks:20:a", "blocks:30:a", "blocks:30:aq"} == await shard.names()


async def test_only_the_oldest_segment_is_dropped_and_never_one_that_is_open(shard: Shard) -> None:
    store = await three_days(shard)
    await pack(shard, store)

    assert [False, False, True, True, True] == [await store.drop(first) for first in (20, 30, 10, 10, 20)]
    assert Gone(30, 35) == await shard.reader.read(shard.keys, b"a", 19)
    assert {"meta", "segments", "about", "blocks:30:a"} == await shard.names()
    assert not await store.drop(30)
    await store.close(30)
    assert await store.drop(30)
    assert Gone(36, 35) == await shard.reader.read(shard.keys, b"a", 33)
    assert Nothing(35, 35, 36) == await shard.reader.read(shard.keys, b"a", 35)
    assert {"meta"} == await shard.names()


async def test_a_segment_that_is_gone_is_neither_staged_nor_swapped(shard: Shard) -> None:
    store = await three_days(shard)
    packed = await pack(shard, store)
    await store.drop(10)

    assert [False, False] == [await store.stage(packed, [], begins=True), await store.swap(packed, 2)]
    assert {"meta", "segments", "about", "blocks:20:a", "blocks:30:a"} == await shard.names()


async def test_offsets_beyond_32_bits_are_kept_exactly(shard: Shard) -> None:
    far = 2**52
    store = await shard.claimed(fence=far)
    await fill(store, far, far + 5, segment(far + 1), blocks_of(rows(b"a", far + 1, far + 3)))
    await fill(store, far + 5, far + 9, segment(far + 6, NEXT), blocks_of(rows(b"a", far + 7)))

    assert [far + 3, far + 7] == await shard.offsets(b"a", far + 2)
    assert [far + 1, far + 6] == [one.first for one in await shard.segments()]
