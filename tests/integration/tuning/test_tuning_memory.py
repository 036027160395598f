"""The estimate of the memory of open groups in Redis, compared with Redis."""

from __future__ import annotations

from datetime import timedelta

import pytest
from redis.asyncio import Redis

from streams_app.delivery.batch import TP
from streams_app.fold import Fold
from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.event import DetailedEvent, FoldEvent
from streams_app.folding.shard.shard import Shard
from streams_app.folding.store.keys import shard_keys
from streams_app.folding.store.scripts import FoldScripts
from streams_app.folding.store.shard_store import ShardStore
from streams_app.tuning.candidates import columns_for
from streams_app.tuning.columns import Columns
from streams_app.tuning.replay import curve_of
from tests.conftest import Names
from tests.helpers.folding.shards import fold_some

GROUPS = 5_000


async def memory_of(redis: Redis) -> int:
    """Return the used memory in bytes, without the buffers of connections."""
    await redis.connection_pool.disconnect()
    return int((await redis.info("memory"))["used_memory"])


@pytest.mark.parametrize(
    ("key_bytes", "name_count", "leading"),
    [(10, 1, False), (10, 3, False), (40, 8, False), (20, 30, False), (20, 60, False), (20, 8, True)],
)
async def test_estimated_redis_memory_is_within_a_quarter(
    redis_client: Redis, names: Names, key_bytes: int, name_count: int, leading: bool
) -> None:
    changed = {f"changed_{number}": None for number in range(name_count)}
    events = [FoldEvent(at, 1_000 + at, b"s%0*d" % (key_bytes - 1, at), dict(changed)) for at in range(GROUPS)]
    keys = shard_keys(names.app_id, "f", "t", 0)
    fold = Fold(name="f", source="t", group_key="a", changed="m", quiet_period=timedelta(hours=1), leading=leading)
    shard = Shard(fold, TP("t", 0), ShardStore(FoldScripts(redis_client), keys))
    await shard.claim(0, 1)
    first, *others = [event._replace(offset=event.offset + 1) for event in events]
    await fold_some(shard, [first])  # Redis loads the scripts
    before = await memory_of(redis_client)
    await fold_some(shard, others)
    while len(shard.outbox):  # early records leave at once
        await shard.finish(shard.outbox.first(1_000))
    used_bytes = await memory_of(redis_client) - before
    columns = Columns(now_ms=10_000)
    columns.add(0, events)
    (point,) = curve_of("f", columns, Bounds.of(fold), [3_600_000], prefix_bytes=len(keys.group_prefix)).points

    assert point.peak_open_groups == GROUPS
    assert used_bytes == pytest.approx(point.redis_bytes, rel=0.25)


@pytest.mark.parametrize(("groups", "events"), [(5_000, 1), (2_000, 20), (20, 2_000)])
async def test_estimated_redis_memory_includes_the_ids_of_events(
    redis_client: Redis, names: Names, groups: int, events: int
) -> None:
    keys = shard_keys(names.app_id, "f", "t", 0)
    fold = Fold(name="f", source="t", group_key="a", changed="m", quiet_period=timedelta(hours=1), dedupe_by="id")
    sent = [
        DetailedEvent(at + 1, 1_000 + at, b"s%019d" % (at // events), {"likes": None}, id=at.to_bytes(16, "big"))
        for at in range(groups * events)
    ]
    shard = Shard(fold, TP("t", 0), ShardStore(FoldScripts(redis_client), keys))
    await shard.claim(0, 1)
    before = await memory_of(redis_client)
    await fold_some(shard, sent)
    used_bytes = await memory_of(redis_client) - before
    columns = columns_for(fold, 10_000_000)
    columns.add(0, sent)
    (point,) = curve_of("f", columns, Bounds.of(fold), [3_600_000], prefix_bytes=len(keys.group_prefix)).points

    assert point.peak_open_groups == groups
    assert used_bytes == pytest.approx(point.redis_bytes, rel=0.25)
