"""A group with new events keeps its old timer; emission, display and lists are as if the timer had moved."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgpack
import pytest
from redis.asyncio import Redis

from streams_app.fold import Fold
from streams_app.folding.core.event import FoldEvent
from streams_app.folding.store.codec import INFO_FIELD, timers_in
from streams_app.folding.store.keys import shard_keys
from streams_app.folding.store.scripts import FoldScripts
from streams_app.folding.store.shard_store import ShardStore
from streams_app.operations import groups as listing
from streams_app.operations.groups import BATCH, StoredShard, collect, group_text
from tests.conftest import Names
from tests.helpers.folding.scripts import BOUNDS, SESSIONS, FormPacker, chunks_of, fold, one, packed, seal, send

MANY = 4_500
"""More groups than one script visits."""

FOLD = Fold(name="f", source="t", group_key="a", changed="m", quiet_period=timedelta(milliseconds=BOUNDS.quiet_ms))


@pytest.fixture
async def store(redis_client: Redis, names: Names) -> ShardStore:
    made = ShardStore(FoldScripts(redis_client), shard_keys(names.app_id, FOLD.name, FOLD.source, 0))
    await made.claim("me", -1, b"eeee", "")
    return made


async def fold_at(store: ShardStore, fence: int, groups: list[bytes], at_ms: int, names: int = 1) -> int:
    """Fold one event of each of these groups, as merge does; return the new fence."""
    changed = {f"n{number}": 0 for number in range(names)}
    events = [FoldEvent(fence + 1 + position, at_ms, group, changed) for position, group in enumerate(groups)]
    for chunk in chunks_of(events, fence + len(groups), start_ms=at_ms, above=fence):
        assert [] == await fold(store, fence, chunk)
        fence = chunk.to
    return fence


async def timers(store: ShardStore) -> dict[bytes, int]:
    pairs: Any = await store.redis.zrange(store.keys.due, 0, -1, withscores=True)
    batches: Any = await store.redis.zrange(store.keys.timers, 0, -1)
    for first_offset, timer in [entry for batch in batches for entry in timers_in(batch)]:
        members: Any = await store.redis.zrangebyscore(store.keys.first, first_offset, first_offset)
        pairs += [(member, timer) for member in members]
    assert len(dict(pairs)) == len(pairs), "a group has two timers"
    return {group: int(timer) for group, timer in pairs}


@pytest.mark.usefixtures("each_form")
async def test_early_timer_is_rescheduled(store: ShardStore) -> None:
    fence = await fold_at(store, -1, [b"sa"], 100)
    fence = await fold_at(store, fence, [b"sa"], 105)
    assert {b"sa": 100} == await timers(store)
    early = await seal(store, fence, 111, limit=500)
    assert {b"sa": 105} == await timers(store)
    at_the_end = await seal(store, fence, 115, limit=500)
    late = await seal(store, fence, 116, limit=500)

    assert [0, 0, 1] == [len(done.sealed) for done in (early, at_the_end, late)]
    assert (2, "quiet", 115) == (late.sealed[0].events, late.sealed[0].reason, late.sealed[0].due_ms)
    assert {} == await timers(store)


@pytest.mark.usefixtures("each_form")
async def test_script_reschedules_a_bounded_number_of_timers(store: ShardStore) -> None:
    groups = [b"s%d" % number for number in range(MANY)]
    fence = await fold_at(store, await fold_at(store, -1, groups, 100), groups, 105)
    changed = []
    while True:
        done = await seal(store, fence, 111, limit=500)
        assert [] == done.sealed
        changed.append(sum(timer == 105 for timer in (await timers(store)).values()))
        if not done.more:
            break
    out = await seal(store, fence, 116, limit=500)

    assert changed == sorted(changed)
    assert 2 < len(changed)
    assert MANY == changed[-1]
    assert (500, True) == (len(out.sealed), out.more)


async def test_groups_that_are_not_due_are_not_read(store: ShardStore) -> None:
    groups = [b"s%d" % number for number in range(12)]
    fence = await fold_at(store, await fold_at(store, -1, groups, 100), groups, 105, names=900)
    await store.redis.config_resetstat()
    done = await seal(store, fence, 111, limit=500)
    counts = await store.redis.info("commandstats")

    assert [] == done.sealed
    assert (False, True) == ("cmdstat_hgetall" in counts, "cmdstat_hget" in counts)


async def test_packed_groups_that_are_not_due_are_read_in_pages(store: ShardStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FormPacker, "stores_packed", True)
    groups = [b"s%d" % number for number in range(400)]
    fence = await fold_at(store, await fold_at(store, -1, groups, 100), groups, 105, names=3)
    await store.redis.config_resetstat()
    done = await seal(store, fence, 111, limit=500)
    counts: Any = await store.redis.info("commandstats")

    assert ([], {105}) == (done.sealed, set((await timers(store)).values()))
    assert ("cmdstat_hgetall" in counts, "cmdstat_hget" in counts) == (False, False)
    assert 14 > counts["cmdstat_hmget"]["calls"]  # fields of the state, seven batches, and the reported ages


@pytest.mark.parametrize(("due", "reads"), [(1, 2), (3, 4)])
async def test_one_group_that_is_not_due_is_read_after_the_sealed_ones(store: ShardStore, due: int, reads: int) -> None:
    groups = [b"s%02d" % number for number in range(12)]
    fence = await fold_at(store, await fold_at(store, -1, groups, 100), groups[due:], 105, names=900)
    await store.redis.config_resetstat()
    done = await seal(store, fence, 111, limit=500)
    counts = await store.redis.info("commandstats")

    assert due == len(done.sealed)
    assert reads == counts["cmdstat_hgetall"]["calls"]


async def test_reading_groups_that_stay_counts_as_work(store: ShardStore) -> None:
    groups = [b"s%03d" % number for number in range(160)]
    fence = await fold_at(store, await fold_at(store, -1, groups, 100), groups[1::2], 105, names=900)
    sealed = []
    while True:
        done = await seal(store, fence, 111, limit=500)
        sealed.append(len(done.sealed))
        if not done.more:
            break

    assert 80 == sum(sealed)
    assert 2 <= len(sealed)


async def test_early_timers_count_towards_the_limit_of_a_script(store: ShardStore, *, each_form: bool) -> None:
    early, due = [b"a%02d" % number for number in range(40)], [b"b%02d" % number for number in range(20)]
    fence = await fold_at(store, await fold_at(store, -1, early + due, 100), early, 105)
    found = []
    for _ in range(20):
        await store.redis.config_resetstat()
        done = await seal(store, fence, 111, limit=10)
        read: Any = await store.redis.info("commandstats")
        found.append((len(done.sealed), done.more))
        hashes = read.get("cmdstat_hget", {"calls": 0})["calls"]
        assert hashes <= 10 + 3  # the visited groups, and the reported age of the oldest
        if not done.more:
            break

    assert each_form or [(0, True)] * 3 == found[:3]  # equal timers of packed groups have no order
    assert 3 < len(found)
    assert 20 == sum(sealed for sealed, _ in found)
    assert max(sealed for sealed, _ in found) <= 10


@pytest.mark.usefixtures("each_form")
@pytest.mark.parametrize("quiet", [True, False])
async def test_oldest_group_is_the_one_silent_for_longest(store: ShardStore, quiet: bool) -> None:
    fence = await fold_at(store, -1, [b"sa", b"sb"], 100)
    fence = await fold_at(store, fence, [b"sa"], 105)
    fence = await fold_at(store, fence, [b"sb"], 103)
    done = await seal(store, fence, 106, quiet=quiet, limit=500)

    assert 103 == done.oldest_score_ms


@pytest.mark.usefixtures("each_form")
@pytest.mark.parametrize("max_changed", [10_000, 1])
async def test_silence_since_an_arrival_is_that_of_the_last_one(store: ShardStore, max_changed: int) -> None:
    bounds = replace(SESSIONS, hold_ms=9_000, max_changed=max_changed)  # at the bound names are counted by separate code
    for number, (at_ms, arrived_ms) in enumerate([(100, 1_000), (105, 2_000)]):
        chunk = one(number, stamp=at_ms, bounds=bounds)
        await send(store, number - 1, chunk, packed(chunk, bounds, silent_from_ms=arrived_ms), bounds)
    early, late = [await seal(store, 1, clock_ms, bounds=bounds, limit=500) for clock_ms in (2_010, 2_011)]

    assert [0, 1] == [len(done.sealed) for done in (early, late)]


async def test_groups_are_listed_longest_quiet_first_for_any_timers(store: ShardStore, names: Names) -> None:
    groups = [b"s%d" % number for number in range(3 * BATCH)]
    fence = await fold_at(store, -1, groups, 100)
    # All but the last ones have moved since.
    fence = await fold_at(store, fence, groups[:-2], 105)
    fence = await fold_at(store, fence, groups[-1:], 103)
    place = StoredShard(names.app_id, FOLD, 0, 106, fence)
    rows = await collect(store.redis, [place], 3, "quiet")

    assert [4, 7, 9] == [row.quiet_in_ms for row in rows]
    assert [group_text(group) for group in groups[-2:]] == [row.group for row in rows[:2]]


async def test_listing_neither_repeats_nor_misses_groups_whose_timers_move_meanwhile(
    store: ShardStore, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = [b"s%d" % number for number in range(3 * BATCH)]
    fence = await fold_at(store, await fold_at(store, -1, groups, 100), groups[: 2 * BATCH], 105)
    place = StoredShard(names.app_id, FOLD, 0, 111, fence)
    rows_of = listing.rows_of

    async def meanwhile(*arguments: Any) -> Any:
        await seal(store, fence, 109, limit=500)  # moves the earliest timers to the end
        await store.redis.zadd(store.keys.due, {group: 105 for group in groups[:BATCH]})
        return await rows_of(*arguments)

    monkeypatch.setattr(listing, "rows_of", meanwhile)
    rows = await collect(store.redis, [place], 10_000, "quiet")
    found = [row.group for row in rows]

    assert len(set(found)) == len(found)
    assert {group_text(group) for group in groups} == set(found)


@pytest.mark.parametrize("sort", ["quiet", "oldest", "events"])
async def test_listing_reads_a_bounded_number_of_groups(store: ShardStore, names: Names, sort: str) -> None:
    groups = [b"s%d" % number for number in range(3 * BATCH)]
    fence = await fold_at(store, await fold_at(store, -1, groups, 100), groups, 105)
    place = StoredShard(names.app_id, FOLD, 0, 106, fence)
    await store.redis.config_resetstat()
    rows = await collect(store.redis, [place], 5, sort, BATCH)
    counts: Any = await store.redis.info("commandstats")

    assert 5 == len(rows)
    assert counts["cmdstat_hlen"]["calls"] == (5 if sort == "oldest" else BATCH)


async def test_remains_of_an_older_state_do_not_stop_the_check_of_holds(store: ShardStore, *, each_form: bool) -> None:
    fence = await fold_at(store, -1, [b"sa", b"sb", b"sc"], 100)
    if each_form:
        await store.redis.hdel(store.keys.open, "sa", "sb")
    else:
        await store.redis.delete(store.keys.group_prefix + "sa")
        await store.redis.hset(store.keys.group_prefix + "sb", INFO_FIELD, msgpack.packb([b"ffff", *[0] * 9], use_bin_type=False))
    done = await seal(store, fence, 100 + BOUNDS.hold_ms, quiet=False, limit=500)

    assert [(b"sc", "max_hold")] == [(entry.member, entry.reason) for entry in done.sealed]
    assert {} == await timers(store)
    assert 0 == await store.redis.exists(store.keys.open, *[store.keys.group_prefix + group for group in ("sa", "sb", "sc")])


@pytest.mark.parametrize("is_of_this_epoch", [True, False])
async def test_sealed_group_leaves_no_key_behind(store: ShardStore, *, each_form: bool, is_of_this_epoch: bool) -> None:
    fence = await fold_at(store, -1, [b"s%d" % number for number in range(5)], 100)
    if not is_of_this_epoch:  # of an older state, which a version without packed groups has replaced
        await store.redis.hset(store.keys.meta, "epoch", b"ffff")
        await store.redis.hdel(store.keys.meta, "format")
    if not is_of_this_epoch and each_form:
        assert [] == (await seal(store, fence, 111, limit=500)).sealed
        fence = await fold_at(store, fence, [b"s5"], 112)  # it is packed
        assert [b"s5"] == await store.redis.hkeys(store.keys.open)
        assert {b"s5": 112} == await timers(store)
        return
    done = await seal(store, fence, 111, limit=500)
    left = [key async for key in store.redis.scan_iter(match=store.keys.group_prefix + "*")]

    assert (5 if is_of_this_epoch else 0) == len(done.sealed)
    assert ([], False) == (left, bool(await store.redis.exists(store.keys.open)))
    assert {} == await timers(store)
