"""Progress that benchmarks read from the fences of a fold."""

from __future__ import annotations

import redis

from benchmarks.fences import fences
from streams_app.folding.store.keys import owner_text, shard_keys
from tests.conftest import RedisServer


async def test_fences_count_the_events_of_each_process(redis_server: RedisServer) -> None:
    metas = [shard_keys("bench-fences", "f", "source", partition).meta for partition in range(4)]
    me = int(owner_text().rpartition(" ")[2])
    with redis.Redis.from_url(redis_server.url) as client:
        try:
            for meta, fence, owner in zip(metas, (9, 4, -1), (owner_text(), "other pid 7", "other pid 7"), strict=False):
                client.hset(meta, mapping={"fence": fence, "owner": owner})
            async with fences(redis_server.url, metas) as found:
                assert {me: 10, 7: 5} == await found.by_process()
                assert 15 == await found.count()
        finally:
            client.delete(*metas)
