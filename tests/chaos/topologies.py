"""Redis with Sentinel and Redis Cluster: stages of chaos runs, and their additional faults."""

from __future__ import annotations

import asyncio
import random

import redis

from streams_app.embedded import Valkey
from tests.chaos.faults_redis import UNUSED_SECONDS
from tests.chaos.stage import OUTAGE_SECONDS, Stage
from tests.chaos.traces import TRACE_SECONDS, must
from tests.helpers.waiting import wait_until
from tests.servers.redis7 import Redis7
from tests.servers.redis_cluster import Node, ReplicatedCluster
from tests.servers.sentinels import SentinelGroup

MOVED_SLOTS = 3
DEMOTED_SECONDS = 60.0


class SentinelStage(Stage):
    """A stage with a primary, two replicas and three Sentinels."""

    def start_redis(self) -> None:
        self.sentinels = SentinelGroup.start(Redis7 if self.is_redis7 else Valkey, self.redis_folder)

    def redis_urls(self) -> tuple[str, str]:
        return self.sentinels.url, self.sentinels.url

    def stop_redis(self) -> None:
        self.sentinels.stop()

    @property
    def primary_port(self) -> int:
        return self.sentinels.primary


class ClusterStage(Stage):
    """A stage with a cluster of three primaries, each with a replica."""

    def start_redis(self) -> None:
        self.cluster = ReplicatedCluster.start(Redis7 if self.is_redis7 else Valkey, self.redis_folder)

    def redis_urls(self) -> tuple[str, str]:
        return self.cluster.url, self.cluster.url

    def stop_redis(self) -> None:
        self.cluster.stop()


STAGES: dict[str, type[Stage]] = {"single": Stage, "sentinel": SentinelStage, "cluster": ClusterStage}
"""Deployment of Redis → the stage of a run."""


async def _scripts_run_at(port: int) -> None:
    """Wait until workers call scripts on a server."""
    with redis.Redis(port=port) as client:

        def is_called() -> bool:  # a client of a cluster has no name
            return any(one["cmd"].startswith("evalsha") and int(one["idle"]) < UNUSED_SECONDS for one in client.client_list())

        await wait_until(is_called, TRACE_SECONDS, "workers write to the new primary")


async def primary_killed(stage: Stage, _: random.Random) -> None:
    """Kill the primary; a replica is promoted, and the former primary returns as a replica."""
    assert isinstance(stage, SentinelStage)
    group = stage.sentinels
    await asyncio.to_thread(group.wait_complete)  # after the fault before
    stage.kept_data = False  # replication is asynchronous
    former = await asyncio.to_thread(group.kill_primary)
    promoted = await asyncio.to_thread(group.wait_promoted, former)
    stage.record_healed()
    await _scripts_run_at(promoted)
    await asyncio.to_thread(group.start_server, (), former)


async def sentinel_failover(stage: Stage, _: random.Random) -> None:
    """Request a failover: the former primary keeps its connections, and accepts writes that will be lost."""
    assert isinstance(stage, SentinelStage)
    group = stage.sentinels
    await asyncio.to_thread(group.wait_complete)  # after the fault before
    stage.kept_data = False  # as above
    former = await asyncio.to_thread(lambda: group.primary)
    await asyncio.to_thread(group.promote_one)
    promoted = await asyncio.to_thread(group.wait_promoted, former)
    await _is_demoted(former)
    stage.record_healed()
    await _scripts_run_at(promoted)


async def primary_frozen(stage: Stage, chance: random.Random) -> None:
    """Freeze the primary until a replica is promoted; the former primary then continues as a primary for a while."""
    assert isinstance(stage, SentinelStage)
    group = stage.sentinels
    await asyncio.to_thread(group.wait_complete)  # after the fault before
    stage.kept_data = False  # as above
    former = await asyncio.to_thread(lambda: group.primary)
    group.freeze(former)
    try:
        promoted = await asyncio.to_thread(group.wait_promoted, former)
        await asyncio.sleep(chance.uniform(0, 5))  # the fault lasts
    finally:
        group.thaw(former)
    await _is_demoted(former)
    stage.record_healed()
    await _scripts_run_at(promoted)


async def _is_demoted(port: int) -> None:
    with redis.Redis(port=port) as client:
        await wait_until(lambda: client.role()[0] == b"slave", DEMOTED_SECONDS, "the former primary is a replica")


async def no_quorum(stage: Stage, _: random.Random) -> None:
    """Kill the primary and two Sentinels: no replica is promoted until they run again."""
    assert isinstance(stage, SentinelStage)
    group = stage.sentinels
    await asyncio.to_thread(group.wait_complete)  # after the fault before
    stage.kept_data = False  # as above
    stopped = list(group.sentinels)[:2]
    for port in stopped:
        group.sentinels.pop(port).kill()
    former = await asyncio.to_thread(group.kill_primary)
    with stage.outage("redis"):
        await asyncio.sleep(OUTAGE_SECONDS)  # the fault lasts
        must(await asyncio.to_thread(lambda: group.primary) == former, "no replica is promoted")
    for port in stopped:
        await asyncio.to_thread(group.run_sentinel, port)
    promoted = await asyncio.to_thread(group.wait_promoted, former)
    stage.record_healed()
    await _scripts_run_at(promoted)
    await asyncio.to_thread(group.start_server, (), former)


async def slots_moved(stage: Stage, chance: random.Random) -> str:
    """Move slots with their keys to another node while workers use them: no event may be lost or folded twice."""
    assert isinstance(stage, ClusterStage)
    cluster = stage.cluster
    await asyncio.to_thread(cluster.wait_complete)  # after the fault before

    def busy() -> list[tuple[int, Node]]:
        return [(slot, node) for node in cluster.primaries() for slot in cluster.busy_slots(node)]

    found = await wait_until(lambda: asyncio.to_thread(busy), TRACE_SECONDS, "nodes have keys")
    keys = 0
    for slot, source in chance.sample(found, min(MOVED_SLOTS, len(found))):
        target = chance.choice([node for node in cluster.primaries() if node.id != source.id])
        keys += await asyncio.to_thread(cluster.move_slot, slot, source, target)
    must(keys, "keys were moved")
    stage.record_healed()
    return f"{keys} keys"


async def _one_with_keys(stage: ClusterStage, chance: random.Random) -> Node:
    def used() -> list[Node]:
        return [node for node in stage.cluster.primaries() if stage.cluster.busy_slots(node)]

    return chance.choice(await wait_until(lambda: asyncio.to_thread(used), TRACE_SECONDS, "nodes have keys"))


async def node_handed_over(stage: Stage, chance: random.Random) -> None:
    """Hand a node over to its replica after it has copied everything: no event may be lost."""
    assert isinstance(stage, ClusterStage)
    cluster = stage.cluster
    await asyncio.to_thread(cluster.wait_complete)  # after the fault before
    former = await _one_with_keys(stage, chance)
    replica = await asyncio.to_thread(cluster.replica_of, former)
    await asyncio.to_thread(cluster.ask, replica.port, "FAILOVER")
    promoted = await asyncio.to_thread(cluster.wait_promoted, former)
    stage.record_healed()
    await _scripts_run_at(promoted.port)


async def node_killed(stage: Stage, chance: random.Random) -> None:
    """Kill a primary; its replica is promoted, and the former primary returns as a replica."""
    assert isinstance(stage, ClusterStage)
    cluster = stage.cluster
    await asyncio.to_thread(cluster.wait_complete)  # after the fault before
    stage.kept_data = False  # as above
    former = await _one_with_keys(stage, chance)
    cluster.kill(former)
    promoted = await asyncio.to_thread(cluster.wait_promoted, former)
    stage.record_healed()
    await _scripts_run_at(promoted.port)
    await asyncio.to_thread(cluster.start_node, former.port)
