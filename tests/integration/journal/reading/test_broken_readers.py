"""Broken variants of readers, each shown by a test of its rule."""

from __future__ import annotations

import pytest
import redis.asyncio

from streams_app import JournalReader
from streams_app.settings import Settings
from tests.helpers.journal.journals import JournalShard, row
from tests.integration.journal.reading.readers import OF_A, of_day, offsets, read, three_days
from tests.simulation.mutants import Mutant
from tests.simulation.mutants_journal import SHOWN_BY_TESTS


async def show_all_partitions_asked(client: redis.asyncio.Redis, settings: Settings) -> None:
    shards = [JournalShard(client, settings, number, partitions=3) for number in range(3)]
    for number, shard in enumerate(shards):
        await shard.claim()
        await shard.append([row("a", number)], to=number)
    async with JournalReader(settings, "accounts") as reader:
        assert [0, 1, 2] == offsets(await read(reader))


async def show_swap_between_two_reads(client: redis.asyncio.Redis, settings: Settings) -> None:
    shard = JournalShard(client, settings)
    await shard.claim()
    await three_days(shard)
    async with JournalReader(settings, "accounts") as reader:
        assert OF_A == offsets(await read(reader))
        await shard.pack(0, of_day(0))
        assert OF_A == offsets(await read(reader))


SHOWN_BY = {
    "only one partition is read": show_all_partitions_asked,
    "a segment's form is looked up before the read": show_swap_between_two_reads,
}


@pytest.mark.parametrize("mutant", SHOWN_BY_TESTS, ids=lambda mutant: mutant.name)
async def test_broken_reader_fails_the_test_of_its_rule(
    redis_client: redis.asyncio.Redis, settings: Settings, mutant: Mutant
) -> None:
    await SHOWN_BY[mutant.name](redis_client, settings)
    other = settings.model_copy(update={"app_id": f"{settings.app_id}-broken"})
    with mutant.applied(), pytest.raises(AssertionError):
        await SHOWN_BY[mutant.name](redis_client, other)
