"""Faults of Redis."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
from collections.abc import Callable

import redis

from tests.chaos.stage import OUTAGE_SECONDS, Stage
from tests.chaos.traces import TRACE_SECONDS, NoTraceError, claims, must
from tests.helpers.waiting import wait_until

UNUSED_SECONDS = 3


async def flushall(stage: Stage, _: random.Random) -> None:
    stage.kept_data = False
    before = stage.logs().count("claiming again: ") + claims(stage)
    with stage.client() as client:
        pipe = client.pipeline(transaction=True)
        pipe.flushall()
        pipe.dbsize()
        must(pipe.execute()[1] == 0, "DBSIZE 0")
    await wait_until(lambda: stage.logs().count("claiming again: ") + claims(stage) > before, TRACE_SECONDS, "a resync is counted")


async def _restart(stage: Stage, between: Callable[[], None]) -> None:
    stage.kept_data = False  # appendfsync everysec: the writes of the last second may be lost
    with stage.client() as client:
        before = client.info("server")["run_id"]
    stage.redis.kill()
    between()
    with stage.outage("redis"):
        await asyncio.sleep(1)  # the fault lasts: Redis is down
    stage.start_redis()
    stage.record_healed()
    with stage.client() as client:
        must(client.info("server")["run_id"] != before, "another run id")


async def restart(stage: Stage, _: random.Random) -> None:
    await _restart(stage, lambda: None)


async def tail_cut(stage: Stage, chance: random.Random) -> None:
    def cut() -> None:
        (tail,) = (stage.redis_folder / "appendonlydir").glob("*.incr.aof")
        size = tail.stat().st_size
        os.truncate(tail, max(0, size - chance.randrange(1, max(2, min(size, 20_000)))))
        must(tail.stat().st_size < size, "a shorter file")

    await _restart(stage, cut)


async def roll_back(stage: Stage, _: random.Random) -> None:
    old = stage.folder / "redis-old"
    shutil.copytree(stage.redis_folder, old)
    await asyncio.sleep(3)  # the load continues: the copy lacks these writes

    def restore() -> None:
        shutil.rmtree(stage.redis_folder)
        shutil.move(old, stage.redis_folder)

    await _restart(stage, restore)


async def script_flush(stage: Stage, _: random.Random) -> None:
    with stage.client() as client:
        pipe = client.pipeline(transaction=True)
        pipe.script_flush()
        pipe.info("memory")
        must(pipe.execute()[1]["number_of_cached_scripts"] == 0, "no script cached")


async def client_kill(stage: Stage, _: random.Random) -> None:
    with stage.client() as client:
        # After a restart, the workers may not have reconnected yet.
        kill = ("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await wait_until(lambda: client.execute_command(*kill) > 0, TRACE_SECONDS, "connections are killed")
    stage.record_healed()


async def full(stage: Stage, _: random.Random) -> None:
    with stage.client() as client:
        client.config_set("maxmemory", str(client.info("memory")["used_memory"] // 2))
        try:
            client.set("one more", "x")
        except redis.exceptions.OutOfMemoryError:
            await asyncio.sleep(4)  # the fault lasts
        else:
            raise NoTraceError("a write is rejected")
        finally:
            client.config_set("maxmemory", "0")
            stage.record_healed()


async def frozen(stage: Stage, _: random.Random) -> None:
    pid = stage.redis.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        with stage.outage("redis"):
            client = stage.client(socket_timeout=0.5)
            try:
                await asyncio.to_thread(client.ping)
            except redis.exceptions.TimeoutError:
                await asyncio.sleep(OUTAGE_SECONDS)  # the fault lasts
            else:
                raise NoTraceError("no answer")
    finally:
        os.kill(pid, signal.SIGCONT)
        stage.record_healed()


async def failover(stage: Stage, chance: random.Random) -> None:
    """Make the primary a replica of another server, with open connections; a little later, the name points at the new primary."""
    replica, folder = await asyncio.to_thread(stage.start_replica)
    with redis.Redis(port=replica.port) as new, stage.client() as old:
        await wait_until(lambda: new.info("replication")["master_link_status"] == "up", TRACE_SECONDS, "the replica has caught up")
        stage.kept_data = False  # replication is asynchronous
        new.execute_command("REPLICAOF", "NO", "ONE")
        old.execute_command("REPLICAOF", "127.0.0.1", replica.port)
        must(old.role()[0] == b"slave", "a replica")
        with stage.outage("redis"):
            await asyncio.sleep(chance.uniform(0, 5))  # the fault lasts: the name still points at the former primary
            stage.promote(replica, folder)
        stage.record_healed()
        await wait_until(lambda: _writers(old) == 0 < _writers(new), TRACE_SECONDS, "workers leave the former primary")


def _writers(client: redis.Redis) -> int:
    """Return connections of workers that have just called a script; other connections may stay unused for long."""
    return sum(
        one["name"] == "streams_app" and one["cmd"].startswith("evalsha") and int(one["idle"]) < UNUSED_SECONDS
        for one in client.client_list()
    )
