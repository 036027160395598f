"""When a worker commits what it has delivered, in addition to its regular commits."""

from __future__ import annotations

import re
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from streams_app.delivery.batch import TP
from streams_app.delivery.group_consumer import Member, NotOwnerError, PartitionCommit
from streams_app.kafka.member_requests import commit_as, committed_of
from tests.helpers.folding.checker import event
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import LIMIT_SECONDS, Site, metrics_of
from tests.helpers.worker.workers import WorkerProcess

PARTITIONS = 4
EVENTS = 100

pytestmark = pytest.mark.timeout(200)


async def uncommitted_events(site: Site) -> int:
    """Return the number of events at or above the committed offsets; the log contains events only."""
    tps = [TopicPartition(site.names.topic("events"), number) for number in range(PARTITIONS)]
    consumer = AIOKafkaConsumer(bootstrap_servers=site.bootstrap, group_id=site.names.app_id, enable_auto_commit=False)
    await consumer.start()
    try:
        return EVENTS - sum([await consumer.committed(tp) or 0 for tp in tps])
    finally:
        await consumer.stop()


def emitted(worker: WorkerProcess) -> float:
    return sum(float(value) for value in re.findall(r"^streams_app_records_emitted_total\{.*\} (.*)$", metrics_of(worker), re.M))


@pytest.mark.parametrize("end", ["it ends", pytest.param("another one joins", marks=pytest.mark.long)])
async def test_worker_commits_delivered_offsets_when_it_releases_partitions(site: Site, end: str) -> None:
    await site.topics("events", "events.dead", "folded", partitions=PARTITIONS)
    config = site.config(site.fold("folded", "events"))
    config.write_text(config.read_text().replace('commit_every = "500ms"', 'commit_every = "1m"'))
    with site.worker(config) as worker:
        await worker.wait_ready()
        await site.send("events", [event(f"account_{number % 9}", f"n{number}") for number in range(EVENTS)])
        records = len(await site.records("folded", EVENTS))
        await wait_until(lambda: emitted(worker) == records, LIMIT_SECONDS, "the worker knows that they are acknowledged")
        before = await uncommitted_events(site)
        if end == "it ends":
            assert 0 == await worker.terminate()
            after = await uncommitted_events(site)
        else:
            with site.worker(config) as other:
                # The group moves partitions when the first worker has released everything. It has committed by then, or
                # not before its minute is over: a claim only repeats the previous commit.
                await other.wait_ready()
                after = await uncommitted_events(site)
            assert worker.exit_code is None

    assert (EVENTS, 0) == (before, after)


@pytest.mark.apache  # the embedded broker accepts commits of any generation
async def test_commit_of_a_claim_before_a_rejoin_is_rejected(site: Site) -> None:
    await site.topics("events")
    tp = TP(site.names.topic("events"), 0)
    options: Any = {
        "bootstrap_servers": site.bootstrap, "group_id": site.names.app_id, "enable_auto_commit": False,
        "session_timeout_ms": 3_000, "heartbeat_interval_ms": 300, "rebalance_timeout_ms": 3_000,
    }  # fmt: skip
    async with AIOKafkaConsumer(tp.topic, **options) as first:
        coordinator = first._coordinator
        claimed = Member(coordinator.generation, coordinator.member_id)
        await commit_as(first, {tp: PartitionCommit(3, "")}, claimed)
        async with AIOKafkaConsumer(tp.topic, **options):
            await wait_until(lambda: coordinator.generation > claimed.generation, LIMIT_SECONDS, "the group has another generation")
        with pytest.raises(NotOwnerError):
            await commit_as(first, {tp: PartitionCommit(5, "")}, claimed)
        committed = await committed_of(first, [tp])

        async def is_committed() -> bool:
            try:
                await commit_as(first, {tp: PartitionCommit(4, "")}, Member(coordinator.generation, coordinator.member_id))
            except (NotOwnerError, KafkaError):
                return False  # the group is about to continue without the other one
            return True

        await wait_until(is_committed, LIMIT_SECONDS, "a commit of the present generation is accepted")

    assert {tp: PartitionCommit(3, "")} == committed
