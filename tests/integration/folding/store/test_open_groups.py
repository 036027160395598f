"""Open groups are read in either form, also while they change it."""

from __future__ import annotations

from typing import Any

import pytest
from redis.asyncio import Redis

from streams_app.folding.core.event import FoldEvent
from streams_app.folding.store import open_groups
from streams_app.folding.store.open_groups import read_groups
from streams_app.folding.store.shard_store import ShardStore
from tests.helpers.folding.scripts import EPOCH, chunk_of, fold, new_store, packed_in, seal

EVENTS = [FoldEvent(0, 100, b"sa", {"x": 1, "y": 1}), FoldEvent(1, 101, b"sb", {"x": 1}), FoldEvent(2, 102, b"sb", {"z": 1})]


@pytest.fixture
async def store(redis_client: Redis) -> ShardStore:
    made = new_store(redis_client)
    await made.claim("me", -1, EPOCH, "")
    return made


@pytest.mark.parametrize("may_pack", [True, False])
async def test_groups_of_each_form_are_read(store: ShardStore, may_pack: bool) -> None:
    await fold(store, -1, chunk_of(EVENTS), may_pack=may_pack)
    found = await read_groups(store.redis, store.keys, [b"sa", b"sb", b"sc"], with_names=True)
    counted = await read_groups(store.redis, store.keys, [b"sb"])

    assert 2 * may_pack == len(await packed_in(store))
    assert [b"sa", b"sb"] == sorted(found)
    assert [(1, 2, [b"x", b"y"]), (2, 2, [b"x", b"z"])] == [
        (found[member].numbers.events, found[member].name_count, sorted(found[member].names)) for member in (b"sa", b"sb")
    ]
    assert (2, ()) == counted[b"sb"][1:]
    assert {} == await read_groups(store.redis, store.keys, [])


@pytest.mark.parametrize("may_pack", [True, False])
async def test_groups_of_an_older_state_are_left_out(store: ShardStore, may_pack: bool) -> None:
    await fold(store, -1, chunk_of(EVENTS), may_pack=may_pack)
    await store.redis.hset(store.keys.meta, "epoch", b"ffff")
    await store.redis.hdel(store.keys.meta, "format")

    assert {} == await read_groups(store.redis, store.keys, [b"sa", b"sb"])


async def test_the_packed_one_of_two_forms_counts(store: ShardStore) -> None:
    same = new_store(store.redis)
    await same.claim("me", -1, EPOCH, "")
    await fold(same, -1, chunk_of(EVENTS[1:]), may_pack=True)
    await fold(store, -1, chunk_of(EVENTS[:2]))
    redis: Any = store.redis
    await redis.hset(store.keys.meta, "format", "3")
    await redis.hset(store.keys.open, b"sb", await redis.hget(same.keys.open, b"sb"))
    found = await read_groups(redis, store.keys, [b"sa", b"sb"])

    assert (EPOCH, 1) == (found[b"sa"].numbers.epoch, found[b"sa"].numbers.events)
    assert 2 == found[b"sb"].numbers.events


@pytest.mark.parametrize("becomes", ["hash", "packed"])
async def test_group_that_changes_its_form_between_two_reads_is_found(
    store: ShardStore, monkeypatch: pytest.MonkeyPatch, becomes: str
) -> None:
    await fold(store, -1, chunk_of(EVENTS[:1]), may_pack=becomes == "hash")
    read = open_groups._read

    async def and_change(*arguments: Any, **how: Any) -> Any:
        monkeypatch.setattr(open_groups, "_read", read)
        if becomes == "hash":
            await store.unpack("me")
            return await read(*arguments, **how)
        found = await read(*arguments, **how)
        await seal(store, 0, 200)  # the group closes, and opens again
        await fold(store, 0, chunk_of([FoldEvent(1, 300, b"sa", {"x": 1})]), may_pack=True)
        return found

    monkeypatch.setattr(open_groups, "_read", and_change)
    found = await read_groups(store.redis, store.keys, [b"sa"])

    assert [b"sa"] == list(found)
    assert (becomes == "packed") == found[b"sa"].numbers.first_offset
