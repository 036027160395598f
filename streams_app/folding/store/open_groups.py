"""Reads open groups in either form, for commands and pages. Processors do not use this module: their scripts read the groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis

from streams_app.folding.store.codec import INFO_FIELD, StoredGroup, parts_of
from streams_app.folding.store.keys import ShardKeys

PACKED_FORMAT: Final = b"3"
"""Format of a shard with packed groups; in any other one, they are remains of an older state."""


class GroupContent(NamedTuple):
    """What Redis has of an open group.

    Attributes:
        name_count: Number of its changed names; if the fold keeps events, number of its runs.
        names: Its changed names, or the first offsets of its runs; empty unless the caller asks for them.
    """

    numbers: StoredGroup
    name_count: int
    names: tuple[bytes, ...]


async def read_groups(
    redis: Redis, keys: ShardKeys, members: Sequence[bytes], *, with_names: bool = False
) -> dict[bytes, GroupContent]:
    """Return those of the given groups that Redis has, packed or as a hash. Groups of an older state are left out.

    First, one command reads the packed groups. A group that it does not find is a hash, or closed, or changes its form at this
    moment. So both forms of these groups are then read in one transaction.
    """
    found = await _read(redis, keys, members, as_hashes=False, with_names=with_names)
    rest = [member for member in members if member not in found]
    return found | await _read(redis, keys, rest, as_hashes=True, with_names=with_names)


async def _read(
    redis: Redis, keys: ShardKeys, members: Sequence[bytes], *, as_hashes: bool, with_names: bool
) -> dict[bytes, GroupContent]:
    if not members:
        return {}
    async with redis.pipeline(transaction=as_hashes) as pipe:
        pipe.hmget(keys.meta, ["epoch", "format"])
        pipe.hmget(keys.open, list(members))
        for member in members if as_hashes else ():
            key: Any = keys.group_prefix.encode() + member  # redis-py has another type for keys that are bytes
            pipe.hget(key, INFO_FIELD)
            pipe.hkeys(key) if with_names else pipe.hlen(key)
        (epoch, stored_format), packed, *hashes = await pipe.execute()
    found = {
        member: _of_hash(numbers, fields)
        for member, numbers, fields in zip(members, hashes[::2], hashes[1::2], strict=False)
        if numbers is not None
    }
    of_epoch = {member: content for member, content in found.items() if content.numbers.epoch == epoch}
    for member, group in zip(members, packed, strict=True):
        # If both forms exist, because a script has failed half-way, the packed one counts.
        if group is not None and stored_format == PACKED_FORMAT:
            of_epoch[member] = _of_packed(group, with_names=with_names)
    return of_epoch


def _of_packed(group: bytes, *, with_names: bool) -> GroupContent:
    numbers, names = parts_of(group)
    return GroupContent(StoredGroup.unpack(numbers), len(names), tuple(names) if with_names else ())


def _of_hash(numbers: bytes, fields: list[bytes] | int) -> GroupContent:
    names = () if isinstance(fields, int) else tuple(field for field in fields if field != INFO_FIELD)
    return GroupContent(StoredGroup.unpack(numbers), fields - 1 if isinstance(fields, int) else len(names), names)
