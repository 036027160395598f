"""Timers of packed groups, many of which share a member of the key ``timers``."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgpack
import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from streams_app.folding.core.event import FoldEvent
from streams_app.folding.store.codec import TIMERS_IN_A_BATCH, timers_in
from streams_app.folding.store.shard_store import ShardStore
from tests.helpers.folding.scripts import (
    EPOCH,
    chunk_of,
    edited,
    emptied,
    fold,
    new_store,
    open_groups,
    outbox_of,
    packed_in,
    seal,
    state_of,
)
from tests.simulation.mutants_packed import UNCHANGED_BATCH
from tests.simulation.redis import dying

pytestmark = pytest.mark.usefixtures("stores_packed")


@pytest.fixture
def store(packed_store: ShardStore) -> ShardStore:
    return packed_store


async def fold_at(store: ShardStore, fence: int, at_ms: int, groups: list[bytes]) -> int:
    """Fold an event of each of these groups by one script; return the new fence."""
    events = [FoldEvent(fence + 1 + position, at_ms, group, {"u": 1}) for position, group in enumerate(groups)]
    await fold(store, fence, chunk_of(events, above=fence))
    return fence + len(groups)


async def batches_of(store: ShardStore) -> list[list[tuple[bytes, int]]]:
    found: Any = await store.redis.zrange(store.keys.timers, 0, -1, withscores=True)
    batches = []
    for batch, score in found:
        assert score == min(timer for _, timer in timers_in(batch))
        opened: Any = [await store.redis.zrangebyscore(store.keys.first, offset, offset) for offset, _ in timers_in(batch)]
        batches.append([(group, timer) for (_, timer), groups in zip(timers_in(batch), opened, strict=True) for group in groups])
    return batches


def named(count: int, first: int = 0) -> list[bytes]:
    return [b"s%03d" % number for number in range(first, first + count)]


async def test_groups_that_one_script_opens_share_batches(store: ShardStore) -> None:
    await fold_at(store, -1, 100, named(150))

    assert [64, 64, 22] == sorted(map(len, await batches_of(store)), reverse=True)
    assert 64 == TIMERS_IN_A_BATCH
    assert 0 == await store.redis.exists(store.keys.due)


async def test_groups_of_one_batch_are_sealed_each_at_its_time(store: ShardStore) -> None:
    events = [FoldEvent(number, 100 + number // 9, group, {"u": 1}) for number, group in enumerate(named(60))]
    await fold(store, -1, chunk_of(events, above=-1))
    sealed: dict[int, int] = {}
    for clock_ms in range(105, 122):
        for entry in (await seal(store, 59, clock_ms, limit=500)).sealed:
            sealed[entry.first_offset] = clock_ms

    assert {number: 111 + number // 9 for number in range(60)} == sealed
    assert [] == await batches_of(store)


@pytest.mark.parametrize("limit", [1, 3, 50])
async def test_no_timer_is_lost_if_a_script_has_room_for_a_part_of_a_batch(store: ShardStore, limit: int) -> None:
    fence = await fold_at(store, -1, 100, named(60))
    fence = await fold_at(store, fence, 105, named(30))
    found = []
    for _ in range(200):
        done = await seal(store, fence, 111, limit=limit)
        assert len(done.sealed) <= limit
        found += done.sealed
        if not done.more:
            break

    assert set(named(30, 30)) == {entry.member for entry in found}
    assert dict.fromkeys(named(30), 105) == dict(entry for batch in await batches_of(store) for entry in batch)
    assert 30 == sum([len((await seal(store, fence, 116, limit=50)).sealed)])


async def test_oldest_silence_is_that_of_the_group_that_is_due_first(store: ShardStore) -> None:
    fence = await fold_at(store, -1, 100, named(3))
    fence = await fold_at(store, fence, 105, named(1))
    fence = await fold_at(store, fence, 103, named(2, 1))

    assert 103 == (await seal(store, fence, 106, limit=500)).oldest_score_ms


async def test_timer_of_a_group_that_was_closed_concerns_no_later_group_with_its_key(store: ShardStore) -> None:
    fence = await fold_at(store, -1, 100, [b"sa", b"sb"])
    await store.redis.sadd(store.keys.flush, b"sa")
    assert [b"sa"] == [entry.member for entry in (await seal(store, fence, 101, limit=500)).sealed]
    fence = await fold_at(store, fence, 108, [b"sa"])
    done = await seal(store, fence, 111, limit=500)

    assert [b"sb"] == [entry.member for entry in done.sealed]
    assert [[(b"sa", 108)]] == await batches_of(store)
    assert [b"sa"] == [entry.member for entry in (await seal(store, fence, 119, limit=500)).sealed]


async def test_number_of_timers_that_one_script_reads_is_bounded(store: ShardStore) -> None:
    fence = await fold_at(store, -1, 100, named(640))
    await store.redis.delete(store.keys.open, store.keys.first)  # as if another bound had closed them
    more = [(await seal(store, fence, 111, limit=10)).more for _ in range(8)]

    assert (True, False) == (more[0], more[-1])
    assert [] == await batches_of(store)


async def test_group_of_which_the_range_may_have_more_keeps_its_timer(store: ShardStore) -> None:
    fence = await fold_at(store, -1, 100, [b"sa", b"sb"])
    await store.redis.hset(store.keys.meta, "fence", fence - 1)
    done = await seal(store, fence - 1, 111, limit=500)

    assert [b"sa"] == [entry.member for entry in done.sealed]
    assert [[(b"sb", 100)]] == await batches_of(store)


async def test_group_with_two_timers_is_sealed_once(store: ShardStore) -> None:
    fence = await fold_at(store, -1, 100, [b"sa"])
    fence = await fold_at(store, fence, 101, [b"sb"])
    await store.redis.zadd(store.keys.timers, {msgpack.packb([99, 0]): 99})
    early = await seal(store, fence, 110, limit=500)
    done = await seal(store, fence, 500, limit=500)

    assert [] == early.sealed
    assert [b"sa", b"sb"] == sorted(entry.member for entry in done.sealed)
    assert [] == await batches_of(store)


async def raw(store: ShardStore) -> list[Any]:
    found: Any = await store.redis.zrange(store.keys.timers, 0, -1, withscores=True)
    return list(found)


async def test_no_key_of_a_forgotten_group_is_left(store: ShardStore) -> None:
    fence = await fold_at(store, -1, 100, named(70))
    await store.redis.sadd(store.keys.flush, b"s001")
    await seal(store, fence, 101, limit=500)  # closed, and its timer is still in a batch
    reply = await store.forget("operator", [b"s001", b"s002"], 1_000, [])

    assert 1 == reply.groups
    assert sorted(set(named(70)) - {b"s001", b"s002"}) == sorted(member for batch in await batches_of(store) for member, _ in batch)
    assert not any(b"s001" in value or b"s002" in value for key, value in (await state_of(store)).items() if b"outbox" not in key)


async def test_every_group_is_sealed_although_scripts_die_at_any_write(redis_client: Redis) -> None:
    died = 0
    for writes in range(30):
        store = new_store(redis_client)
        await store.claim("me", -1, EPOCH, "")
        fence = await fold_at(store, -1, 100, named(3))
        chunk = chunk_of([FoldEvent(3, 105, b"s000", {"u": 1}), FoldEvent(4, 105, b"s100", {"u": 1})], above=fence)
        for script in ("fold", "seal"):
            broken, before = edited(store, partial(dying, writes=writes), script), died
            try:
                if script == "fold":
                    await fold(broken, fence, chunk)
                else:
                    await seal(broken, 4, 111, limit=500)
            except ResponseError as error:
                assert "the script fails here" in str(error)
                died += 1
            if script == "fold" and before < died:
                await fold(store, fence, chunk)
        for clock_ms in (111, 116, 116):
            await seal(store, 4, clock_ms, limit=500)

        assert {b"s000", b"s001", b"s002", b"s100"} == {entry.member for entry in await outbox_of(store)}
        assert ({}, set(), []) == (await open_groups(store), await packed_in(store), await batches_of(store))
        await emptied(store)
    assert died > 8


async def test_number_of_timers_that_one_script_writes_again_is_bounded(store: ShardStore) -> None:
    fence = -1
    for number in range(20):  # each batch has one timer that has passed
        fence = await fold_at(store, fence, 100 + number, named(1, 100 * number))
    await store.redis.delete(store.keys.timers)
    batch = await store.redis.hkeys(store.keys.open)
    assert 20 == len(batch)
    for number in range(20):
        entries = [100 + number, number]
        for other in range(63):
            entries += [1_000 if other == 0 else 1, 50]
        await store.redis.zadd(store.keys.timers, {msgpack.packb(entries): 100 + number})
    calls = 0
    found: list[bytes] = []
    while True:
        await store.redis.config_resetstat()
        done = await seal(store, fence, 130, limit=20)
        counts: Any = await store.redis.info("commandstats")
        assert counts["cmdstat_hmget"]["calls"] <= 6 + 4  # batches of 64, and the fields of the state
        found += [entry.member for entry in done.sealed]
        calls += 1
        if not done.more:
            break

    assert sorted(found) == sorted(b"s%03d" % (100 * number) for number in range(20))
    assert calls > 4


async def test_batch_whose_groups_all_stay_open_is_kept(redis_client: Redis) -> None:
    store = new_store(redis_client)
    await store.claim("me", -1, EPOCH, "")
    fence = await fold_at(store, -1, 100, [b"sa"])
    await store.redis.hset(store.keys.meta, "fence", fence - 1)  # the range may have more of the group
    assert () == tuple((await seal(store, fence - 1, 111, limit=500)).sealed)

    assert [[(b"sa", 100)]] == await batches_of(store)


async def test_removed_batch_is_detected(redis_client: Redis) -> None:
    with UNCHANGED_BATCH[0].applied(), pytest.raises(AssertionError, match="sa"):
        await test_batch_whose_groups_all_stay_open_is_kept(redis_client)
