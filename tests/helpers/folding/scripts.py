"""Folding by direct script calls on a real server, without the owner of a shard."""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import Any, NamedTuple

from redis.asyncio import Redis

from streams_app.delivery.scripts import Script
from streams_app.folding.core.chunks import Chunk, ChunkCutter
from streams_app.folding.core.closing import FEW_NAMES, Bounds
from streams_app.folding.core.event import FoldEvent, FoldInput
from streams_app.folding.core.record import SealedGroup
from streams_app.folding.core.shard_clock import Clocks, RangeTime
from streams_app.folding.shard.range_progress import SCRIPT_WORK, ChunkProgress
from streams_app.folding.store.arguments import GroupPacker, PackedGroups
from streams_app.folding.store.codec import INFO_FIELD, PACKED_BYTES, StoredGroup, parts_of
from streams_app.folding.store.keys import shard_keys
from streams_app.folding.store.replies import FoldOutcome, FoldReply, RangeInProgress, SealedGroups
from streams_app.folding.store.scripts import FoldScripts
from streams_app.folding.store.shard_store import ShardStore

WALL = 10**12
EPOCH = b"eeee"
PARTITIONS = 4
OUTBOX_LIMIT = 1_000
MANY_GROUPS = 10_000
BOUNDS = Bounds(quiet_ms=10, hold_ms=40)
SESSIONS = Bounds(quiet_ms=10, hold_ms=40, sessions=True)


class FormPacker(GroupPacker):
    """Packs groups as the owner of a shard does; the fixture ``each_form`` chooses the form in which small ones are stored."""

    stores_packed = False

    def groups(self, *args: Any, may_pack: bool = False) -> PackedGroups:
        """Pack groups in the chosen form."""
        return super().groups(*args, may_pack=may_pack or self.stores_packed)


def new_store(redis: Redis) -> ShardStore:
    """Return a shard without an owner, with unique keys."""
    return ShardStore(FoldScripts(redis), shard_keys(f"test-{secrets.token_hex(4)}", "f", "t", 0))


def chunks_of(
    events: Iterable[FoldInput], end: int, *, start_ms: int = 0, above: int = -1, session_gap_ms: int | None = None,
    cap_ms: int = WALL, arrived_ms: int | None = None, keeps_values: bool = True, is_whole: bool = False, hold_ms: int = WALL,
    max_changed: int = FEW_NAMES,
) -> Iterator[Chunk]:  # fmt: skip
    """Return the events of a range, split into chunks as a shard does.

    Args:
        events: In offset order.
        end: The fence afterwards.
        start_ms: Score before the first event.
        above: Offset before the range.
        session_gap_ms: A longer gap begins a new run.
        cap_ms: Wall clock.
        arrived_ms: Time of its fetch, if it was live.
        keeps_values: Whether values are kept, too.
        is_whole: Whether to make one chunk of any length.
        hold_ms: Max hold.
        max_changed: Maximum number of names of a group; the default is never reached.
    """
    bounds = Bounds(quiet_ms=session_gap_ms or 0, hold_ms=hold_ms, max_changed=max_changed, sessions=session_gap_ms is not None)
    cutter = ChunkCutter(events, above, end, bounds, keeps_values=keeps_values)
    while cutter.above < end:
        chunk = cutter.next(RangeTime(cap_ms, arrived_ms), start_ms, is_whole=is_whole)
        start_ms = chunk.clock_ms
        yield chunk


def chunk_of(events: Sequence[FoldEvent], bounds: Bounds = BOUNDS, *, end: int | None = None, **how: Any) -> Chunk:
    """Return all these events as one chunk; see :func:`chunks_of`."""
    session_gap_ms = bounds.session_gap_ms
    how = {"above": events[0].offset - 1, **how}
    (chunk,) = chunks_of(events, events[-1].offset if end is None else end, session_gap_ms=session_gap_ms, is_whole=True, **how)
    return chunk


def one(offset: int, group: bytes = b"sa", stamp: int = 1_000, bounds: Bounds = BOUNDS) -> Chunk:
    """Return a chunk of one event."""
    return chunk_of([FoldEvent(offset, stamp, group, {"u": 1})], bounds)


def packed(chunk: Chunk, bounds: Bounds = BOUNDS, *, epoch: bytes = EPOCH, silent_from_ms: int = 0) -> PackedGroups:
    """Return all groups of a chunk, packed for one script."""
    return FormPacker(bounds, epoch, PARTITIONS, keeps_values=True).groups(
        chunk, sorted(chunk.groups), chunk.clock_ms, silent_from_ms, {}
    )


def packed_sessions(groups: PackedGroups) -> list[list[tuple[int, int, int, bytes]]]:
    """Return, for each group, first offset, first and last score, and the packed record of each of its sessions."""
    records, _, starts, spans = groups.sessions
    numbers = list(struct.iter_unpack(">Iddd", spans))
    begins = [begin for begin, *_ in numbers] + [len(records)]
    sessions = [(*map(int, span[1:]), records[begin:end]) for span, begin, end in zip(numbers, begins, begins[1:], strict=False)]
    counts = [count for (count,) in struct.iter_unpack(">I", starts)]
    return [sessions[begin:end] for begin, end in pairwise(counts)]  # type: ignore[misc]


async def send(
    store: ShardStore, fence: int, chunk: Chunk, groups: PackedGroups, bounds: Bounds = BOUNDS, *, cursor: bytes = b"",
    is_last: bool = True, token: str = "me", outbox_limit: int = OUTBOX_LIMIT, late_ms: int = 0, max_work: int = SCRIPT_WORK,
) -> FoldReply:  # fmt: skip
    """Run one *fold* script."""
    clocks = Clocks(chunk.clock_ms, chunk.clock_ms, late_ms)
    return await store.fold(
        token, fence, RangeInProgress(chunk.to, b"", chunk.time), cursor, groups, clocks, bounds,
        is_last=is_last, outbox_limit=outbox_limit, max_work=max_work, partitions=PARTITIONS,
    )  # fmt: skip


async def fold(
    store: ShardStore, fence: int, chunk: Chunk, bounds: Bounds = BOUNDS, events: Sequence[FoldInput] = (), *,
    epoch: bytes = EPOCH, silent_from_ms: int = 0, most: int = MANY_GROUPS, outbox_limit: int = OUTBOX_LIMIT,
    may_pack: bool = False,
) -> list[SealedGroup]:  # fmt: skip
    """Fold a chunk from its begin to its end; return the sealed records, script by script.

    Args:
        store: Store of a shard claimed by ``me``.
        fence: Current fence.
        chunk: Chunk to fold.
        bounds: Bounds of the fold.
        events: Events of its range, for groups whose runs must be split.
        epoch: Epoch of the state.
        silent_from_ms: Earliest time from which silence after its events is counted.
        most: Maximum number of groups of a script.
        outbox_limit: Number of records in the outbox from which nothing is folded.
        may_pack: Whether small groups are stored packed.
    """
    progress = ChunkProgress(chunk, b"", lambda: events)
    packing = FormPacker(bounds, epoch, PARTITIONS, keeps_values=True)
    sealed: list[SealedGroup] = []
    while True:
        groups, is_last = progress.next_groups(most, packing, silent_from_ms, may_pack=may_pack)
        reply = await send(
            store, fence, chunk, groups, bounds, cursor=progress.cursor, is_last=is_last, outbox_limit=outbox_limit
        )  # fmt: skip
        sealed += reply.sealed
        match reply.outcome:
            case FoldOutcome.DETAIL:
                progress.detail(reply.detail, bounds)
            case FoldOutcome.MORE:
                progress.advance_to(reply.cursor)
            case FoldOutcome.DONE:
                return sealed
            case _:
                raise AssertionError(f"the script says {reply.outcome}")


async def seal(
    store: ShardStore, fence: int, clock_ms: int, bounds: Bounds = BOUNDS, *, quiet: bool = True, everything: bool = False,
    limit: int = 9, is_redis_full: bool = False, token: str = "me",
) -> SealedGroups:  # fmt: skip
    """Run one *seal* script."""
    return await store.seal(
        token, fence, clock_ms, bounds, quiet=quiet, limit=limit, partitions=PARTITIONS, everything=everything,
        is_redis_full=is_redis_full,
    )  # fmt: skip


async def sealed_in(store: ShardStore) -> list[tuple[int, bytes]]:
    """Return the raw contents of the outbox: lowest first offset, packed records in a row."""
    found: Any = await store.redis.zrange(store.keys.outbox, 0, -1, withscores=True)
    return [(int(score), record) for record, score in found]


async def outbox_of(store: ShardStore) -> list[SealedGroup]:
    """Return the records in the outbox, in the order of their first offsets."""
    found = [record for _, records in await sealed_in(store) for record in SealedGroup.unpack_all(records)]
    return sorted(found, key=lambda record: record.first_offset)


async def entries_of(store: ShardStore) -> list[tuple[int, list[int]]]:
    """Return the first offset of each entry of the outbox, and those of its records."""
    return [
        (first, [record.first_offset for record in SealedGroup.unpack_all(records)]) for first, records in await sealed_in(store)
    ]


class StoredContent(NamedTuple):
    """The contents of a stored group of any epoch, with its exact number of names."""

    numbers: StoredGroup
    names: dict[bytes, bytes]


async def open_groups(store: ShardStore, *, has_remains: bool = False) -> dict[bytes, StoredContent]:
    """Return the open groups of a shard.

    With ``has_remains``, a packed group may also have a hash: a script that failed half-way has written it, and a seal has
    closed the packed group since.
    """
    found = {}
    members: Any = await store.redis.zrange(store.keys.first, 0, -1, withscores=True)
    for member, first_offset in members:
        packed: Any = await store.redis.hget(store.keys.open, member)
        content: Any = await store.redis.hgetall(store.keys.group_prefix.encode() + member)
        if packed:
            assert has_remains or not content, "a group is stored in both forms"
            info, content = parts_of(packed)
            assert len(packed) - len(info) <= PACKED_BYTES
        else:
            info = content.pop(INFO_FIELD)
        numbers = StoredGroup.unpack(info)
        assert numbers.first_offset == first_offset
        assert len(content) <= numbers.names
        found[member] = StoredContent(numbers._replace(epoch=b"", names=len(content)), content)
    return found


async def packed_in(store: ShardStore) -> set[bytes]:
    """Return the groups of a shard that are packed."""
    found: Any = await store.redis.hkeys(store.keys.open)
    return set(found)


async def state_of(store: ShardStore) -> dict[bytes, Any]:
    """Return all keys and values of a shard."""
    names = [key async for key in store.redis.scan_iter(match=store.keys.meta.removesuffix("meta") + "*")]
    return {name: await store.redis.dump(name) for name in names}


async def emptied(store: ShardStore) -> None:
    """Remove every key of a shard."""
    base = store.keys.meta.removesuffix("meta")
    await store.redis.delete(base, *[key async for key in store.redis.scan_iter(match=base + "*")])


async def meta_of(store: ShardStore) -> dict[str, str]:
    """Return the fields of the shard's meta."""
    found: Any = await store.redis.hgetall(store.keys.meta)
    return {name.decode(): value.decode("utf-8", "surrogateescape") for name, value in found.items()}


def edited(store: ShardStore, edit: Callable[[str], str], name: str = "fold") -> ShardStore:
    """Return the same shard with a changed text of one script."""
    scripts = FoldScripts(store.redis)
    text = edit(FoldScripts.source(name))
    scripts.by_name[name] = Script(name, store.redis.register_script(text), lambda _: nullcontext())
    return ShardStore(scripts, store.keys)


class BriefStore(ShardStore):
    """A shard with another limit on the work of a script."""

    def __init__(self, store: ShardStore, work: int) -> None:
        super().__init__(FoldScripts(store.redis), store.keys)
        self.work = work

    async def fold(self, *args: Any, **kwargs: Any) -> FoldReply:
        """Fold with the lower limit on work."""
        return await super().fold(*args, **kwargs | {"max_work": self.work})


async def open_in(
    app_id: str, name: str, topic: str, client: Redis, partition: int, events: Sequence[FoldEvent], bounds: Bounds = BOUNDS,
    *, may_pack: bool = True,
) -> ShardStore:  # fmt: skip
    """Fold events of a fold with this name as a worker would; return the shard, owned by ``me``."""
    store = ShardStore(FoldScripts(client), shard_keys(app_id, name, topic, partition))
    fence = events[0].offset - 1
    await store.claim("me", fence, EPOCH, "")
    await fold(store, fence, chunk_of(events), bounds, may_pack=may_pack)
    return store
