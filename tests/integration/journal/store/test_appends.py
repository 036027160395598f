"""Appends to a shard of a journal on a real Redis: who may write, and what a lost reply leaves."""

from __future__ import annotations

import pytest

from streams_app.delivery.scripts import FencedError
from streams_app.journal.core.block import encode
from tests.helpers.journal.journals import blocks_of
from tests.integration.journal.store.shards import NEXT, Shard, fill, rows, segment, three_days


async def test_append_with_a_missing_reply_is_reconciled(shard: Shard) -> None:
    store = await shard.claimed()
    of = segment(10)

    assert [False, True] == [await fill(store, 9, 12, of, blocks_of(rows(b"a", 10))) for _ in range(2)]
    assert [10] == await shard.offsets(b"a")


async def test_append_requires_the_expected_fence(shard: Shard) -> None:
    store = await three_days(shard)

    with pytest.raises(FencedError, match="fence"):
        await fill(store, 34, 36, segment(30), blocks_of(rows(b"a", 36)))
    with pytest.raises(FencedError, match="first"):
        await fill(store, 35, 37, segment(37), blocks_of(rows(b"a", 37)))


async def test_closed_segment_rejects_appends(shard: Shard) -> None:
    store = await three_days(shard)
    with pytest.raises(FencedError, match="closed"):
        await fill(store, 35, 36, segment(20, "2026-08-19"))
    await store.close(30)
    with pytest.raises(FencedError, match="closed"):
        await fill(store, 35, 36, segment(30))
    await fill(store, 35, 36, segment(36, NEXT), blocks_of(rows(b"a", 36)))

    assert [(30, True), (36, False)] == [(one.first, one.is_closed) for one in (await shard.segments())[2:]]


async def test_fenced_owner_writes_nothing(shard: Shard) -> None:
    old = await three_days(shard)
    await shard.store("b").claim("id", 4)
    packed = segment(10, generation="ap", form="packed")
    before = await shard.segments()

    for attempt in (
        fill(old, 35, 36, segment(30), blocks_of(rows(b"a", 36))),
        old.close(30),
        old.stage(packed, [encode(rows(b"a", 10))], begins=True),
        old.swap(packed, 1),
        old.drop(10),
    ):
        with pytest.raises(FencedError, match="token"):
            await attempt
    assert before == await shard.segments()
    assert {"meta", "segments", "about", "blocks:10:a", "blocks:20:a", "blocks:30:a"} == await shard.names()


async def test_missing_state_is_rejected(shard: Shard) -> None:
    store = await three_days(shard)
    await shard.client.delete(shard.keys.meta)

    with pytest.raises(FencedError, match="no-state"):
        await fill(store, 35, 36, segment(30))
