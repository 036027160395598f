"""How a process ends that hangs, or that cannot continue."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from mode import Service

from streams_app import Fold, Settings, create_app
from streams_app.errors import InternalError, TryAgainError
from streams_app.process_exit import stop_seconds
from streams_app.settings.journals import JournalSettings
from streams_app.worker import runtime

LIMIT_SECONDS = 60

HANGS = """
import os, sys, time
from streams_app import process_exit
process_exit.STOP_SECONDS, process_exit.REST_SECONDS = 0.0, 0.01
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
    assert seconds == stop_seconds(grace_seconds)


async def test_failing_worker_keeps_its_consumer_for_the_last_commits() -> None:
    fold = Fold(name="f", source="t", group_key="a", changed="m", quiet_period=timedelta(minutes=1))
    app = create_app(Settings(app_id="a", folds=(fold,)))
    app.is_served = True
    consumer = Service()
    app.add_dependency(consumer)
    app.on_fatal(TryAgainError("it cannot go on"))
    await asyncio.wait_for(app.has_failed.wait(), LIMIT_SECONDS)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*others)

    assert not consumer.should_stop


@pytest.mark.parametrize("error", [ValueError("a bug"), TryAgainError("no broker")])
def test_unexpected_error_of_a_worker_without_folds_is_an_internal_failure(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(runtime, "_serve_selection", fail)
    with pytest.raises((InternalError, TryAgainError)) as raised:
        runtime.serve(Settings(app_id="a", journals=[JournalSettings(name="j", source="events", key="a")]))

    assert {ValueError: "internal failure: ValueError('a bug')", TryAgainError: "no broker"}[type(error)] == str(raised.value)
