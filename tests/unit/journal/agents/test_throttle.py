"""Filing takes a small share of a worker's time while its folds have a backlog."""

from __future__ import annotations

import asyncio

import pytest

from streams_app.delivery.clocks import TrustedClock
from streams_app.journal.agents.throttle import BACKLOG_RECORDS, LIMIT_MS, PAUSE_FACTOR, FilingThrottle
from tests.helpers.virtual_loop import LoopClock, in_no_time

CHUNK_SECONDS = 0.01
MANY = BACKLOG_RECORDS + 1


async def file_for(seconds: float, throttle: FilingThrottle, partitions: int) -> int:
    """How many chunks the partitions of a journal file in this time."""
    chunks = 0

    async def file_forever() -> None:
        nonlocal chunks
        while True:
            async with throttle.turn():
                await asyncio.sleep(CHUNK_SECONDS)
                chunks += 1

    tasks = [asyncio.create_task(file_forever()) for _ in range(partitions)]
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return chunks


async def file_at(backlog: int, seconds: float, partitions: int) -> int:
    return await file_for(seconds, FilingThrottle(lambda: backlog, TrustedClock(LoopClock())), partitions)


@pytest.mark.parametrize("partitions", [1, 8])
def test_partitions_share_one_limit_while_folds_have_a_backlog(partitions: int) -> None:
    chunks = in_no_time(file_at(MANY, 100, partitions))

    assert chunks == pytest.approx(100 / (CHUNK_SECONDS * (1 + PAUSE_FACTOR)), rel=0.1)


def test_partitions_file_in_parallel_while_folds_keep_up() -> None:
    chunks = in_no_time(file_at(BACKLOG_RECORDS, 10, 4))

    assert chunks == pytest.approx(4 * 10 / CHUNK_SECONDS, rel=0.01)


def test_filing_is_throttled_no_longer_than_the_maximum() -> None:
    async def schedule() -> tuple[int, int]:
        throttle = FilingThrottle(lambda: MANY, TrustedClock(LoopClock()))
        limited = await file_for(LIMIT_MS / 1000, throttle, 1)
        return limited, await file_for(10, throttle, 1)

    limited, unlimited = in_no_time(schedule())

    assert limited < LIMIT_MS / 1000 / CHUNK_SECONDS / PAUSE_FACTOR * 1.1
    assert unlimited == pytest.approx(10 / CHUNK_SECONDS, rel=0.01)


def test_throttle_resets_once_folds_have_caught_up() -> None:
    async def schedule() -> list[bool]:
        backlog = MANY
        throttle = FilingThrottle(lambda: backlog, TrustedClock(LoopClock()))
        found = [throttle.is_limiting]
        await asyncio.sleep(LIMIT_MS / 1000)
        found.append(throttle.is_limiting)
        backlog = 0
        found.append(throttle.is_limiting)
        backlog = MANY
        return [*found, throttle.is_limiting]

    assert in_no_time(schedule()) == [True, False, False, True]


def test_pause_ends_when_the_backlog_does() -> None:
    async def schedule() -> float:
        backlog = MANY
        throttle = FilingThrottle(lambda: backlog, TrustedClock(LoopClock()))
        began = asyncio.get_running_loop().time()
        async with throttle.turn():
            backlog = 0
        return asyncio.get_running_loop().time() - began

    assert in_no_time(schedule()) == 0
