"""Drops an open group without emitting a record.

``streams-app groups drop`` writes a request into Redis, and the owner of the shard drops the group with its next seal, see also
:mod:`streams_app.operations.flush`. The request names the first offset of the group. If the group closes before the owner reads
the request, a later group with the same key is not dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from redis.asyncio import Redis

from streams_app.errors import ConfigurationError
from streams_app.fold import Fold
from streams_app.folding.store.drop_request import DropAnswer, DropRequest
from streams_app.formatting import counted, escaped, shown_group, time_text
from streams_app.operations.explain_group import find
from streams_app.operations.flush import until_done
from streams_app.operations.group_facts import FoundGroup
from streams_app.operations.groups import StoredShard, redis_of, stored_shards
from streams_app.operations.listed_group import ListedGroup
from streams_app.settings import Settings

MAX_NAMES: Final = 20
"""Maximum number of changed names that are shown."""


@dataclass(frozen=True, slots=True)
class DropResult:
    """Result of a request to drop a group.

    Attributes:
        groups: Number of groups that were dropped. Each partition has at most one open group with the key.
        events: Number of events in these groups.
        closed: Number of groups that were not dropped, because they had closed before the owner read the request.
    """

    groups: int
    events: int
    closed: int


async def open_named(settings: Settings, fold: Fold, group: str) -> list[FoundGroup]:
    """Return a group, with its key as typed, in each partition in which it is open.

    Raises:
        ConfigurationError: It is not open.
    """
    async with redis_of(settings) as redis:
        return await open_in_shards(redis, await stored_shards(redis, settings, fold.name), fold, group)


async def open_in_shards(redis: Redis, shards: list[StoredShard], fold: Fold, group: str) -> list[FoundGroup]:
    """Return a group in each of some shards in which it is open, see :func:`open_named`."""
    found = [each for each in await find(redis, shards, group) if each.row is not None]
    if not found:
        raise ConfigurationError([f"{escaped(group)} is not open in fold {fold.name}; see `streams-app groups explain`"])
    return found


def row_of(found: FoundGroup) -> ListedGroup:
    """Return the row of an open group."""
    assert found.row is not None  # `open_named` returns only open groups
    return found.row


def open_text(found: FoundGroup, fold: Fold, name: str = "", *, has_names: bool = True) -> str:
    """Describe an open group: number of events, range of offsets, and changed names (pure).

    Args:
        name: How the group is called; empty: by its key.
        has_names: Whether the changed names are shown.
    """
    row = row_of(found)
    text = (
        f"{name or shown_group(found.member)} of fold {fold.name}: {counted(row.events, 'event')} of {found.shard}, offsets "
        f"{row.first_offset} to {row.last_offset}, the last at {time_text(row.last_event_ms)}"
    )
    if fold.keeps_events or not found.names or not has_names:
        return text
    more = len(found.names) - MAX_NAMES
    names = ", ".join(map(escaped, found.names[:MAX_NAMES]))
    return f"{text}; {counted(len(found.names), 'changed name')}: {names}{f' and {more} more' if more > 0 else ''}"


async def describe_drop(settings: Settings, fold: Fold, group: str) -> str:
    """Describe what a drop would remove: number of events, range of offsets, and changed names of the group. Change nothing."""
    return "\n".join(f"would drop {open_text(each, fold)}" for each in await open_named(settings, fold, group))


async def drop(settings: Settings, fold: Fold, group: str, by: str, reason: str, timeout_seconds: float) -> DropResult:
    """Request a worker to drop a group, and wait until it has done so.

    Args:
        group: Group key as typed.

    Raises:
        TryAgainError: Redis does not answer, or no worker has dropped the group in time; the request then remains in Redis.
    """
    async with redis_of(settings) as redis:
        found = await open_in_shards(redis, await stored_shards(redis, settings, fold.name), fold, group)
        requested = [(each, await _request(redis, each, by, reason)) for each in found]
        await until_done(lambda: _is_pending(redis, requested), timeout_seconds, ", unless the group has been emitted by then")
        events = [number for each, _ in requested if (number := await _dropped_events(redis, each)) is not None]
        return DropResult(len(events), sum(events), len(requested) - len(events))


async def _request(redis: Redis, found: FoundGroup, by: str, reason: str) -> bytes:
    """Write the request to drop one group into Redis; return its text."""
    text = DropRequest(row_of(found).first_offset, by, reason).to_text().encode()
    keys, member = found.shard.keys, found.member
    async with redis.pipeline(transaction=True) as pipe:
        pipe.hdel(keys.dropped, member)  # remove the answer to an earlier request
        pipe.hset(keys.drop, member, text)
        await pipe.execute()
    return text


async def _is_pending(redis: Redis, requested: list[tuple[FoundGroup, bytes]]) -> bool:
    for each, text in requested:
        if await redis.hget(each.shard.keys.drop, each.member) == text:
            return True
    return False


async def _dropped_events(redis: Redis, found: FoundGroup) -> int | None:
    """Return how many events the requested drop removed; None if the group closed before the owner read the request."""
    text: Any = await redis.hget(found.shard.keys.dropped, found.member)
    answer = DropAnswer.from_text(text) if text else None
    return answer.events if answer is not None and answer.first_offset == row_of(found).first_offset else None
