"""Reads the outbox of a shard in bounded pages, for operators; changes nothing.

An entry of the outbox is a *block*: packed sealed records in a row. Its score is the lowest first offset of them.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgpack
from redis.asyncio import Redis

from streams_app.folding.core.record import SealedGroup

FIRST_PAGE: Final = 4
"""Number of blocks in the first page; a block may have thousands of records, or one record with thousands of events."""

PAGE_BYTES: Final = 1_000_000
MOST_IN_PAGE: Final = 1_000


async def blocks_in(redis: Redis, outbox: str | bytes) -> AsyncIterator[bytes]:
    """Yield each block that is in an outbox the whole time, in the order of the scores.

    Blocks are read by score and not by rank, because the owner removes blocks meanwhile, so that the ranks of others change.
    """
    client: Any = redis  # redis-py has other types for keys that are bytes
    after: float = -math.inf
    ties: set[bytes] = set()
    page, blocks, size = FIRST_PAGE, 0, 0
    while True:
        # Blocks that share the last score are read again, because some may have left, so that others moved up.
        wanted = len(ties) + page
        found = await client.zrangebyscore(outbox, after, "+inf", start=0, num=wanted, withscores=True)
        for block, _ in found:
            if block not in ties:
                blocks, size = blocks + 1, size + len(block)
                yield block
        if len(found) < wanted:
            return
        after = found[-1][1]
        ties = {block for block, score in found if score == after}
        page = max(1, min(MOST_IN_PAGE, PAGE_BYTES * blocks // max(1, size)))


def packed_records(block: bytes) -> list[bytes]:
    """Split a block into its packed records; of a damaged block, those before the damage."""
    unpacker = msgpack.Unpacker(max_buffer_size=max(1, len(block)))
    unpacker.feed(block)
    found: list[bytes] = []
    at = 0
    with suppress(ValueError, msgpack.OutOfData):
        while True:
            unpacker.skip()
            found.append(block[at : unpacker.tell()])
            at = unpacker.tell()
    return found


async def count_records(redis: Redis, outbox: str | bytes, most: float = math.inf) -> int:
    """Count the records in an outbox. From ``most`` on, each further block counts as one record; so does a damaged one."""
    client: Any = redis
    blocks = records = 0
    async for block in blocks_in(redis, outbox):
        blocks, records = blocks + 1, records + max(1, len(packed_records(block)))
        if records >= most:
            return records + max(0, await client.zcard(outbox) - blocks)
    return records


class ShortenedBlock(NamedTuple):
    """A block from which records are removed.

    Attributes:
        block: As it is stored.
        rest: What is left; empty if nothing is.
        first_offset: Lowest first offset of the rest, its score; 0 if nothing is left.
        removed: Number of records that are removed.
    """

    block: bytes
    rest: bytes
    first_offset: int
    removed: int


def without(block: bytes, is_removed: Callable[[SealedGroup], bool]) -> ShortenedBlock | None:
    """Remove records from a block; None if it has none of them (pure). The bytes and the order of the others stay."""
    records = SealedGroup.unpack_all(block)
    left = [
        (record.first_offset, packed)
        for record, packed in zip(records, packed_records(block), strict=True)
        if not is_removed(record)
    ]
    if len(left) == len(records):
        return None
    lowest = min((first_offset for first_offset, _ in left), default=0)
    return ShortenedBlock(block, b"".join(packed for _, packed in left), lowest, len(records) - len(left))
