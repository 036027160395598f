"""What is open: behind the page ``/groups`` and the command ``streams-app groups list``.

Reads Redis in bounded pages, changes nothing; never on the path of events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgpack
from redis.asyncio import Redis

from streams_app.codec import canonical_bytes
from streams_app.errors import TryAgainError
from streams_app.folding.connection import REDIS_ERRORS, connect
from streams_app.folding.definition import Fold
from streams_app.folding.keys import INFO_FIELD, shard_keys
from streams_app.folding.ownership import Ownership
from streams_app.settings import Settings

MAX_ROWS: Final = 10_000
PARTITIONS_ASKED: Final = 1_000


@dataclass(frozen=True, slots=True)
class Place:
    """One shard and the time it lives by."""

    fold: Fold
    partition: int
    clock_ms: int


def group_text(member: bytes) -> str:
    """A group key as people read it: bytes that are no text are escaped."""
    return canonical_bytes(member).decode("utf-8", "backslashreplace")


async def rows_of(redis: Redis, app_id: str, place: Place, limit: int) -> list[dict[str, Any]]:
    """The open groups of one shard, longest quiet first.

    Returns:
        One dict a group: fold, source, partition, group, events, first_offset, last_event_ms (record time; -1 = unknown),
        quiet_in_ms, hold_in_ms (0 or less = due).
    """
    fold = place.fold
    keys = shard_keys(app_id, fold.name, fold.source, place.partition)
    members: Any = await redis.zrange(keys.due, 0, limit - 1, withscores=True)
    if not members:
        return []
    async with redis.pipeline(transaction=False) as pipe:
        for member, _ in members:
            pipe.hget(keys.group_prefix.encode() + member, INFO_FIELD)
        infos = await pipe.execute()
    rows = []
    for (member, score), packed in zip(members, infos, strict=True):
        if packed is None:
            continue  # sealed in the meantime
        _, first, _, opened, _, events, low, spread, _ = msgpack.unpackb(packed, raw=True)
        rows.append(
            {
                "fold": fold.name,
                "source": fold.source,
                "partition": place.partition,
                "group": group_text(member),
                "events": events,
                "first_offset": first,
                "last_event_ms": opened + low + spread,
                "quiet_in_ms": int(score) + fold.quiet_period_ms - place.clock_ms,
                "hold_in_ms": opened + fold.max_hold_ms - place.clock_ms,
            }
        )
    return rows


async def groups_of_worker(ownership: Ownership, redis: Redis, app_id: str, fold: str | None, limit: int) -> list[dict[str, Any]]:
    """Open groups of this worker's partitions, longest quiet first."""
    places = [
        Place(shard.fold, shard.partition, shard.clock_ms)
        for partition in list(ownership.partitions.values())
        for shard in partition.shards
        if fold is None or shard.fold.name == fold
    ]
    return await _collect(redis, app_id, places, limit)


async def groups_in_redis(settings: Settings, fold: str | None, limit: int) -> list[dict[str, Any]]:
    """Open groups of the application, whichever worker holds them, or none.

    Raises:
        TryAgainError: Redis does not answer.
    """
    redis = connect(settings.redis)
    try:
        places: list[Place] = []
        for declared in settings.folds:
            if fold is None or declared.name == fold:
                places += await _places(redis, settings.app_id, declared)
        return await _collect(redis, settings.app_id, places, limit)
    except REDIS_ERRORS as error:
        raise TryAgainError(f"cannot reach Redis at {settings.redis.redacted_url}: {error}") from error
    finally:
        await redis.aclose()


async def _places(redis: Redis, app_id: str, fold: Fold) -> list[Place]:
    """The shards of a fold that have state; partitions are numbered from 0, so they are asked for and not scanned for."""
    places: list[Place] = []
    begin = 0
    while True:
        numbers = range(begin, begin + PARTITIONS_ASKED)
        async with redis.pipeline(transaction=False) as pipe:
            for number in numbers:
                pipe.hget(shard_keys(app_id, fold.name, fold.source, number).meta, "clock")
            clocks = await pipe.execute()
        found = [Place(fold, number, int(clock)) for number, clock in zip(numbers, clocks, strict=True) if clock is not None]
        places += found
        if not found:
            return places
        begin += PARTITIONS_ASKED


async def _collect(redis: Redis, app_id: str, places: list[Place], limit: int) -> list[dict[str, Any]]:
    limit = min(limit, MAX_ROWS)
    rows: list[dict[str, Any]] = []
    for place in places:
        rows += await rows_of(redis, app_id, place, limit)
    rows.sort(key=lambda row: row["quiet_in_ms"])
    return rows[:limit]
