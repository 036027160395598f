"""The faults of a chaos run. Each returns only when it has left the trace it must leave; otherwise it raises."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any

import redis

from tests.chaos.killing import POINTS
from tests.chaos.stage import FOLD, SESSION_SECONDS, KilledAt, Stage
from tests.helpers import WorkerProcess, wait_until

Fault = Callable[[Stage, random.Random], Awaitable[None]]

FREEZE_SECONDS = SESSION_SECONDS * 1.7
TRACE_SECONDS = 40.0


class NoTraceError(AssertionError):
    """A fault that nobody noticed proves nothing."""


def must(condition: object, trace: str) -> None:
    """Raises NoTraceError unless the trace is there."""
    if not condition:
        raise NoTraceError(trace)


def _claims(stage: Stage) -> int:
    return stage.logs().count(f"claimed fold={FOLD}")


async def _claimed_again(stage: Stage, before: int) -> None:
    await wait_until(lambda: _claims(stage) > before, TRACE_SECONDS, "partitions are claimed again")


async def sigkill(stage: Stage, chance: random.Random) -> None:
    worker = stage.workers[chance.randrange(len(stage.workers))]
    before = _claims(stage)
    worker.kill()
    must(worker.exit_code == -signal.SIGKILL, "exit code -9")
    await _claimed_again(stage, before)


async def sigkill_at_a_point(stage: Stage, chance: random.Random) -> None:
    number = chance.randrange(1, len(stage.workers))
    point = chance.choice(sorted(POINTS))
    stage.workers[number].kill()
    doomed = KilledAt(stage.config, stage.folder, point, 1 if point == "in-rebalance" else chance.randrange(2, 6))
    stage.replace(number, doomed)
    await wait_until(lambda: doomed.exit_code is not None, TRACE_SECONDS, f"it dies at {point}")
    must(doomed.exit_code == -signal.SIGKILL, f"exit code -9 at {point}, not {doomed.exit_code}: {doomed.log()[-2000:]}")


async def sigstop(stage: Stage, chance: random.Random) -> None:
    worker = stage.workers[chance.randrange(len(stage.workers))]
    before = _claims(stage)
    worker.stop_signal()
    try:
        await asyncio.sleep(FREEZE_SECONDS)
        await _claimed_again(stage, before)
    finally:
        worker.continue_signal()


async def sigterm(stage: Stage, chance: random.Random) -> None:
    worker = stage.workers[chance.randrange(len(stage.workers))]
    must(await worker.terminate(20) == 0, "exit code 0 within 20 s")


async def rebalance_storm(stage: Stage, chance: random.Random) -> None:
    before = _claims(stage)
    for _ in range(3):
        extra = WorkerProcess(stage.config, stage.folder)
        await asyncio.sleep(3)
        extra.kill() if chance.random() < 0.5 else await extra.terminate(20)
        stage.ended.append(extra)
    await _claimed_again(stage, before)


async def flushall(stage: Stage, _: random.Random) -> None:
    stage.kept_data = False
    before = stage.logs().count("resync ") + _claims(stage)
    with stage.client() as client:
        pipe = client.pipeline(transaction=True)
        pipe.flushall()
        pipe.dbsize()
        must(pipe.execute()[1] == 0, "DBSIZE 0")
    await wait_until(lambda: stage.logs().count("resync ") + _claims(stage) > before, TRACE_SECONDS, "a resync is counted")


async def _restart_redis(stage: Stage, between: Callable[[], None]) -> None:
    stage.kept_data = False  # appendfsync everysec: what the last second wrote may be gone
    with stage.client() as client:
        before = client.info("server")["run_id"]
    stage.redis.kill()
    between()
    await asyncio.sleep(1)
    stage.start_redis()
    with stage.client() as client:
        must(client.info("server")["run_id"] != before, "another run id")


async def redis_restart(stage: Stage, _: random.Random) -> None:
    await _restart_redis(stage, lambda: None)


async def redis_tail_cut(stage: Stage, chance: random.Random) -> None:
    def cut() -> None:
        (tail,) = (stage.folder / "redis" / "appendonlydir").glob("*.incr.aof")
        size = tail.stat().st_size
        os.truncate(tail, max(0, size - chance.randrange(1, max(2, min(size, 20_000)))))
        must(tail.stat().st_size < size, "a shorter file")

    await _restart_redis(stage, cut)


async def redis_roll_back(stage: Stage, _: random.Random) -> None:
    old = stage.folder / "redis-old"
    shutil.copytree(stage.folder / "redis", old)
    await asyncio.sleep(3)

    def put_back() -> None:
        shutil.rmtree(stage.folder / "redis")
        shutil.move(old, stage.folder / "redis")

    await _restart_redis(stage, put_back)


async def script_flush(stage: Stage, _: random.Random) -> None:
    with stage.client() as client:
        pipe = client.pipeline(transaction=True)
        pipe.script_flush()
        pipe.info("memory")
        must(pipe.execute()[1]["number_of_cached_scripts"] == 0, "no script cached")


async def client_kill(stage: Stage, _: random.Random) -> None:
    with stage.client() as client:
        must(client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes") > 0, "connections killed")


async def redis_full(stage: Stage, _: random.Random) -> None:
    with stage.client() as client:
        client.config_set("maxmemory", str(client.info("memory")["used_memory"] // 2))
        try:
            client.set("one more", "x")
        except redis.exceptions.OutOfMemoryError:
            await asyncio.sleep(4)
        else:
            raise NoTraceError("a write is refused")
        finally:
            client.config_set("maxmemory", "0")


async def redis_frozen(stage: Stage, _: random.Random) -> None:
    await _frozen(stage.redis.pid, stage.redis_port)


async def broker_frozen(stage: Stage, _: random.Random) -> None:
    os.kill(stage.broker.pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(13)
        state = open(f"/proc/{stage.broker.pid}/stat").read().rpartition(")")[2].split()[0]  # noqa: ASYNC230
        must(state == "T", "a stopped process")
    finally:
        os.kill(stage.broker.pid, signal.SIGCONT)


async def _frozen(pid: int, port: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    try:
        client = redis.Redis(port=port, socket_timeout=0.5)
        try:
            await asyncio.to_thread(client.ping)
        except redis.exceptions.TimeoutError:
            await asyncio.sleep(10)
        else:
            raise NoTraceError("no answer")
    finally:
        os.kill(pid, signal.SIGCONT)


async def broker_restart(stage: Stage, _: random.Random) -> None:
    before = stage.broker.pid
    stage.broker.kill()
    await asyncio.sleep(2)
    await asyncio.to_thread(stage.start_broker)
    must(stage.broker.pid != before, "another process")


async def redis_cut_off(stage: Stage, _: random.Random) -> None:
    before = stage.proxy.refused + stage.proxy.dropped
    stage.proxy.cut()
    try:
        await asyncio.sleep(6)
    finally:
        stage.proxy.heal()
    must(stage.proxy.refused + stage.proxy.dropped > before, "connections dropped or refused")


async def read_store_locked(stage: Stage, _: random.Random) -> None:
    lock = sqlite3.connect(stage.folder / "read.db", isolation_level=None, timeout=10)
    try:
        lock.execute("BEGIN EXCLUSIVE")
        other = sqlite3.connect(stage.folder / "read.db", isolation_level=None, timeout=0)
        try:
            other.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            await asyncio.sleep(8)
        else:
            raise NoTraceError("a locked file")
        finally:
            other.close()
    finally:
        lock.rollback()
        lock.close()


FAULTS: dict[str, Fault] = {
    "sigkill": sigkill,
    "sigkill-at": sigkill_at_a_point,
    "sigstop": sigstop,
    "sigterm": sigterm,
    "rebalance-storm": rebalance_storm,
    "flushall": flushall,
    "redis-restart": redis_restart,
    "redis-tail-cut": redis_tail_cut,
    "redis-roll-back": redis_roll_back,
    "script-flush": script_flush,
    "client-kill": client_kill,
    "redis-full": redis_full,
    "redis-frozen": redis_frozen,
    "redis-cut-off": redis_cut_off,
    "broker-frozen": broker_frozen,
    "broker-restart": broker_restart,
    "read-store-locked": read_store_locked,
}
LOSING: frozenset[str] = frozenset({"flushall", "redis-restart", "redis-tail-cut", "redis-roll-back"})
"""Faults after which an event may be in two overlapping records."""

ONLY_APACHE: frozenset[str] = frozenset({"broker-restart"})
"""The embedded broker keeps nothing across a restart."""


def schedule(chance: random.Random, names: list[str], seconds: float) -> list[tuple[float, str]]:
    """Random times, random faults, one after the other."""
    plan: list[tuple[float, str]] = []
    at = chance.uniform(2, 5)
    while at < seconds - 2:
        plan.append((at, chance.choice(names)))
        at += chance.uniform(3, 8)
    return plan


def available(wanted: list[str] | None, *, is_apache: bool) -> list[str]:
    """The faults that a run may draw from."""
    unknown: Any = set(wanted or []) - set(FAULTS)
    if unknown:
        raise ValueError(f"unknown faults {sorted(unknown)}; there are: {', '.join(FAULTS)}")
    return [name for name in wanted or FAULTS if is_apache or name not in ONLY_APACHE]
