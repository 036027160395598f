"""Readers of a journal that wait: for events, and for a Redis that is away."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from streams_app import JournalReader
from streams_app.embedded import Valkey
from streams_app.embedded.ports import free_port
from streams_app.errors import TryAgainError
from streams_app.journal.core.cursor import parse_start
from streams_app.journal.reading.entries import Entry, Gap
from streams_app.redis_access.client import connect
from tests.conftest import Names
from tests.helpers.journal.journals import JournalShard, row
from tests.helpers.waiting import wait_until
from tests.integration.journal.reading.readers import OF_A, THREE_DAYS, declared, of_day, offsets, read, three_days


async def test_follower_receives_appended_events_through_swap_takeover_wipe_and_midnight(
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

    assert [str(one.cursor) for one in found] == [f"accounts:0-{offset}" for offset in OF_A]


async def test_follower_ends_even_if_its_cancellation_was_swallowed(
    shard: JournalShard, reader: JournalReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    await three_days(shard)
    asking, fences = asyncio.Event(), reader.shards.fences

    async def swallowing(partitions: Collection[int]) -> Any:
        with suppress(asyncio.CancelledError):
            asking.set()
            await asyncio.sleep(3_600)
        return await fences(partitions)

    monkeypatch.setattr(reader.shards, "fences", swallowing)
    following = asyncio.create_task(read(reader, follow=True))
    await asking.wait()
    following.cancel()
    await asyncio.wait({following}, timeout=20)

    assert following.cancelled()


async def test_page_waits_for_an_event_of_its_key_only(
    shard: JournalShard, reader: JournalReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, fences = [], reader.shards.fences

    async def observed(partitions: Collection[int]) -> Any:
        answer = await fences(partitions)
        found.append(answer[0])
        return answer

    monkeypatch.setattr(reader.shards, "fences", observed)
    start = parse_start("earliest", 0)
    waiting = asyncio.create_task(reader.page((row("a", 0).key,), start, limit=10, max_bytes=10_000, wait_ms=20_000))
    await wait_until(lambda: found, 5, "the page waits")
    await shard.append([row("b", 0)])
    await wait_until(lambda: found.count(0) > 1, 5, "the page has read the event of another key, and waits again")
    await shard.append([row("a", 1)])
    page = await waiting

    assert ([1], "accounts:0-1", True, {0: 1}) == (offsets(page.items), page.next, page.is_caught_up, page.fences)


async def test_next_advances_on_an_empty_page_and_lists_unread_partitions(shard: JournalShard, reader: JournalReader) -> None:
    await three_days(shard)
    key, start = (row("c", 0).key,), parse_start("earliest", 0)
    page = await reader.page(key, start, limit=10, max_bytes=10_000)
    await shard.wipe()
    empty = await reader.page(key, parse_start(page.next, 0), limit=10, max_bytes=10_000)

    assert ("accounts:0-29", True, {0: 0}, {0: 29}, ()) == (page.next, page.is_caught_up, page.floors, page.fences, page.unread)
    assert ("accounts:0-29", False, {}, {}, (0,)) == (empty.next, empty.is_caught_up, empty.floors, empty.fences, empty.unread)


async def test_unavailable_redis_is_a_retryable_error(names: Names) -> None:
    async with JournalReader(declared(names, f"redis://127.0.0.1:{free_port()}/0")) as reader:
        with pytest.raises(TryAgainError, match="cannot reach Redis"):
            await read(reader)


async def test_follower_waits_for_an_unavailable_redis_and_continues(valkey: Valkey, names: Names, tmp_path: Path) -> None:
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
