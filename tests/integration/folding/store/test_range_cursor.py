"""A range folded by several scripts in turn: what each of them writes, returns and rejects."""

from __future__ import annotations

from dataclasses import replace

import pytest
from redis.asyncio import Redis

from streams_app.delivery.clocks import ReaderView
from streams_app.delivery.scripts import FencedError
from streams_app.folding.core.event import FoldEvent
from streams_app.folding.core.shard_clock import RangeTime
from streams_app.folding.shard import shard as sharding
from streams_app.folding.store.replies import FoldOutcome, OutboxEntry, RangeInProgress
from streams_app.folding.store.scripts import FoldScripts
from streams_app.folding.store.shard_store import ShardStore
from tests.conftest import Names
from tests.helpers.folding.scripts import (
    BOUNDS,
    WALL,
    BriefStore,
    chunk_of,
    fold,
    meta_of,
    one,
    open_groups,
    packed,
    send,
    state_of,
)
from tests.helpers.folding.shards import claimed_shard, fold_some
from tests.integration.folding.range_by_steps import CHUNK, EVENTS, RANGE_FIELDS, TO, A, B, C, D, step, step_by_step

pytestmark = pytest.mark.usefixtures("each_form")

GONE = FoldEvent(TO + 1, 1_000, A, {"u": 1})


@pytest.fixture
async def store(redis_client: Redis, names: Names) -> ShardStore:
    """Return a shard whose scripts take one group each."""
    return await step_by_step(redis_client, names)


# 1. What the first script of a range writes


async def test_first_script_of_a_range_writes_its_end_its_cursor_and_its_time(store: ShardStore, *, each_form: bool) -> None:
    before = await meta_of(store)
    done = await step(store)
    after = await meta_of(store)

    assert (FoldOutcome.MORE, A, 1) == (done.outcome, done.cursor, done.taken)
    assert {"to": "9", "cursor": "sa", "cap": str(WALL), "arrived": "", "digest": ""} == {
        name: after[name] for name in RANGE_FIELDS
    }
    assert ("3" if each_form else None) == after.pop("format", None)
    assert ("0 (the" if each_form else "") == after.pop("lost", "")[:6]
    assert before | {"log": ""} == {name: value for name, value in after.items() if name not in RANGE_FIELDS}


async def test_range_that_fits_one_script_writes_no_cursor(store: ShardStore, redis_client: Redis) -> None:
    await redis_client.config_resetstat()
    await fold(ShardStore(FoldScripts(redis_client), store.keys), -1, CHUNK)
    counts = await redis_client.info("commandstats")

    assert set() == RANGE_FIELDS & (await meta_of(store)).keys()
    assert "cmdstat_hdel" not in counts


@pytest.mark.parametrize("begun", [False, True])
async def test_script_without_room_in_the_outbox_writes_nothing(store: ShardStore, begun: bool) -> None:
    await fold(store, -1, one(0), replace(BOUNDS, max_events=1))
    chunk = chunk_of([event._replace(offset=event.offset + 1) for event in EVENTS], end=TO)
    if begun:
        await send(store, 0, chunk, packed(chunk))
    before = await state_of(store)
    rest = replace(chunk, groups={group: runs for group, runs in chunk.groups.items() if not begun or group > A})
    done = await send(store, 0, rest, packed(rest), cursor=A if begun else b"", outbox_limit=1)

    assert (FoldOutcome.FULL, before) == (done.outcome, await state_of(store))


async def test_shard_without_room_releases_its_lock_and_continues_once_records_are_acknowledged(
    redis_client: Redis, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharding, "OUTBOX_LIMIT", 2)
    shard = await claimed_shard(redis_client, names)
    shard.store = BriefStore(shard.store, 1)
    shard.bounds = shard._packing.bounds = replace(shard.bounds, max_events=1)
    events = EVENTS[:4]
    (chunk,) = shard.chunks(events, TO, ReaderView(None, None), 10_000)
    progress = shard.begin(chunk, lambda: events)
    outcomes = [(await shard.fold_once(progress)).outcome for _ in range(3)]
    locked = shard.lock.locked()
    await shard.finish(shard.outbox.first(1))
    outcomes += [(await shard.fold_once(progress)).outcome for _ in range(2)]
    await shard.finish(shard.outbox.first(2))
    outcomes.append((await shard.fold_once(progress)).outcome)

    assert [FoldOutcome.MORE] * 2 + [FoldOutcome.FULL] + [FoldOutcome.MORE, FoldOutcome.FULL, FoldOutcome.DONE] == outcomes
    assert (False, TO) == (locked, shard.fence)


# 2. What is expected, and the reply if the state differs


@pytest.mark.parametrize("expected_cursor", [b"", A])
async def test_cursor_beyond_the_expected_one_is_reported_as_already_reached(store: ShardStore, expected_cursor: bytes) -> None:
    first = await step(store)
    second = await step(store, first.cursor)
    before = await state_of(store)
    reply = await step(store, expected_cursor)

    assert (FoldOutcome.ALREADY, B, 0, []) == (reply.outcome, reply.cursor, reply.clock_ms, reply.sealed)
    assert (B, before) == (second.cursor, await state_of(store))


async def test_completely_folded_range_is_reported_as_already_reached(store: ShardStore) -> None:
    sealed = await fold(store, -1, CHUNK)
    before = await state_of(store)
    reply = await step(store, C)

    assert (FoldOutcome.ALREADY, b"", CHUNK.clock_ms, sealed) == (reply.outcome, reply.cursor, reply.clock_ms, [])
    assert before == await state_of(store)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        pytest.param({"token": "another"}, "token", id="another owner"),
        pytest.param({"fence": "3"}, "fence", id="another fence"),
        pytest.param({"to": "8"}, "range", id="another end"),
    ],
)
async def test_script_of_a_range_other_than_the_stored_one_is_fenced(
    store: ShardStore, redis_client: Redis, change: dict[str, str], cause: str
) -> None:
    await step(store)
    await redis_client.hset(store.keys.meta, mapping=change)  # type: ignore[arg-type]  # the stub wants keys of all kinds
    before = await state_of(store)

    with pytest.raises(FencedError, match=cause):
        await step(store, A)
    assert before == await state_of(store)


async def test_cursor_without_a_range_in_progress_is_fenced(store: ShardStore) -> None:
    with pytest.raises(FencedError, match="range"):
        await step(store, A)


async def test_owner_continues_from_the_cursor_of_missing_replies(
    redis_client: Redis, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = await claimed_shard(redis_client, names, "sessions")
    await fold_some(shard, [FoldEvent(at, 1_000, group, {"u": 1}) for at, group in enumerate([A, B, C, D])])
    shard.store = BriefStore(shard.store, 1)
    late = [FoldEvent(4 + at, 9_000, group, {"u": 1}) for at, group in enumerate([A, B, C, D])]
    (chunk,) = shard.chunks(late, 7, ReaderView(None, None), 10_000)
    progress = shard.begin(chunk, lambda: late)
    await shard.fold_once(progress)
    replied = OutboxEntry(shard.outbox.first(9), 0)
    # Two more scripts, whose replies are lost.
    behind = shard.begin(chunk, lambda: late)
    behind.advance_to(progress.cursor)
    for _ in range(2):
        await shard.fold_once(behind)
    shard.outbox.load([])
    shard.outbox.add(replied)
    already = await shard.fold_once(progress)
    at = progress.cursor
    done = await shard.fold_once(progress)

    assert [(FoldOutcome.MORE, C), (FoldOutcome.DONE, C)] == [(already.outcome, at), (done.outcome, progress.cursor)]
    assert ([0, 1, 2, 3], 7) == ([entry.first_offset for entry in shard.outbox], shard.fence)


async def test_owner_with_a_cursor_ahead_of_the_stored_one_is_fenced_because_redis_went_back(
    redis_client: Redis, names: Names
) -> None:
    shard = await claimed_shard(redis_client, names)
    shard.store = BriefStore(shard.store, 1)
    (chunk,) = shard.chunks(EVENTS, TO, ReaderView(None, None), 10_000)
    progress = shard.begin(chunk, lambda: EVENTS)
    for _ in range(2):
        await shard.fold_once(progress)
    await redis_client.hset(shard.store.keys.meta, "cursor", A)

    with pytest.raises(FencedError, match="range"):
        await shard.fold_once(progress)


# 3. A claim of a range in progress


@pytest.mark.parametrize("arrived_ms", [None, 5_000])
async def test_claim_returns_the_range_in_progress(store: ShardStore, arrived_ms: int | None) -> None:
    chunk = replace(CHUNK, time=RangeTime(7_000, arrived_ms))
    await send(store, -1, chunk, packed(chunk))
    claimed = await store.claim("other", None, b"", "")
    (first, *_) = await open_groups(store)

    assert claimed is not None
    assert RangeInProgress(TO, A, RangeTime(7_000, arrived_ms)) == claimed.in_progress
    assert (A, -1, 1) == (first, claimed.fence, claimed.open_groups)


async def test_claim_returns_no_range_before_one_has_started_and_after_it_is_folded(store: ShardStore) -> None:
    before = await store.claim("me", None, b"", "")
    await fold(store, -1, CHUNK)
    after = await store.claim("me", None, b"", "")

    assert [None, None] == [claimed and claimed.in_progress for claimed in (before, after)]


@pytest.mark.parametrize("end", [TO, TO + 1, TO + 50])
async def test_first_chunk_of_the_next_owner_ends_with_the_range(redis_client: Redis, names: Names, end: int) -> None:
    former = await claimed_shard(redis_client, names)
    former.store = BriefStore(former.store, 1)
    (chunk,) = former.chunks(EVENTS, TO, ReaderView(None, None), 10_000)
    await former.fold_once(former.begin(chunk, lambda: EVENTS))
    heir = await claimed_shard(redis_client, names)
    events = [*EVENTS, GONE] if end > TO else EVENTS
    chunks = heir.chunks(events, end, ReaderView(None, None), 99_000)
    first = next(chunks)
    progress = heir.begin(first, lambda: events)
    groups, is_last = progress.next_groups(9, heir._packing, 0)

    assert (True, False) == (heir.waits_for(TO - 1), heir.waits_for(TO))
    assert ((TO, 5, 10_000), ([B, C, D], True)) == (
        (first.to, first.events, first.time.cap_ms),
        (groups.values[0::2], is_last),
    )
    while (await heir.fold_once(progress)).outcome is not FoldOutcome.DONE:
        pass
    assert [(end, 99_000)] * (end > TO) == [(chunk.to, chunk.time.cap_ms) for chunk in chunks]
