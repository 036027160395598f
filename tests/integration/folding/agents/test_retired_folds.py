"""A fold that is no longer declared: its open groups are emitted, also after an outage of Redis."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, patch

from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from streams_app.delivery.batch import TP
from streams_app.delivery.claim import LogBounds
from streams_app.delivery.offset_metadata import OffsetAndMetadata
from streams_app.delivery.partition import PartitionClaim
from streams_app.folding.agents.retired_folds import RetiredFoldProcessor
from streams_app.folding.core.event import FoldEvent
from tests.conftest import Names
from tests.helpers.folding.shards import claimed_shard, fold_some


async def test_partition_is_reclaimed_if_a_reply_of_its_drain_is_missing(redis_client: Redis, names: Names) -> None:
    shard = await claimed_shard(redis_client, names, "merge")
    await fold_some(shard, [FoldEvent(0, 1_000, b"sa", {"u": 1})])
    resyncs: asyncio.Queue[tuple[str, ...]] = asyncio.Queue()
    partition: Any = SimpleNamespace(resync=lambda *arguments: resyncs.put_nowait(arguments))
    claim = PartitionClaim(
        TP("t", 0), "f", 1, "m", OffsetAndMetadata(0), LogBounds(0, 1, 0), 1, "", was_reset=False, _partition=partition
    )
    clock = SimpleNamespace(now_ms=lambda: 2_000)
    context = SimpleNamespace(
        producer=None, clock=clock, metrics=None, dead_letter_sender_of=lambda *_: None, record_tracing_of=lambda _: None
    )
    processor = RetiredFoldProcessor(shard.store, cast("Any", context))
    with patch.object(shard.store, "seal", AsyncMock(side_effect=RedisConnectionError("the reply was lost"))):
        await processor.claim(claim)
        cause, _, script = await asyncio.wait_for(resyncs.get(), 60)

    assert ("lost-reply", "seal") == (cause, script)
    await processor.revoke(0.0)
