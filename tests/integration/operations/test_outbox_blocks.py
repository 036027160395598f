"""What operators see of an outbox whose blocks have several records."""

from __future__ import annotations

from typing import Any

import pytest

from streams_app.folding.core.record import SealedGroup
from streams_app.operations import groups, newest_records, outbox_blocks
from streams_app.operations.explain_group import find
from streams_app.operations.groups import open_groups, outbox_counts, stored_shards
from streams_app.operations.newest_records import fold_partitions
from streams_app.operations.outbox_blocks import blocks_in
from streams_app.operations.reset_fold import plan
from tests.helpers.folding.outbox import block_of, put, sealed_group, shard_with
from tests.helpers.operations.forgetting import Application

BLOCKS = [
    [sealed_group("anna", 4), sealed_group("ben", 2), sealed_group("anna", 9)],
    [sealed_group("anna", 3)],
    [sealed_group("cleo", 5), sealed_group("anna", 7)],
    [sealed_group("dora", 6)],
]
RECORDS = sum(map(len, BLOCKS))


@pytest.mark.parametrize(("key", "records"), [("anna", 4), ("ben", 1), ("cleo", 1), ("dora", 1)])
async def test_group_is_explained_with_all_its_records_in_blocks(application: Application, key: str, records: int) -> None:
    await shard_with(application.client, application.settings, *BLOCKS)
    stored = await stored_shards(application.client, application.settings, "f")
    (found,) = await find(application.client, stored, key)

    assert (None, records) == (found.row, found.waiting)


async def test_groups_with_a_record_anywhere_in_a_block_are_not_compared_by_verify(application: Application) -> None:
    await shard_with(application.client, application.settings, *BLOCKS)

    assert {"anna", "ben", "cleo", "dora"} == await open_groups(
        application.settings, "f", ["anna", "ben", "cleo", "dora", "eva"]
    )  # fmt: skip


async def test_partitions_of_a_fold_and_the_plan_of_a_reset_count_records_and_not_blocks(application: Application) -> None:
    settings = application.settings
    store = await shard_with(application.client, settings, *BLOCKS)
    await application.client.zadd(store.keys.outbox, {b"\xc1": 8})
    (partition,) = await fold_partitions(settings, settings.folds[0])

    assert (RECORDS + 1, RECORDS + 1) == (partition.outbox, (await plan(settings, "f")).outbox)


async def test_count_of_many_records_is_bounded(application: Application, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = application.settings
    many = [[sealed_group(f"g{at}", 5_000 * block + at) for at in range(3_000)] for block in range(5)]
    await shard_with(application.client, settings, *many)
    (shard,) = await stored_shards(application.client, settings, "f")
    (partition,) = await fold_partitions(settings, settings.folds[0])
    monkeypatch.setattr(groups, "SCAN_OUTBOX", 4_000)
    monkeypatch.setattr(newest_records, "MOST_COUNTED", 4_000)
    (bounded,) = await fold_partitions(settings, settings.folds[0])

    assert (15_000, 2 * 3_000 + 3) == (partition.outbox, bounded.outbox)
    assert 4_000 == sum((await outbox_counts(application.client, shard)).values())


async def test_each_block_is_read_once_in_the_order_of_scores(application: Application, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_blocks, "FIRST_PAGE", 1)
    monkeypatch.setattr(outbox_blocks, "MOST_IN_PAGE", 2)
    blocks = [[sealed_group(f"g{score}-{tie}", score)] for score in range(9) for tie in range(score % 4 + 1)]
    store = await shard_with(application.client, application.settings, *blocks)
    read = [block async for block in blocks_in(application.client, store.keys.outbox)]

    assert list(map(block_of, blocks)) == read


async def test_block_is_read_although_others_leave_and_join_meanwhile(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_blocks, "FIRST_PAGE", 1)
    monkeypatch.setattr(outbox_blocks, "MOST_IN_PAGE", 2)
    blocks = [[sealed_group(f"g{at}", at // 2)] for at in range(20)]
    client: Any = application.client
    store = await shard_with(client, application.settings, *blocks)
    read: list[bytes] = []
    first = set(map(block_of, blocks))
    async for block in blocks_in(client, store.keys.outbox):
        if block in first:
            read.append(block)
            await client.zrem(store.keys.outbox, block)
            await put(store, [sealed_group("new", 0, f"n{len(read)}")])

    assert list(map(block_of, blocks)) == read


async def test_large_blocks_are_read_in_small_pages(application: Application) -> None:
    names = ["x" * 400_000 + str(at) for at in range(8)]
    store = await shard_with(
        application.client, application.settings, *[[sealed_group("g", at, name)] for at, name in enumerate(names)]
    )
    sizes: list[int] = []
    client: Any = application.client
    read = client.zrangebyscore

    async def measured(*arguments: Any, **options: Any) -> Any:
        found = await read(*arguments, **options)
        sizes.append(len(found))
        return found

    client.zrangebyscore = measured
    found = [SealedGroup.unpack_all(block) async for block in blocks_in(client, store.keys.outbox)]

    assert names == [next(iter(records[0].names)) for records in found]
    assert max(sizes) <= 4
