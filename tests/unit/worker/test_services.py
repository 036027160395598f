"""What becomes of a worker when one of its tasks ends."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest

from streams_app.errors import TryAgainError
from streams_app.health.status import Status
from streams_app.worker import serving_apart
from streams_app.worker.components import Services
from tests.ownership import raising
from tests.virtual_loop import LoopClock, in_no_time


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


def test_a_worker_that_waits_for_what_runs_to_end_is_alive() -> None:
    clock, nothing, closed = LoopClock(), MagicMock(), MagicMock(stop=AsyncMock(), aclose=AsyncMock())
    settings: Any = SimpleNamespace(worker=SimpleNamespace(grace_seconds=60.0))
    status = Status()

    async def schedule() -> bool:
        running = Services(
            settings, closed, closed, clock, nothing, status, nothing, nothing, nothing, nothing, on_fatal=raising
        )  # fmt: skip
        running.beating = running._run(running._beat(), "heartbeat")
        running._run(asyncio.sleep(50), "subscribers")  # virtual time
        await running.stop()
        return status.is_live(clock.monotonic_ms())

    assert in_no_time(schedule())


def test_a_worker_without_folds_that_waits_for_what_runs_to_end_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []
    monkeypatch.setattr(serving_apart, "leave_in_time", limits.append)
    clock, status = LoopClock(), Status()

    async def schedule() -> bool:
        stop = asyncio.Event()
        stop.set()
        running = asyncio.create_task(asyncio.sleep(50))  # virtual time
        watchdog = MagicMock()
        await serving_apart._until_told(
            [running], stop, lambda: status.beat(clock.monotonic_ms()), serving_apart._Fatal(), watchdog, 60.0
        )
        watchdog.stop.assert_called_once_with()
        return status.is_live(clock.monotonic_ms())

    status.beat(0)
    assert in_no_time(schedule())
    assert [60.0] == limits
