"""What is open in the shards of this worker: the page behind ``/groups``.

Reads Redis in bounded pages; never on the path of events.
"""

from __future__ import annotations

from typing import Any, Final

import msgpack

from streams_app.codec import canonical_bytes
from streams_app.folding.keys import INFO_FIELD
from streams_app.folding.ownership import Ownership
from streams_app.folding.shard import Shard

MAX_ROWS: Final = 1_000


def group_text(member: bytes) -> str:
    """A group key as people read it: bytes that are no text are escaped."""
    return canonical_bytes(member).decode("utf-8", "backslashreplace")


async def shard_rows(shard: Shard, limit: int) -> list[dict[str, Any]]:
    """The open groups of one shard, longest quiet first.

    Returns:
        One dict a group: fold, source, partition, group, events, last_event_ms, quiet_in_ms, hold_in_ms.
    """
    redis, keys = shard.store.redis, shard.store.keys
    members = await redis.zrange(keys.due, 0, limit - 1, withscores=True)
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
                "fold": shard.fold.name,
                "source": shard.topic,
                "partition": shard.partition,
                "group": group_text(member),
                "events": events,
                "first_offset": first,
                "last_event_ms": opened + low + spread,
                "quiet_in_ms": int(score) + shard.bounds.quiet_ms - shard.clock_ms,
                "hold_in_ms": opened + shard.bounds.hold_ms - shard.clock_ms,
            }
        )
    return rows


async def list_groups(ownership: Ownership, fold: str | None, limit: int) -> list[dict[str, Any]]:
    """Open groups of this worker's shards, longest quiet first.

    Args:
        ownership: Of this worker.
        fold: Only of this fold.
        limit: Rows at most, up to 1 000.
    """
    limit = min(limit, MAX_ROWS)
    rows: list[dict[str, Any]] = []
    for partition in list(ownership.partitions.values()):
        for shard in partition.shards:
            if fold is None or shard.fold.name == fold:
                rows += await shard_rows(shard, limit)
    rows.sort(key=lambda row: row["quiet_in_ms"])
    return rows[:limit]
