"""Where readers of a journal begin: at cursors, at moments, at the latest, and in partitions that come later."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import redis.asyncio

from streams_app import JournalReader
from streams_app.codec import member_of
from streams_app.errors import CursorError
from streams_app.journal.core.cursor import parse_start
from streams_app.journal.core.entry import Row
from streams_app.journal.reading.entries import Entry, Gap
from streams_app.settings import Settings
from tests.helpers.journal.journals import JournalShard, at, row
from tests.helpers.waiting import wait_until
from tests.integration.journal.reading.readers import OF_A, THREE_DAYS, of_day, offsets, read, three_days


@pytest.mark.parametrize(
    ("after", "wanted"),
    [
        ("2026-08-19", OF_A[5:]),
        ("2026-08-20T00:00:00.024Z", [24, 26, 28]),
        (str(at(1, 15)), [16, 18, *OF_A[10:]]),
        ("2026-08-30", []),
        ("1970-01-02", OF_A),
        ("latest", []),
        ("earliest", OF_A),
    ],
)
async def test_reader_starts_at_the_given_position(
    shard: JournalShard, reader: JournalReader, after: str, wanted: list[int]
) -> None:
    await three_days(shard)

    assert wanted == offsets(await read(reader, after))


async def test_events_after_the_first_one_are_read_with_any_time(shard: JournalShard, reader: JournalReader) -> None:
    await shard.append([row("a", 0, 0), row("a", 1, 2), Row(row("a", 2).key, 2, at(1), b"late"), row("a", 3, 2)])

    assert [1, 2, 3] == offsets(await read(reader, "2026-08-20"))


async def test_cursor_of_a_missing_partition_is_rejected(shard: JournalShard, reader: JournalReader) -> None:
    with pytest.raises(CursorError, match="partition 7 of the cursor does not exist: the source has partitions 0 to 0"):
        await read(reader, "7-1")


async def test_several_partitions_are_read_and_a_cursor_continues_in_each(
    redis_client: redis.asyncio.Redis, settings: Settings, reader: JournalReader
) -> None:
    for partition in range(3):
        shard = JournalShard(redis_client, settings, partition, partitions=3)
        await shard.claim()
        if partition != 1:
            await shard.append([row("a", offset) for offset in range(4)])
    found = await read(reader)

    had = [(one.partition, one.offset) for one in found if isinstance(one, Entry)]
    assert [(0, n) for n in range(4)] + [(2, n) for n in range(4)] == had
    for number, one in enumerate(found):
        assert found[number + 1 :] == await read(reader, one.cursor)


async def test_reader_of_the_latest_skips_events_that_are_filed_anew(shard: JournalShard, reader: JournalReader) -> None:
    await shard.wipe()
    reading = reader.reading((row("a", 0).key,), parse_start("latest", 0))
    assert [] == [found async for found in reading.items()]
    await shard.claim()
    await shard.append([*of_day(0), Row(row("a", 10).key, 10, 4_000_000_000_000, b"of a time to come")])

    assert [10] == offsets([found async for found in reading.items()])


async def test_reader_of_the_latest_skips_past_events_of_other_partitions_while_the_first_has_no_state(
    redis_client: redis.asyncio.Redis, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams_app.journal.reading.shards.PARTITIONS_MS", 0)
    first, second = (JournalShard(redis_client, settings, number, partitions=2) for number in range(2))
    await second.claim()
    await second.append([row("a", offset) for offset in range(4)])
    async with JournalReader(settings) as reader:
        reading = reader.reading((row("a", 0).key,), parse_start("latest", 0))
        assert [] == [found async for found in reading.items()]
        await first.claim()
        assert [] == [found async for found in reading.items()]
        await second.append([row("a", 4)])

        assert [4] == offsets([found async for found in reading.items()])


async def test_added_partition_is_read_from_its_beginning_even_by_a_reader_of_the_latest(
    redis_client: redis.asyncio.Redis, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams_app.journal.reading.shards.PARTITIONS_MS", 0)
    first = JournalShard(redis_client, settings, 0, partitions=1)
    await first.claim()
    await first.append([row("a", 0)])
    async with JournalReader(settings) as reader:
        reading = reader.reading((row("a", 0).key,), parse_start("latest", 0))
        assert [] == [found async for found in reading.items()]
        more = [JournalShard(redis_client, settings, number, partitions=2) for number in range(2)]
        for shard in more:
            await shard.claim()
        await more[1].append([row("a", 0)])
        await asyncio.wait_for(reading.wait(), 20)
        found = [found async for found in reading.items()]

    assert [(1, "accounts:0-0,1-0")] == [(one.partition, one.cursor) for one in found]


# A moment


A = (member_of(("a",)),)
MOMENT = at(1, 15)
"""Within the second day: offsets of :data:`THREE_DAYS` are also ms within their day."""


async def paged(reader: JournalReader, after: str, meanwhile: Callable[[], Awaitable[object]] | None = None) -> list[Entry | Gap]:
    """Small pages, each from the cursor of the one before, until there is nothing more."""
    found: list[Entry | Gap] = []
    while True:
        page = await reader.page(A, parse_start(after, 0), limit=2, max_bytes=1_000_000)
        found += page.items
        after = page.next
        if page.is_caught_up:
            return found
        if meanwhile is not None:
            await meanwhile()
            meanwhile = None


@pytest.fixture
async def shards(redis_client: redis.asyncio.Redis, settings: Settings) -> list[JournalShard]:
    """Three partitions, each with the same three days."""
    made = [JournalShard(redis_client, settings, number, 3) for number in range(3)]
    for shard in made:
        await shard.claim()
        await shard.append(THREE_DAYS)
    return made


def by_partition(found: list[Entry | Gap]) -> dict[int, list[int | tuple[int, int, str]]]:
    return {number: offsets([one for one in found if one.partition == number]) for number in range(3)}


SINCE_MOMENT = [offset for offset in OF_A if offset >= 15]


@pytest.mark.parametrize("change", ["nothing", "swap", "drop", "takeover"])
async def test_pages_from_a_moment_contain_nothing_older_of_any_partition(
    shards: list[JournalShard], reader: JournalReader, change: str
) -> None:
    async def changed() -> None:
        for shard in shards:
            if change == "swap":
                await shard.pack(10, of_day(1))
            elif change == "drop":
                await shard.store.drop(0)
            elif change == "takeover":
                await shard.claim()

    found = await paged(reader, str(MOMENT), changed)

    assert dict.fromkeys(range(3), SINCE_MOMENT) == by_partition(found)
    first = await reader.page(A, parse_start(str(MOMENT), 0), limit=1, max_bytes=1_000_000)
    rest = await read(reader, first.items[0].cursor)
    assert dict.fromkeys(range(3), SINCE_MOMENT) == by_partition([*first.items, *rest])


@pytest.mark.parametrize("stateless", [0, 1])
async def test_cursor_keeps_the_moment_for_partitions_added_later(
    redis_client: redis.asyncio.Redis, settings: Settings, stateless: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams_app.journal.reading.shards.PARTITIONS_MS", 0)
    shards = [JournalShard(redis_client, settings, number, 2) for number in range(2)]
    await shards[1 - stateless].claim()
    await shards[1 - stateless].append(THREE_DAYS)
    async with JournalReader(settings) as reader:
        first = await reader.page(A, parse_start(str(MOMENT), 0), limit=100, max_bytes=1_000_000)
        await shards[stateless].claim()
        await shards[stateless].append(of_day(0))
        older = await reader.page(A, parse_start(first.next, 0), limit=100, max_bytes=1_000_000)
        await shards[stateless].append(THREE_DAYS[10:])
        rest = await reader.page(A, parse_start(older.next, 0), limit=100, max_bytes=1_000_000)

    found = by_partition([*first.items, *older.items, *rest.items])
    assert [SINCE_MOMENT, SINCE_MOMENT] == [found[0], found[1]]
    assert ("since-" in first.next, "since-" in older.next, "accounts:0-29,1-29") == (True, True, rest.next)


async def test_follower_from_a_moment_before_the_claims_receives_nothing_older(
    redis_client: redis.asyncio.Redis, settings: Settings, reader: JournalReader
) -> None:
    found: list[Entry | Gap] = []

    async def follow() -> None:
        async for one in reader.read("a", str(MOMENT), follow=True):
            found.append(one)  # noqa: PERF401  # what was had is compared meanwhile

    following = asyncio.create_task(follow())
    try:
        shards = [JournalShard(redis_client, settings, number, 2) for number in (1, 0)]
        for shard in shards:
            await shard.claim()
            await shard.append(THREE_DAYS[:15])
        for shard in shards:
            await shard.append(THREE_DAYS[15:])
        wanted = {0: SINCE_MOMENT, 1: SINCE_MOMENT, 2: []}
        await wait_until(lambda: by_partition(found) == wanted, 20, "the events of both partitions since the moment")
    finally:
        following.cancel()


async def test_key_without_events_since_a_moment_receives_later_ones_with_any_time(
    shard: JournalShard, reader: JournalReader
) -> None:
    await shard.append([row("a", 0), row("b", 1, 2)])
    page = await reader.page(A, parse_start(str(MOMENT), 0), limit=10, max_bytes=1_000_000)
    await shard.append([Row(A[0], 2, at(0, 2), b"late")])

    assert ([], "accounts:0-1", True) == (page.items, page.next, page.is_caught_up)
    assert [2] == offsets(await read(reader, page.next))


async def test_gap_that_may_include_the_moment_is_reported_and_an_older_one_is_not(
    shard: JournalShard, reader: JournalReader
) -> None:
    await shard.append([row("a", 0)])
    await shard.gap(9)
    await shard.append([row("a", 10)])
    await shard.gap(19)
    await shard.append([row("b", 20, 1), row("a", 21, 1), row("a", 22, 2)])

    assert [(11, 19, "retention"), 21, 22] == offsets(await read(reader, str(at(1))))
    assert [22] == offsets(await read(reader, str(at(2))))
    assert [(1, 9, "retention"), 10, (11, 19, "retention"), 21, 22] == offsets(await read(reader, str(at(0, 1))))


async def test_gap_followed_only_by_older_events_is_reported(shard: JournalShard, reader: JournalReader) -> None:
    await shard.append([row("a", 0)])
    await shard.gap(9)
    await shard.append([row("b", 10, 2)])

    assert [(1, 9, "retention")] == offsets(await read(reader, str(MOMENT)))
