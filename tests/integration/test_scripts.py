"""The Lua scripts on a real server, against the same shard in memory."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from streams_app.folding.core.chunks import Chunk, FoldEvent, Scoring, chunks_of, single_events
from streams_app.folding.core.model import MemoryShard
from streams_app.folding.core.record import Sealed
from streams_app.folding.shard.staging import stage
from streams_app.folding.store import portions as portions_module
from streams_app.folding.store.arguments import Arguments, Bounds, arguments_of
from streams_app.folding.store.keys import shard_keys
from streams_app.folding.store.replies import DetailNeededError, OutboxFullError, RefusedError
from streams_app.folding.store.scripts import ScriptSet
from streams_app.folding.store.shard_store import ShardStore

WALL = 10**12
BOUNDS = Bounds(quiet_ms=10, hold_ms=40, max_events=0, max_changed=10_000, outbox_limit=1_000)


@pytest.fixture
async def redis(redis_server) -> AsyncIterator[Redis]:
    client = Redis.from_url(redis_server.url)
    yield client
    await client.aclose()


def new_store(redis: Redis) -> ShardStore:
    return ShardStore(ScriptSet(redis), shard_keys(f"test-{secrets.token_hex(4)}", "f", "t", 0))


async def fold(
    store: ShardStore,
    fence: int,
    chunk: Chunk,
    bounds: Bounds,
    events: list[FoldEvent] | None = None,
    *,
    sessions: bool,
    epoch: bytes = b"eeee",
) -> list[Sealed]:
    detail: frozenset[bytes] = frozenset()
    ended: list[Sealed] = []
    while True:
        arguments = arguments_of(
            chunk, bounds, gaps_close=sessions, keeps_values=True, partitions=4, epoch=epoch,
            singles=single_events(events or [], chunk, detail) if detail else None,
        )  # fmt: skip
        staged = await stage(store, ("me", fence, chunk.to), arguments, bounds, 4)
        ended += staged.ended
        try:
            reply = await store.fold(
                "me", fence, chunk.to, chunk.clock_ms, chunk.clock_ms, bounds,
                gaps_close=sessions, partitions=4, arguments=staged.rest, ahead=staged.ahead,
                attempt=staged.attempt,
            )  # fmt: skip
        except DetailNeededError as needed:
            assert not needed.groups <= detail, "a group of single events is asked for again"
            detail |= needed.groups
        else:
            return [*ended, *staged.joint, *staged.sessions, *reply.sealed]


async def sealed_in(store: ShardStore, fence: int = 10**6) -> list[tuple[int, bytes]]:
    """What the outbox holds up to a fence, as it is: first offset, packed record."""
    found: Any = await store.redis.zrangebyscore(store.keys.outbox, "-inf", fence, withscores=True)
    return [(int(score), packed) for packed, score in found]


def packed(chunk: Chunk, *, sessions: bool = False) -> Arguments:
    return arguments_of(chunk, BOUNDS, gaps_close=sessions, keeps_values=True, partitions=4, epoch=b"eeee")


def told(sealed: Sealed) -> tuple[Any, ...]:
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
                st.integers(0, 25),  # time to the event before it; late events come from the range below
                st.sampled_from([b"sa", b"sb", b"j1", b"s{x}\n"]),
                st.dictionaries(st.sampled_from("uvwxyz"), st.integers(0, 9), max_size=3),
            ),
            max_size=12,
        ),
        st.integers(0, 60),  # how far the clock moves before the next seal
    ),
    max_size=8,
)
bounds = st.builds(
    Bounds,
    quiet_ms=st.sampled_from([5, 20]),
    hold_ms=st.sampled_from([20, 50, 1_000]),
    max_events=st.sampled_from([0, 1, 4]),
    max_changed=st.sampled_from([2, 4, 10_000]),
    outbox_limit=st.just(1_000),
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps, bounds=bounds, sessions=st.booleans(), portion=st.sampled_from([1, 2, 100]))
async def test_scripts_agree_with_the_model_for_any_batches_and_bounds(redis, steps, bounds, sessions, portion) -> None:
    with patch.multiple(portions_module, STAGED_RECORDS=portion, STAGED_GROUPS=portion, SINGLE_GROUPS=portion):
        await agree_with_the_model(redis, steps, bounds, sessions)


async def agree_with_the_model(redis: Redis, steps: Any, bounds: Bounds, sessions: bool) -> None:
    store = new_store(redis)
    model = MemoryShard(bounds.quiet_ms, bounds.hold_ms, bounds.max_events, bounds.max_changed, sessions)
    expected: list[tuple[Any, ...]] = []
    await store.claim("me", -1, b"eeee", "")
    fence, clock, stamp = -1, 0, 1_000
    found: list[tuple[Any, ...]] = []
    for events, pause in steps:
        batch, at = [], fence
        for gap, later, group, names in events:
            at += gap
            stamp += later
            batch.append(FoldEvent(at, stamp, group, names))
            expected += map(told, model.fold(batch[-1], stamp))
        for chunk in chunks_of(batch, at, Scoring(clock, WALL, None, bounds.quiet_ms if sessions else None)):
            if chunk.to > fence:
                found += map(told, await fold(store, fence, chunk, bounds, batch, sessions=sessions))
                fence, clock = chunk.to, chunk.clock_ms
        stamp += pause
        expected += map(told, model.seal(stamp))
        clock = stamp
        sealed = await store.seal("me", fence, clock, bounds, quiet=True, everything=False, limit=1_000, partitions=4)
        found += map(told, sealed.sealed)
        lows = [held.first_offset for held in model.open.values()] + [entry[1] for entry in expected]

        assert min([fence + 1, *lows]) == await store.watermark()
        assert len(model.open) == sealed.open_groups
    assert sorted(expected, key=lambda entry: entry[1]) == sorted(found, key=lambda entry: entry[1])
    assert [entry[1] for entry in sorted(expected, key=lambda entry: entry[1])] == [first for first, _ in await sealed_in(store)]
    await redis.delete(*[key async for key in redis.scan_iter(f"{store.keys.meta.split(':v1')[0]}*")] or ["none"])


def one(offset: int, group: bytes = b"sa", stamp: int = 1_000) -> Chunk:
    (chunk,) = chunks_of([FoldEvent(offset, stamp, group, {"u": 1})], offset, Scoring(0, WALL, None, None))
    return chunk


async def test_fold_is_refused_without_state(redis) -> None:
    with pytest.raises(RefusedError, match="no-state"):
        await fold(new_store(redis), -1, one(0), BOUNDS, sessions=False)


async def test_fold_is_refused_to_another_token(redis) -> None:
    store = new_store(redis)
    await store.claim("another", -1, b"eeee", "")

    with pytest.raises(RefusedError, match="token"):
        await fold(store, -1, one(0), BOUNDS, sessions=False)


async def test_fold_is_refused_at_another_fence(redis) -> None:
    store = new_store(redis)
    await store.claim("me", 6, b"eeee", "")

    with pytest.raises(RefusedError, match="fence"):
        await fold(store, -1, one(0), BOUNDS, sessions=False)


async def test_a_fold_whose_reply_was_lost_is_recognised(redis) -> None:
    store = new_store(redis)
    await store.claim("me", -1, b"eeee", "")
    await fold(store, -1, one(3), BOUNDS, sessions=False)
    reply = await store.fold("me", -1, 3, 1_000, 1_000, BOUNDS, gaps_close=False, partitions=4, arguments=packed(one(3)))

    assert reply.repeated
    assert await store.watermark() == 3


async def test_claim_keeps_the_state_and_takes_it_from_the_former_owner(redis) -> None:
    store = new_store(redis)
    await store.claim("me", -1, b"eeee", "def")
    await fold(store, -1, one(3), BOUNDS, sessions=False)
    claimed = await store.claim("other", 99, b"ffff", "new")

    assert claimed is not None
    assert (claimed.created, claimed.fence, claimed.definition, claimed.open_groups) == (False, 3, "def", 1)
    for attempt in (
        store.seal("me", 3, 2_000, BOUNDS, quiet=True, everything=False, limit=9, partitions=4),
        store.finish("me", [(3, 3, 1)]),
        store.skip("me", 3, 9),
        store.define("me", ""),
    ):
        with pytest.raises(RefusedError, match="token"):
            await attempt


async def test_seal_checks_the_fence_so_that_an_idle_owner_notices(redis) -> None:
    store = new_store(redis)
    await store.claim("me", 5, b"eeee", "")

    with pytest.raises(RefusedError, match="fence"):
        await store.seal("me", 4, 2_000, BOUNDS, quiet=True, everything=False, limit=9, partitions=4)


async def test_a_full_outbox_refuses_to_fold_and_changes_nothing(redis) -> None:
    store = new_store(redis)
    await store.claim("me", -1, b"eeee", "")
    bounds = Bounds(10, 40, 1, 100, 1)
    await fold(store, -1, one(0), bounds, sessions=False)

    with pytest.raises(OutboxFullError):
        await fold(store, 0, one(1), bounds, sessions=False)
    await store.finish("me", [(0, 0, 1)])
    await fold(store, 0, one(1), bounds, sessions=False)
    assert await store.watermark() == 1


async def test_a_group_at_exactly_the_quiet_period_is_not_due(redis) -> None:
    store = new_store(redis)
    await store.claim("me", -1, b"eeee", "")
    await fold(store, -1, one(0), BOUNDS, sessions=False)

    early = await store.seal("me", 0, 1_010, BOUNDS, quiet=True, everything=False, limit=9, partitions=4)
    assert early.sealed == []
    due = await store.seal("me", 0, 1_011, BOUNDS, quiet=True, everything=False, limit=9, partitions=4)
    assert len(due.sealed) == 1


async def test_where_gaps_close_groups_silence_is_counted_from_the_arrival(redis) -> None:
    store = new_store(redis)
    await store.claim("me", -1, b"eeee", "")
    chunk = one(0)  # its record time is 1 000; it arrives at 5 000
    await store.fold(
        "me", -1, 0, 1_000, 1_000, BOUNDS, gaps_close=True, partitions=4, arguments=packed(chunk, sessions=True), arrived_ms=5_000
    )
    bounds = Bounds(10, 40 + 4_000, 0, 100, 1_000)

    early = await store.seal("me", 0, 5_010, bounds, quiet=True, everything=False, limit=9, partitions=4)
    assert early.sealed == []
    due = await store.seal("me", 0, 5_011, bounds, quiet=True, everything=False, limit=9, partitions=4)
    assert ["quiet"] == [told(entry)[6] for entry in due.sealed]


async def test_a_hold_that_ends_before_the_silence_since_the_arrival_is_the_reason(redis) -> None:
    store = new_store(redis)
    await store.claim("me", -1, b"eeee", "")
    chunk = one(0)
    await store.fold(
        "me", -1, 0, 1_000, 1_000, BOUNDS, gaps_close=True, partitions=4, arguments=packed(chunk, sessions=True), arrived_ms=5_000
    )
    done = await store.seal(
        "me", 0, 5_010, Bounds(10, 10 + 4_000, 0, 100, 1_000), quiet=True, everything=False, limit=9, partitions=4
    )

    assert ["max_hold"] == [told(entry)[6] for entry in done.sealed]


async def test_large_values_leave_in_portions_also_when_they_are_flushed(redis) -> None:
    store = new_store(redis)
    await store.claim("me", -1, b"eeee", "")
    for number in range(9):
        values = [FoldEvent(number, 1_000, f"sg{number}".encode(), {"u": "x" * 900_000})]
        (chunk,) = chunks_of(values, number, Scoring(0, WALL, None, None))
        await fold(store, number - 1, chunk, BOUNDS, sessions=False)
    await redis.sadd(store.keys.flush, "*")
    portions = []
    for _ in range(5):
        done = await store.seal("me", 8, 1_000, BOUNDS, quiet=True, everything=False, limit=1_000, partitions=4)
        portions.append((len(done.sealed), done.more, await redis.exists(store.keys.flush)))

    assert [(2, True, 1)] * 4 + [(1, False, 0)] == portions


async def test_seal_leaves_a_group_alone_that_holds_something_above_the_fence(redis) -> None:
    store = new_store(redis)
    await store.claim("me", -1, b"eeee", "")
    await fold(store, -1, one(4), BOUNDS, sessions=False)
    await redis.hset(store.keys.meta, "fence", 2)  # a fold that died before its last write
    sealed = await store.seal("me", 2, 9_000, BOUNDS, quiet=True, everything=False, limit=9, partitions=4)

    assert sealed.sealed == []


async def test_a_fold_that_died_before_its_last_write_is_repeated_without_counting_twice(redis) -> None:
    store = new_store(redis)
    await store.claim("me", -1, b"eeee", "")
    events = [FoldEvent(n, 1_000, b"sa", {"u": n}) for n in range(5)]
    scoring = Scoring(0, WALL, None, None)
    (chunk,) = chunks_of(events[:3], 2, scoring)
    await fold(store, -1, chunk, BOUNDS, sessions=False)
    await redis.hset(store.keys.meta, "fence", -1)
    await redis.delete(store.keys.due)
    (chunk,) = chunks_of(events, 4, scoring)
    await fold(store, -1, chunk, BOUNDS, events, sessions=False)
    sealed = await store.seal("me", 4, 9_000, BOUNDS, quiet=True, everything=False, limit=9, partitions=4)

    assert [told(entry)[:4] for entry in sealed.sealed] == [(b"sa", 0, 4, 5)]


@pytest.mark.parametrize("before", [0, 1], ids=["a new group", "a group that was open"])
async def test_what_a_dying_fold_had_closed_is_folded_again(redis, before: int) -> None:
    """Its records lie beyond the fence and are dropped; a group it had opened behind them does not stand for them."""
    store = new_store(redis)
    await store.claim("me", -1, b"eeee", "")
    bounds = Bounds(10, 40, 0, 2, 1_000)
    events = [FoldEvent(n, 1_000, b"sa", {f"n{n}": n, f"m{n}": n}) for n in range(4)]
    scoring = Scoring(0, WALL, None, None)
    if before:
        (chunk,) = chunks_of(events[:1], 0, scoring)
        await fold(store, -1, chunk, bounds, events[:1], sessions=False)
    (chunk,) = chunks_of(events[before:3], 2, scoring)
    await fold(store, before - 1, chunk, bounds, events[:3], sessions=False)
    await redis.hset(store.keys.meta, "fence", before - 1)
    await redis.zadd(store.keys.first, {b"sa": 0}) if before else await redis.zrem(store.keys.first, b"sa")
    (chunk,) = chunks_of(events[before:], 3, scoring)
    await fold(store, before - 1, chunk, bounds, events, sessions=False)
    sealed = [Sealed.unpack(packed) for _, packed in await sealed_in(store, 3)]

    assert [0, 1, 2] == [entry.first_offset for entry in sealed]
    assert 3 == await store.redis.zscore(store.keys.first, b"sa")


async def test_leftovers_of_an_older_state_are_not_taken_for_open_groups(redis) -> None:
    store = new_store(redis)
    await store.claim("me", -1, b"eeee", "")
    await fold(store, -1, one(0), BOUNDS, sessions=False)
    await redis.delete(store.keys.meta)
    await store.claim("me", 4, b"ffff", "")
    await fold(store, 4, one(5), BOUNDS, sessions=False, epoch=b"ffff")
    sealed = await store.seal("me", 5, 9_000, BOUNDS, quiet=True, everything=False, limit=9, partitions=4)

    assert [told(entry)[1:4] for entry in sealed.sealed] == [(5, 5, 1)]


async def test_skip_needs_every_group_sealed(redis) -> None:
    store = new_store(redis)
    await store.claim("me", -1, b"eeee", "")
    await fold(store, -1, one(0), BOUNDS, sessions=False)
    with pytest.raises(RefusedError, match="open-groups"):
        await store.skip("me", 0, 9)
    flushed = await store.seal("me", 0, 0, BOUNDS, quiet=False, everything=True, limit=9, partitions=4)
    await store.skip("me", 0, 9)

    assert told(flushed.sealed[0])[6] == "flush"
    assert await store.watermark() == 0
