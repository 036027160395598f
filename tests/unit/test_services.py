"""What becomes of a worker when one of its tasks ends."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from streams_app.errors import TryAgainError
from streams_app.services import Services


def services(fatal: list[BaseException]) -> Services:
    nothing: Any = None
    return Services(
        nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing, on_fatal=fatal.append
    )  # fmt: skip


async def ended(running: Services) -> None:
    await asyncio.wait(running.tasks)
    await asyncio.sleep(0)  # what is called when a task is done has its turn


async def test_a_task_that_is_cancelled_unasked_ends_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    fatal: list[BaseException] = []
    running = services(fatal)
    running._run(asyncio.sleep(3_600), "heartbeat")
    running.tasks[0].cancel()
    await ended(running)

    assert [(TryAgainError, "the task 'heartbeat' was cancelled")] == [(type(error), str(error)) for error in fatal]
    assert [(logging.ERROR, "a task has failed task=heartbeat error=" + repr(fatal[0]))] == [
        (record.levelno, record.getMessage()) for record in caplog.records
    ]


async def test_a_task_that_is_cancelled_while_the_worker_stops_is_no_fault() -> None:
    fatal: list[BaseException] = []
    running = services(fatal)
    running._run(asyncio.sleep(3_600), "heartbeat")
    running.stopping.set()
    running.tasks[0].cancel()
    await ended(running)

    assert [] == fatal


async def test_a_task_that_raises_ends_the_worker() -> None:
    async def fail() -> None:
        raise ValueError("a fault of ours")

    fatal: list[BaseException] = []
    running = services(fatal)
    running._run(fail(), "heartbeat")
    await ended(running)

    assert ["a fault of ours"] == [str(error) for error in fatal]
