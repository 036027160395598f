"""What may happen to a journal while it is read: swap, drop, takeover, gap and wipe."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from streams_app import JournalReader
from streams_app.errors import JournalGoneError
from streams_app.journal.core.cursor import parse_start
from streams_app.journal.reading.entries import Entry, Gap
from tests.helpers.journal.journals import JournalShard, row
from tests.integration.journal.reading.readers import OF_A, THREE_DAYS, of_day, offsets, read, three_days


async def stepwise(reader: JournalReader, meanwhile: dict[int, Callable[[], Any]], **options: bool) -> list[Entry | Gap]:
    """Reads small replies, and calls something once an offset was had."""
    found: list[Entry | Gap] = []
    after = "earliest"
    while True:
        page = await reader.page((row("a", 0).key,), parse_start(after, 0), limit=1, max_bytes=1, **options)
        if not page.items:
            return found
        found += page.items
        after = page.next
        (item,) = page.items
        if isinstance(item, Entry) and item.offset in meanwhile:
            await meanwhile[item.offset]()


async def test_swap_takeover_and_append_do_not_change_the_events_read(shard: JournalShard, reader: JournalReader) -> None:
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


async def test_reader_overtaken_by_a_drop_is_given_the_floor_and_may_continue_there(
    shard: JournalShard, reader: JournalReader
) -> None:
    await three_days(shard)
    assert await shard.store.drop(0)
    with pytest.raises(JournalGoneError, match=r"offsets 5 to 9 of partition 0 are removed: it begins at 0-10") as gone:
        await read(reader, "0-4")

    assert (0, 10, "accounts:0-9") == (gone.value.partition, gone.value.floor, gone.value.next)
    assert [(5, 9, "removed"), *OF_A[5:]] == offsets(await read(reader, "0-4", from_floor=True))
    assert OF_A[5:] == offsets(await read(reader, gone.value.next))
    assert OF_A[5:] == offsets(await read(reader))
    assert OF_A[5:] == offsets(await read(reader, "0-9"))


async def test_drop_between_two_pages_is_reported_even_to_a_reader_from_the_beginning(
    shard: JournalShard, reader: JournalReader
) -> None:
    await three_days(shard)
    with pytest.raises(JournalGoneError, match="offsets 5 to 9"):
        await stepwise(reader, {4: lambda: shard.store.drop(0)})


async def test_retention_gap_is_reported_once_and_the_cursor_continues_after_it(shard: JournalShard, reader: JournalReader) -> None:
    await shard.append([row("a", 0), row("b", 1)])
    await shard.gap(99)
    await shard.append([row("a", 100, 1)])
    found = await read(reader)

    assert [0, (2, 99, "retention"), 100] == offsets(found)
    assert Gap(2, 99, "retention", 0, "accounts:0-99") == found[1]
    assert [100] == offsets(await read(reader, found[1].cursor))
    assert [(51, 99, "retention"), 100] == offsets(await read(reader, "0-50"))


async def test_wiped_journal_is_readable_with_the_same_cursor_once_it_is_filed_anew(
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


async def test_wiped_journal_with_a_later_beginning_says_so(shard: JournalShard, reader: JournalReader) -> None:
    await three_days(shard)
    await shard.wipe()
    await shard.claim(20)
    await shard.append(THREE_DAYS[20:])

    with pytest.raises(JournalGoneError, match="offsets 13 to 19"):
        await read(reader, "0-12")


async def test_reader_reaches_the_end_even_if_the_journal_grows_as_fast(shard: JournalShard, reader: JournalReader) -> None:
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
