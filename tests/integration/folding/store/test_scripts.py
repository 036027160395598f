"""The Lua scripts on a real server, compared with the same shard in memory."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from streams_app.delivery.scripts import FencedError
from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.event import FoldEvent
from streams_app.folding.core.model import MemoryShard
from streams_app.folding.core.record import SealedGroup
from streams_app.folding.store.drop_request import DropRequest
from streams_app.folding.store.replies import FoldOutcome
from tests.helpers.folding.scripts import (
    BOUNDS,
    PARTITIONS,
    SESSIONS,
    chunk_of,
    chunks_of,
    fold,
    new_store,
    one,
    outbox_of,
    packed,
    seal,
    send,
)
from tests.helpers.folding.shapes import bounds_of_a_fold, widened, widths

pytestmark = pytest.mark.usefixtures("each_form")


@pytest.fixture
async def redis(redis_server) -> AsyncIterator[Redis]:
    client = Redis.from_url(redis_server.url)
    yield client
    await client.aclose()


def comparable(sealed: SealedGroup) -> tuple[Any, ...]:
    names = {name: json.loads(value) for name, value in sealed.names.items()}
    return (
        sealed.member, sealed.first_offset, sealed.last_offset, sealed.events, sealed.first_event_ms, sealed.last_event_ms,
        sealed.reason, names,
    )  # fmt: skip


steps = st.lists(
    st.tuples(
        st.lists(
            st.tuples(
                st.integers(1, 3),  # offsets may be missing in the log
                st.integers(0, 25),  # time to the previous event; late events come from the range below
                st.sampled_from([b"sa", b"sb", b"j1", b"s{x}\n"]),
                st.dictionaries(st.sampled_from("uvwxyz"), st.integers(0, 9), max_size=3),
            ),
            max_size=12,
        ),
        st.integers(0, 60),  # how far the clock moves before the next seal
        st.sampled_from([b"", b"", b"sa", b"sb"]),  # group that is dropped
    ),
    max_size=8,
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps, bounds=bounds_of_a_fold, most=st.sampled_from([1, 2, 100]), width=widths)
async def test_scripts_agree_with_the_model_for_any_batches_and_bounds(redis, steps, bounds, most, width) -> None:
    store = new_store(redis)
    model = MemoryShard(bounds, PARTITIONS)
    expected: list[tuple[Any, ...]] = []
    await store.claim("me", -1, b"eeee", "")
    fence, clock, stamp = -1, 0, 1_000
    found: list[tuple[Any, ...]] = []
    for events, pause, unwanted in steps:
        batch, at = [], fence
        for gap, later, group, names in events:
            at += gap
            stamp += later
            batch += widened([FoldEvent(at, stamp, group, names)], width)
            expected += map(comparable, model.fold(batch[-1], stamp))
        for chunk in chunks_of(batch, at, start_ms=clock, above=fence, session_gap_ms=bounds.session_gap_ms):
            found += map(comparable, await fold(store, fence, chunk, bounds, batch, most=most))
            fence, clock = chunk.to, chunk.clock_ms
        stamp += pause
        dropped = []
        first_offset = await redis.zscore(store.keys.first, unwanted)  # a session that has ended may have left already
        if first_offset is not None and model.drop(unwanted, int(first_offset)):
            dropped.append(unwanted)
            await redis.hset(store.keys.drop, unwanted, DropRequest(int(first_offset), "me", "why").to_text())
        expected += map(comparable, model.seal(stamp))
        clock = stamp
        sealed = await seal(store, fence, clock, bounds, limit=1_000)
        found += map(comparable, sealed.sealed)
        lows = [open_group.first_offset for open_group in model.open.values()] + [entry[1] for entry in expected]

        assert dropped == [group.member for group in sealed.dropped]
        assert min([fence + 1, *lows]) == await store.watermark()
        assert len(model.open) == sealed.open_groups
    assert sorted(expected, key=lambda entry: entry[1]) == sorted(found, key=lambda entry: entry[1])
    assert sorted(entry[1] for entry in expected) == [entry.first_offset for entry in await outbox_of(store)]
    await redis.delete(*[key async for key in redis.scan_iter(f"{store.keys.meta.split(':v2')[0]}*")] or ["none"])


async def test_fold_is_fenced_without_state(redis) -> None:
    with pytest.raises(FencedError, match="no-state"):
        await fold(new_store(redis), -1, one(0), BOUNDS)


async def test_fold_is_fenced_with_another_token(redis) -> None:
    store = new_store(redis)
    await store.claim("another", -1, b"eeee", "")

    with pytest.raises(FencedError, match="token"):
        await fold(store, -1, one(0), BOUNDS)


async def test_fold_is_fenced_at_another_fence(redis) -> None:
    store = new_store(redis)
    await store.claim("me", 6, b"eeee", "")

    with pytest.raises(FencedError, match="fence"):
        await fold(store, -1, one(0), BOUNDS)


async def test_fold_repeated_after_a_missing_reply_is_recognized(redis) -> None:
    store = new_store(redis)
    await store.claim("me", -1, b"eeee", "")
    await fold(store, -1, one(3), BOUNDS)
    reply = await send(store, -1, one(3), packed(one(3)))

    assert (FoldOutcome.ALREADY, b"", 1_000, []) == (reply.outcome, reply.cursor, reply.clock_ms, reply.sealed)
    assert await store.watermark() == 3


async def test_claim_keeps_the_state_and_takes_it_from_the_former_owner(redis) -> None:
    store = new_store(redis)
    await store.claim("me", -1, b"eeee", "def")
    await fold(store, -1, one(3), BOUNDS)
    claimed = await store.claim("other", 99, b"ffff", "new")

    assert claimed is not None
    assert (claimed.created, claimed.fence, claimed.definition, claimed.open_groups) == (False, 3, "def", 1)
    for attempt in (
        seal(store, 3, 2_000),
        store.finish("me", [(3, 3, 1)]),
        store.skip("me", 3, 9),
        store.define("me", ""),
    ):
        with pytest.raises(FencedError, match="token"):
            await attempt


async def test_seal_checks_the_fence_so_that_an_idle_owner_detects_a_change(redis) -> None:
    store = new_store(redis)
    await store.claim("me", 5, b"eeee", "")

    with pytest.raises(FencedError, match="fence"):
        await seal(store, 4, 2_000)


async def test_full_outbox_rejects_a_fold_and_changes_nothing(redis) -> None:
    store = new_store(redis)
    await store.claim("me", -1, b"eeee", "")
    bounds = Bounds(10, 40, max_events=1)
    await fold(store, -1, one(0), bounds)
    before = await redis.hgetall(store.keys.meta)
    rejected = await send(store, 0, one(1), packed(one(1), bounds), bounds, outbox_limit=1)

    assert (FoldOutcome.FULL, before) == (rejected.outcome, await redis.hgetall(store.keys.meta))
    await store.finish("me", [(0, 0, 1)])
    await fold(store, 0, one(1), bounds, outbox_limit=1)
    assert await store.watermark() == 1


async def test_group_at_exactly_the_quiet_period_is_not_due(redis) -> None:
    store = new_store(redis)
    await store.claim("me", -1, b"eeee", "")
    await fold(store, -1, one(0), BOUNDS)

    early = await seal(store, 0, 1_010)
    assert early.sealed == []
    due = await seal(store, 0, 1_011)
    assert len(due.sealed) == 1


async def test_silence_of_sessions_counts_from_the_arrival(redis) -> None:
    store = new_store(redis)
    await store.claim("me", -1, b"eeee", "")
    chunk = one(0, bounds=SESSIONS)  # its record time is 1 000; it arrives at 5 000
    await send(store, -1, chunk, packed(chunk, SESSIONS, silent_from_ms=5_000), SESSIONS)
    bounds = Bounds(10, 40 + 4_000)

    early = await seal(store, 0, 5_010, bounds)
    assert early.sealed == []
    due = await seal(store, 0, 5_011, bounds)
    assert ["quiet"] == [comparable(entry)[6] for entry in due.sealed]


async def test_hold_that_ends_before_the_silence_since_the_arrival_is_the_reason(redis) -> None:
    store = new_store(redis)
    await store.claim("me", -1, b"eeee", "")
    chunk = one(0, bounds=SESSIONS)
    await send(store, -1, chunk, packed(chunk, SESSIONS, silent_from_ms=5_000), SESSIONS)
    done = await seal(store, 0, 5_010, Bounds(10, 10 + 4_000))

    assert ["max_hold"] == [comparable(entry)[6] for entry in done.sealed]


async def test_large_values_are_sealed_in_portions_even_when_they_are_flushed(redis) -> None:
    store = new_store(redis)
    await store.claim("me", -1, b"eeee", "")
    for number in range(9):
        values = [FoldEvent(number, 1_000, f"sg{number}".encode(), {"u": "x" * 900_000})]
        await fold(store, number - 1, chunk_of(values))
    await redis.sadd(store.keys.flush, "*")
    portions = []
    for _ in range(5):
        done = await seal(store, 8, 1_000, limit=1_000)
        portions.append((len(done.sealed), done.more, await redis.exists(store.keys.flush)))

    assert [(2, True, 1)] * 4 + [(1, False, 0)] == portions


async def test_seal_skips_a_group_with_events_above_the_fence(redis) -> None:
    store = new_store(redis)
    await store.claim("me", -1, b"eeee", "")
    await fold(store, -1, one(4), BOUNDS)
    await redis.hset(store.keys.meta, "fence", 2)  # a fold that died before its last write
    sealed = await seal(store, 2, 9_000)

    assert sealed.sealed == []


async def test_fold_interrupted_before_its_last_write_is_repeated_without_counting_twice(redis) -> None:
    store = new_store(redis)
    await store.claim("me", -1, b"eeee", "")
    events = [FoldEvent(n, 1_000, b"sa", {"u": n}) for n in range(5)]
    await fold(store, -1, chunk_of(events[:3]))
    await redis.hset(store.keys.meta, "fence", -1)
    await redis.delete(store.keys.due)
    await fold(store, -1, chunk_of(events), BOUNDS, events)
    sealed = await seal(store, 4, 9_000)

    assert [comparable(entry)[:4] for entry in sealed.sealed] == [(b"sa", 0, 4, 5)]


@pytest.mark.parametrize("before", [0, 1], ids=["a new group", "a group that was open"])
async def test_groups_closed_by_an_interrupted_fold_are_refolded(redis, before: int) -> None:
    """A group opened after those records does not count as their state."""
    store = new_store(redis)
    await store.claim("me", -1, b"eeee", "")
    bounds = Bounds(10, 40, max_changed=2)
    events = [FoldEvent(n, 1_000, b"sa", {f"n{n}": n, f"m{n}": n}) for n in range(4)]
    if before:
        await fold(store, -1, chunk_of(events[:1]), bounds, events[:1])
    await fold(store, before - 1, chunk_of(events[before:3]), bounds, events[:3])
    await redis.hset(store.keys.meta, "fence", before - 1)
    await redis.zadd(store.keys.first, {b"sa": 0}) if before else await redis.zrem(store.keys.first, b"sa")
    await fold(store, before - 1, chunk_of(events[before:]), bounds, events)
    sealed = await outbox_of(store)

    # Records that are in an entry of both scripts have the same id.
    assert [(0, 0), (1, 1), (2, 2)] == sorted({(entry.first_offset, entry.last_offset) for entry in sealed})
    assert 3 == await store.redis.zscore(store.keys.first, b"sa")


@pytest.mark.parametrize("bounds", [BOUNDS, Bounds(10, 40, max_events=2)], ids=["as it was sent", "looked at event by event"])
async def test_remains_of_an_older_state_are_not_taken_for_open_groups(redis, bounds: Bounds) -> None:
    store = new_store(redis)
    await store.claim("me", -1, b"eeee", "")
    await fold(store, -1, chunk_of([FoldEvent(0, 1_000, b"sa", {"old": 1})]))
    await redis.delete(store.keys.meta)
    await store.claim("me", 4, b"ffff", "")
    events = [FoldEvent(at, 1_000, b"sa", {"u": at}) for at in (5, 6, 7)]
    await fold(store, 4, chunk_of(events, bounds), bounds, events, epoch=b"ffff")
    await seal(store, 7, 9_000, bounds)
    sealed = await outbox_of(store)

    assert (3, [["u"]] * len(sealed)) == (sum(entry.events for entry in sealed), [list(entry.names) for entry in sealed])
    assert 5 == sealed[0].first_offset


async def test_skip_needs_every_group_sealed(redis) -> None:
    store = new_store(redis)
    await store.claim("me", -1, b"eeee", "")
    await fold(store, -1, one(0), BOUNDS)
    with pytest.raises(FencedError, match="open-groups"):
        await store.skip("me", 0, 9)
    flushed = await seal(store, 0, 0, quiet=False, everything=True)
    await store.skip("me", 0, 9)

    assert comparable(flushed.sealed[0])[6] == "flush"
    assert await store.watermark() == 0
