"""What a reader of a journal gets on a real Redis: every event of a key, and gaps where blocks are damaged."""

from __future__ import annotations

import struct
from typing import Any

import cramjam
import pytest
import redis.asyncio
from crc32c import crc32c

from streams_app import JournalReader
from streams_app.codec import member_of
from streams_app.errors import ConfigurationError
from streams_app.journal.core.block import position
from streams_app.journal.core.entry import Row, headers_with_key
from streams_app.journal.reading.entries import Entry, Gap
from streams_app.settings import Settings
from tests.conftest import Names, RedisServer
from tests.helpers.journal.journals import JournalShard, at, row
from tests.integration.journal.reading.readers import OF_A, declared, of_day, offsets, read, three_days


async def test_every_event_of_a_key_is_read_across_days_with_time_and_value(shard: JournalShard, reader: JournalReader) -> None:
    await three_days(shard)
    found = await read(reader)

    assert OF_A == offsets(found)
    assert Entry("accounts:0-12", at(1, 12), b'{"n": 12}', (), 0, 12) == found[6]
    assert [] == await read(reader, key="c")


async def test_reader_continues_after_any_cursor(shard: JournalShard, reader: JournalReader) -> None:
    await three_days(shard)
    for one in await read(reader):
        assert [offset for offset in OF_A if offset > _offset_of(one)] == offsets(await read(reader, one.cursor))
    assert [] == await read(reader, "0-29")
    assert [] == await read(reader, "0-4711")  # beyond the fence: it waits


def _offset_of(one: Entry | Gap) -> int:
    return int(one.cursor.partition("-")[2])


async def test_tombstones_headers_and_oversized_values_are_reported(shard: JournalShard, reader: JournalReader) -> None:
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
        {"value": None, "headers": []},
        {"value": "{}", "headers": [["ce_type", "x"], ["n", None], ["b", {"base64": "/w=="}]]},
        {"value": None, "headers": [], "too_large": 5_000_000},
    ] == [{name: value for name, value in one.as_json().items() if name in ("value", "headers", "too_large")} for one in found]


async def test_record_key_and_position_of_an_entry_are_reported(shard: JournalShard, reader: JournalReader) -> None:
    keys: list[bytes | None] = [b"a", b"order_1", b"\xff", None]
    rows = [row("a", offset) for offset in range(len(keys))]
    stored = [
        one._replace(headers=headers_with_key(one.key, (("h", b"x"),), key, is_by_record_key=False))
        for one, key in zip(rows, keys, strict=True)
    ]
    await shard.append([*stored, row("a", 4)])
    await shard.gap(4)
    raw = [one for one in await read(reader) if isinstance(one, Entry)]
    await shard.pack(0, [*stored, row("a", 4)])
    packed = [one for one in await read(reader) if isinstance(one, Entry)]

    assert [*keys, None] == [one.key for one in raw]
    assert [(("h", b"x"),)] * 4 == [one.headers for one in raw[:4]]
    assert raw == packed
    assert [("a", 0, 0), ("order_1", 0, 1), ({"base64": "/w=="}, 0, 2), (None, 0, 3), (None, 0, 4)] == [
        (one["key"], one["partition"], one["offset"]) for one in (entry.as_json() for entry in raw)
    ]


async def test_removed_older_events_are_reported_in_every_entry(shard: JournalShard, reader: JournalReader) -> None:
    await three_days(shard)
    whole = [one for one in await read(reader) if isinstance(one, Entry)]
    assert await shard.store.drop(0)
    rest = [one for one in await read(reader) if isinstance(one, Entry)]

    assert ({False}, {True}) == ({one.older_removed for one in whole}, {one.older_removed for one in rest})
    assert {0: 10} == await reader.floors()
    assert (False, True) == ("older_removed" in whole[0].as_json(), rest[0].as_json()["older_removed"])


async def test_key_beyond_the_limit_is_explained_in_the_log(
    shard: JournalShard, reader: JournalReader, caplog: pytest.LogCaptureFixture
) -> None:
    await three_days(shard)

    assert [] == await read(reader, key="ä" * 256)
    assert "" == caplog.text
    assert [] == await read(reader, key="ä" * 257)
    assert "a key of more than 512 bytes (limits.key_bytes; this one has 514) are kept without a key" in caplog.text


@pytest.mark.parametrize("key", ["a\0b", "a\0", "{x}", "ÿ", "1", 1, True, 1.5, "a" * 9_000, ""])
async def test_unusual_keys_are_read_separately(shard: JournalShard, reader: JournalReader, key: Any, settings: Settings) -> None:
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


async def test_key_of_several_fields_needs_as_many_parts(
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


# Damage


async def test_damaged_block_is_a_gap_and_the_rest_is_read(shard: JournalShard, reader: JournalReader) -> None:
    await three_days(shard)
    await shard.damage(10)

    assert [*OF_A[:5], (9, 18, "damaged"), *OF_A[10:]] == offsets(await read(reader))


async def test_damaged_block_of_several_keys_is_a_gap_up_to_the_next_event_of_the_key(
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


async def test_block_with_an_implausible_size_is_a_gap_without_an_allocation(shard: JournalShard, reader: JournalReader) -> None:
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
