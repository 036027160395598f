"""Pages of a journal: bounded in what they cost, and fair to every partition and to what is removed."""

from __future__ import annotations

import threading

import pytest
import redis.asyncio

from streams_app import JournalReader
from streams_app.codec import member_of
from streams_app.errors import CursorError, JournalGoneError
from streams_app.journal.core.block import rows_of_key
from streams_app.journal.core.cursor import parse_start
from streams_app.journal.core.entry import Row
from streams_app.journal.reading.all_partitions import JournalPage
from streams_app.journal.reading.entries import Entry
from streams_app.settings import Settings
from tests.helpers.journal.journals import JournalShard, row
from tests.integration.journal.reading.readers import THREE_DAYS, offsets, read

A = (member_of(("a",)),)


async def page_of(reader: JournalReader, after: str, limit: int = 100, **options: bool) -> JournalPage:
    return await reader.page(A, parse_start(after, 0), limit=limit, max_bytes=1_000_000, **options)


@pytest.fixture
async def shards(redis_client: redis.asyncio.Redis, settings: Settings) -> list[JournalShard]:
    """Three partitions; of the second one what stood first is removed."""
    made = [JournalShard(redis_client, settings, number, 3) for number in range(3)]
    for shard in made:
        await shard.claim()
    await made[0].append([row("a", 0)])
    await made[1].append(THREE_DAYS)
    await made[2].append([row("a", 0), row("a", 1)])
    assert await made[1].store.drop(0)
    return made


# What is removed


async def test_busy_partition_does_not_hide_removed_offsets_of_another(shards: list[JournalShard], reader: JournalReader) -> None:
    for offset in range(1, 4):
        await shards[0].append([row("a", offset)])
        with pytest.raises(JournalGoneError, match="offsets 5 to 9 of partition 1") as gone:
            await page_of(reader, "0-0,1-4,2-0")

        assert "accounts:0-0,1-9,2-0" == gone.value.next
    page = await page_of(reader, gone.value.next)
    assert {0: [1, 2, 3], 1: list(range(10, 30, 2)), 2: [1]} == {
        number: offsets([one for one in page.items if one.partition == number]) for number in range(3)
    }


async def test_removed_offsets_are_reported_before_other_partitions_and_from_floor_continues(
    shards: list[JournalShard], reader: JournalReader
) -> None:
    with pytest.raises(JournalGoneError, match="offsets 5 to 9 of partition 1"):
        await anext(reader.read("a", "0-0,1-4,2-0"))
    page = await page_of(reader, "0-0,1-4,2-0", from_floor=True)

    assert [(5, 9, "removed"), *range(10, 30, 2)] == offsets([one for one in page.items if one.partition == 1])
    assert [1] == offsets([one for one in page.items if one.partition == 2])


async def test_offsets_removed_while_other_partitions_are_read_are_reported_after_them(
    shards: list[JournalShard], reader: JournalReader
) -> None:
    found = []
    with pytest.raises(JournalGoneError, match="offsets 10 to 19 of partition 1"):
        async for one in reader.read("a", "1-9"):
            found.append(one)
            if one.partition == 0:
                assert await shards[1].store.drop(10)

    assert [(0, 0)] == [(one.partition, one.offset) for one in found if isinstance(one, Entry)]


# Which partition comes first


async def test_partition_that_fills_every_page_does_not_starve_another(shards: list[JournalShard], reader: JournalReader) -> None:
    cursor, seen = "0-0,1-29,2-0", set()
    for offset in range(1, 200):
        await shards[0].append([row("a", offset)])
        page = await page_of(reader, cursor, limit=1)
        cursor = page.next
        seen |= {one.partition for one in page.items}
        if 2 in seen:
            return

    raise AssertionError("199 pages, and none has come to the third partition")


# What a page costs


async def test_cursor_cost_depends_on_the_named_partitions_only(shard: JournalShard, reader: JournalReader) -> None:
    await shard.wipe()
    page = await page_of(reader, "3-7,5000-1")

    assert ((0, 3, 5000), "accounts:3-7,5000-1") == (page.unread, page.next)


async def test_cursor_of_an_impossible_partition_is_rejected_without_a_query(shard: JournalShard, reader: JournalReader) -> None:
    await shard.wipe()
    with pytest.raises(CursorError, match="partition 99999 of the cursor does not exist: no source has more than 10,000: write"):
        await page_of(reader, "3-7,99999-1")


class Decoding:
    """Counts what is decoded, and where."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.raw_bytes = 0
        self.on_loop_bytes = 0
        monkeypatch.setattr("streams_app.journal.reading.shard_position.rows_of_key", self)

    def __call__(self, member: bytes, key: bytes) -> list[Row]:
        rows = rows_of_key(member, key)
        size = sum(len(one.value or b"") for one in rows)
        self.raw_bytes += size
        if threading.current_thread() is threading.main_thread():
            self.on_loop_bytes += size
        return rows


LARGE = b"a" * 400_000
"""Compressed, many of them are in one reply."""


async def test_page_of_one_entry_decodes_little_of_a_reply(
    shard: JournalShard, reader: JournalReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    for offset in range(30):
        await shard.append([row("a", offset, 0, LARGE)])
    decoding = Decoding(monkeypatch)
    page = await page_of(reader, "earliest", limit=1)

    assert [0] == offsets(page.items)
    assert decoding.raw_bytes <= 2 * len(LARGE)


async def test_large_blocks_are_decoded_in_a_thread_and_small_ones_inline(
    shard: JournalShard, reader: JournalReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    for offset in range(5):
        await shard.append([row("a", offset, 0, LARGE)])
    decoding = Decoding(monkeypatch)

    assert list(range(5)) == offsets(await read(reader))
    assert (5 * len(LARGE), 0) == (decoding.raw_bytes, decoding.on_loop_bytes)
    await shard.append([row("a", 5)])
    assert [5] == offsets(await read(reader, "0-4"))
    assert decoding.on_loop_bytes > 0


async def test_two_keys_are_read_in_offset_order_even_if_much_is_decoded(shard: JournalShard, reader: JournalReader) -> None:
    rows = [row("a" if offset % 3 else "b", offset, 0, b"%d" % offset * 200) for offset in range(2_000)]
    for begin in range(0, 2_000, 200):
        await shard.append(rows[begin : begin + 200])
    keys = tuple(member_of((key,)) for key in ("a", "b"))
    page = await reader.page(keys, parse_start("earliest", 0), limit=10_000, max_bytes=100_000_000)

    assert list(range(2_000)) == offsets(page.items)
    assert [one.value for one in rows] == [one.value for one in page.items if isinstance(one, Entry)]
