"""A reader paused by back-pressure resumes as soon as there is room, not at its next poll."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.helpers.folding.checker import event
from tests.helpers.waiting import wait_until
from tests.helpers.worker.patient import STUCK
from tests.helpers.worker.site import LIMIT_SECONDS, Site, metric
from tests.helpers.worker.workers import WorkerProcess


class PatientWorker(WorkerProcess):
    """Reads 20 records at a time, and polls for more only if it is woken."""

    def command(self, config: Path, arguments: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "tests.helpers.worker.patient", "worker", "--config", str(config.resolve()), *arguments]


@pytest.mark.parametrize(
    "partitions", [pytest.param(1, id="all are paused", marks=pytest.mark.long), pytest.param(3, id="others are idle")]
)
async def test_paused_reader_resumes(site: Site, partitions: int) -> None:
    await site.topics("events", "folded", "events.dead", partitions=partitions)
    await site.send("events", [event(f"group{number % 7}", f"n{number % 50}") for number in range(4_000)], partition=0)
    with PatientWorker(site.config(site.fold("folded", "events")), site.folder) as worker:
        outcome = await site.outcome("folded", 4_000)
        worker.kill()

    assert 4_000 == outcome.events


async def test_partition_does_not_wait_for_others_that_use_all_the_memory(site: Site) -> None:
    await site.topics("events", "folded", "events.dead", partitions=4)
    items = [[event(f"group{partition}", f"n{number}") for number in range(100)] for partition in range(4)]
    for partition in range(3):
        await site.send("events", items[partition], partition=partition)
    with PatientWorker(site.config(site.fold("folded", "events")), site.folder, {STUCK: "012"}) as worker:
        await worker.wait_ready()
        await wait_until(lambda: metric(worker, "streams_app_lag_events") == 300, LIMIT_SECONDS, "the others have been read")
        await site.send("events", items[3], partition=3)
        outcome = await site.outcome("folded", 100)
        worker.kill()

    assert (100, {b"group3"}) == (outcome.events, set(outcome.groups.values()))


async def test_partitions_share_the_memory_for_parsed_records(site: Site) -> None:
    await site.topics("events", "folded", "events.dead", partitions=8)
    for partition in range(8):
        await site.send("events", [event(f"group{number % 7}", f"n{partition}") for number in range(400)], partition=partition)
    with PatientWorker(site.config(site.fold("folded", "events")), site.folder) as worker:
        outcome = await site.outcome("folded", 3_200)
        code = await worker.terminate()

    assert (3_200, 0) == (outcome.events, code)
