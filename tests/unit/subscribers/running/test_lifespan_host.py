"""The lifespan of a catalogue, as a worker enters and exits it on the loop of its functions."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import ModuleType
from typing import Any

import pytest
from redis.asyncio import Redis

from streams_app import Catalogue, Settings
from streams_app.clock import SystemClock
from streams_app.errors import InternalError
from streams_app.health.metrics import Metrics
from streams_app.health.status import Status
from streams_app.kafka.producer import AckedProducer
from streams_app.settings import EventsSettings
from streams_app.subscribers.running import subscribers as running
from streams_app.subscribers.running.subscribers import NOT_ENTERED, Subscribers
from tests.helpers.waiting import wait_until

LIMIT_SECONDS = 20


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[asyncio.Task[None], asyncio.Event, Status]]:
    """Start the runtime of a catalogue that has no subscribers, with a lifespan."""

    def start(lifespan: Callable[[], AbstractAsyncContextManager[None]]) -> tuple[asyncio.Task[None], asyncio.Event, Status]:
        module: Any = ModuleType("its_life")
        module.catalogue = Catalogue(events=(), subscribers=(), lifespan=lifespan)
        monkeypatch.setitem(sys.modules, "its_life", module)
        settings = Settings.model_construct(app_id="life", folds=(), events=EventsSettings(catalogue="its_life:catalogue"))
        status, stop = Status(), asyncio.Event()
        subscribers = Subscribers(
            settings, Redis(), AckedProducer(settings.kafka, client_id="life"), SystemClock(), Metrics(settings), status,
            lambda error: None, lambda name, ownership: None,
        )  # fmt: skip
        return asyncio.create_task(subscribers.run(stop)), stop, status

    return start


async def test_worker_is_not_ready_before_its_lifespan_has_started(started: Any) -> None:
    may_begin = asyncio.Event()
    loops = []

    @asynccontextmanager
    async def resources() -> AsyncIterator[None]:
        loops.append(asyncio.get_running_loop())
        await may_begin.wait()
        yield

    task, _, status = started(resources)
    await wait_until(lambda: loops, LIMIT_SECONDS, "it is being entered")
    while_entering = status.is_waiting_for("lifespan"), NOT_ENTERED in status.ready_reasons()
    loops[0].call_soon_threadsafe(may_begin.set)
    await asyncio.wait_for(task, LIMIT_SECONDS)

    assert ((True, True), False) == (while_entering, status.is_waiting_for("lifespan"))


async def test_stopped_worker_does_not_wait_for_its_lifespan_to_start(started: Any) -> None:
    steps = []

    @asynccontextmanager
    async def resources() -> AsyncIterator[None]:
        steps.append("begins")
        try:
            await asyncio.Event().wait()
        finally:
            steps.append("cancelled")
        yield

    task, stop, _ = started(resources)
    await wait_until(lambda: steps, LIMIT_SECONDS, "it is being entered")
    stop.set()
    await asyncio.wait_for(task, LIMIT_SECONDS)

    assert ["begins", "cancelled"] == steps


async def test_lifespan_that_starts_after_a_stop_is_closed_without_an_error(
    started: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(running, "LOOP_SECONDS", 0.01)
    may_begin = threading.Event()
    steps = []

    @asynccontextmanager
    async def resources() -> AsyncIterator[None]:
        steps.append("begins")
        may_begin.wait(LIMIT_SECONDS)
        yield
        steps.append("left")

    task, stop, _ = started(resources)
    await wait_until(lambda: steps, LIMIT_SECONDS, "it is being entered")
    stop.set()
    await asyncio.wait_for(task, LIMIT_SECONDS)
    may_begin.set()
    await wait_until(lambda: len(steps) > 1, LIMIT_SECONDS, "it is left")

    assert (["begins", "left"], "") == (steps, caplog.text)


@pytest.mark.parametrize("is_end", [False, True])
async def test_lifespan_that_calls_exit_is_a_named_error_of_the_worker(
    started: Any, caplog: pytest.LogCaptureFixture, is_end: bool
) -> None:
    @asynccontextmanager
    async def resources() -> AsyncIterator[None]:
        if not is_end:
            sys.exit(9)
        yield
        sys.exit(9)

    task, _, _ = started(resources)
    with pytest.raises(InternalError, match=r"lifespan.*SystemExit\('9'\)"):
        await asyncio.wait_for(task, LIMIT_SECONDS)

    assert f"the lifespan of the catalogue has failed at its {'end' if is_end else 'begin'} error=SystemExit('9')" in caplog.text


async def test_lifespan_that_ends_slowly_is_logged(
    started: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(running, "LATE_SECONDS", 0.01)
    may_end = asyncio.Event()
    loops = []

    @asynccontextmanager
    async def resources() -> AsyncIterator[None]:
        yield
        loops.append(asyncio.get_running_loop())
        await may_end.wait()

    caplog.set_level(logging.WARNING)
    task, _, _ = started(resources)
    message = "the lifespan of the catalogue has not ended yet"
    await wait_until(lambda: loops and message in caplog.text, LIMIT_SECONDS, "it is reported")
    loops[0].call_soon_threadsafe(may_end.set)
    await asyncio.wait_for(task, LIMIT_SECONDS)

    assert 1 == caplog.text.count(message)
