"""Outboxes that contain blocks of several records, as the scripts of a worker leave them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack
from redis.asyncio import Redis

from streams_app.folding.core.record import SealedGroup
from streams_app.folding.store.keys import shard_keys
from streams_app.folding.store.scripts import FoldScripts
from streams_app.folding.store.shard_store import ShardStore
from streams_app.settings import Settings
from tests.helpers.folding.scripts import EPOCH


def sealed_group(key: str, first_offset: int, name: str = "likes") -> SealedGroup:
    return SealedGroup(b"s" + key.encode(), first_offset, first_offset + 2, 3, 1_000, 1_002, "quiet", 2_000, 4, {name: b""})


def block_of(records: Sequence[SealedGroup]) -> bytes:
    return b"".join(msgpack.packb(record, use_bin_type=False) for record in records)


async def put(store: ShardStore, *blocks: Sequence[SealedGroup]) -> None:
    """Add blocks to an outbox."""
    redis: Any = store.redis
    await redis.zadd(store.keys.outbox, {block_of(records): min(one.first_offset for one in records) for records in blocks})


async def shard_with(redis: Redis, settings: Settings, *blocks: Sequence[SealedGroup], fence: int = 1_000_000) -> ShardStore:
    """Return a shard of the first fold, claimed by ``me``, whose outbox contains these blocks."""
    fold = settings.folds[0]
    store = ShardStore(FoldScripts(redis), shard_keys(settings.app_id, fold.name, fold.source, 0))
    await store.claim("me", fence, EPOCH, "")
    if blocks:
        await put(store, *blocks)
    return store
