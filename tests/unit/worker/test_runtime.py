"""How a process ends that hangs, or that cannot continue."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from mode import Service

from streams_app import Fold, Settings, create_app
from streams_app.errors import ConfigurationError, InternalError, TryAgainError
from streams_app.process_exit import exit_seconds
from streams_app.settings import JournalSettings, WorkerSettings
from streams_app.worker import runtime

LIMIT_SECONDS = 60

HANGS = """
import os, sys, time
from streams_app import process_exit
process_exit.EXIT_SECONDS, process_exit.REST_SECONDS = 0.0, 0.01
print("of a function of the user's", end="")
os.set_blocking(1, False)
try:
    while True:
        os.write(1, bytes(4096))
except BlockingIOError:
    os.set_blocking(1, True)
process_exit.exit_after(0)
time.sleep(3600)  # until the deadline ends it
"""


def test_worker_that_cannot_stop_ends_at_the_deadline_even_if_nobody_reads_its_output(tmp_path: Path) -> None:
    log, buffered = tmp_path / "stderr", {**os.environ, "PYTHONUNBUFFERED": ""}
    with (
        log.open("wb") as errors,
        subprocess.Popen([sys.executable, "-c", HANGS], stdout=subprocess.PIPE, stderr=errors, env=buffered) as worker,
    ):
        try:
            assert TryAgainError.exit_code == worker.wait(LIMIT_SECONDS)
        finally:
            worker.kill()

    assert "not stopped within 0.01 seconds" in log.read_text()


@pytest.mark.parametrize(("grace_seconds", "seconds"), [(0, 18), (15, 18), (40, 43), (300, 303)])
def test_shutdown_takes_at_most_20_s_plus_the_grace_beyond_the_default(grace_seconds: float, seconds: float) -> None:
    assert seconds == exit_seconds(grace_seconds)


async def test_failing_worker_keeps_its_consumer_for_the_last_commits() -> None:
    fatal = runtime.FatalError()
    app = create_app(folding_settings())
    app.report_fatal = fatal.report
    consumer = Service()
    app.add_dependency(consumer)
    app.on_fatal(TryAgainError("it cannot go on"))
    await asyncio.wait_for(fatal.wait(), LIMIT_SECONDS)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*others)

    assert not consumer.should_stop


async def test_crash_of_a_service_of_faust_ends_the_worker() -> None:
    fatal = runtime.FatalError()
    app = create_app(folding_settings())
    app.report_fatal = fatal.report
    consumer = app.add_dependency(Service())
    await consumer.crash(ValueError("a bug"))
    await asyncio.wait_for(fatal.wait(), LIMIT_SECONDS)

    assert "a bug" == str(fatal.error)


def folding_settings() -> Settings:
    fold = Fold(name="f", source="t", group_key="a", changed="m", quiet_period=timedelta(minutes=1))
    return Settings(app_id="a", folds=(fold,))


async def test_first_error_that_any_thread_reports_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    fatal = runtime.FatalError()
    for error in (TryAgainError("first"), ValueError("second")):
        await asyncio.to_thread(fatal.report, error)
    await asyncio.wait_for(fatal.wait(), LIMIT_SECONDS)

    assert "first" == str(fatal.error)
    assert ["the worker ends error=TryAgainError('first')"] == caplog.messages


class Recorded:
    """A lifecycle that records its calls; its start ends by ``starting``, and its stop by ``stopping``."""

    def __init__(self, starting: Callable[[], Awaitable[None]], stopping: Callable[[], Awaitable[None]]) -> None:
        self.starting = starting
        self.stopping = stopping
        self.calls: list[str] = []

    async def start(self) -> None:
        self.calls.append("start")
        try:
            await self.starting()
        except asyncio.CancelledError:
            self.calls.append("cancelled")
            raise

    async def stop(self) -> None:
        self.calls.append("stop")
        await self.stopping()


@dataclass(slots=True)
class Served:
    """What happened while a worker ran."""

    calls: list[str]
    limits: list[float]
    error: BaseException | None


@pytest.fixture
def run_worker(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Awaitable[Served]]:
    """Return a function that runs a worker until its start, a reported error or a signal ends it."""

    async def serve(
        starting: Callable[[], Awaitable[None]],
        reported: BaseException | None = None,
        stopping: Callable[[], Awaitable[None]] = at_once,
    ) -> Served:
        limits: list[float] = []
        recorded, stop = Recorded(starting, stopping), asyncio.Event()

        def lifecycle_of(_declared: object, _only: object, fatal: runtime.FatalError) -> Recorded:
            loop = asyncio.get_running_loop()
            loop.call_later(0.01, stop.set if reported is None else partial(fatal.report, reported))
            return recorded

        monkeypatch.setattr(runtime, "exit_after", limits.append)
        monkeypatch.setattr(runtime, "_stop_on_signals", lambda: stop)
        monkeypatch.setattr(runtime, "_lifecycle_of", lifecycle_of)
        error: BaseException | None = None
        try:
            await runtime._serve(folding_settings().model_copy(update={"worker": WorkerSettings(grace="60s")}), ())
        except (Exception, asyncio.CancelledError) as raised:  # returned
            error = raised
        return Served(recorded.calls, limits, error)

    return serve


async def at_once() -> None:
    """End a start without an error."""


async def never() -> None:
    await asyncio.Event().wait()


async def failing() -> None:
    raise ConfigurationError(["a topic is missing"])


@pytest.mark.parametrize("starting", [at_once, never, failing])
async def test_shutdown_is_bounded_however_the_worker_ends(
    starting: Callable[[], Awaitable[None]], run_worker: Callable[..., Awaitable[Served]]
) -> None:
    served = await run_worker(starting)

    assert ([60.0], "stop") == (served.limits, served.calls[-1])


async def test_failed_start_is_raised(run_worker: Callable[..., Awaitable[Served]]) -> None:
    served = await run_worker(failing)

    assert "a topic is missing" == str(served.error)


async def test_failed_start_is_raised_even_if_the_stop_fails_too(
    run_worker: Callable[..., Awaitable[Served]], caplog: pytest.LogCaptureFixture
) -> None:
    async def broken() -> None:
        raise ValueError("a handler of the user is broken")

    served = await run_worker(failing, stopping=broken)
    other = await run_worker(at_once, stopping=broken)

    assert "a topic is missing" == str(served.error)
    assert "the worker did not stop cleanly" in caplog.messages
    assert "a handler of the user is broken" == str(other.error)


async def test_start_that_was_cancelled_from_within_is_no_clean_end(run_worker: Callable[..., Awaitable[Served]]) -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    served = await run_worker(cancelled)

    assert isinstance(served.error, asyncio.CancelledError)
    assert "stop" == served.calls[-1]


async def test_signal_during_the_start_cancels_it_and_is_no_fault(run_worker: Callable[..., Awaitable[Served]]) -> None:
    served = await run_worker(never)

    assert (["start", "cancelled", "stop"], None) == (served.calls, served.error)


async def test_reported_error_ends_the_worker_and_is_raised(run_worker: Callable[..., Awaitable[Served]]) -> None:
    served = await run_worker(at_once, TryAgainError("it cannot go on"))

    assert (["start", "stop"], "it cannot go on") == (served.calls, str(served.error))


@pytest.mark.parametrize("error", [ValueError("a bug"), TryAgainError("no broker")])
def test_unexpected_error_of_a_worker_is_an_internal_failure(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(runtime, "_serve", fail)
    with pytest.raises((InternalError, TryAgainError)) as raised:
        runtime.serve(Settings(app_id="a", journals=[JournalSettings(name="j", source="events", key="a")]))

    assert {ValueError: "internal failure: ValueError('a bug')", TryAgainError: "no broker"}[type(error)] == str(raised.value)
