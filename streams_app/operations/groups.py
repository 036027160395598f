"""Lists the open groups, for the HTTP page ``/groups`` of a worker and the command ``streams-app groups list``.

Redis is read in bounded batches, without changing anything. Event processing does not use this module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

import msgspec
from redis.asyncio import Redis

from streams_app.codec import canonical_bytes, keys_typed, member_of
from streams_app.errors import BadEventError, UnknownFoldError, check_state_format
from streams_app.fold import Fold
from streams_app.folding.core.record import SealedGroup
from streams_app.folding.shard.shard import Shard
from streams_app.folding.store.codec import TIMERS_IN_A_BATCH, timers_in
from streams_app.folding.store.keys import ShardKeys, shard_keys
from streams_app.folding.store.open_groups import GroupContent, read_groups
from streams_app.formatting import group_value
from streams_app.operations.listed_group import ListedGroup
from streams_app.operations.outbox_blocks import blocks_in
from streams_app.read_store.core.function_answer import group_of
from streams_app.redis_access.client import REDIS_ERRORS, connect_briefly, why_unreachable
from streams_app.settings import Settings

MAX_ROWS: Final = 10_000
MAX_SCANNED: Final = 100_000
"""Maximum number of groups of one shard that are read if Redis has no index for the sort order."""

WORKER_SCANNED: Final = 10_000
"""Maximum number of groups of one shard that a worker reads for its page. Groups are read in the order of their timers. An event
moves the end of the quiet period but not the timer, so busy groups may come too early; hence more groups are read than shown."""

BATCH: Final = 1_000
PARTITIONS_ASKED: Final = 1_000
"""So many consecutive partitions without state are the end of a topic. Each of two workers has its half of the partitions."""

PARTITIONS_READ: Final = 16
"""Partitions whose state is read by the first request; each further request reads twice as many."""

SCAN_OUTBOX: Final = 10_000

SORTS: Final = {
    "quiet": (attrgetter("quiet_in_ms"), False),
    "oldest": (attrgetter("hold_in_ms"), False),
    "events": (attrgetter("events"), True),
    "largest": (attrgetter("names"), True),
}
"""Sort key of each sort order, and whether the order is descending."""


@dataclass(frozen=True, slots=True)
class StoredShard:
    """A shard that has state in Redis, with its clock, and with its fence, the highest folded offset."""

    app_id: str
    fold: Fold
    partition: int
    clock_ms: int
    fence: int
    late_ms: int = 0
    """With ``backlog = "sessions"``, how far record time is behind the clock, in ms: ``max_hold`` counts from record times."""

    def quiet_in_ms(self, silent_from_ms: float) -> int:
        """Return the time in ms until the quiet period of a group ends; 0 or less: it has ended, so that the group is due.

        Args:
            silent_from_ms: Beginning of the quiet period by the clock of the shard, usually the time of the group's newest event.
        """
        return int(silent_from_ms) + self.fold.quiet_period_ms - self.clock_ms

    @property
    def keys(self) -> ShardKeys:
        return shard_keys(self.app_id, self.fold.name, self.fold.source, self.partition)

    def __str__(self) -> str:
        return f"{self.fold.source}-{self.partition}"


def group_text(member: bytes) -> str:
    """Format a group key for display; bytes that are not text are escaped."""
    return canonical_bytes(member).decode("utf-8", "backslashreplace")


@asynccontextmanager
async def redis_of(settings: Settings) -> AsyncIterator[Redis]:
    """Return a client of the application's Redis for one command, as an ``async with`` block that closes the client.

    The block raises TryAgainError if Redis does not answer, and ConfigurationError if it rejects the connection.
    """
    redis = connect_briefly(settings.redis)
    try:
        yield redis
    except REDIS_ERRORS as error:
        raise await why_unreachable(settings.redis, error) from error
    finally:
        await redis.aclose()


async def rows_of(redis: Redis, shard: StoredShard, members: Sequence[tuple[bytes, float]]) -> list[ListedGroup]:
    """Return those of the given groups that are still open.

    Args:
        members: Group keys as stored in Redis, each with its timer or first offset, which is ignored.
    """
    found = await read_groups(redis, shard.keys, [member for member, _ in members])
    return [listed_group(shard, member, found[member]) for member, _ in members if member in found]


def listed_group(shard: StoredShard, member: bytes, content: GroupContent) -> ListedGroup:
    """Return an open group as it is displayed (pure)."""
    fold, group = shard.fold, content.numbers
    return ListedGroup(
        fold=fold.name,
        source=fold.source,
        partition=shard.partition,
        group=group_text(member),
        key=group_value(member),
        events=group.events,
        names=0 if fold.keeps_events else content.name_count,
        bytes=group.names if fold.keeps_events else 0,
        first_offset=group.first_offset,
        last_offset=group.last_offset,
        first_event_ms=group.low_ms,
        last_event_ms=group.high_ms,
        quiet_in_ms=shard.quiet_in_ms(group.silent_from_ms - group.shorter_ms),
        hold_in_ms=group.opened_ms + fold.max_hold_ms + shard.late_ms - shard.clock_ms,
        duplicates=group.duplicates,
        quiet_period_ms=fold.quiet_period_ms - group.shorter_ms,
    )


async def groups_of_worker(
    shards: Sequence[Shard], settings: Settings, redis: Redis, fold: str | None, limit: int
) -> list[dict[str, Any]]:
    """Return the open groups in this worker's partitions, as JSON, ordered by the end of their quiet period.

    To bound the cost, only a limited number of groups of each shard is read, those with the earliest timers. So the result may lack
    a group whose quiet period ends earlier than that of some group in the result.

    Raises:
        UnknownFoldError: The fold is not declared.
    """
    declared = [other.name for other in settings.folds]
    if fold is not None and fold not in declared:
        raise UnknownFoldError(fold, declared)
    stored = [
        StoredShard(
            settings.app_id, shard.fold, shard.tp.partition, shard.clock.stored.clock_ms, shard.fence, shard.clock.stored.late_ms
        )
        for shard in shards
        if fold is None or shard.fold.name == fold
    ]
    rows = await collect(redis, stored, limit, "quiet", max(limit, min(10 * limit, WORKER_SCANNED)))
    return [msgspec.structs.asdict(row) for row in rows]


async def groups_in_redis(settings: Settings, fold: str | None, limit: int, sort: str = "quiet") -> list[ListedGroup]:
    """Return the open groups of the application. They are read from Redis, so no worker has to run.

    Args:
        sort: One of :data:`SORTS`. If Redis has no index for it, at most 100 000 groups of a partition are read. If a partition has
            more, the result may lack some.
    """
    async with redis_of(settings) as redis:
        return await collect(redis, await stored_shards(redis, settings, fold), limit, sort)


async def open_in_redis(settings: Settings, fold: str | None) -> int:
    """Count the open groups of one fold, or of all declared folds."""
    async with redis_of(settings) as redis:
        stored = await stored_shards(redis, settings, fold)
        return sum([await redis.zcard(shard.keys.first) for shard in stored])


async def stored_shards(redis: Redis, settings: Settings, fold: str | None) -> list[StoredShard]:
    """Return the shards that have state in Redis, of one fold or of all declared folds."""
    stored: list[StoredShard] = []
    for declared in settings.folds:
        if fold is None or declared.name == fold:
            stored += await _stored_shards(redis, settings.app_id, declared)
    return stored


async def folds_with_open(settings: Settings, group: str) -> list[str]:
    """Return the names of the folds in which a group is open, by its key as typed, see :func:`.keys_typed`."""
    found: dict[str, None] = {}
    async with redis_of(settings) as redis:
        for shard in await stored_shards(redis, settings, None):
            for member in keys_typed(group):
                if shard.fold.name not in found and await redis.zscore(shard.keys.first, member) is not None:
                    found[shard.fold.name] = None
    return list(found)


async def _stored_shards(redis: Redis, app_id: str, fold: Fold) -> list[StoredShard]:
    """Return the shards of one fold that have state in Redis; reads the keys of partition 0, 1 and so on, without a scan."""
    stored: list[StoredShard] = []
    begin = 0
    while found := await _shards_among(redis, app_id, fold, range(begin, begin + PARTITIONS_ASKED)):
        stored += found
        begin += PARTITIONS_ASKED
    return stored


async def _shards_among(redis: Redis, app_id: str, fold: Fold, partitions: range) -> list[StoredShard]:
    """Return the shards of some partitions that have state in Redis.

    One command counts them, because most applications have few. They are read from the first partition on, until all are found.
    """
    keys = [shard_keys(app_id, fold.name, fold.source, number).meta for number in partitions]
    missing = await redis.exists(*keys)
    found: list[StoredShard] = []
    size, read = PARTITIONS_READ, 0
    while missing > 0 and read < len(keys):
        async with redis.pipeline(transaction=False) as pipe:
            for key in keys[read : read + size]:
                pipe.hmget(key, ["clock", "fence", "late", "format"])
            states = await pipe.execute()
        for number, (clock, fence, late, found_format) in zip(partitions[read:], states, strict=False):
            check_state_format(f"the state of fold {fold.name!r} in partition {number}", found_format)
            if clock is not None and fence is not None:
                found.append(StoredShard(app_id, fold, number, int(clock), int(fence), int(late or 0)))
            missing -= any(field is not None for field in (clock, fence, late, found_format))
        read, size = read + size, 2 * size
    return found


async def collect(
    redis: Redis, stored: Sequence[StoredShard], limit: int, sort: str, scanned: int = MAX_SCANNED
) -> list[ListedGroup]:
    """Return the first ``limit`` open groups of the given shards in a sort order.

    Args:
        scanned: Maximum number of groups of one shard that are read. If a shard has more, the result may lack some.
    """
    limit = min(limit, MAX_ROWS)
    sort_key, descending = SORTS[sort]
    rows: list[ListedGroup] = []
    for shard in stored:
        if sort == "quiet":
            batches = _by_timer(redis, shard, scanned)
        else:
            batches = _by_opening(redis, shard, limit if sort == "oldest" else scanned)
        async for members, until in batches:
            rows += await rows_of(redis, shard, members)
            rows.sort(key=sort_key, reverse=descending)
            del rows[limit:]
            if sort == "quiet" and len(rows) == limit and rows[-1].quiet_in_ms <= until:
                break
    return rows


async def outbox_counts(redis: Redis, shard: StoredShard) -> dict[bytes, int]:
    """Count the unsent records of each group, by its key as stored in Redis, among the first 10 000 records of the outbox."""
    counts: Counter[bytes] = Counter()
    async for block in blocks_in(redis, shard.keys.outbox):
        left = SCAN_OUTBOX - counts.total()
        counts.update(record.member for record in SealedGroup.unpack_all(block)[:left])
        if counts.total() == SCAN_OUTBOX:
            break
    return counts


_Pages = AsyncIterator[tuple[list[tuple[bytes, float]], float]]


async def _by_timer(redis: Redis, shard: StoredShard, scanned: int) -> _Pages:
    """Yield batches of group keys with their timers, the earliest timer first.

    Each batch comes with a time in ms within which no group of a later batch becomes due. A caller that has enough groups that
    become due within that time can stop. Hashes and packed groups have timers in different keys, which are read in turn.
    """
    seen: set[bytes] = set()
    read_to: dict[_Pages, float] = dict.fromkeys((_timers_of_hashes(redis, shard), _timers_of_packed(redis, shard)), float("-inf"))
    while read_to and len(seen) < scanned:
        behind = min(read_to, key=lambda pages: read_to[pages])
        page = await anext(behind, None)
        if page is None:
            del read_to[behind]
            continue
        found, read_to[behind] = page
        fresh = {member: timer for member, timer in found if member not in seen}
        seen.update(fresh)
        until = min(read_to.values())
        yield list(fresh.items()), until if until == float("-inf") else shard.quiet_in_ms(until)


def _timers_of_hashes(redis: Redis, shard: StoredShard) -> _Pages:
    return _by_score(redis, shard.keys.due, BATCH)


async def _timers_of_packed(redis: Redis, shard: StoredShard) -> _Pages:
    async for batches, after in _by_score(redis, shard.keys.timers, BATCH // TIMERS_IN_A_BATCH + 1):
        timers = [timer for batch, _ in batches for timer in timers_in(batch)]
        async with redis.pipeline(transaction=False) as pipe:
            for first_offset, _ in timers:
                pipe.zrangebyscore(shard.keys.first, first_offset, first_offset)
            found = await pipe.execute()
        yield [(member, timer) for (_, timer), members in zip(timers, found, strict=True) for member in members], after


async def _by_score(redis: Redis, key: str, size: int) -> _Pages:
    """Yield the members of a sorted set with their scores, and the score up to which they are read.

    They are read by score and not by rank, because the owner changes scores meanwhile, and the ranks with them.
    """
    after, ties = float("-inf"), 0
    seen: set[bytes] = set()
    while True:
        # Members that share the last score are read again, because some may have left, so that others moved up.
        found: Any = await redis.zrangebyscore(key, after, "+inf", start=0, num=ties + size, withscores=True)
        if found:
            wanted, after = ties + size, found[-1][1]
            yield [pair for pair in found if pair[0] not in seen], after
            seen.update(member for member, _ in found)
            ties = sum(score == after for _, score in found)
        if not found or len(found) < wanted:
            return


async def _by_opening(redis: Redis, shard: StoredShard, scanned: int) -> _Pages:
    """Yield batches of group keys with their first offsets, in the order in which the groups were opened.

    The time of each batch is always 0, because this order does not show when the groups of later batches become due.
    """
    for begin in range(0, scanned, BATCH):
        end = min(begin + BATCH, scanned) - 1
        members: Any = await redis.zrange(shard.keys.first, begin, end, withscores=True)
        yield members, 0.0
        if len(members) < BATCH:
            return


ASKED: Final = 1_000
"""Number of groups in one request to Redis."""


async def open_groups(settings: Settings, fold: str, columns: Collection[str]) -> set[str]:
    """Return which groups, given as in the column ``group_key``, are open or have one of the first 10 000 records of an outbox."""
    members: dict[bytes, str] = {}
    for column in columns:
        group = group_of(column)
        with suppress(BadEventError):  # the key was not UTF-8: the column has only its display form
            members[member_of(group if isinstance(group, tuple) else (group,))] = column
    found: set[bytes] = set()
    async with redis_of(settings) as redis:
        for shard in await stored_shards(redis, settings, fold):
            left = list(members.keys() - found)
            for begin in range(0, len(left), ASKED):
                asked: Any = left[begin : begin + ASKED]
                opened: Any = await redis.zmscore(shard.keys.first, asked)
                found.update(member for member, first in zip(asked, opened, strict=True) if first is not None)
            # Read the outbox after the open groups, because they move from there to the outbox.
            found.update(members.keys() & (await outbox_counts(redis, shard)).keys())
    return {members[member] for member in found}
