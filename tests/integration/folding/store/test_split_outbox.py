"""Entries of the outbox with several records become entries of one record, which older versions read."""

from __future__ import annotations

from functools import partial

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from streams_app.delivery.scripts import FencedError
from streams_app.folding.core.record import SealedGroup
from streams_app.folding.store import shard_store
from streams_app.folding.store.shard_store import ShardStore
from tests.helpers.folding.outbox import block_of, put, sealed_group
from tests.helpers.folding.scripts import EPOCH, edited, emptied, meta_of, new_store, outbox_of, sealed_in
from tests.helpers.folding.shapes import RUNS
from tests.simulation.redis import dying

OFFSETS = st.lists(st.integers(0, 2**52), min_size=1, max_size=60, unique=True)


async def store_with(redis: Redis, blocks: list[list[SealedGroup]]) -> ShardStore:
    store = new_store(redis)
    await store.claim("me", 2**53, EPOCH, "")
    await put(store, *blocks)
    await store.redis.hset(store.keys.meta, "format", "2")
    return store


def single(blocks: list[list[SealedGroup]]) -> list[tuple[int, bytes]]:
    return sorted((record.first_offset, block_of([record])) for block in blocks for record in block)


@settings(RUNS, max_examples=30)
@example(list(range(50)), 50, 1).via("one entry")
@example(list(range(50)), 1, 3).via("entries of one record")
@given(OFFSETS, st.integers(1, 20), st.sampled_from([1, 3, 2_000]))
async def test_each_record_becomes_an_entry_that_the_former_version_reads(
    redis_client: Redis, offsets: list[int], size: int, limit: int
) -> None:
    records = [sealed_group(f"g{offset}", offset, "x" * (offset % 70)) for offset in offsets]
    blocks = [records[at : at + size] for at in range(0, len(records), size)]
    store = await store_with(redis_client, blocks)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(shard_store, "SPLIT_RECORDS", limit)
        await store.split("me")
    found = sorted(await sealed_in(store))

    assert single(blocks) == found
    assert all(len(msgpack.unpackb(entry)) == 10 for _, entry in found)
    assert "format" not in await meta_of(store)
    await emptied(store)


async def test_records_with_many_names_and_values_stay_as_they_are(redis_client: Redis) -> None:
    names = {f"n{at}": b"1.0000000000000001" for at in range(5_000)}
    blocks = [[sealed_group("a", 2)._replace(names=names), sealed_group("b", 1)._replace(names={}), sealed_group("c", 3)]]
    store = await store_with(redis_client, blocks)
    await store.split("me")

    assert single(blocks) == await sealed_in(store)


async def test_only_the_owner_splits(redis_client: Redis) -> None:
    store = await store_with(redis_client, [[sealed_group("a", 1), sealed_group("b", 2)]])
    before = await sealed_in(store)
    with pytest.raises(FencedError):
        await store.split("other")

    assert (before, "2") == (await sealed_in(store), (await meta_of(store))["format"])


async def test_split_that_dies_half_way_loses_no_record_and_is_completed_by_the_next(redis_client: Redis) -> None:
    blocks = [[sealed_group("a", 4), sealed_group("b", 2)], [sealed_group("c", 3)], [sealed_group("d", 5), sealed_group("e", 6)]]
    failures = 0
    for writes in range(9):
        store = await store_with(redis_client, blocks)
        try:
            await edited(store, partial(dying, writes=writes), "split").split("me")
        except ResponseError as error:
            assert "the script fails here" in str(error)
            failures += 1
            assert "2" == (await meta_of(store))["format"]
        assert {record.member for block in blocks for record in block} == {record.member for record in await outbox_of(store)}
        await store.split("me")
        assert single(blocks) == await sealed_in(store)
        await emptied(store)

    assert 5 == failures
