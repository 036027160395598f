"""The faults of a chaos run. Each returns only when it has left the trace it must leave; otherwise it raises.

This module has the faults of workers, the list of all faults, and the schedule.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable, Sequence

from tests.chaos import faults_dependencies as of_dependencies
from tests.chaos import faults_leaderless as of_leaders
from tests.chaos import faults_redis as of_redis
from tests.chaos import topologies
from tests.chaos.kill_points import POINTS
from tests.chaos.stage import SESSION_SECONDS, KilledAt, Stage
from tests.chaos.traces import TRACE_SECONDS, a_member, claims, must, until_reclaimed
from tests.helpers.waiting import wait_until
from tests.helpers.worker.workers import WorkerProcess

Fault = Callable[[Stage, random.Random], Awaitable[str | None]]
"""Causes and ends the fault; returns the variant if there are several.

A lasting fault reports its end (:meth:`Stage.record_healed`); any other fault ends at once."""

FREEZE_SECONDS = SESSION_SECONDS * 1.7


async def sigkill(stage: Stage, chance: random.Random) -> None:
    worker = await a_member(stage, chance)
    before = claims(stage)
    worker.kill()
    must(worker.exit_code == -signal.SIGKILL, "exit code -9")
    await until_reclaimed(stage, before)


async def sigkill_at_a_point(stage: Stage, chance: random.Random) -> str:
    point = chance.choice(sorted(POINTS))
    await killed_at(stage, chance, point, 1 if point == "in-rebalance" else chance.randrange(2, 6))
    return point


async def killed_at(
    stage: Stage, chance: random.Random, point: str, count: int, then: Callable[[KilledAt], Awaitable[None]] | None = None
) -> None:
    """Kill a worker when it reaches a point for the ``count``-th time; call ``then`` once the worker runs."""
    number = chance.randrange(1, len(stage.workers))
    stage.workers[number].kill()
    doomed = KilledAt(stage.config, stage.folder, point, count)
    stage.replace(number, doomed)
    if then is not None:
        await then(doomed)
    await wait_until(lambda: doomed.exit_code is not None, TRACE_SECONDS, f"the worker dies at {point}")
    stage.record_healed()
    must(doomed.exit_code == -signal.SIGKILL, f"exit code -9 at {point}, not {doomed.exit_code}: {doomed.log()[-2000:]}")


async def sigstop(stage: Stage, chance: random.Random) -> None:
    worker = await a_member(stage, chance)
    before = claims(stage)
    worker.stop_signal()
    try:
        await asyncio.sleep(FREEZE_SECONDS)  # the fault lasts
        await until_reclaimed(stage, before)
    finally:
        worker.continue_signal()
        stage.record_healed()


async def sigterm(stage: Stage, chance: random.Random) -> None:
    worker = await a_member(stage, chance)
    must(await worker.terminate(20) == 0, "exit code 0 within 20 s")


async def rebalance_storm(stage: Stage, chance: random.Random) -> None:
    for _ in range(3):
        before = claims(stage)
        extra = WorkerProcess(stage.config, stage.folder)
        await until_reclaimed(stage, before)
        extra.kill() if chance.random() < 0.5 else await extra.terminate(20)
        stage.ended.append(extra)
    stage.record_healed()


OF_WORKERS: dict[str, Fault] = {
    "sigkill": sigkill,
    "sigkill-at": sigkill_at_a_point,
    "sigstop": sigstop,
    "sigterm": sigterm,
    "rebalance-storm": rebalance_storm,
}
FAULTS: dict[str, Fault] = OF_WORKERS | {
    "flushall": of_redis.flushall,
    "redis-restart": of_redis.restart,
    "redis-tail-cut": of_redis.tail_cut,
    "redis-roll-back": of_redis.roll_back,
    "script-flush": of_redis.script_flush,
    "client-kill": of_redis.client_kill,
    "redis-full": of_redis.full,
    "redis-frozen": of_redis.frozen,
    "redis-failover": of_redis.failover,
    "redis-cut-off": of_dependencies.redis_cut_off,
    "broker-cut-off": of_dependencies.broker_cut_off,
    "broker-frozen": of_dependencies.broker_frozen,
    "broker-restart": of_dependencies.broker_restart,
    "output-topic-away": of_dependencies.output_topic_away,
    "leaderless": of_leaders.leaderless,
    "read-store-locked": of_dependencies.read_store_locked,
}
OF_TOPOLOGY: dict[str, dict[str, Fault]] = {
    "single": FAULTS,
    "sentinel": OF_WORKERS
    | {
        "primary-killed": topologies.primary_killed,
        "sentinel-failover": topologies.sentinel_failover,
        "primary-frozen": topologies.primary_frozen,
        "no-quorum": topologies.no_quorum,
    },
    "cluster": OF_WORKERS
    | {
        "slots-moved": topologies.slots_moved,
        "node-handed-over": topologies.node_handed_over,
        "node-killed": topologies.node_killed,
    },
}
"""Deployment of Redis → the faults of a run."""

LOSING: frozenset[str] = frozenset(
    {
        "flushall", "redis-restart", "redis-tail-cut", "redis-roll-back", "redis-failover",
        "primary-killed", "sentinel-failover", "primary-frozen", "no-quorum", "node-killed",
    }
)  # fmt: skip
"""Faults after which an event may be in two overlapping records."""

ONLY_APACHE: frozenset[str] = frozenset({"broker-restart", "broker-cut-off", "output-topic-away", "leaderless"})
"""Faults that the embedded broker does not support: it loses its data at a restart, advertises its own address to clients behind a
proxy, does not show whether a metadata request created a topic, and runs as a single broker."""


def schedule(chance: random.Random, names: Sequence[str], seconds: float, turn: int) -> list[tuple[float, str]]:
    """Return random faults at random times, one after the other. The first fault rotates, so that each is used regularly."""
    plan: list[tuple[float, str]] = []
    at = chance.uniform(2, 5)
    while at < seconds - 2:
        plan.append((at, chance.choice(names) if plan else names[turn % len(names)]))
        at += chance.uniform(3, 8)
    return plan


def available(*, is_apache: bool, topology: str = "single") -> list[str]:
    """Return the faults that a run may use."""
    return [name for name in OF_TOPOLOGY[topology] if is_apache or name not in ONLY_APACHE]
