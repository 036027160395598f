"""A worker that has stopped folding without a word ends by itself."""

from __future__ import annotations

import sys
from pathlib import Path

from streams_app.embedded.child import Child
from tests.checker import event
from tests.conftest import KafkaServer, Names, RedisServer
from tests.helpers import create_topics, produce, wait_until, write_config

# The worker as it is, but for an agent that takes batches and does nothing with them, and a shorter minute.
DEAF = """
import sys
from streams_app import watchdog
from streams_app.cli import main
from streams_app.folding.ownership import Ownership

watchdog.LOOK_EVERY_SECONDS = 0.2
watchdog.Progress.__init__.__defaults__ = (1_000, *watchdog.Progress.__init__.__defaults__[1:])
watchdog.Watchdog.__init__.__defaults__ = (1_000,)
if sys.argv.pop(1) == "deaf":
    Ownership.deliver = lambda self, batch: None
main()
"""


def worker(how: str, config: Path, folder: Path) -> Child:
    return Child(how, [sys.executable, "-c", DEAF, how, "worker", "--config", str(config)], folder / how)


async def test_a_worker_whose_position_does_not_move_says_why_and_ends_with_75(
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
    for _ in range(4):
        # Longer in all than what the deaf one was given.
        await produce(kafka.bootstrap_servers, source, [event("a", "n")])
    assert hearing.is_running
    hearing.stop(20)
    assert 0 == hearing._process.returncode, hearing.log_path.read_text()
