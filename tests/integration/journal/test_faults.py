"""A journal whose source or Redis loses what it needs: what is missing is told, and what can be had is filed."""

from __future__ import annotations

import asyncio
import os

import pytest
import redis.asyncio
from aiokafka import TopicPartition
from aiokafka.admin import NewPartitions, RecordsToDelete

from streams_app.embedded import Valkey
from tests.helpers.cli.commands import run
from tests.helpers.journal.journaled import NAME, Journaled
from tests.helpers.kafka.topics import admin_of, create_topics
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import LIMIT_SECONDS, Site, metric, metrics_of

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def journaled(site: Site) -> Journaled:
    return Journaled(site)


@pytest.mark.apache
async def test_unread_records_removed_by_retention_are_a_gap(journaled: Journaled) -> None:
    config = journaled.config()
    await journaled.topics(partitions=1)
    with journaled.site.worker(config) as worker:
        await journaled.put([0])
        await journaled.has([0])
        await worker.terminate()
    await journaled.put(range(1, 6))
    async with admin_of(journaled.site.bootstrap) as admin:
        await admin.delete_records({TopicPartition(journaled.source, 0): RecordsToDelete(before_offset=3)})
    with journaled.site.worker(config) as worker:
        await journaled.has([0, 3, 4, 5])
        _, gaps = await journaled.rows()
        forms = [segment.form for segment in await journaled.segments()]
        gap_offsets = metric(worker, "streams_app_journal_gap_offsets_total")
        log = worker.log()

    assert [(1, 2, "retention")] == [(gap.first, gap.last, gap.why) for gap in gaps]
    assert (["raw", "gap", "raw"], 2.0) == (forms, gap_offsets)
    assert f"retention overtook a journal, its readers get a gap journal={NAME}" in log
    assert "offsets=1-2" in log


@pytest.mark.apache
async def test_journal_of_a_recreated_topic_waits_for_its_reset(journaled: Journaled) -> None:
    config = journaled.config()
    await journaled.topics(partitions=1)
    with journaled.site.worker(config) as worker:
        await journaled.put(range(20))
        await journaled.has(range(20))
        await journaled.site.recreate("events", partitions=1)
        await journaled.put(range(100, 103))
        command = f"streams-app reset --journal {NAME}"
        await wait_until(lambda: command in worker.log(), LIMIT_SECONDS, "the worker names the command")
        kept = await journaled.numbers()
        checked = await asyncio.to_thread(run, "check", "--config", str(config))
        done = await asyncio.to_thread(run, "reset", "--journal", NAME, "--yes", "--config", str(config))
        await journaled.has(range(100, 103))

    assert list(range(20)) == kept
    assert (0, True) == (done.code, command in " ".join(checked.out.split()))


@pytest.mark.apache
async def test_added_partitions_are_filed_too(journaled: Journaled) -> None:
    config = journaled.config()
    await journaled.topics(partitions=1)
    with journaled.site.worker(config):
        await journaled.put([0])
        await journaled.has([0])
        async with admin_of(journaled.site.bootstrap) as admin:
            await admin.create_partitions({journaled.source: NewPartitions(3)})
        for partition in (1, 2):
            await journaled.put([partition], partition=partition)
        await journaled.has(range(3), partitions=3)


@pytest.mark.apache
async def test_check_reports_what_a_journal_cannot_keep(journaled: Journaled) -> None:
    config = journaled.config(keep="2d", max_bytes=10**15)
    await create_topics(
        journaled.site.bootstrap, [journaled.source], 1, {"retention.ms": "60000", "cleanup.policy": "compact,delete"}
    )
    checked = await asyncio.to_thread(run, "check", "--config", str(config))
    report = " ".join(checked.out.split())

    assert "is kept for 1 min, and journal accounts keeps 2 d of it" in report
    assert "is compacted: if Redis loses its data, journal accounts can restore only the newest event of each record key" in report
    assert "journals (accounts) may take 1000000000 MB" in report
    assert "lower max_bytes, or give Redis more" in report


async def test_full_redis_evicts_the_oldest_closed_segments_and_no_new_event(site: Site, valkey: Valkey) -> None:
    site.redis_url = valkey.url
    journaled = Journaled(site)
    config = journaled.config(max_bytes=40_000_000, key="@key", compress_rate=0)
    await journaled.topics(partitions=1)
    async with redis.asyncio.Redis.from_url(valkey.url) as client:
        used = int((await client.info("memory"))["used_memory"])
        await client.config_set("maxmemory", used + 16_000_000)
        with site.worker(config) as worker:
            for number in range(10):
                await site.send("events", [(b"k", os.urandom(100_000)) for _ in range(30)])
                await journaled.filed_up_to(30 * number + 29)
            segments = await journaled.segments()
            page = metrics_of(worker)
        await client.config_set("maxmemory", 0)

    assert segments[0].first > 0
    assert f'dropped_segments_total{{cause="memory",journal="{NAME}"}} 0.0' not in page
    assert f'dropped_segments_total{{cause="size",journal="{NAME}"}} 0.0' in page
