"""What the begin log writes to Redis for a partition whose events may not run twice."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from unittest.mock import patch

import pytest

from streams_app.clock import SystemClock
from streams_app.delivery.offset_metadata import OffsetAndMetadata
from streams_app.local.scripts import MemoryScripts
from streams_app.subscribers.execution.executor import Attempt
from streams_app.subscribers.guarantees.attempt_log import AttemptLog
from streams_app.subscribers.guarantees.begin_log import BeginLog
from streams_app.subscribers.state.keys import SubscriberKeys
from streams_app.subscribers.state.store import AttemptEntry, SubscriberStore

LIMIT_SECONDS = 60
MISSING = [(5, "e5")]
"""Offset and id of an event whose id Redis has lost."""


class NoSlots:
    """An executor that begins nothing."""

    def start(self, calls: Sequence[Attempt]) -> None:
        assert not calls

    def withdrawn(self, calls: list[Attempt]) -> None:
        assert not calls


async def none_begins(calls: Sequence[Attempt]) -> Sequence[Attempt]:
    return ()


def store_of(scripts: MemoryScripts, token: str) -> SubscriberStore:
    return SubscriberStore(scripts, SubscriberKeys("shop", "ship", "orders", 0), token, remember_ms=3_600_000)


def begin_log_of(scripts: MemoryScripts, progress: OffsetAndMetadata) -> BeginLog:
    """Return a begin log whose attempts never start."""
    now_ms = SystemClock().now_ms
    store = store_of(scripts, "one")
    return BeginLog(store, lambda: progress, now_ms, NoSlots(), none_begins, lambda: None, [])


@pytest.mark.parametrize(("is_learned", "fence"), [(True, 7), (False, 0)])
async def test_fence_is_not_written_until_redis_has_all_ids_below_it(is_learned: bool, fence: int) -> None:
    now_ms = SystemClock().now_ms
    scripts = MemoryScripts(now_ms)

    async def unavailable(keys: Sequence[str], arguments: Mapping[str, Any]) -> Any:
        raise ConnectionError("Redis is away")

    begin_log = begin_log_of(scripts, OffsetAndMetadata(7, ""))
    await begin_log.claim(0)
    begin_log.schedule_ids(MISSING)
    if is_learned:
        await begin_log.write_once()
    else:
        with patch.dict(scripts.by_name, {"learn": unavailable}), pytest.raises(ConnectionError):
            await begin_log.write_once()
    await begin_log.write_last(1.0)
    kept = await store_of(scripts, "two").claim(0)

    assert kept is not None
    assert fence == kept.fence


async def test_slow_redis_is_awaited_before_any_timeout() -> None:
    now_ms = SystemClock().now_ms
    scripts = MemoryScripts(now_ms)
    is_asked, may_answer = asyncio.Event(), asyncio.Event()
    answer = scripts.by_name["learn"]

    async def late(keys: Sequence[str], arguments: Mapping[str, Any]) -> Any:
        is_asked.set()
        await may_answer.wait()
        return await answer(keys, arguments)

    begin_log = begin_log_of(scripts, OffsetAndMetadata(0, ""))
    await begin_log.claim(0)
    labels = [begin_log.writer.sample_wait()]
    with patch.dict(scripts.by_name, {"learn": late}):
        begin_log.schedule_ids(MISSING)
        written = asyncio.create_task(begin_log.write_once())
        await is_asked.wait()
        labels += [begin_log.writer.sample_wait(), begin_log.writer.sample_wait()]
        may_answer.set()
        await written
    labels.append(begin_log.writer.sample_wait())

    assert [None, None, "redis", None] == labels


async def test_redis_that_does_not_accept_attempts_is_reported_before_any_timeout() -> None:
    scripts = MemoryScripts(SystemClock().now_ms)
    is_asked = asyncio.Event()

    async def never(keys: Sequence[str], arguments: Mapping[str, Any]) -> Any:
        is_asked.set()
        await asyncio.Event().wait()

    attempt_log = AttemptLog(store_of(scripts, "one"), OffsetAndMetadata(0), SystemClock().now_ms)
    await attempt_log.claim(LIMIT_SECONDS)
    attempt_log.keep(5, AttemptEntry(1))
    with patch.dict(scripts.by_name, {"begin": never}):
        writing = asyncio.create_task(attempt_log.write_once())
        await is_asked.wait()
        labels = [attempt_log.writer.sample_wait(), attempt_log.writer.sample_wait()]
        writing.cancel()

    assert [None, "redis"] == labels
