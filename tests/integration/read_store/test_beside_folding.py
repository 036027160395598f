"""The read store beside folding in one worker: neither its store nor its consumer group delays the folds."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from streams_app.clock import SystemClock
from streams_app.health.metrics import Metrics
from streams_app.kafka.group_agent import GroupAgent
from streams_app.read_store.registry import open_store
from streams_app.read_store.sqlite.store import SqliteStore
from streams_app.read_store.sync.agent import read_store_agent
from streams_app.settings import Settings
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import GROUPS, LIMIT_SECONDS, Stage, metric
from tests.helpers.worker.workers import WorkerProcess

pytestmark = pytest.mark.timeout(200)

SECTION = """
[read_stores.dashboard]
url = "sqlite:///{folder}/read.db"
folds = ["account-metrics"]
dead_letters = "{dead}"
source_url = "sqlite:///{folder}/write.db"
sql = '''
SELECT account_id, metric, SUM(value) FROM post_metrics
WHERE account_id IN (SELECT value FROM json_each(:groups)) GROUP BY 1, 2
'''
"""


@asynccontextmanager
async def second_member(config: Path) -> AsyncIterator[GroupAgent]:
    """Yield a second member of the read store's group."""
    settings = Settings.load(config, {})
    stop = asyncio.Event()
    agent = read_store_agent(settings, settings.read_store(None), Metrics(settings), SystemClock())
    running = asyncio.create_task(agent.run(stop))
    try:
        yield agent
    finally:
        stop.set()
        await running


def stores_of(stage: Stage, *names: str) -> str:
    """Return sections of stores with a file each, and a source without any value."""
    with closing(sqlite3.connect(stage.folder / "write.db")) as source, source:
        source.execute("CREATE TABLE m (account_id TEXT, metric TEXT, value INTEGER)")
    return "".join(
        f'[read_stores.{name}]\nurl = "sqlite:///{stage.folder}/{name}.db"\nfolds = ["account-metrics"]\n'
        f'dead_letters = "{stage.dead}"\n'
        f'source_url = "sqlite:///{stage.folder}/write.db"\nsql = "SELECT account_id, metric, value FROM m"\n'
        for name in names
    )


def is_behind_alone(worker: WorkerProcess) -> bool:
    """Return whether folding has no lag, and the read store has."""
    return metric(worker, "streams_app_lag_events") == 0 < metric(worker, "streams_app_read_store_lag_records")


@pytest.mark.long
async def test_locked_store_and_a_rebalance_of_its_group_do_not_delay_folding_and_it_catches_up(stage: Stage) -> None:
    numbers = range(0, 48, GROUPS)
    with closing(sqlite3.connect(stage.folder / "write.db")) as source, source:
        source.execute("CREATE TABLE post_metrics (account_id TEXT, metric TEXT, value INTEGER)")
        source.executemany("INSERT INTO post_metrics VALUES (?, ?, ?)", [("account_0", f"n{i}", i) for i in numbers])
    config = stage.config(extra=SECTION.format(folder=stage.folder, dead=stage.dead))
    store = SqliteStore(f"sqlite:///{stage.folder}/read.db", "folded_values", "dashboard")
    await store.initialise()
    await store.close()
    with closing(sqlite3.connect(stage.folder / "read.db", isolation_level=None)) as lock:
        lock.execute("BEGIN EXCLUSIVE")
        with stage.worker(config) as worker:
            await worker.wait_ready()
            await stage.send(48)
            await stage.outcome()
            await wait_until(lambda: is_behind_alone(worker), LIMIT_SECONDS, "the read store alone is behind")
            async with second_member(config) as second:
                await wait_until(lambda: len(second.ownership.assignment) == 2, LIMIT_SECONDS, "they share the partitions")
                await stage.send(48)
                outcome = await stage.outcome()
                await wait_until(lambda: is_behind_alone(worker), LIMIT_SECONDS, "the read store alone is behind")
                ready, _ = await worker.get("/health/ready")
                code = await worker.terminate()
                assert [] == lock.execute("SELECT name FROM folded_values").fetchall()
                lock.execute("COMMIT")

                def values() -> dict[str, int]:
                    return dict(lock.execute("SELECT name, value FROM folded_values WHERE value IS NOT NULL").fetchall())

                await wait_until(lambda: len(values()) == len(numbers), LIMIT_SECONDS, "the read store has caught up")

        assert {f"n{i}": i for i in numbers} == values()
    assert (0, 200) == (code, ready)
    assert [] == outcome.faults(stage.sent)


async def test_absent_store_does_not_delay_another_one(stage: Stage) -> None:
    """Each store has its own member and retries; the absent one catches up once it is available."""
    config = stage.config(extra=stores_of(stage, "there", "absent"))
    settings = Settings.load(config, {})
    there, absent = (open_store(settings.read_store(name)) for name in ("there", "absent"))
    await there.initialise()
    with stage.worker(config) as worker:
        await worker.wait_ready()
        await stage.send(48)
        await stage.outcome()

        def is_one_there() -> bool:
            lags = [metric(worker, f'streams_app_read_store_lag_records{{store="{name}"}}') for name in ("there", "absent")]
            return lags[0] == 0 < lags[1]

        await wait_until(is_one_there, LIMIT_SECONDS, "one has everything, the other nothing")
        await wait_until(
            lambda: metric(worker, 'streams_app_read_store_oldest_unsynced_seconds{store="absent"}') > 2, LIMIT_SECONDS, "it ages"
        )
        ups = [metric(worker, f'streams_app_up{{component="read_store.{name}"}}') for name in ("there", "absent")]
        why = [text.partition(" since ")[0] for text in json.loads((await worker.get("/health/ready"))[1])["remarks"]]
        done = await there.checkpoints()
        await absent.initialise()

        async def has_caught_up() -> bool:
            return await absent.checkpoints() == done

        await wait_until(has_caught_up, LIMIT_SECONDS, "the other one has caught up")
        await wait_until(
            lambda: metric(worker, 'streams_app_read_store_oldest_unsynced_seconds{store="absent"}') == 0, LIMIT_SECONDS, "no age"
        )

        async def has_no_remark() -> bool:
            return "remarks" not in json.loads((await worker.get("/health/ready"))[1])

        await wait_until(has_no_remark, LIMIT_SECONDS, "no remark")
        code = await worker.terminate()
    await there.close()
    await absent.close()

    assert (0, [1, 0], ["read store absent does not work"]) == (code, ups, why)


@pytest.mark.long
async def test_worker_for_one_store_syncs_it_and_folds_nothing(stage: Stage) -> None:
    with stage.worker(stage.config()) as folding:
        await folding.wait_ready()
        await stage.send(48)
        await stage.outcome()
        assert 0 == await folding.terminate()
    config = stage.config(extra=stores_of(stage, "this", "other"))
    settings = Settings.load(config, {})
    this, other = (open_store(settings.read_store(name)) for name in ("this", "other"))
    for store in (this, other):
        await store.initialise()
    await stage.send(48)
    with WorkerProcess(config, stage.folder, arguments=["--only", "this"]) as alone:
        await alone.wait_ready()
        await wait_until(this.checkpoints, LIMIT_SECONDS, "the store is synced")
        folded = metric(alone, "streams_app_events_folded_total")
        code = await alone.terminate()
        left = await other.checkpoints()
    for store in (this, other):
        await store.close()

    assert (0, 0, {}) == (code, folded, left)


# A worker whose read store does not join its group because of a defect.
DEFECTIVE = """
from streams_app.cli import main
from streams_app.kafka.group_member import GroupMember

async def run(self, ownership, stop):
    raise ValueError("a defect")

GroupMember.run = run
main()
"""


class DefectiveWorker(WorkerProcess):
    """A worker that runs :data:`DEFECTIVE`."""

    def command(self, config: Path, arguments: Sequence[str]) -> list[str]:
        return [sys.executable, "-c", DEFECTIVE, "worker", "--config", str(config), *arguments]


@pytest.mark.parametrize("arguments", [[], ["--only", "there"]], ids=["beside folding", "alone"])
async def test_failed_read_store_task_ends_the_worker_with_70_and_is_named(stage: Stage, arguments: list[str]) -> None:
    config = stage.config(extra=stores_of(stage, "there"))
    with DefectiveWorker(config, stage.folder, arguments=arguments) as worker:
        code = await worker.wait_exit(LIMIT_SECONDS)
    log = worker.log()

    assert 70 == code, log
    assert "ValueError: a defect" in log
    assert bool(arguments) or "task=read-store.there" in log
