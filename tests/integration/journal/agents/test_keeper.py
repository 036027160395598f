"""The keeper of a shard on a real Redis: what it removes, what it packs, and what it leaves alone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence

import pytest
import redis.asyncio
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError

from streams_app.delivery.scripts import FencedError
from streams_app.journal.agents import keeper as keeping_module
from streams_app.journal.agents.keeper import Keeper
from streams_app.journal.core.block import encode
from streams_app.journal.core.entry import Row
from streams_app.journal.store.journal_store import (
    GapReply,
    JournalStore,
)
from streams_app.journal.store.segment import Segment
from tests.conftest import Names
from tests.helpers.journal.kept_shard import CLOCK_MS, HOUR_MS, Shard, made
from tests.helpers.waiting import wait_until


@pytest.fixture
async def shard(redis_client: redis.asyncio.Redis, names: Names) -> AsyncIterator[Shard]:
    yield await made(redis_client, names)


async def test_keeper_packs_closed_segments_from_the_oldest_and_readers_see_no_difference(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping_module, "READ_BYTES", 2_000)
    monkeypatch.setattr(keeping_module, "REPLY_BYTES", 700)
    monkeypatch.setattr(keeping_module, "STAGED_BYTES", 500)
    monkeypatch.setattr("streams_app.journal.core.repack.BLOCK_BYTES", 900)
    for _ in range(3):
        await shard.add()

    assert await shard.keeper.keep_once()
    assert ["packed", "raw", "raw"] == await shard.forms()
    assert await shard.keeper.keep_once()
    assert not await shard.keeper.keep_once()
    assert ["packed", "packed", "raw"] == await shard.forms()
    assert [("packed", True)] * 2 == shard.seen
    await shard.check()


async def test_remains_of_an_interrupted_script_are_packed_once_and_within_the_segment(shard: Shard) -> None:
    raw = await shard.add()
    blocks = f"{shard.keys.blocks_prefix}{raw.first}:a"
    some = [row for row in shard.rows if row.key == b"a"][:3]
    beyond = [Row(b"a", 300, 0, b"beyond"), Row(b"zz", 299, 0, b"x"), Row(b"zz", 302, 0, b"beyond")]
    await shard.client.zadd(blocks, {encode(some): 0, encode(beyond[:1]): 0, encode(beyond[1:]): 0})
    shard.rows += [beyond[1]]
    await shard.add()
    await shard.keeper.keep_once()

    assert [b"", b"a"] == sorted({row.key for row in shard.rows})[:2]
    await shard.check()
    assert 301 == shard.segments[0].entries


@pytest.mark.parametrize("is_appended_to", [False, True], ids=["all", "some"])
async def test_segment_with_missing_blocks_is_not_packed_as_if_it_were_whole(shard: Shard, is_appended_to: bool) -> None:
    await shard.add()
    await shard.add()
    blocks = f"{shard.keys.blocks_prefix}0:a"
    left: list[bytes] = await shard.client.zrange(blocks, 0, 3)  # type: ignore[assignment]  # no replies are decoded
    await shard.client.delete(blocks)
    if is_appended_to:
        await shard.client.zadd(blocks, dict.fromkeys(left, 0))

    assert not await shard.keeper.keep_once()
    assert [("damaged", 0)] == shard.seen
    assert ["raw", "raw"] == [one.form for one in shard.segments]
    if not is_appended_to:
        assert GapReply(0, 299, 599, 0, "damaged") == await shard.reader.read(shard.keys, b"a", -1)


async def test_segment_without_events_is_packed(shard: Shard) -> None:
    await shard.add()
    shard.segments[-1:] = []
    empty = Segment(first=300, day="2026-08-21", generation="a", newest_ms=CLOCK_MS - HOUR_MS, last=310)
    await shard.store.append(299, 310, (), empty, CLOCK_MS, ())
    shard.fence = 310
    shard.segments = [empty]
    await shard.add()

    assert await shard.keeper.pack_once()
    assert "packed" == shard.segments[0].form


async def test_keeper_removes_expired_and_then_excess_segments_and_reports_the_offsets(
    redis_client: redis.asyncio.Redis, names: Names, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    shard = await made(redis_client, names, max_bytes=1_000_000, compress_rate=0)
    for hours in (5, 4, 3, 2, 1):
        await shard.add(hours=hours)
    share = shard.segments[2].stored_bytes * 5 // 2
    shard.journal = shard.journal.model_copy(update={"max_bytes": share})

    assert not await shard.keeper.keep_once()
    assert [("age", 0), ("age", 300), ("size", 600)] == shard.seen
    assert "removed a segment journal=accounts source=t-0 offsets=0-299 day=2026-08-20 cause=age" in caplog.text
    assert "removed a segment journal=accounts source=t-0 offsets=600-899 day=2026-08-20 cause=size" in caplog.text
    assert ["raw", "raw"] == await shard.forms()
    shard.clock_ms += 10 * HOUR_MS
    await shard.keeper.keep_once()
    assert ["raw"] == await shard.forms()


async def test_cleanup_continues_past_a_damaged_block(shard: Shard, caplog: pytest.LogCaptureFixture) -> None:
    raw = await shard.add()
    await shard.add()
    await shard.add()
    blocks = f"{shard.keys.blocks_prefix}{raw.first}:a"
    member: bytes = (await shard.client.zrange(blocks, 3, 3))[0]  # type: ignore[assignment]  # no replies are decoded
    await shard.client.zrem(blocks, member)
    await shard.client.zadd(blocks, {member[:-1] + bytes([member[-1] ^ 1]): 0})

    with caplog.at_level(logging.ERROR):
        assert not await shard.keeper.keep_once()
    assert "cannot be compressed" in caplog.text
    assert ("damaged", 1) == shard.seen[0]
    assert not shard.keeper.is_behind
    assert await shard.keeper.keep_once()
    assert ["raw", "packed", "raw"] == [one.form for one in shard.segments]
    shard.clock_ms += 10 * HOUR_MS
    await shard.keeper.keep_once()
    assert ["raw"] == await shard.forms()


async def test_raw_blocks_stay_if_different_rows_are_read_back(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    await shard.add()
    await shard.add()
    stage = shard.store.stage

    async def lossy(segment: Segment, blocks: Sequence[bytes], *, begins: bool) -> bool:
        return await stage(segment, blocks[1:], begins=begins)

    monkeypatch.setattr(shard.store, "stage", lossy)

    assert not await shard.keeper.keep_once()
    assert ["raw", "raw"] == [one.form for one in shard.segments]
    await shard.check()


async def test_filing_waits_while_two_segments_are_due_and_resumes_if_redis_is_full(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard.lag = None
    for _ in range(3):
        await shard.add()
    assert [True] == [shard.keeper.is_behind]

    async def full(*_: object, **__: object) -> bool:
        raise OutOfMemoryError("command not allowed")

    with monkeypatch.context() as patched:
        patched.setattr(shard.store, "stage", full)
        task = asyncio.create_task(shard.keeper.run())
        await wait_until(lambda: not shard.keeper.is_behind, 10, "the keeper gives way")
    await wait_until(lambda: shard.segments[0].form == "packed", 10, "one is packed")
    assert not shard.keeper.is_behind
    task.cancel()
    assert ["packed", "raw", "raw"] == await shard.forms()


async def test_keeper_stages_large_blocks_one_by_one(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams_app.journal.core.repack.BLOCK_BYTES", 1_000)
    for _ in range(8):
        await shard.add(50, size=600)
    await shard.add()
    largest = 0
    stage = shard.store.stage

    async def measured(segment: Segment, blocks: Sequence[bytes], *, begins: bool) -> bool:
        nonlocal largest
        largest = max(largest, *(len(block) for block in blocks))
        sizes.append((len(blocks), sum(map(len, blocks))))
        return await stage(segment, blocks, begins=begins)

    sizes: list[tuple[int, int]] = []
    monkeypatch.setattr(keeping_module, "STAGED_BYTES", 150)
    monkeypatch.setattr(shard.store, "stage", measured)
    while await shard.keeper.keep_once():
        pass

    assert largest > 75, "two of the largest blocks are beyond the bound"
    assert [one for one in sizes if one[0] > 1 and one[1] > 150] == []
    await shard.check()


async def test_keeper_packs_immediately_when_filing_waits_for_it(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping_module, "IDLE_SECONDS", 3_600)
    shard.lag = keeping_module.MAX_LAG + 1
    behind: list[bool] = []
    shard.keeper = Keeper(shard, shard.keeper_context, lambda: behind.append(shard.keeper.is_behind))
    running = asyncio.create_task(shard.keeper.run())
    await wait_until(lambda: behind == [False], 30, "it has found nothing to do")
    for _ in range(keeping_module.MAX_DUE + 1):
        await shard.add()
    assert shard.keeper.is_behind

    shard.keeper.wake()
    try:
        # Filing is told at once: it would wait for the next tick otherwise.
        await wait_until(lambda: len(behind) > 1 and not behind[1], 30, "a segment is packed")
    finally:
        running.cancel()


@pytest.mark.parametrize("lag", [None, keeping_module.MAX_LAG + 1])
async def test_keeper_rests_while_the_shard_lags_and_one_segment_is_due(shard: Shard, lag: int | None) -> None:
    await shard.add()
    await shard.add()
    shard.lag = lag

    assert not await shard.keeper.keep_once()
    shard.lag = keeping_module.MAX_LAG
    assert await shard.keeper.keep_once()


async def test_swap_with_a_missing_reply_is_reconciled(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    await shard.add()
    await shard.add()
    swap, loses_reply = shard.store.swap, iter([True])

    async def flaky(segment: Segment, blocks: int) -> bool:
        done = await swap(segment, blocks)
        if next(loses_reply, False):
            raise RedisConnectionError("lost")
        return done

    monkeypatch.setattr(shard.store, "swap", flaky)
    monkeypatch.setattr(keeping_module, "IDLE_SECONDS", 0)

    assert await shard.keeper.keep_once()
    assert ["packed", "raw"] == await shard.forms()
    await shard.check()


async def test_segment_removed_by_another_process_is_skipped(shard: Shard) -> None:
    await shard.add()
    await shard.add()
    await shard.store.drop(0)

    assert not await shard.keeper.keep_once()
    assert [300] == [one.first for one in shard.segments]


async def test_segment_that_is_removed_while_its_new_blocks_are_read_back_is_not_an_error(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shard.add()
    await shard.add()
    stage = shard.store.stage

    async def removed(segment: Segment, blocks: Sequence[bytes], *, begins: bool) -> bool:
        staged = await stage(segment, blocks, begins=begins)
        assert await shard.store.drop(segment.first)
        return staged

    monkeypatch.setattr(shard.store, "stage", removed)

    assert not await shard.keeper.keep_once()
    assert [] == shard.seen
    assert [300] == [one.first for one in shard.segments]


async def test_segment_whose_new_blocks_disappear_before_the_swap_is_kept(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    await shard.add()
    await shard.add()
    swap = shard.store.swap

    async def late(segment: Segment, blocks: int) -> bool:
        await shard.client.delete(f"{shard.keys.blocks_prefix}{segment.first}:{segment.generation}")
        return await swap(segment, blocks)

    monkeypatch.setattr(shard.store, "swap", late)

    assert not await shard.keeper.keep_once()
    assert [("damaged", 0)] == shard.seen
    assert [(0, "raw"), (300, "raw")] == [(one.first, one.form) for one in shard.segments]
    await shard.check()
    shard.clock_ms += 10 * HOUR_MS
    await shard.keeper.keep_once()
    assert ("age", 0) == shard.seen[-1]


async def test_keeper_of_a_fenced_shard_ends(shard: Shard) -> None:
    await shard.add()
    await shard.add()
    await JournalStore(shard.scripts, shard.keys, "b").claim("id", 1)

    with pytest.raises(FencedError, match="token"):
        await shard.keeper.run()
    assert {"0:a", "300:a"} == await shard.names()
