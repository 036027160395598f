"""A worker that has silently stopped folding ends by itself."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import pytest

from streams_app.embedded.child import Child
from tests.conftest import KafkaServer, Names, RedisServer
from tests.helpers.folding.checker import event
from tests.helpers.kafka.topics import create_topics, produce
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import Stage, write_config

# The normal worker with one step disabled, and a shorter minute.
CRIPPLED = """
import asyncio
import sys
from streams_app.worker import watchdog
from streams_app.cli import main
from streams_app.delivery.ownership import Ownership
from streams_app.kafka.producer import AckedProducer

watchdog.CHECK_EVERY_SECONDS = 0.2
how = sys.argv.pop(1)
# One that folds may be held up by the machine for longer than a second.
watchdog.Watchdog.__init__.__defaults__ = (5_000 if how == "hearing" else 1_000,)
if how in ("deaf", "paused"):
    Ownership.deliver = lambda self, batch: None
if how == "unclaimed":
    Ownership.assigned = lambda self, generation: None
if how == "mute":
    async def send(self, records):
        await asyncio.Event().wait()
    AckedProducer.send = send
if how == "paused":
    check = watchdog.Watchdog._check
    async def checked(self, folding):
        print("checked", flush=True)
        self._status.set_not_ready("redis-memory", "as the test says")
        await check(self, folding)
    watchdog.Watchdog._check = checked
main()
"""


def worker(how: str, config: Path, folder: Path) -> Child:
    return Child(how, [sys.executable, "-c", CRIPPLED, how, "worker", "--config", str(config)], folder / how)


@pytest.mark.parametrize(("how", "why"), [("unclaimed", "position=-1"), ("mute", "records wait")])
async def test_worker_that_claims_nothing_or_sends_nothing_ends_with_75(how: str, why: str, stage: Stage) -> None:
    stuck = worker(how, stage.config(), stage.folder)
    await stage.send(20)
    await wait_until(lambda: not stuck.is_running, 60, f"the {how} worker has ended")
    log = stuck.log_path.read_text()

    assert 75 == stuck._process.returncode, log
    assert "no progress" in log
    assert why in log


@pytest.mark.long
async def test_pause_does_not_end_a_worker(stage: Stage) -> None:
    paused = worker("paused", stage.config(), stage.folder)
    await stage.send(20)
    await wait_until(lambda: "claimed fold=" in paused.log_path.read_text(), 60, "the worker has claimed")
    # Five times as long as what ends one without a reason.
    checks = paused.log_path.read_text().count("checked")
    await wait_until(
        lambda: not paused.is_running or paused.log_path.read_text().count("checked") > checks + 25, 60, "its progress is checked"
    )

    assert paused.is_running
    paused.stop(20)


@pytest.mark.long
async def test_worker_whose_position_does_not_move_reports_why_and_ends_with_75(
    kafka: KafkaServer, redis_server: RedisServer, names: Names, tmp_path: Path
) -> None:
    source, output, dead = names.topic("events"), names.topic("folded"), names.topic("dead")
    await create_topics(kafka.bootstrap_servers, [source, output, dead])
    config = write_config(
        tmp_path / "streams.toml", app_id=names.app_id, bootstrap=kafka.bootstrap_servers, redis_url=redis_server.url,
        source=source, output=output, dead=dead,
    )  # fmt: skip
    await produce(kafka.bootstrap_servers, source, [event(f"a{i % 7}", f"n{i}") for i in range(200)])
    deaf = worker("deaf", config, tmp_path)
    await wait_until(lambda: not deaf.is_running, 60, "the deaf worker has ended")
    log = deaf.log_path.read_text()

    assert 75 == deaf._process.returncode, log
    assert "no progress" in log
    assert f"source={source}" in log

    hearing = worker("hearing", config, tmp_path)
    await wait_until(lambda: "claimed fold=" in hearing.log_path.read_text(), 60, "the other worker has claimed")
    begin = time.monotonic()
    while time.monotonic() < begin + 7:  # longer than it is given without progress
        await produce(kafka.bootstrap_servers, source, [event("a", "n")])
        await asyncio.sleep(0.2)  # the rate of the events
    assert hearing.is_running
    hearing.stop(20)
    assert 0 == hearing._process.returncode, hearing.log_path.read_text()
