"""When the keeper of a shard packs, and how fast."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis.asyncio

from streams_app.journal.agents import keeper as keeping_module
from tests.conftest import Names
from tests.helpers.journal.kept_shard import HOUR_MS, made


@pytest.mark.parametrize("settings", [{"compress_rate": 0}, {"compress_after": "2h"}], ids=str)
async def test_keeper_packs_neither_when_disabled_nor_before_the_segment_is_due(
    redis_client: redis.asyncio.Redis, names: Names, settings: dict[str, Any]
) -> None:
    shard = await made(redis_client, names, **settings)
    for _ in range(4):
        await shard.add()

    assert not shard.keeper.is_behind
    assert not await shard.keeper.keep_once()
    shard.clock_ms += HOUR_MS
    assert bool(shard.journal.compress_rate) == await shard.keeper.keep_once()


async def test_keeper_follows_its_rate_unless_filing_waits(
    redis_client: redis.asyncio.Redis, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = await made(redis_client, names, compress_rate=1_000)
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    for _ in range(3):
        await shard.add()
    monkeypatch.setattr(asyncio, "sleep", sleep)
    shard.keeper_context.running.add(shard.keeper)

    assert await shard.keeper.pack_once()
    assert [] == slept
    assert await shard.keeper.pack_once()
    assert pytest.approx(shard.segments[1].received_bytes / 1_000, rel=0.4) == sum(slept)


async def test_throttled_keeper_speeds_up_once_filing_waits(
    redis_client: redis.asyncio.Redis, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = await made(redis_client, names, compress_rate=1)
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            await shard.add()

    for _ in range(2):
        await shard.add()
    monkeypatch.setattr(asyncio, "sleep", sleep)
    shard.keeper_context.running.add(shard.keeper)

    assert await shard.keeper.pack_once()
    assert [keeping_module.SLICE_SECONDS] * 3 == slept
