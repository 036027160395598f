"""Requests that open groups are emitted now; the owner of their shard emits them with its next seal.

``streams-app groups flush`` and ``POST /groups/flush`` only write a request into Redis, because only the owner of a shard may emit,
under its token and fence. If no worker runs, the next one that claims the partition carries out the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from redis.asyncio import Redis

from streams_app.codec import keys_typed
from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.fold import Fold
from streams_app.folding.store.keys import EVERYTHING
from streams_app.formatting import escaped
from streams_app.operations.groups import StoredShard, redis_of, stored_shards
from streams_app.settings import Settings

POLL_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class FlushResult:
    """Result of a request to emit groups: the numbers of open groups, and of partitions in which they were open.

    A group that is open in two partitions counts twice.
    """

    groups: int
    partitions: int


async def open_counts(settings: Settings, fold: Fold) -> dict[str, int]:
    """Return the number of open groups in each partition that has some, by the name of the partition."""
    async with redis_of(settings) as redis:
        counts: dict[str, int] = {}
        for shard in await stored_shards(redis, settings, fold.name):
            count: Any = await redis.zcard(shard.keys.first)
            if count:
                counts[str(shard)] = count
        return counts


async def flush(settings: Settings, fold: Fold, group: str | None, timeout_seconds: float) -> FlushResult:
    """Request workers to emit groups, and wait until they have done so.

    Args:
        group: Group key as typed; None: every open group.

    Raises:
        TryAgainError: Redis does not answer, or no worker has emitted the groups in time; the request then remains in Redis.
    """
    async with redis_of(settings) as redis:
        shards = await stored_shards(redis, settings, fold.name)
        requested = await _request_all(redis, shards) if group is None else await _request_one(redis, shards, fold, group)
        await until_done(lambda: _pending(redis, requested), timeout_seconds)
        return FlushResult(sum(requested.values()), len(requested))


async def until_done(is_pending: Callable[[], Awaitable[object]], timeout_seconds: float, unless: str = "") -> None:
    """Wait until workers have carried out a request.

    Args:
        is_pending: Returns whether a part of the request is not carried out yet.
        unless: Why the next owner of the partition may not carry it out; "" if it will in any case.

    Raises:
        TryAgainError: No worker has carried out the request in time.
    """
    try:
        async with asyncio.timeout(timeout_seconds):
            while await is_pending():  # noqa: ASYNC110  # another process carries out the request
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError as error:
        raise TryAgainError(
            f"requested, but no worker has done it within {timeout_seconds:g} s: the next owner of the partition will do it{unless}"
        ) from error


async def _request_all(redis: Redis, shards: list[StoredShard]) -> dict[str, int]:
    """Store the requests; return the number of open groups by the Redis key of the request."""
    requested = {}
    for shard in shards:
        count: Any = await redis.zcard(shard.keys.first)
        if count:
            await redis.sadd(shard.keys.flush, EVERYTHING)
            requested[shard.keys.flush] = count
    return requested


async def _request_one(redis: Redis, shards: list[StoredShard], fold: Fold, group: str) -> dict[str, int]:
    found = await request_group(redis, shards, keys_typed(group))
    if not found:
        raise ConfigurationError([f"{escaped(group)} is not open in fold {fold.name}; see `streams-app groups explain`"])
    return {shard.keys.flush: 1 for shard in found}


async def request_group(redis: Redis, shards: Sequence[StoredShard], members: Sequence[bytes]) -> list[StoredShard]:
    """Request that a group is emitted; return the shards in which it is open.

    A repeated request has no further effect. If the group is emitted in the meantime, the owner discards the request.

    Args:
        members: What the group key may mean, as stored in Redis, see :func:`.member_of`.
    """
    pairs = [(shard, member) for shard in shards for member in members]
    async with redis.pipeline(transaction=False) as pipe:
        for shard, member in pairs:
            pipe.zscore(shard.keys.first, member)
        opened = await pipe.execute()
        found = [pair for pair, first in zip(pairs, opened, strict=True) if first is not None]
        for shard, member in found:
            pipe.sadd(shard.keys.flush, member)
        await pipe.execute()
    return [shard for shard, _ in found]


async def _pending(redis: Redis, requested: dict[str, int]) -> bool:
    for key in requested:
        if await redis.exists(key):
            return True
    return False
