"""What a worker does when one of its tasks ends."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest

from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.health.status import Status
from streams_app.requirements.workload import Workload
from streams_app.settings import RedisSettings, Settings
from streams_app.worker import components as module
from streams_app.worker.components import Components, assemble
from streams_app.worker.selection import everything, select
from tests.helpers.delivery.ownership import raising
from tests.helpers.virtual_loop import LoopClock, in_no_time


def components(fatal: list[BaseException]) -> Components:
    nothing: Any = None
    return Components(nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing, fatal.append)


async def ended(running: Components) -> None:
    await asyncio.wait(running.tasks)
    await asyncio.sleep(0)  # the callbacks of a finished task run


async def test_unexpectedly_cancelled_task_ends_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    fatal: list[BaseException] = []
    running = components(fatal)
    running._run(asyncio.sleep(3_600), "heartbeat")
    running.tasks[0].cancel()
    await ended(running)

    assert [(TryAgainError, "the task 'heartbeat' was cancelled")] == [(type(error), str(error)) for error in fatal]
    assert [(logging.ERROR, "a task has failed task=heartbeat error=" + repr(fatal[0]))] == [
        (record.levelno, record.getMessage()) for record in caplog.records
    ]


async def test_task_cancelled_while_the_worker_stops_is_no_fault() -> None:
    fatal: list[BaseException] = []
    running = components(fatal)
    running._run(asyncio.sleep(3_600), "heartbeat")
    running.stopping.set()
    running.tasks[0].cancel()
    await ended(running)

    assert [] == fatal


async def test_task_that_raises_ends_the_worker() -> None:
    async def fail() -> None:
        raise ValueError("a fault of ours")

    fatal: list[BaseException] = []
    running = components(fatal)
    running._run(fail(), "heartbeat")
    await ended(running)

    assert ["a fault of ours"] == [str(error) for error in fatal]


def test_worker_waiting_for_running_attempts_to_end_is_live() -> None:
    clock, nothing, closed = LoopClock(), MagicMock(), MagicMock(stop=AsyncMock(), aclose=AsyncMock())
    settings: Any = SimpleNamespace(worker=SimpleNamespace(grace_seconds=60.0))
    status = Status()

    async def schedule() -> bool:
        running = Components(
            settings, nothing, clock, nothing, status, closed, closed, nothing, nothing, nothing, on_fatal=raising
        )  # fmt: skip
        running.heartbeat = running._run(running._beat(), "heartbeat")
        running._run(asyncio.sleep(50), "subscribers")  # virtual time
        await running.stop()
        return status.is_live(clock.monotonic_ms())

    assert in_no_time(schedule())


def settings_with_secret(folder: Path) -> Settings:
    """Return settings whose Redis password is in a file that does not exist."""
    store = {"name": "cells", "url": f"sqlite:///{folder}/read.db", "table": "cells", "folds": ["f"], "source": "carried"}
    fold = {"name": "f", "source": "s", "group_key": "id", "changed": "m", "keep": "last", "quiet_period": "1s"}
    redis = {"password_file": folder / "redis.secret"}
    return Settings.model_validate({"app_id": "t", "folds": [fold], "read_stores": [store], "redis": redis})


async def test_worker_of_read_stores_needs_no_redis_secret(tmp_path: Path) -> None:
    settings = settings_with_secret(tmp_path)

    running = assemble(settings, select(settings, ["cells"]), raising)
    await running.stop()

    assert ["cells"] == running.selection.names


def test_worker_with_folds_needs_the_redis_secret(tmp_path: Path) -> None:
    settings = settings_with_secret(tmp_path)

    with pytest.raises(ConfigurationError, match=r"redis\.password_file: cannot read"):
        assemble(settings, everything(settings), raising, is_folding=True)


class MissingTopicError(Exception):
    """Ends a start at the check of Kafka."""


@pytest.mark.parametrize("is_folding", [True, False])
async def test_kafka_is_checked_once_for_what_the_worker_runs_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_folding: bool
) -> None:
    checked: list[Workload] = []

    async def check(workload: Workload) -> None:
        checked.append(workload)
        raise MissingTopicError

    monkeypatch.setattr(module, "require_kafka", check)
    settings = settings_with_secret(tmp_path).model_copy(update={"redis": RedisSettings()})
    running = assemble(
        settings, everything(settings) if is_folding else select(settings, ["cells"]), raising, is_folding=is_folding
    )
    with pytest.raises(MissingTopicError):
        await running.start()
    tasks = list(running.tasks)
    await running.stop()

    assert [(["f"] if is_folding else [], ["cells"])] == [
        ([fold.name for fold in workload.folds], [store.name for store in workload.stores]) for workload in checked
    ]
    assert [] == tasks
