"""Removes the state of a journal. Workers fill the journal again from the records that its source topic still has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from redis.asyncio import Redis

from streams_app.errors import ConfigurationError
from streams_app.fold import FOLD_NAME
from streams_app.journal.store.keys import journal_pattern
from streams_app.operations.groups import redis_of
from streams_app.settings import Settings

SCANNED: Final = 1_000
UNLINKED: Final = 500
"""Maximum number of block keys that one Redis command removes."""

META: Final = b":meta"
SHARD_KEYS: Final = (META, b":segments", b":about")


async def keys_of_journal(settings: Settings, name: str) -> list[bytes]:
    """List every Redis key of a journal, even if the journal is no longer declared."""
    declared = ", ".join(journal.name for journal in settings.journals) or "none"
    if not FOLD_NAME.fullmatch(name):
        # The name becomes part of a Redis pattern, in which "*" would match every journal.
        raise ConfigurationError([f"{name!r} is not the name of a journal (a-z, 0-9, _ and -); declared are: {declared}"])
    async with redis_of(settings) as redis:
        keys = await _scanned(redis, journal_pattern(settings.app_id, name))
    if not keys:
        raise ConfigurationError([f"there is nothing of a journal {name!r} in Redis; declared are: {declared}"])
    return keys


async def remove_journal(settings: Settings, name: str, keys: Sequence[bytes]) -> None:
    """Remove the keys of a journal, shard by shard, also those that workers have added meanwhile. The call may be repeated."""
    async with redis_of(settings) as redis:
        owners = set()
        for of_shard in _by_shard(keys):
            shard_keys = [key for key in of_shard if key.endswith(SHARD_KEYS)]
            owners |= {await redis.hget(key, "token") for key in shard_keys if key.endswith(META)}
            # In one command, so that the next claim finds the whole state or none.
            if shard_keys:
                await redis.unlink(*shard_keys)
            await _unlink(redis, [key for key in of_shard if key not in shard_keys])
        # Owners may have begun segments since the keys were listed; from now on their scripts are fenced.
        left = await _scanned(redis, journal_pattern(settings.app_id, name))
        await _unlink(redis, [key for key in left if key.rpartition(b":")[2] in owners])


async def _scanned(redis: Redis, pattern: str) -> list[bytes]:
    return [key async for key in redis.scan_iter(match=pattern, count=SCANNED)]


async def _unlink(redis: Redis, keys: Sequence[bytes]) -> None:
    for of_shard in _by_shard(keys):
        for at in range(0, len(of_shard), UNLINKED):
            await redis.unlink(*of_shard[at : at + UNLINKED])


def _by_shard(keys: Iterable[bytes]) -> Iterable[Sequence[bytes]]:
    """Group keys by shard, because only the keys of one shard are in the same slot of a Redis cluster."""
    shards: dict[bytes, list[bytes]] = defaultdict(list)
    for key in keys:
        shards[key[: key.index(b"}")]].append(key)
    return shards.values()
