"""The read store's member of its group: through faults of the member or the store, every record arrives."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import RecordsToDelete

from streams_app.delivery.batch import TP, Batch
from streams_app.kafka.group_member import POLL_SECONDS
from streams_app.read_store.sqlite.store import SqliteStore
from streams_app.read_store.sync.processor import StoreProcessors
from tests.conftest import KafkaServer, Names
from tests.helpers.kafka.topics import admin_of, create_topics, delete_topic
from tests.helpers.waiting import wait_until
from tests.integration.read_store.reading import LIMIT_SECONDS, PARTITIONS, Member, Reading

pytestmark = pytest.mark.timeout(200)

KILLED = """
import asyncio, itertools, os, signal, sys
from streams_app.clock import SystemClock
from streams_app.health.metrics import Metrics
from streams_app.read_store.sync.agent import read_store_agent
from streams_app.read_store.sqlite.store import SqliteStore
from streams_app.settings import Settings

apply, times = SqliteStore.apply, itertools.count(1)

async def apply_and_die(self, *given):
    done = await apply(self, *given)
    if next(times) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return done

SqliteStore.apply = apply_and_die
settings = Settings.model_validate_json(sys.argv[1])
asyncio.run(read_store_agent(settings, settings.read_store(None), Metrics(settings), SystemClock()).run(asyncio.Event()))
"""


@pytest.fixture
async def reading(kafka: KafkaServer, names: Names, tmp_path: Path) -> Reading:
    made = Reading(names, kafka.bootstrap_servers, tmp_path / "read.db")
    await create_topics(kafka.bootstrap_servers, [made.topic], PARTITIONS)
    store = SqliteStore(f"sqlite:///{made.path}", "cells", "dashboard")
    await store.initialise()
    await store.close()
    return made


async def have(members: list[Member], counts: set[int]) -> None:
    await wait_until(lambda: {len(member.claimed) for member in members} == counts, LIMIT_SECONDS, f"they have {counts} partitions")


def was_logged(caplog: pytest.LogCaptureFixture, words: str) -> bool:
    return any(words in record.getMessage() for record in caplog.records)


# Normal operation


async def test_member_without_a_leave_reply_in_time_leaves_no_task_behind(reading: Reading) -> None:
    before = asyncio.all_tasks()
    with patch("streams_app.kafka.group_member.LEAVE_SECONDS", 0.0):
        async with reading.member() as member:
            await have([member], {PARTITIONS})
            consumer = member.agent.member.client
            assert consumer is not None
    left = {task.get_name() for task in asyncio.all_tasks() - before}

    assert [] == [connection for connection in consumer._client._conns.values() if connection.connected()]
    assert set() == left


@pytest.mark.long
async def test_two_members_share_the_partitions_and_the_remaining_one_takes_over(reading: Reading) -> None:
    await reading.send(100)
    async with reading.member() as first:
        async with reading.member() as second:
            await have([first, second], {2})
            shared = first.claimed | second.claimed
            await reading.send(100)
            assert await reading.is_synced()
        await have([first], {4})
        await reading.send(100)

        assert await reading.is_synced()
    assert {TP(reading.topic, number) for number in range(PARTITIONS)} == shared


@pytest.mark.long
async def test_next_member_resumes_at_the_progress_of_the_store(reading: Reading) -> None:
    await reading.send(40)
    async with reading.member():
        assert await reading.is_synced()
    async with reading.member() as next_member:
        await have([next_member], {4})
        await wait_until(lambda: next_member.lag() == 0, LIMIT_SECONDS, "nothing is left")
        results = {
            next_member.value("read_store_writes_total", store="dashboard", result=result) for result in ("written", "unchanged")
        }

    assert {0.0} == results


@pytest.mark.long
@pytest.mark.apache
async def test_progress_of_the_store_is_committed_so_that_kafka_shows_the_lag(reading: Reading) -> None:
    await reading.send(40)
    async with reading.member():
        assert await reading.is_synced()

    assert dict.fromkeys(range(PARTITIONS), 10) == await reading.committed()


# Faults


async def test_killed_member_leaves_no_gap_in_the_store(reading: Reading) -> None:
    await reading.send(20_000)
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, json.dumps(reading.config()))
    async with asyncio.timeout(LIMIT_SECONDS):
        assert -signal.SIGKILL == await killed.wait()
    left = len(reading.stored())
    async with reading.member():
        assert await reading.is_synced()

    assert 0 < left < 20_000


async def test_batch_dropped_by_a_rebalance_is_reread(reading: Reading, caplog: pytest.LogCaptureFixture) -> None:
    async with reading.member() as member:
        await have([member], {4})
        ownership = member.agent.ownership
        dropped: list[Batch] = []
        deliver = ownership.deliver

        def drop_one(batch: Batch) -> None:
            if batch.records and not dropped:
                dropped.append(batch)
            else:
                deliver(batch)

        ownership.deliver = drop_one  # type: ignore[method-assign]  # as the buffers of a rebalance
        await reading.send(5, partition=0)
        await wait_until(lambda: bool(dropped), LIMIT_SECONDS, "a batch was dropped")
        await reading.send(5, partition=0)

        assert await reading.is_synced()
    assert was_logged(caplog, "claiming again: a fetched batch does not continue")


async def test_store_catches_up_after_an_outage_and_the_membership_persists(reading: Reading) -> None:
    # Longer than a busy machine needs: a longer delay would end the membership, too.
    reading.session = "8s"
    async with reading.member() as member:
        await have([member], {4})
        generation = member.agent.member.generation
        with reading.locked():
            await reading.send(40)
            await wait_until(lambda: (member.lag() or 0) >= 40, LIMIT_SECONDS, "the lag rises")
            await wait_until(lambda: member.value("up", component="read_store.dashboard") == 0, LIMIT_SECONDS, "it is logged")
        assert await reading.is_synced()
        await wait_until(lambda: member.lag() == 0, LIMIT_SECONDS, "the lag falls")

        assert 1 == member.value("up", component="read_store.dashboard")
        assert generation == member.agent.member.generation


async def test_partition_is_claimed_once_an_unavailable_store_returns(reading: Reading) -> None:
    await reading.send(40)
    await reading.send(40)
    async with reading.member() as member:
        hidden = reading.path.rename(reading.path.with_suffix(".hidden"))
        await wait_until(lambda: member.value("up", component="read_store.dashboard") == 0, LIMIT_SECONDS, "it is not there")
        await wait_until(lambda: (member.lag() or 0) >= 40, LIMIT_SECONDS, "the lag is reported")
        hidden.rename(reading.path)

        assert await reading.is_synced()


@pytest.mark.long
async def test_permanently_failing_client_is_recreated_at_growing_intervals(
    reading: Reading, caplog: pytest.LogCaptureFixture
) -> None:
    await reading.send(40)
    async with reading.member() as member:
        waiting = member.agent.member.outage._waiting

        async def broken(*_: object) -> None:
            await asyncio.sleep(POLL_SECONDS)  # in the meantime a fetch has succeeded
            raise RuntimeError("gone")

        with patch.object(StoreProcessors, "run_in_turn", broken):
            await wait_until(lambda: any(each.failures >= 2 for each in waiting.values()), LIMIT_SECONDS, "it failed twice")

        assert await reading.is_synced()
    assert was_logged(caplog, "read-store.dashboard does not work, waiting for it error=gone")


@pytest.mark.apache
@pytest.mark.parametrize("is_missed", [False, True])
async def test_recreated_topic_is_read_from_its_beginning(
    reading: Reading, is_missed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with reading.member():
        await reading.send(100, partition=0)
        assert await reading.is_synced()
        await delete_topic(reading.bootstrap, reading.topic)
        if is_missed:
            await wait_until(
                lambda: was_logged(caplog, "No partition metadata"), LIMIT_SECONDS, "the member has joined without the topic"
            )
            await asyncio.sleep(1)  # its client asks two or three more times, and would see the new topic by chance
        await create_topics(reading.bootstrap, [reading.topic], PARTITIONS)
        await reading.send(10, partition=0)

        assert await reading.is_synced()
    assert was_logged(caplog, "reading from the beginning: the log")


@pytest.mark.apache
async def test_unread_records_removed_by_retention_are_reported_and_skipped(
    reading: Reading, caplog: pytest.LogCaptureFixture
) -> None:
    async with reading.member():
        await reading.send(10, partition=0)
        assert await reading.is_synced()
    sent_before = dict(reading.sent)
    await reading.send(10, partition=0)
    async with admin_of(reading.bootstrap) as admin:
        await admin.delete_records({TopicPartition(reading.topic, 0): RecordsToDelete(before_offset=15)})
    async with reading.member():
        await wait_until(lambda: "n19" in reading.stored(), LIMIT_SECONDS, "what is left is read")

    assert sent_before | {f"n{number}": number for number in range(15, 20)} == reading.stored()
    assert was_logged(caplog, f"source={reading.topic}-0 offsets=10-14")
