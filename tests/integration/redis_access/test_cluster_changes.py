"""A Redis Cluster changes under a running application: slots move, and replicas take over."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from streams_app.embedded import Valkey
from streams_app.redis_access.client import connect, write_rejection
from streams_app.settings import RedisSettings
from tests.conftest import REDIS_CHOICE
from tests.helpers.live.hubs import running_hub
from tests.helpers.worker.site import Site, unhelpful_lines
from tests.helpers.worker.whole_app import GUARANTEES, PAGE, TAB, WholeApp
from tests.servers.redis7 import Redis7
from tests.servers.redis_cluster import ReplicatedCluster

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ReplicatedCluster]:
    with ReplicatedCluster.start(Redis7 if REDIS_CHOICE == "redis" else Valkey, tmp_path / "cluster") as running:
        yield running


def move_all_of_one(cluster: ReplicatedCluster) -> int:
    """Move each slot with keys from one node to the next one; return the number of those keys."""
    source, target, *_ = sorted(cluster.primaries(), key=lambda node: -len(cluster.busy_slots(node)))
    return sum(cluster.move_slot(slot, source, target) for slot in cluster.busy_slots(source))


def hand_over_all(cluster: ReplicatedCluster) -> int:
    """Replace each primary by its replica, one after the other; return their number."""
    primaries = cluster.primaries()
    for former in primaries:
        cluster.ask(cluster.replica_of(former).port, "FAILOVER")
        cluster.wait_promoted(former)
    return len(primaries)


def kill_one(cluster: ReplicatedCluster) -> int:
    """Kill the primary with most keys, and start it again once its replica has taken over."""
    former = max(cluster.primaries(), key=lambda node: len(cluster.busy_slots(node)))
    cluster.kill(former)
    cluster.wait_promoted(former)
    cluster.start_node(former.port)
    return 1


async def test_check_for_writes_finds_the_new_primaries_after_a_failover(cluster: ReplicatedCluster) -> None:
    redis = connect(RedisSettings(url=cluster.url), retries=0)
    assert await write_rejection(redis) is None
    await asyncio.to_thread(hand_over_all, cluster)

    seen = [await write_rejection(redis), await write_rejection(redis)]
    await redis.aclose()

    assert ["read-only", None] == seen


@pytest.mark.long
@pytest.mark.parametrize("change", [move_all_of_one, hand_over_all, kill_one])
async def test_application_continues_by_itself_while_a_cluster_changes(
    site: Site, cluster: ReplicatedCluster, change: object
) -> None:
    assert callable(change)
    app = WholeApp(site, cluster.url)
    await app.prepare()
    async with running_hub(app.settings.app_id, cluster.url, app.settings.live) as hub:
        page = await hub.events(f"/live/{PAGE}/events?view=seen&view=here&tab={TAB}")
        with app.worker() as worker:
            await worker.wait_ready()
            await app.send(20)
            await app.until_all_arrived()
            changing = asyncio.create_task(asyncio.to_thread(change, cluster))
            while not changing.done():
                await app.send(5)
                await asyncio.sleep(0.2)  # events arrive while it changes
            changed = await changing
            await app.send(20)
            await app.until_all_arrived()
            await worker.wait_ready()
            await page.until("seen", count=app.sent, state="ok")
            await page.until("here", count=1, state="ok")
            code = await worker.terminate()
            log = worker.log()

    assert changed > 0
    assert {1} == set(app.calls()[GUARANTEES[-1]].values())
    assert 0 == code
    assert [] == unhelpful_lines(log)
