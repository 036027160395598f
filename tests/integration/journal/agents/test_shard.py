"""What the owner of a shard does to it on a real Redis: days that are over are closed, and nothing is written twice."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import redis.asyncio

from streams_app.delivery.batch import TP
from streams_app.delivery.scripts import FencedError
from streams_app.journal.agents.shard import JournalShard
from streams_app.journal.core.block import MAX_CHUNK_EVENTS
from streams_app.journal.store.journal_store import BlocksReply, InitialState, JournalScripts, JournalShardReader, JournalStore
from streams_app.journal.store.keys import journal_keys
from streams_app.settings import JournalSettings, Limits
from tests.conftest import Names

DAY_MS = 86_400_000
NOON_MS = 20_000 * DAY_MS + DAY_MS // 2
JOURNAL = JournalSettings(name="accounts", source="t", key="id")


class Owner:
    """Claims the shard, with a state that begins at 0 where there is none."""

    def __init__(self, client: redis.asyncio.Redis, names: Names) -> None:
        self.keys = journal_keys(names.app_id, "accounts", "t", 0)
        self._scripts = JournalScripts(client)
        self.reader = JournalShardReader(self._scripts)

    async def shard(self, token: str, journal: JournalSettings = JOURNAL) -> JournalShard:
        store = JournalStore(self._scripts, self.keys, token)
        claimed = await store.claim("", 1) or await store.claim("", 1, begin=InitialState(-1, NOON_MS))
        assert claimed is not None
        return JournalShard(journal, TP("t", 0), 1, Limits(), store, token, claimed)


@pytest.fixture
def owner(redis_client: redis.asyncio.Redis, names: Names) -> Owner:
    return Owner(redis_client, names)


def records(begin: int, end: int, time_ms: int = NOON_MS) -> list[Any]:
    return [
        SimpleNamespace(offset=offset, timestamp=time_ms, key=b"k", value=b'{"id": 1}', headers=()) for offset in range(begin, end)
    ]


async def file(shard: JournalShard, begin: int, end: int, now_ms: int = NOON_MS) -> None:
    while shard.fence < end - 1:
        left = [one for one in records(begin, end, now_ms) if one.offset > shard.fence]
        await shard.write(shard.filing_of(left, end, now_ms))


async def test_ended_day_is_closed_while_idle_and_accepts_no_more_events(owner: Owner) -> None:
    shard = await owner.shard("a")
    await file(shard, 0, 3)
    await shard.close_day()
    still_open = shard.open
    shard.clock_ms = NOON_MS + DAY_MS // 2
    await shard.close_day()
    closed = shard.open
    status = await owner.reader.status(owner.keys)
    await file(shard, 3, 5, shard.clock_ms)

    assert still_open is not None
    assert closed is None
    assert status is not None
    assert [True] == [segment.is_closed for segment in status.segments]
    assert [(0, 2), (3, 4)] == [(segment.first, segment.last) for segment in shard.segments]
    assert shard.segments[0].day < shard.segments[1].day


async def test_next_owner_continues_the_open_segment_with_its_counts(owner: Owner) -> None:
    first = await owner.shard("a")
    await file(first, 0, 3)
    second = await owner.shard("b")
    await file(second, 3, 5)
    (segment,) = second.segments
    found = await owner.reader.read(owner.keys, b"j1", -1)
    with pytest.raises(FencedError) as caught:
        await file(first, 3, 4)

    assert "token" == caught.value.cause
    assert (0, 4, 5) == (segment.first, segment.last, segment.entries)
    assert ((b"j1", 5 * 11),) == segment.largest
    assert isinstance(found, BlocksReply)
    assert (second.fence, first.fence) == (4, 2)


async def test_chunk_with_a_missing_reply_is_written_once(owner: Owner) -> None:
    shard = await owner.shard("a")
    filing = shard.filing_of(records(0, 3), 3, NOON_MS)
    await shard.store.append(shard.fence, filing.chunk.to, filing.blocks, filing.segment, filing.chunk.clock_ms, ())
    await shard.write(filing)
    status = await owner.reader.status(owner.keys)

    assert status is not None
    assert (2, [3]) == (status.fence, [segment.entries for segment in status.segments])


async def test_gap_ends_a_segment_and_the_next_event_starts_another(owner: Owner) -> None:
    shard = await owner.shard("a")
    await file(shard, 0, 2)
    await shard.skip(6)
    await file(shard, 7, 8)
    found = await owner.shard("b")

    expected = [(0, 1, "raw"), (2, 6, "gap"), (7, 7, "raw")]
    assert expected == [(one.first, one.last, one.form) for one in shard.segments]
    assert expected == [(one.first, one.last, one.form) for one in found.segments]
    assert [0, 1, 2] == [one.part for one in found.segments]


async def test_segment_of_small_events_with_many_keys_ends_by_its_redis_memory(owner: Owner) -> None:
    shard = await owner.shard("a", JOURNAL.model_copy(update={"max_bytes": 1_000_000}))
    end = 5_000
    many = [
        SimpleNamespace(offset=offset, timestamp=NOON_MS, key=b"k", value=b'{"id": %d}' % offset, headers=())
        for offset in range(end)
    ]
    while shard.fence < end - 1:
        await shard.write(shard.filing_of(many[shard.fence + 1 :], end, NOON_MS))
    chunk_bytes = shard.segments[0].stored_bytes * MAX_CHUNK_EVENTS // shard.segments[0].entries
    found = await owner.shard("b", shard.journal)
    sizes = [segment.stored_bytes for segment in found.segments]

    assert all(250_000 <= size <= 250_000 + chunk_bytes for size in sizes[:-1])
    assert [0, 1, 2] == [segment.part for segment in found.segments][:3]
