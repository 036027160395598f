"""A closed consumer leaves no task behind, even if its close is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from streams_app.kafka.patches.consumer_end import end

LIMIT_SECONDS = 60


async def done() -> None:
    """Close everything that exists."""


def consumer(stop: Callable[[], Awaitable[None]], heartbeat: asyncio.Task[None]) -> Any:
    """A consumer whose heartbeats continue until they are ended."""
    coordinator = SimpleNamespace(_coordination_task=None, _heartbeat_task=heartbeat, _commit_refresh_task=None)
    return SimpleNamespace(
        stop=stop, _coordinator=coordinator, _fetcher=SimpleNamespace(close=done), _client=SimpleNamespace(close=done)
    )


async def test_shutdown_cancelled_by_the_client_itself_leaves_no_task_behind() -> None:
    heartbeat = asyncio.create_task(asyncio.sleep(LIMIT_SECONDS))

    async def cancelled() -> None:
        raise asyncio.CancelledError

    await end(consumer(cancelled, heartbeat), LIMIT_SECONDS)

    assert heartbeat.cancelled()


async def test_shutdown_cancelled_by_the_caller_leaves_no_task_behind_and_is_cancelled() -> None:
    heartbeat = asyncio.create_task(asyncio.sleep(LIMIT_SECONDS))
    begun = asyncio.Event()

    async def hangs() -> None:
        begun.set()
        await asyncio.sleep(LIMIT_SECONDS)

    ending = asyncio.create_task(end(consumer(hangs, heartbeat), LIMIT_SECONDS))
    await begun.wait()
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending

    assert heartbeat.cancelled()
