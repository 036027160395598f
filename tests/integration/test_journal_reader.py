"""Readers of a journal on a real Redis: across days, and through all that may happen to what they read."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import cramjam
import pytest
import redis.asyncio
from crc32c import crc32c

from streams_app import JournalReader
from streams_app.codec import member_of
from streams_app.embedded import Valkey
from streams_app.embedded.ports import free_port
from streams_app.errors import ConfigurationError, CursorError, JournalGoneError, TryAgainError
from streams_app.journal.core.block import position
from streams_app.journal.core.cursor import parse_start
from streams_app.journal.core.entry import Row
from streams_app.journal.reading.entries import Entry, Gap
from streams_app.journal.reading.reader import Reading
from streams_app.redis_client import connect
from streams_app.settings import Settings
from tests.conftest import Names, RedisServer
from tests.helpers import wait_until
from tests.journals import JournalShard, at, row


def declared(names: Names, url: str, **journal: Any) -> Settings:
    of = {"name": "accounts", "source": "events", "key": "account_id", **journal}
    return Settings.model_validate({"app_id": names.app_id, "redis": {"url": url}, "journals": [of]})


@pytest.fixture
def settings(redis_server: RedisServer, names: Names) -> Settings:
    return declared(names, redis_server.url)


@pytest.fixture
async def reader(settings: Settings) -> AsyncIterator[JournalReader]:
    async with JournalReader(settings, "accounts") as made:
        yield made


@pytest.fixture
async def shard(redis_client: redis.asyncio.Redis, settings: Settings) -> JournalShard:
    made = JournalShard(redis_client, settings)
    await made.claim()
    return made


async def read(reader: JournalReader, after: str = "earliest", key: Any = "a", **options: bool) -> list[Entry | Gap]:
    return [found async for found in reader.read(key, after, **options)]


def offsets(found: list[Entry | Gap]) -> list[int | tuple[int, int, str]]:
    return [one.offset if isinstance(one, Entry) else (one.first, one.last, one.why) for one in found]


THREE_DAYS = [row("a" if offset % 2 == 0 else "b", offset, offset // 10, b'{"n": %d}' % offset) for offset in range(30)]
"""Events 0 to 29, ten a day; those with even offsets are of the key ``a``."""

OF_A = list(range(0, 30, 2))


async def three_days(shard: JournalShard) -> None:
    await shard.append(THREE_DAYS)


def of_day(number: int) -> list[Row]:
    return THREE_DAYS[10 * number : 10 * number + 10]


# Entries


async def test_every_event_of_a_key_is_read_across_days_with_time_and_value(shard: JournalShard, reader: JournalReader) -> None:
    await three_days(shard)
    found = await read(reader)

    assert OF_A == offsets(found)
    assert Entry("0-12", at(1, 12), b'{"n": 12}', (), 0, 12) == found[6]
    assert [] == await read(reader, key="c")


async def test_reader_goes_on_behind_any_cursor(shard: JournalShard, reader: JournalReader) -> None:
    await three_days(shard)
    for one in await read(reader):
        assert [offset for offset in OF_A if offset > _offset_of(one)] == offsets(await read(reader, one.cursor))
    assert [] == await read(reader, "0-29")
    assert [] == await read(reader, "0-4711")  # beyond the fence: it waits


def _offset_of(one: Entry | Gap) -> int:
    return int(one.cursor.partition("-")[2])


async def test_tombstone_headers_and_a_value_that_was_too_large_are_told(shard: JournalShard, reader: JournalReader) -> None:
    await shard.append(
        [
            row("a", 0, value=None),
            row("a", 1)._replace(headers=(("ce_type", b"x"), ("n", None), ("b", b"\xff"))),
            row("a", 2, value=b'{"too_large":5000000}')._replace(headers=(("streams_app_too_large", b"5000000"),)),
        ]
    )
    found = [one for one in await read(reader) if isinstance(one, Entry)]

    assert [None, None, 5_000_000] == [one.too_large for one in found]
    assert [
        {"cursor": "0-0", "at_ms": at(0), "value": None, "headers": []},
        {"cursor": "0-1", "at_ms": at(0, 1), "value": "{}", "headers": [["ce_type", "x"], ["n", None], ["b", {"base64": "/w=="}]]},
        {"cursor": "0-2", "at_ms": at(0, 2), "value": None, "headers": [], "too_large": 5_000_000},
    ] == [one.as_json() for one in found]


@pytest.mark.parametrize("key", ["a\0b", "a\0", "{x}", "ÿ", "1", 1, True, 1.5, "a" * 9_000, ""])
async def test_odd_keys_are_read_and_nothing_beside_them(
    shard: JournalShard, reader: JournalReader, key: Any, settings: Settings
) -> None:
    others = ["a", "a\0c", "1", 1, True, "x"]
    await shard.append([Row(b"", 0, 0, b"no JSON"), *(row(member_of((one,)), n) for n, one in enumerate([*others, key], 1))])
    mine = [n for n, one in enumerate([*others, key], 1) if type(one) is type(key) and one == key]

    assert mine == offsets(await read(reader, key=key))
    assert [0] == offsets(await read(reader, key=None))


async def test_record_key_of_any_bytes_is_read(redis_server: RedisServer, redis_client: redis.asyncio.Redis, names: Names) -> None:
    settings = declared(names, redis_server.url, key="@key")
    shard = JournalShard(redis_client, settings)
    await shard.claim()
    await shard.append([row(b"\xff\0", 0), row(b"a", 1)])
    async with JournalReader(settings) as reader:
        assert [0] == offsets(await read(reader, key=b"\xff\0"))
        assert [1] == offsets(await read(reader, key="a"))
        with pytest.raises(ConfigurationError, match="by the record key"):
            await read(reader, key=7)


async def test_key_of_several_fields_wants_as_many_parts(
    redis_server: RedisServer, redis_client: redis.asyncio.Redis, names: Names
) -> None:
    settings = declared(names, redis_server.url, key=["country", "account"])
    shard = JournalShard(redis_client, settings)
    await shard.claim()
    await shard.append([row(member_of(("de", 7)), 0)])
    async with JournalReader(settings) as reader:
        assert [0] == offsets(await read(reader, key=("de", 7)))
        with pytest.raises(ConfigurationError, match="as many parts"):
            await read(reader, key="de")


# Where to begin


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
async def test_reader_begins_where_it_is_told(shard: JournalShard, reader: JournalReader, after: str, wanted: list[int]) -> None:
    await three_days(shard)

    assert wanted == offsets(await read(reader, after))


async def test_late_events_behind_the_first_one_are_read_whatever_their_time(shard: JournalShard, reader: JournalReader) -> None:
    await shard.append([row("a", 0, 0), row("a", 1, 2), Row(row("a", 2).key, 2, at(1), b"late"), row("a", 3, 2)])

    assert [1, 2, 3] == offsets(await read(reader, "2026-08-20"))


async def test_cursor_of_a_partition_that_there_is_not_is_refused(shard: JournalShard, reader: JournalReader) -> None:
    with pytest.raises(CursorError, match="partition 7 of the cursor is not there: the source has partitions 0 to 0"):
        await read(reader, "7-1")


async def test_several_partitions_are_read_and_a_cursor_goes_on_in_each(
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


# What happens meanwhile


async def stepwise(reader: JournalReader, meanwhile: dict[int, Callable[[], Any]], **options: bool) -> list[Entry | Gap]:
    """Reads small replies, and calls something once an offset was had."""
    found: list[Entry | Gap] = []
    after = "earliest"
    while True:
        page = await reader.page((row("a", 0).key,), parse_start(after, 0), limit=1, most_bytes=1, **options)
        if not page.items:
            return found
        found += page.items
        after = page.next
        (item,) = page.items
        if isinstance(item, Entry) and item.offset in meanwhile:
            await meanwhile[item.offset]()


async def test_swap_take_over_and_append_change_nothing_of_what_is_read(shard: JournalShard, reader: JournalReader) -> None:
    await three_days(shard)
    found = await stepwise(
        reader,
        {
            4: lambda: shard.pack(0, of_day(0)),
            12: shard.claim,
            14: lambda: shard.pack(10, of_day(1)),
            28: lambda: shard.append([row("a", 30, 3)]),
        },
    )

    assert [*OF_A, 30] == offsets(found)
    assert [*OF_A, 30] == offsets(await read(reader))
    assert ["packed", "packed", "raw", "raw"] == [one.form for one in await shard.segments()]


async def test_reader_that_a_drop_overtook_is_told_the_floor_and_may_go_on_there(
    shard: JournalShard, reader: JournalReader
) -> None:
    await three_days(shard)
    assert await shard.store.drop(0)
    with pytest.raises(JournalGoneError, match=r"offsets 5 to 9 of partition 0 are removed: it begins at 0-10") as gone:
        await read(reader, "0-4")

    assert (0, 10, "0-9") == (gone.value.partition, gone.value.floor, gone.value.next)
    assert [(5, 9, "removed"), *OF_A[5:]] == offsets(await read(reader, "0-4", from_floor=True))
    assert OF_A[5:] == offsets(await read(reader, gone.value.next))
    assert OF_A[5:] == offsets(await read(reader))
    assert OF_A[5:] == offsets(await read(reader, "0-9"))


async def test_drop_between_two_pages_is_told_also_to_a_reader_from_the_beginning(
    shard: JournalShard, reader: JournalReader
) -> None:
    await three_days(shard)
    with pytest.raises(JournalGoneError, match="offsets 5 to 9"):
        await stepwise(reader, {4: lambda: shard.store.drop(0)})


async def test_page_that_has_found_something_leaves_what_is_removed_to_the_next_one(
    redis_client: redis.asyncio.Redis, settings: Settings, reader: JournalReader
) -> None:
    shards = [JournalShard(redis_client, settings, number, 2) for number in range(2)]
    for shard in shards:
        await shard.claim()
    await shards[0].append([row("a", 0), row("a", 1)])
    await three_days(shards[1])
    assert await shards[1].store.drop(0)
    keys = (member_of(("a",)),)
    page = await reader.page(keys, parse_start("0-0,1-4", 0), limit=100, most_bytes=1_000_000)
    with pytest.raises(JournalGoneError, match="offsets 5 to 9 of partition 1") as gone:
        await reader.page(keys, parse_start(page.next, 0), limit=100, most_bytes=1_000_000)

    assert ([1], "0-1,1-4", False) == (offsets(page.items), page.next, page.is_caught_up)
    assert "0-1,1-9" == gone.value.next


async def test_gap_of_retention_is_told_once_and_the_cursor_goes_on_behind_it(shard: JournalShard, reader: JournalReader) -> None:
    await shard.append([row("a", 0), row("b", 1)])
    await shard.gap(99)
    await shard.append([row("a", 100, 1)])
    found = await read(reader)

    assert [0, (2, 99, "retention"), 100] == offsets(found)
    assert Gap(2, 99, "retention", 0, "0-99") == found[1]
    assert [100] == offsets(await read(reader, found[1].cursor))
    assert [(51, 99, "retention"), 100] == offsets(await read(reader, "0-50"))


async def test_wiped_journal_is_read_on_with_the_same_cursor_once_it_was_read_again(
    shard: JournalShard, reader: JournalReader
) -> None:
    await three_days(shard)
    await shard.wipe()
    assert [] == await read(reader, "0-12")
    await shard.claim()
    await shard.append(THREE_DAYS[:8])
    assert [] == await read(reader, "0-12")
    await shard.append(THREE_DAYS[8:])

    assert OF_A[7:] == offsets(await read(reader, "0-12"))


async def test_wiped_journal_that_begins_later_now_says_so(shard: JournalShard, reader: JournalReader) -> None:
    await three_days(shard)
    await shard.wipe()
    await shard.claim(20)
    await shard.append(THREE_DAYS[20:])

    with pytest.raises(JournalGoneError, match="offsets 13 to 19"):
        await read(reader, "0-12")


async def test_reader_comes_to_an_end_although_the_journal_grows_as_fast_as_it_is_read(
    shard: JournalShard, reader: JournalReader
) -> None:
    for offset in range(3):
        await shard.append([row("a", offset, 0, _incompressible(600_000))])
    found = []
    async for one in reader.read("a"):
        found.append(one)
        if len(found) > 20:
            break
        await shard.append([row("a", 2 + len(found), 0, _incompressible(600_000))])

    assert [0, 1, 2] == offsets(found)[:3]
    assert len(found) < 6


def _incompressible(size: int) -> bytes:
    return random.Random(size).randbytes(size)


# Damage


async def test_damaged_block_is_a_gap_and_the_rest_is_read(shard: JournalShard, reader: JournalReader) -> None:
    await three_days(shard)
    await shard.damage(10)

    assert [*OF_A[:5], (9, 18, "damaged"), *OF_A[10:]] == offsets(await read(reader))


async def test_damaged_block_of_several_keys_is_a_gap_up_to_where_the_key_goes_on(
    shard: JournalShard, reader: JournalReader
) -> None:
    await three_days(shard)
    await shard.pack(10, of_day(1))
    await shard.damage(10)

    assert [*OF_A[:5], (9, 19, "damaged"), *OF_A[10:]] == offsets(await read(reader))


async def test_evicted_blocks_are_a_gap_and_the_rest_is_read(shard: JournalShard, reader: JournalReader) -> None:
    await three_days(shard)
    await shard.evict(10)

    assert [*OF_A[:5], (10, 19, "damaged"), *OF_A[10:]] == offsets(await read(reader))


async def test_block_that_claims_to_be_huge_is_a_gap_and_nothing_is_allocated_for_it(
    shard: JournalShard, reader: JournalReader
) -> None:
    await shard.append([row("a", 0)])
    await shard.append([row("a", 1, 1)])
    key = await shard.blocks_key(0)
    await shard.client.delete(key)
    await shard.client.zadd(key, {_bomb(): 0})

    assert [(0, 0, "damaged"), 1] == offsets(await read(reader))


def _bomb() -> bytes:
    """A block of 2 GB of zeros by its head, with a right checksum; a megabyte of them is in it."""
    place, payload = position(row("a", 0).key, 0), bytes(cramjam.zstd.compress(b"\0" * 1_000_000))
    checksum = crc32c(payload, crc32c(struct.pack(">BI", 1, 2_000_000_000), crc32c(place)))
    return place + struct.pack(">BII", 1, 2_000_000_000, checksum) + payload


# Followers


async def test_follower_gets_what_is_appended_through_swap_take_over_wipe_and_midnight(
    shard: JournalShard, reader: JournalReader
) -> None:
    found: list[Entry | Gap] = []

    async def follow() -> None:
        async for one in reader.read("a", follow=True):
            found.append(one)  # noqa: PERF401  # what was had is compared meanwhile

    async def had(wanted: list[int]) -> None:
        await wait_until(lambda: offsets(found) == wanted, 20, f"{wanted}")

    following = asyncio.create_task(follow())
    try:
        await shard.append(of_day(0))
        await had(OF_A[:5])
        await shard.append(of_day(1))
        await had(OF_A[:10])
        await shard.pack(0, of_day(0))
        await shard.claim()
        await shard.wipe()
        await shard.claim()
        await shard.append(THREE_DAYS)
        await had(OF_A)
    finally:
        following.cancel()

    assert [str(one.cursor) for one in found] == [f"0-{offset}" for offset in OF_A]


async def test_reader_of_the_latest_does_not_get_a_past_that_is_read_again(shard: JournalShard, reader: JournalReader) -> None:
    await shard.wipe()
    reading = Reading(reader, (row("a", 0).key,), parse_start("latest", 0), from_floor=False)
    assert [] == [found async for found in reading.items()]
    await shard.claim()
    await shard.append([*of_day(0), Row(row("a", 10).key, 10, 4_000_000_000_000, b"of a time to come")])

    assert [10] == offsets([found async for found in reading.items()])


async def test_reader_of_the_latest_gets_no_past_of_other_partitions_while_the_first_one_has_no_state(
    redis_client: redis.asyncio.Redis, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams_app.journal.reading.reader.PARTITIONS_MS", 0)
    first, second = (JournalShard(redis_client, settings, number, partitions=2) for number in range(2))
    await second.claim()
    await second.append([row("a", offset) for offset in range(4)])
    async with JournalReader(settings) as reader:
        reading = Reading(reader, (row("a", 0).key,), parse_start("latest", 0), from_floor=False)
        assert [] == [found async for found in reading.items()]
        await first.claim()
        assert [] == [found async for found in reading.items()]
        await second.append([row("a", 4)])

        assert [4] == offsets([found async for found in reading.items()])


async def test_partition_that_is_added_is_read_from_its_beginning_also_by_a_reader_of_the_latest(
    redis_client: redis.asyncio.Redis, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams_app.journal.reading.reader.PARTITIONS_MS", 0)
    first = JournalShard(redis_client, settings, 0, partitions=1)
    await first.claim()
    await first.append([row("a", 0)])
    async with JournalReader(settings) as reader:
        reading = Reading(reader, (row("a", 0).key,), parse_start("latest", 0), from_floor=False)
        assert [] == [found async for found in reading.items()]
        more = [JournalShard(redis_client, settings, number, partitions=2) for number in range(2)]
        for shard in more:
            await shard.claim()
        await more[1].append([row("a", 0)])
        await asyncio.wait_for(reading.wait(), 20)
        found = [found async for found in reading.items()]

    assert [(1, "0-0,1-0")] == [(one.partition, one.cursor) for one in found]


async def test_page_waits_until_there_is_something_and_not_for_other_keys(shard: JournalShard, reader: JournalReader) -> None:
    start = parse_start("earliest", 0)
    waiting = asyncio.create_task(reader.page((row("a", 0).key,), start, limit=10, most_bytes=10_000, wait_ms=20_000))
    await asyncio.sleep(0)
    await shard.append([row("b", 0)])
    await wait_until(lambda: shard.fence == 0, 5, "the event of another key")
    await shard.append([row("a", 1)])
    page = await waiting

    assert ([1], "0-1", True, {0: 1}) == (offsets(page.items), page.next, page.is_caught_up, page.fences)


async def test_next_moves_where_nothing_was_found_and_says_what_nobody_has_read(shard: JournalShard, reader: JournalReader) -> None:
    await three_days(shard)
    key, start = (row("c", 0).key,), parse_start("earliest", 0)
    page = await reader.page(key, start, limit=10, most_bytes=10_000)
    await shard.wipe()
    empty = await reader.page(key, parse_start(page.next, 0), limit=10, most_bytes=10_000)

    assert ("0-29", True, {0: 0}, {0: 29}, ()) == (page.next, page.is_caught_up, page.floors, page.fences, page.unread)
    assert ("0-29", False, {}, {}, (0,)) == (empty.next, empty.is_caught_up, empty.floors, empty.fences, empty.unread)


async def test_redis_that_is_away_is_an_error_to_try_again(names: Names) -> None:
    async with JournalReader(declared(names, f"redis://127.0.0.1:{free_port()}/0")) as reader:
        with pytest.raises(TryAgainError, match="cannot reach Redis"):
            await read(reader)


async def test_follower_waits_for_a_redis_that_is_away_and_goes_on(valkey: Valkey, names: Names, tmp_path: Path) -> None:
    settings = declared(names, valkey.url)
    found: list[Entry | Gap] = []

    async def follow() -> None:
        async with JournalReader(settings) as reader:
            async for one in reader.read("a", follow=True):
                found.append(one)  # noqa: PERF401  # what was had is compared meanwhile

    async with connect(settings.redis) as client:
        shard = JournalShard(client, settings)
        await shard.claim()
        await shard.append(of_day(0))
        following = asyncio.create_task(follow())
        try:
            await wait_until(lambda: offsets(found) == OF_A[:5], 20, "what is there")
            valkey.stop()
            with Valkey.start(valkey.port, tmp_path / "valkey", appendonly=True):
                await shard.append(of_day(1))
                await wait_until(lambda: offsets(found) == OF_A[:10], 30, "what came after the outage")
        finally:
            following.cancel()
