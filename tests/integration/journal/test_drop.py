"""``streams-app journal drop``, as a person runs it, also while a worker runs."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any, cast

import pytest
import redis

from streams_app import cli
from streams_app.journal.store.journal_store import JournalStore
from tests.conftest import RedisServer
from tests.helpers.journal.journal_desk import Desk, three_days


async def test_drop_previews_its_effect_and_removes_segments_with_yes(desk: Desk) -> None:
    await three_days(desk)
    dry = desk("drop", "--before", "2026-08-20")
    assert "2 segments of accounts before 2026-08-20: 3 events, " in dry.out
    assert "nothing was removed; --yes does it" in dry.out
    assert 3 == len(await desk.shard.segments())
    done = desk("drop", "--before", "2026-08-20", "--yes")

    assert (0, True) == (done.code, done.out.startswith("removed 2 of 2 segments of accounts"))
    assert ["2026-08-20"] == [one.day for one in await desk.shard.segments()]
    assert "nothing was removed" in desk("drop", "--before", "2026-08-20", "--yes").out


@pytest.mark.parametrize(("claims", "code", "left"), [(1, 0, 1), (4, 0, 1), (99, 75, 3)])
async def test_drop_continues_if_a_worker_reclaims_the_partition_meanwhile(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], claims: int, code: int, left: int
) -> None:
    await three_days(desk)
    drop, taken = JournalStore.drop, itertools.count(1)

    async def overtaken(store: JournalStore, first: int) -> bool:
        if next(taken) <= claims:
            worker = JournalStore(
                cast("Any", SimpleNamespace(by_name=store._scripts, redis=store._redis)), store._keys, "of a worker"
            )
            assert await worker.claim("id", 1) is not None
        return await drop(store, first)

    monkeypatch.setattr(JournalStore, "drop", overtaken)
    ended = await asyncio.to_thread(cli.run, ["journal", "drop", "--config", str(desk.config), "--before", "2026-08-20", "--yes"])
    output = capsys.readouterr()

    assert (code, left) == (ended, len(await desk.shard.segments()))
    assert f"audit journal-drop journal=accounts before=2026-08-20 segments={3 - left}" in output.err
    assert code == 0 or "a worker has taken partition 0 back 5 times meanwhile: repeat the command" in output.err


async def test_drop_of_a_partition_wiped_meanwhile_may_be_repeated(
    desk: Desk, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    await three_days(desk)
    drop = JournalStore.drop

    async def wiped(store: JournalStore, first: int) -> bool:
        found = await drop(store, first)
        with redis.Redis.from_url(redis_server.url) as client:  # not that of the test, which is on another event loop
            client.delete(desk.shard.keys.meta)
        return found

    monkeypatch.setattr(JournalStore, "drop", wiped)
    ended = await asyncio.to_thread(cli.run, ["journal", "drop", "--config", str(desk.config), "--before", "2026-08-20", "--yes"])
    output = capsys.readouterr()

    assert (75, True) == (ended, "Redis has lost partition 0 meanwhile" in output.err)
    assert "segments=1 by=" in output.err


async def test_open_segment_is_never_dropped(desk: Desk) -> None:
    await three_days(desk)
    desk("drop", "--before", "2026-08-25", "--yes")

    assert ["2026-08-20"] == [one.day for one in await desk.shard.segments()]


@pytest.mark.parametrize("day", ["2026-8-20", "20260820", "yesterday", "2026-02-30", "2999-01-01", ""])
async def test_drop_rejects_a_future_day(desk: Desk, day: str) -> None:
    ran = desk("drop", "--before", day, "--yes")

    assert (1, True) == (ran.code, "write one as in 2026-08-20" in ran.err)
