"""Ids of events, by which duplicates are ignored, on a real Redis: what a failed script leaves, and when they are removed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.detailed_chunks import DetailedChunkCutter
from streams_app.folding.core.event import DetailedEvent
from streams_app.folding.core.kept_chunks import KeptChunkCutter
from streams_app.folding.core.shard_clock import RangeTime
from streams_app.folding.store.drop_request import DropRequest
from streams_app.folding.store.keys import shard_keys
from streams_app.folding.store.scripts import FoldScripts
from streams_app.folding.store.shard_store import ShardStore
from tests.conftest import Names
from tests.helpers.folding.scripts import WALL, edited, fold, open_groups, outbox_of, packed, seal, send
from tests.simulation.redis import dying

BOUNDS = Bounds(quiet_ms=10, hold_ms=1_000, max_events=10_000, reads_details=True, dedupes=True)
KEPT = replace(BOUNDS, max_bytes=500)


@pytest.fixture
async def store(redis_client: Redis, names: Names) -> ShardStore:
    made = ShardStore(FoldScripts(redis_client), shard_keys(names.app_id, "f", "t", 0))
    await made.claim("me", -1, b"eeee", "")
    return made


def event(offset: int, event_id: int, bounds: Bounds = BOUNDS, group: bytes = b"sa") -> DetailedEvent:
    names = {} if bounds.max_bytes else {f"n{offset}": offset}
    return DetailedEvent(offset, 1_000, group, names, json=b"x" * bool(bounds.max_bytes), id=b"%016d" % event_id)


async def fold_all(store: ShardStore, events: list[DetailedEvent], bounds: Bounds = BOUNDS) -> None:
    fence = events[0].offset - 1
    cutter_of = KeptChunkCutter if bounds.max_bytes else DetailedChunkCutter
    cutter = cutter_of(events, fence, events[-1].offset, bounds, keeps_values=True)
    while cutter.above < events[-1].offset:
        chunk = cutter.next(RangeTime(WALL, None), 1_000)
        await fold(store, fence, chunk, bounds, events, epoch=b"eeee")
        fence = chunk.to


async def ids_in(store: ShardStore) -> list[bytes]:
    return [key async for key in store.redis.scan_iter(match=store.keys.ids_prefix + "*")]


@pytest.mark.parametrize("bounds", [BOUNDS, KEPT], ids=["names", "events"])
@pytest.mark.parametrize("writes", range(7))
async def test_script_that_fails_half_way_makes_no_event_a_duplicate(store: ShardStore, bounds: Bounds, writes: int) -> None:
    await fold_all(store, [event(0, 0, bounds), event(1, 1, bounds)], bounds)
    later = [event(2, 2, bounds), event(3, 0, bounds), event(4, 4, bounds), event(5, 2, bounds), event(6, 6, bounds, b"sb")]
    with pytest.raises(ResponseError):
        await fold_all(edited(store, partial(dying, writes=writes)), later, bounds)
    await fold_all(store, later, bounds)
    left = await open_groups(store)
    sealed = (await seal(store, 6, 9_000, bounds)).sealed

    assert {b"sa": 4, b"sb": 1} == {group: content.numbers.events for group, content in left.items()}
    assert {b"sa": (0, 4, 4), b"sb": (6, 6, 1)} == {one.member: (one.first_offset, one.last_offset, one.events) for one in sealed}
    assert [] == await ids_in(store)


@pytest.mark.parametrize("kind", ["quiet", "flush", "drop", "max_events", "max_changed", "without-the-setting"])
async def test_ids_are_removed_with_their_group(store: ShardStore, kind: str) -> None:
    bounds = replace(BOUNDS, max_events=2) if kind == "max_events" else BOUNDS
    await fold_all(store, [event(0, 0)], bounds)
    if kind == "drop":
        await store.redis.hset(store.keys.drop, b"sa", DropRequest(0, "anna@host", "a loop").to_text())
    if kind in ("max_events", "max_changed"):
        await fold_all(store, [event(1, 1)], replace(bounds, max_changed=1) if kind == "max_changed" else bounds)
    fence = 1 if kind in ("max_events", "max_changed") else 0
    kept = await ids_in(store)
    used = replace(BOUNDS, dedupes=False) if kind == "without-the-setting" else bounds
    await seal(store, fence, 1_000 if kind == "drop" else 9_000, used, everything=kind == "flush")

    assert kept == ([] if kind == "max_events" else [store.keys.ids_prefix.encode() + b"sa"])
    assert [] == await ids_in(store)


async def test_closed_group_does_not_make_its_next_event_a_duplicate(store: ShardStore) -> None:
    bounds = replace(BOUNDS, max_events=2)
    await fold_all(store, [event(0, 0), event(1, 1), event(2, 0), event(3, 0), event(4, 1)], bounds)

    assert [(0, 1), (2, 4)] == [(one.first_offset, one.last_offset) for one in await outbox_of(store)]
    assert [] == await ids_in(store)


async def test_ids_of_an_older_state_are_not_those_of_a_new_group(store: ShardStore) -> None:
    await fold_all(store, [event(0, 0)])
    await store.redis.delete(store.keys.meta)
    await store.claim("me", -1, b"ffff", "")
    chunk = DetailedChunkCutter([event(5, 0)], -1, 5, BOUNDS, keeps_values=True).next(RangeTime(WALL, None), 1_000)
    await fold(store, -1, chunk, BOUNDS, [event(5, 0)], epoch=b"ffff")
    (content,) = (await open_groups(store)).values()
    ids: Any = await store.redis.hgetall(store.keys.ids_prefix + "sa")

    assert (1, 0, {b"%016d" % 0: b"5"}) == (content.numbers.events, content.numbers.duplicates, ids)


async def test_script_counts_the_duplicates_that_were_left_out(store: ShardStore) -> None:
    events = [event(0, 0), event(1, 0), event(2, 2), event(3, 0)]
    chunk = DetailedChunkCutter(events, -1, 3, BOUNDS, keeps_values=True).next(RangeTime(WALL, None), 1_000)
    asked = await send(store, -1, chunk, packed(chunk, BOUNDS, epoch=b"eeee"), BOUNDS)
    await fold_all(store, events)
    (content,) = (await open_groups(store)).values()

    assert ("detail", 0) == (asked.outcome.value, asked.duplicates)
    assert (2, 2, 2) == (content.numbers.events, content.numbers.ids, content.numbers.duplicates)


async def test_fold_without_ids_stores_no_further_number(store: ShardStore, redis_client: Redis) -> None:
    plain = replace(BOUNDS, dedupes=False)
    await fold_all(store, [event(0, 0)._replace(id=b"")], plain)

    assert [] == await ids_in(store)
    assert (0, 0) == (next(iter((await open_groups(store)).values())).numbers)[-2:]
