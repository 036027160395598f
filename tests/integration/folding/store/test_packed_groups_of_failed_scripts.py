"""A packed group beside its hash, because two scripts failed half-way: the hash, which has less, never takes its place."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.event import FoldEvent
from streams_app.folding.store.arguments import GroupPacker
from streams_app.folding.store.shard_store import ShardStore
from tests.helpers.folding.scripts import EPOCH, PARTITIONS, chunk_of, edited, fold, new_store, outbox_of, seal, send
from tests.simulation.mutants import Mutant
from tests.simulation.mutants_packed import REMAINS
from tests.simulation.redis import dying

BOUNDS = Bounds(quiet_ms=10, hold_ms=40, max_events=3)
MOST_WRITES = 10
HASH_IS_WRITTEN = 2
"""Number of writes after which *unpack* has written a hash, and has not removed the packed group."""


def event_at(offset: int) -> FoldEvent:
    return FoldEvent(offset, 1_000 + offset, b"sa", {f"n{offset}": 1})


async def fold_packed(store: ShardStore, offset: int) -> None:
    """Fold one event of the group."""
    chunk = chunk_of([event_at(offset)], BOUNDS)
    packing = GroupPacker(BOUNDS, EPOCH, PARTITIONS, keeps_values=True)
    groups = packing.groups(chunk, sorted(chunk.groups), chunk.clock_ms, 0, {}, may_pack=True)
    await send(store, offset - 1, chunk, groups, BOUNDS)


@pytest.mark.parametrize("script", ["fold", "seal"])
async def test_group_that_a_failed_script_has_sealed_does_not_continue_as_a_former_hash(redis_client: Redis, script: str) -> None:
    for writes in range(MOST_WRITES):
        store = new_store(redis_client)
        await store.claim("me", -1, EPOCH, "")
        await fold_packed(store, 0)
        with pytest.raises(ResponseError, match="fails here"):
            await edited(store, partial(dying, writes=HASH_IS_WRITTEN), "unpack").unpack("me")
        await fold_packed(store, 1)
        assert await store.redis.exists(store.keys.open, f"{store.keys.group_prefix}sa") == 2
        failing = edited(store, partial(dying, writes=writes), script)
        with suppress(ResponseError):
            if script == "fold":
                await fold_packed(failing, 2)
            else:
                await seal(failing, 1, 9_000, BOUNDS)
        for offset in (2, 3):
            await fold_packed(store, offset)
        await seal(store, 3, 9_000, BOUNDS, everything=True)

        for record in await outbox_of(store):
            assert record.last_offset - record.first_offset + 1 == record.events


async def test_group_that_opens_as_a_hash_does_not_continue_as_the_packed_one_of_a_failed_script(redis_client: Redis) -> None:
    for writes in range(MOST_WRITES):
        store = new_store(redis_client)
        await store.claim("me", -1, EPOCH, "")
        with suppress(ResponseError):
            await fold_packed(edited(store, partial(dying, writes=writes), "fold"), 0)
        has_folded = await store.redis.hget(store.keys.meta, "fence") == b"0"
        for offsets in [(1,), (2,)] if has_folded else [(0, 1), (2,)]:  # the next owner folds a longer range
            events = [event_at(offset) for offset in offsets]
            await fold(store, offsets[0] - 1, chunk_of(events, BOUNDS), BOUNDS, events)
        await seal(store, 2, 9_000, BOUNDS, everything=True)

        assert [3] == [record.events for record in await outbox_of(store)]


async def test_packed_one_of_a_failed_script_that_is_kept_is_detected(redis_client: Redis) -> None:
    with REMAINS[0].applied(), pytest.raises(AssertionError, match=r"\[3\] == \[2\]"):
        await test_group_that_opens_as_a_hash_does_not_continue_as_the_packed_one_of_a_failed_script(redis_client)


@pytest.mark.parametrize(("mutant", "script"), [(REMAINS[1], "fold"), (REMAINS[2], "seal")], ids=["fold", "seal"])
async def test_remains_that_are_kept_are_detected(redis_client: Redis, mutant: Mutant, script: str) -> None:
    with mutant.applied(), pytest.raises(AssertionError, match="events"):
        await test_group_that_a_failed_script_has_sealed_does_not_continue_as_a_former_hash(redis_client, script)
