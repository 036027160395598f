"""The tasks of a fold in a partition end with its claim."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, patch

from redis.asyncio import Redis

from streams_app import Fold
from streams_app.clock import SystemClock
from streams_app.delivery.batch import TP, Batch
from streams_app.delivery.claim import LogBounds
from streams_app.delivery.clocks import ReaderView, TrustedClock
from streams_app.delivery.offset_metadata import OffsetAndMetadata
from streams_app.delivery.partition import PartitionClaim
from streams_app.folding.agents.processor import FoldProcessor
from streams_app.folding.shard.shard import Shard
from streams_app.folding.store.keys import shard_keys
from streams_app.folding.store.scripts import FoldScripts
from streams_app.folding.store.shard_store import ShardStore
from tests.conftest import Names
from tests.helpers.folding.shards import context_of, decoded_batches_of


async def test_fold_that_swallows_a_cancellation_ends_with_its_claim(redis_client: Redis, names: Names) -> None:
    fold, tp = Fold(name="f", source="t", group_key="a", changed="m", quiet_period=timedelta(minutes=1)), TP("t", 0)
    shard = Shard(fold, tp, ShardStore(FoldScripts(redis_client), shard_keys(names.app_id, "f", "t", 0)))
    processor = FoldProcessor(shard, decoded_batches_of(fold), context_of(redis_client, names, fold, TrustedClock(SystemClock())))
    bounds = LogBounds(0, 1, 0)
    reader = SimpleNamespace(reader_view=lambda _: (ReaderView(None, None), None))
    partition: Any = SimpleNamespace(group_consumer=reader, log_bounds_now=AsyncMock(return_value=bounds))
    begun = asyncio.Event()

    async def drops(batch: Batch) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)  # runs until it is cancelled
        except asyncio.CancelledError:
            pass  # as asyncio.wait_for of Python 3.11 does if its call completes at the same moment

    claim = PartitionClaim(tp, "f", 1, "m", OffsetAndMetadata(0), bounds, 1, "", was_reset=False, _partition=partition)
    await processor.claim(claim)
    with patch.object(processor, "fold_once", drops):
        processor.deliver(Batch(tp, [], 0, 1, stable_offset=1, fetched_at_ms=1, seek_number=0))
        await begun.wait()
        await processor.revoke(5.0)

    assert [] == [task.get_name() for task in asyncio.all_tasks() if f" f {tp}" in task.get_name()]
