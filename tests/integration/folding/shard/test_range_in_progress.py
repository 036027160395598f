"""A range in progress: what may leave in the meantime, and how the log, the fold or Redis may change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from redis.asyncio import Redis

from streams_app.delivery.batch import TP
from streams_app.delivery.clocks import ReaderView
from streams_app.delivery.scripts import FencedError
from streams_app.fold import Fold
from streams_app.folding.core.event import FoldEvent
from streams_app.folding.shard.shard import Shard
from streams_app.folding.store.keys import EVERYTHING, shard_keys
from streams_app.folding.store.replies import FoldOutcome, RangeInProgress
from streams_app.folding.store.scripts import FoldScripts
from streams_app.folding.store.shard_store import ShardStore
from tests.conftest import Names
from tests.helpers.folding.scripts import (
    BriefStore,
    chunk_of,
    fold,
    meta_of,
    one,
    open_groups,
    packed,
    seal,
    sealed_in,
    send,
)
from tests.helpers.folding.shards import claimed_shard, fold_some
from tests.integration.folding.range_by_steps import CHUNK, EVENTS, RANGE_FIELDS, TO, A, B, C, D, step, step_by_step


@pytest.fixture
async def store(redis_client: Redis, names: Names) -> ShardStore:
    """Return a shard whose scripts take one group each."""
    return await step_by_step(redis_client, names)


# Invariants of a range in progress


async def test_watermark_within_a_range_is_that_of_its_beginning(store: ShardStore) -> None:
    await fold(store, -1, one(0, b"sz", stamp=500))
    chunk = chunk_of([event._replace(offset=event.offset + 5) for event in EVENTS], end=TO)
    await send(store, 0, chunk, packed(chunk))
    with_a_group = await store.watermark()
    await seal(store, 0, 9_000, everything=True)
    await store.finish("me", [(0, 0, 1)])
    with_a_record = await store.watermark()
    await store.finish("me", [(8, 8, 1)])

    assert [0, 1, 1] == [with_a_group, with_a_record, await store.watermark()]


# Retention


async def beyond_the_cursor(store: ShardStore) -> None:
    """Return a range in progress whose newly opened group is sealed."""
    await step(store)
    await seal(store, -1, 0, everything=True)


async def test_log_that_begins_within_the_range_keeps_the_rest_of_it(store: ShardStore) -> None:
    await beyond_the_cursor(store)
    await store.skip("me", -1, 1)
    claimed = await store.claim("me", None, b"", "")
    rest = replace(chunk_of(EVENTS[2:], end=TO), groups={B: CHUNK.groups[B]})
    done = await send(store, 1, rest, packed(rest), cursor=A)

    assert claimed is not None
    assert (1, RangeInProgress(TO, A, CHUNK.time)) == (claimed.fence, claimed.in_progress)
    assert (FoldOutcome.DONE, [B]) == (done.outcome, list(await open_groups(store)))
    assert str(TO) == (await meta_of(store))["fence"]


@pytest.mark.parametrize("to", [TO, TO + 20])
async def test_log_that_begins_beyond_the_range_ends_it(store: ShardStore, to: int) -> None:
    await beyond_the_cursor(store)
    await store.skip("me", -1, to)
    meta = await meta_of(store)

    assert (str(to), set()) == (meta["fence"], RANGE_FIELDS & meta.keys())


@pytest.mark.parametrize(("to", "expected"), [(1, True), (TO, False)])
async def test_skipping_owner_knows_whether_the_range_continues(redis_client: Redis, names: Names, to: int, expected: bool) -> None:
    shard = await claimed_shard(redis_client, names)
    shard.store = BriefStore(shard.store, 1)
    (chunk,) = shard.chunks(EVENTS, TO, ReaderView(None, None), 10_000)
    await shard.fold_once(shard.begin(chunk, lambda: EVENTS))
    await shard.seal(10_000, folded_until_ms=None, everything=True)
    await shard.skip_to(to)

    assert (to, expected) == (shard.fence, shard.in_progress is not None)


# Changed definition


async def test_changed_definition_drops_the_range_and_refolds_it_from_its_beginning(store: ShardStore) -> None:
    await beyond_the_cursor(store)
    with pytest.raises(FencedError, match="not-drained"):
        await store.define("me", "new")
    await store.finish("me", [(3, 3, 1)])
    await store.define("me", "new")
    meta = await meta_of(store)
    await fold(store, -1, CHUNK)

    assert ("new", "-1", set()) == (meta["definition"], meta["fence"], RANGE_FIELDS & meta.keys())
    assert {A, B, C, D} == set(await open_groups(store))


# Validation of the outbox


async def test_function_with_a_different_result_for_a_started_range_skips_no_event(redis_client: Redis, names: Names) -> None:
    fold = Fold(name="f", source="t", group_key=lambda event: event["g"], changed="m", quiet_period=timedelta(seconds=1))
    made = ShardStore(FoldScripts(redis_client), shard_keys(names.app_id, "f", "t", 0))
    first, second = (Shard(fold, TP("t", 0), BriefStore(made, 1)) for _ in range(2))
    view, events = ReaderView(None, None), [FoldEvent(0, 1, b"sa", {"u": 1}), FoldEvent(1, 1, b"sz", {"u": 1})]
    await first.claim(0, 1)
    (chunk,) = first.chunks(events, 1, view, 10)
    begun = await first.fold_once(first.begin(chunk, lambda: events))
    regrouped = [event._replace(group=b"sa") for event in events]  # what was in z is now in a, which has been taken
    await second.claim(0, 1)
    (chunk,) = second.chunks(regrouped, 1, view, 10)
    progress = second.begin(chunk, lambda: regrouped)
    rejected = await second.fold_once(progress)
    sealed = await second.seal(10, folded_until_ms=None, everything=True)
    assert sealed is not None
    await second.finish(sealed.sealed)
    await second.adopt_definition()
    repeated = await second.fold_once(progress)
    rest = await second.seal(10, folded_until_ms=None, everything=True)
    assert rest is not None

    assert [FoldOutcome.MORE, FoldOutcome.FULL, FoldOutcome.DONE] == [begun.outcome, rejected.outcome, repeated.outcome]
    assert [(0, 0), (0, 1)] == [(entry.first_offset, entry.last_offset) for entry in (*sealed.sealed, *rest.sealed)]


async def test_seal_with_an_unexpected_outbox_rereads_it(redis_client: Redis, names: Names) -> None:
    shard = await claimed_shard(redis_client, names)
    await fold_some(shard, [FoldEvent(0, 1_000, A, {"u": 1}), FoldEvent(1, 9_000, B, {"u": 1})])
    await shard.seal(5_000, folded_until_ms=None, everything=True)
    kept = await redis_client.dump(shard.store.keys.outbox)
    await shard.finish(shard.outbox.first(9))
    await redis_client.restore(shard.store.keys.outbox, 0, kept)  # type: ignore[arg-type]  # it was there
    believed = len(shard.outbox)
    await shard.seal(5_000, folded_until_ms=None)

    assert (0, [0, 1]) == (believed, [entry.first_offset for entry in shard.outbox])


# Emission during a range in progress


async def in_progress(store: ShardStore, opened: Sequence[FoldEvent], taken: bytes = A) -> None:
    """Open groups at fence 0, and begin a range whose first script has taken one group."""
    await fold(store, -1, chunk_of(opened, end=0))
    events = [FoldEvent(1, 5_000, taken, {"v": 1}), FoldEvent(2, 5_000, b"z", {"v": 1})]
    chunk = chunk_of(events, end=TO)
    assert FoldOutcome.MORE is (await send(store, 0, chunk, packed(chunk))).outcome


async def test_due_time_does_not_advance_while_a_range_is_in_progress(store: ShardStore) -> None:
    await in_progress(store, [FoldEvent(0, 1_000, B, {"u": 1})])
    done = await seal(store, 0, 90_000)

    assert ([], 1_000, "1000") == (done.sealed, done.clock_ms, (await meta_of(store))["clock"])


async def test_groups_due_by_the_stored_clock_are_sealed_while_a_range_is_in_progress(store: ShardStore) -> None:
    await fold(store, -1, one(0, B))
    await seal(store, 0, 1_011, quiet=False)
    chunk = chunk_of([FoldEvent(1, 5_000, A, {"v": 1}), FoldEvent(2, 5_000, D, {"v": 1})], end=TO)
    await send(store, 0, chunk, packed(chunk))

    assert [B] == [entry.member for entry in (await seal(store, 0, 1_000)).sealed]


async def test_full_redis_seals_groups_due_by_the_current_time_and_keeps_the_stored_clock(store: ShardStore) -> None:
    await in_progress(store, [FoldEvent(0, 1_000, B, {"u": 1})])
    done = await seal(store, 0, 90_000, is_redis_full=True)

    # The group of the range counts, too: the range has passed it.
    assert [(B, "quiet"), (A, "quiet")] == [(entry.member, entry.reason) for entry in done.sealed]
    assert (1_000, "1000") == (done.clock_ms, (await meta_of(store))["clock"])


@pytest.mark.parametrize(
    ("cursor", "group", "leaves"),
    [
        (b"sb", b"sa", True),
        (b"sb", b"sb", True),
        (b"sb", b"sc", False),
        (b"sb", b"s", True),
        (b"sb", b"sb\x00", False),
        (b"sB", b"sa", False),
        (b"s\xc3\xa9", b"sz", True),
        (b"sz", b"s\xc3\xa9", False),
        (b"s\x7f", b"s\x80", False),
        (b"s\xff", b"s\x80", True),
    ],
)
@pytest.mark.parametrize("is_redis_full", [False, True])
async def test_group_above_the_fence_is_sealed_once_the_range_has_passed_it(
    store: ShardStore, redis_client: Redis, cursor: bytes, group: bytes, leaves: bool, is_redis_full: bool
) -> None:
    await fold(store, -1, one(3, group))
    # As a script leaves it that died half-way.
    await redis_client.hset(store.keys.meta, mapping={"fence": 1, "to": TO, "cursor": cursor, "cap": 0, "arrived": ""})
    await redis_client.sadd(store.keys.flush, group)
    done = await seal(store, 1, 9_000, is_redis_full=is_redis_full)
    everything = await seal(store, 1, 9_000, everything=True)

    assert ([group] if leaves else []) == [entry.member for entry in done.sealed]
    assert int(not leaves) == len(everything.sealed)


async def test_group_beyond_the_end_of_the_range_stays(store: ShardStore, redis_client: Redis) -> None:
    await fold(store, -1, one(TO + 1, A))
    await redis_client.hset(store.keys.meta, mapping={"fence": 1, "to": TO, "cursor": B, "cap": 0, "arrived": ""})

    assert [] == (await seal(store, 1, 9_000, is_redis_full=True)).sealed


async def test_flush_of_everything_stays_requested_while_some_group_cannot_be_sealed(
    store: ShardStore, redis_client: Redis
) -> None:
    await fold(store, -1, chunk_of([FoldEvent(0, 1_000, A, {}), FoldEvent(3, 1_000, C, {})]))
    await redis_client.hset(store.keys.meta, mapping={"fence": 1, "to": TO, "cursor": B, "cap": 0, "arrived": ""})
    await redis_client.sadd(store.keys.flush, EVERYTHING)
    early = await seal(store, 1, 1_000)
    wanted = await redis_client.smembers(store.keys.flush)
    await redis_client.hset(store.keys.meta, "cursor", D)
    late = await seal(store, 1, 1_000)

    assert ([A], {b"*"}, [C]) == ([entry.member for entry in early.sealed], wanted, [entry.member for entry in late.sealed])
    assert 0 == await redis_client.exists(store.keys.flush)


async def test_flush_of_a_group_stays_requested_while_it_cannot_be_sealed(store: ShardStore, redis_client: Redis) -> None:
    await fold(store, -1, one(3, C))
    await redis_client.hset(store.keys.meta, mapping={"fence": 1, "to": TO, "cursor": B, "cap": 0, "arrived": ""})
    await redis_client.sadd(store.keys.flush, C, b"snone")
    await seal(store, 1, 1_000)

    assert {C} == await redis_client.smembers(store.keys.flush)
    assert [] == await sealed_in(store)


async def test_full_redis_closes_groups_by_a_clock_that_it_does_not_store(redis_client: Redis, names: Names) -> None:
    shard = await claimed_shard(redis_client, names, "merge")
    await fold_some(shard, [FoldEvent(0, 1_000, b"sa", {"u": 1})])
    await shard.seal(900_000, folded_until_ms=900_000, is_redis_full=True)

    assert [0] == [entry.first_offset for entry in shard.outbox]
    assert "1000" == (await meta_of(shard.store))["clock"], "the range that waits is scored by it, whoever folds it"
