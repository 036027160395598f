"""Faults of the dependencies of workers: the broker, the network of one worker, the read store."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
from pathlib import Path

from aiokafka.admin import AIOKafkaAdminClient

from tests.chaos.proxy import Proxy
from tests.chaos.stage import EXCUSED, OUTAGE_SECONDS, PARTITIONS, SESSION_SECONDS, Stage
from tests.chaos.traces import CLAIMED, TRACE_SECONDS, NoTraceError, claims, must, until_reclaimed
from tests.helpers.kafka.topics import create_topics, read_topic
from tests.helpers.waiting import wait_until

LONG_SHARE = 0.3
"""Share of the broker restarts in which it is down until every worker must have reported the outage."""


async def broker_frozen(stage: Stage, _: random.Random) -> None:
    os.kill(stage.broker.pid, signal.SIGSTOP)
    try:
        with stage.outage("kafka"):
            await asyncio.sleep(OUTAGE_SECONDS)  # the fault lasts
        state = Path(f"/proc/{stage.broker.pid}/stat").read_text().rpartition(")")[2].split()[0]  # noqa: ASYNC240 - no disk
        must(state == "T", "a stopped process")
    finally:
        os.kill(stage.broker.pid, signal.SIGCONT)
        stage.record_healed()


async def broker_restart(stage: Stage, chance: random.Random) -> None:
    before = stage.broker.pid
    stage.broker.kill()
    with stage.outage("kafka"):
        await asyncio.sleep(OUTAGE_SECONDS if chance.random() < LONG_SHARE else 2)  # the fault lasts
    await asyncio.to_thread(stage.start_broker)
    stage.record_healed()
    must(stage.broker.pid != before, "another process")


async def output_topic_away(stage: Stage, chance: random.Random) -> None:
    """Delete the output topic of the excused fold and create it again later; the other fold must not be affected."""
    # A worker that starts without the topic ends with 1, and its supervisor starts it until the topic is back.
    await wait_until(stage.is_settled, TRACE_SECONDS, "every worker is a member of the group")
    client = AIOKafkaAdminClient(bootstrap_servers=stage.bootstrap)
    await client.start()
    try:
        await client.delete_topics([EXCUSED])

        async def is_reported() -> bool:
            return any([EXCUSED in (await worker.get("/health/ready"))[1] for worker in stage.workers])

        await wait_until(is_reported, TRACE_SECONDS, "a worker reports that the topic is missing")
        await asyncio.sleep(chance.uniform(1, 3) * SESSION_SECONDS)  # the fault lasts
        must(EXCUSED not in await client.list_topics(), "no worker creates the topic")
    finally:
        await create_topics(stage.bootstrap, [EXCUSED], PARTITIONS)
        await client.close()
        stage.record_healed()
    await read_topic(stage.bootstrap, EXCUSED, until=bool, timeout_seconds=TRACE_SECONDS)


async def redis_cut_off(stage: Stage, chance: random.Random) -> str:
    """Cut the first worker off from Redis, but not from the broker."""
    # A worker that is still starting sends no requests.
    await wait_until(lambda: CLAIMED in stage.workers[0].log(), TRACE_SECONDS, "the first worker has claimed a partition")
    return await _cut_off(stage, stage.redis_proxy, chance)


async def broker_cut_off(stage: Stage, chance: random.Random) -> str:
    """Cut the first worker off from the broker, but not from Redis; the other workers take over its partitions."""
    # Only a member has partitions to lose. Each member has some, because there are more partitions than workers.
    await wait_until(stage.is_settled, TRACE_SECONDS, "every worker is a member of the group")
    return await _cut_off(stage, stage.broker_proxy, chance, claims_before=claims(stage))


async def _cut_off(stage: Stage, proxy: Proxy, chance: random.Random, claims_before: int | None = None) -> str:
    """Cut a connection in one of two ways, for longer than the session timeout.

    Args:
        stage: The stage of the run.
        proxy: The proxy in front of the server.
        chance: Random numbers of the run.
        claims_before: Number of claims before the cut. Other workers must claim more during it, since the first worker cannot.
    """
    silently, before = chance.random() < 0.5, proxy.stopped
    proxy.cut(silently=silently)
    try:
        await asyncio.sleep(SESSION_SECONDS * chance.uniform(1.7, 3.0))  # the fault lasts
        if claims_before is not None:
            await until_reclaimed(stage, claims_before)
    finally:
        proxy.heal()
        stage.record_healed()
    must(proxy.stopped > before, "a connection was dropped or rejected, or data was delayed")
    return "delayed" if silently else "rejected"


async def read_store_locked(stage: Stage, _: random.Random) -> None:
    lock = sqlite3.connect(stage.folder / "read.db", isolation_level=None, timeout=10)
    try:
        lock.execute("BEGIN EXCLUSIVE")
        other = sqlite3.connect(stage.folder / "read.db", isolation_level=None, timeout=0)
        try:
            other.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            await asyncio.sleep(8)  # the fault lasts
        else:
            raise NoTraceError("a locked file")
        finally:
            other.close()
    finally:
        lock.rollback()
        lock.close()
        stage.record_healed()
