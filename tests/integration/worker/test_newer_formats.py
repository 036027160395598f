"""A worker beside state that a newer version has written."""

from __future__ import annotations

import redis

from streams_app.errors import STATE_FORMAT
from streams_app.folding.store.keys import shard_keys
from tests.helpers.waiting import wait_until
from tests.helpers.worker.site import LIMIT_SECONDS, Stage, reasons, until_folded


async def test_worker_leaves_a_partition_with_newer_state_alone_and_folds_the_others(stage: Stage) -> None:
    meta = shard_keys(stage.names.app_id, "account-metrics", stage.source, 0).meta
    with redis.Redis.from_url(stage.redis_url) as client:
        with stage.worker() as worker:
            await worker.wait_ready()
            await stage.send(100)
            await stage.outcome()
            assert 0 == await worker.terminate()
        client.hset(meta, "format", "99")
        before = client.hgetall(meta)
        with stage.worker() as worker:
            await wait_until(lambda: worker.log().count("claimed fold=") == 3, LIMIT_SECONDS, "the other partitions are claimed")
            await stage.send(100)
            await until_folded(worker, 1)
            why = await wait_until(lambda: reasons(worker), LIMIT_SECONDS, "the worker is not ready")
            assert before == client.hgetall(meta)
            assert "leaving a partition to workers of a newer version" in worker.log()
            assert f"{stage.source}-0 is left to workers of a newer version" in why[0]
            assert f"has format 99, and this version reads formats up to {STATE_FORMAT}" in why[0]

            client.hdel(meta, "format")
            await worker.wait_ready()
            outcome = await stage.outcome()

    assert [] == outcome.faults(stage.sent)
