"""Calls the Lua scripts of journals, for the owner of a shard and for readers.

The keys are those of :mod:`.keys`. Each script is a file in ``lua/``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, NamedTuple

from streams_app.delivery.fingerprints import Fingerprint, of_text, to_text, up_to
from streams_app.delivery.scripts import ScriptSet
from streams_app.errors import check_state_format
from streams_app.journal.core.block import BLOCK_OVERHEAD, escaped, last_of, position, scan_position
from streams_app.journal.store.keys import JournalKeys
from streams_app.journal.store.segment import Segment, packed_segment, segments_of

REPLY_BYTES: Final = 300_000
"""Maximum size of a reply of the scripts *read* and *scan* in bytes; only its last block may exceed it."""

STAGED_BYTES: Final = 300_000
"""Size of the blocks in one call of the script *stage*, in bytes; a single larger block is allowed."""

SMALL_BLOCKS_BYTES: Final = 4_000_000
"""Maximum size in bytes of the blocks that one command reads without a script. Nearly all replies are far smaller."""

MIN_SMALL_BLOCKS: Final = 100
"""Minimum number of blocks for a read without a script, which takes two requests: a command, and then a check of the segment."""

MAX_STAGED: Final = 1_000
"""Maximum number of blocks in one call of the script *stage*."""


class InitialState(NamedTuple):
    """State that a claim creates if the shard has none; ``fence`` is the offset before the first event."""

    fence: int
    clock_ms: int


class JournalClaim(NamedTuple):
    """The state of a shard that a claim found or created.

    Attributes:
        topic_id: Id of the source, as stored by the first claim for which the broker gave one; "" if there was none.
        log: Fingerprints of appended records, up to the fence.
        segments: All segments, in the order of their offsets.
    """

    fence: int
    clock_ms: int
    topic_id: str
    log: tuple[Fingerprint, ...]
    segments: tuple[Segment, ...]
    is_new: bool


class ShardStatus(NamedTuple):
    """The current state of a shard, for readers.

    Attributes:
        partitions: Number of partitions of the source, as the owner of this shard stored it.
        floor: First offset of the oldest segment; the offset after the fence if there is no segment.
        topic_id: Id of the source; "" if the broker gave none.
        segments: All segments, in the order of their offsets.
        owner: Name of the worker that claimed the shard last.
    """

    partitions: int
    fence: int
    floor: int
    clock_ms: int
    topic_id: str
    segments: tuple[Segment, ...]
    owner: str = ""


@dataclass(frozen=True, slots=True)
class RemovedReply:
    """Reply to a reader: the journal has removed events after the reader's offset. The first stored offset is ``floor``."""

    floor: int
    fence: int


@dataclass(frozen=True, slots=True)
class GapReply:
    """Reply to a reader: the journal does not have the offsets from ``first`` to ``last``, both included.

    ``why`` is ``retention`` if the source had removed them before they were appended, ``damaged`` if Redis has lost them.
    """

    first: int
    last: int
    fence: int
    floor: int
    why: str = "retention"


@dataclass(frozen=True, slots=True)
class BlocksReply:
    """Reply to a reader: the next blocks with events of its key. The key has no event up to ``up_to`` besides those in the blocks.

    The reader must filter the rows by key and offset: a block may contain other keys, and offsets that were read before.
    """

    blocks: list[bytes]
    up_to: int
    fence: int
    floor: int


@dataclass(frozen=True, slots=True)
class NoEventsReply:
    """Reply to a reader: its key has no further event up to ``up_to``; if that is below the fence, read again from there."""

    up_to: int
    fence: int
    floor: int


@dataclass(frozen=True, slots=True)
class NoStateReply:
    """Reply to a reader: the shard has no state, because no worker has claimed it, or Redis has lost it."""


Reply = RemovedReply | GapReply | BlocksReply | NoEventsReply | NoStateReply


class JournalScripts(ScriptSet):
    """The scripts of journals."""

    package = "streams_app.journal.store"
    prefix = "journal-"


class _ShardAccess:
    """Base of :class:`JournalStore` and :class:`JournalShardReader`: calls scripts, and reads the blocks of a segment."""

    def __init__(self, scripts: JournalScripts) -> None:
        self._scripts = scripts.by_name
        self._redis = scripts.redis

    async def _call(self, script: str, keys: JournalKeys, **arguments: Any) -> Any:
        return await self._scripts[script](keys.in_order, arguments)

    async def _scan(self, keys: JournalKeys, segment: Segment, after: bytes, max_bytes: int) -> list[bytes] | None:
        """Read the next blocks of a segment, in the order of key and last offset.

        Args:
            keys: Keys of the shard.
            segment: The segment, from the owner's copy of the state or from ``status``. To read staged blocks, which do not belong
                to the segment yet, pass the segment as it will be with them, including its new generation.
            after: The last block that was read, or a position from ``block.position(key, offset)``; b"": read from the beginning.
            max_bytes: No further block is returned after this many bytes. Small blocks are read by a faster command: unless this is
                below :data:`REPLY_BYTES`, their limit is :data:`SMALL_BLOCKS_BYTES`.

        Returns:
            The blocks; an empty list after the last one. None if the segment was removed or rewritten: read its status again, and
            continue from the position of the last row. A script that failed half-way may have left duplicates, or rows after the
            last offset, in a raw segment; callers skip them.
        """
        count = _small_blocks(segment) if max_bytes >= REPLY_BYTES else 0
        if count >= MIN_SMALL_BLOCKS:
            # For each block, the command takes a tenth of the time of a script.
            name, start = f"{keys.blocks_prefix}{segment.first}:{segment.generation}", scan_position(after)
            members: Any = await self._redis.zrangebylex(name, b"(" + start if start else b"-", b"+", start=0, num=count)
            # Blocks of a generation never change: if the segment still has it, they were complete when they were read.
            return members if await self._scan_script(keys, segment, b"", 0) is not None else None
        return await self._scan_script(keys, segment, after, min(max_bytes, REPLY_BYTES))

    async def _scan_script(self, keys: JournalKeys, segment: Segment, after: bytes, max_bytes: int) -> list[bytes] | None:
        reply = await self._call(
            "scan", keys, first=str(segment.first), generation=segment.generation, after=scan_position(after), max_bytes=max_bytes
        )
        return None if reply[0] == b"none" else reply[1]


class JournalStore(_ShardAccess):
    """Changes the state of one journal and partition in Redis, under the token of one claim.

    Every method except :meth:`claim` and :meth:`scan` raises :class:`.FencedError`, without a write, if another worker has claimed
    the shard, or Redis has lost its state.

    Attributes:
        changed: Number of the last successful change that did not move the fence. If Redis has a lower number, it has lost the
            change.
    """

    def __init__(self, scripts: JournalScripts, keys: JournalKeys, token: str, owner: str = "") -> None:
        super().__init__(scripts)
        self._keys = keys
        self._token = token
        self._owner = owner
        self.changed = 0
        self._changes = count(1)

    async def claim(
        self, topic_id: str, partitions: int, *, begin: InitialState | None = None, fence_at_most: int | None = None
    ) -> JournalClaim | None:
        """Take over the state of the shard, or create it. Remove staged blocks, and segments that begin above the fence.

        Args:
            topic_id: Id of the source; "" if the broker gives none. The stored id of another topic is not replaced.
            partitions: Number of partitions of the source.
            begin: State to create if Redis has none, or has lost a part of it; None: create no state.
            fence_at_most: First offset at which the log may differ from what was appended, as ``Claim.continuation``
                returns it. The segment with this offset and all later ones are removed, to be appended from the log again.

        Returns:
            The claimed state; None if there was no complete state and ``begin`` is None.
        """
        fence, clock_ms = begin or (0, 0)
        while True:
            reply = await self._call(
                "claim", self._keys, token=self._token, owner=self._owner, topic_id=topic_id, partitions=partitions,
                begin="" if begin is None else str(fence), clock=str(clock_ms),
                fence_at_most="" if fence_at_most is None else str(fence_at_most),
            )  # fmt: skip
            if reply[0] != b"more":
                break
        if reply[0] == b"none":
            return None
        fence = int(reply[1])
        log = up_to(of_text(reply[4].decode()), fence + 1)
        segments = segments_of(dict(zip(reply[5][0::2], reply[5][1::2], strict=True)), fence)
        return JournalClaim(fence, int(reply[2]), reply[3].decode(), log, segments, reply[0] == b"new")

    async def append(
        self, fence: int, to: int, blocks: Sequence[bytes], segment: Segment, clock_ms: int, log: Sequence[Fingerprint]
    ) -> bool:
        """Append the events after the fence, up to and including offset ``to``; may be repeated after a lost reply.

        Args:
            fence: The fence that is expected in Redis.
            to: Last offset of the range, which becomes the fence.
            blocks: Blocks of one chunk, see ``core/block.py``; empty for a gap, or if the range has no records.
            segment: State of the segment after the append. If Redis has no segment with this first offset, the append opens it.
            clock_ms: Clock of the shard after the append.
            log: Fingerprints of appended records.

        Returns:
            Whether an earlier call appended the range and its reply was lost.

        Raises:
            FencedError: Also if Redis has another fence, the segment is closed, or it is new and does not begin right after the
                fence.
        """
        reply = await self._call(
            "append", self._keys, token=self._token, fence=str(fence), to=str(to), first=str(segment.first),
            about=packed_segment(segment), blocks=list(blocks), clock=str(clock_ms), log=to_text(log),
        )  # fmt: skip
        return bool(reply[0] == b"already")

    async def close(self, first: int) -> bool:
        """Close a segment, so that it receives no more events; return False if the segment was removed."""
        return await self._stage(first, "", [], begins=False)

    async def stage(self, segment: Segment, blocks: Sequence[bytes], *, begins: bool) -> bool:
        """Stage some of the blocks that will replace those of a segment; :meth:`swap` replaces them once all are staged.

        The segment is closed: it receives no more events.

        Args:
            segment: State of the segment after the replacement. Its ``generation`` is the random name of the new set of blocks.
            blocks: Of about :data:`STAGED_BYTES` in total; at most :data:`MAX_STAGED` blocks.
            begins: Whether this is the first call for the new set. It removes the set that was staged before.

        Returns:
            False if the segment was removed or is not raw. Without ``begins``, also if the new set is not the one that is being
            staged, for example because another set has replaced it.
        """
        return await self._stage(segment.first, segment.generation, blocks, begins=begins)

    async def _stage(self, first: int, generation: str, blocks: Sequence[bytes], *, begins: bool) -> bool:
        return self._is_changed(change := next(self._changes), await self._call(
            "stage", self._keys, token=self._token, first=str(first), generation=generation, begins=begins, blocks=list(blocks),
            change=change,
        ))  # fmt: skip

    async def swap(self, segment: Segment, blocks: int) -> bool:
        """Replace the raw blocks of a segment by the staged ones; may be repeated after a lost reply.

        Returns:
            False if the segment was removed, other blocks are staged, or their number is not ``blocks``.
        """
        return self._is_changed(change := next(self._changes), await self._call(
            "swap", self._keys, token=self._token, first=str(segment.first), about=packed_segment(segment), blocks=blocks,
            change=change,
        ))  # fmt: skip

    async def drop(self, first: int) -> bool:
        """Remove a segment if it is the oldest one and is not open; True also if an earlier call did, whose reply was lost."""
        return self._is_changed(change := next(self._changes), await self._call(
            "drop", self._keys, token=self._token, first=str(first), change=change,
        ))  # fmt: skip

    async def forget(self, segment: Segment, removed: Sequence[bytes], added: Sequence[bytes]) -> bool:
        """Replace some blocks of a segment; return False if the segment was removed or has other blocks.

        Args:
            segment: State of the segment afterwards; its ``generation`` remains.
            removed: The blocks to remove, as :meth:`scan` has returned them under this claim.
            added: Blocks with the rows of removed blocks that are kept, of about :data:`STAGED_BYTES` in total.
        """
        bounds = [bound for block in removed for bound in (position(*last_of(block)), scan_position(block))]
        return self._is_changed(change := next(self._changes), await self._call(
            "forget", self._keys, token=self._token, first=str(segment.first), generation=segment.generation,
            about=packed_segment(segment), removed=bounds, added=list(added), change=change,
        ))  # fmt: skip

    def _is_changed(self, change: int, reply: Any) -> bool:
        self.changed = max(self.changed, change if reply[0] == b"ok" else 0)
        return bool(reply[0] == b"ok")

    async def scan(self, segment: Segment, after: bytes, max_bytes: int = REPLY_BYTES) -> list[bytes] | None:
        """Read the next blocks of a segment of this shard, also staged ones, see :meth:`_scan`."""
        return await self._scan(self._keys, segment, after, max_bytes)


class JournalShardReader(_ShardAccess):
    """Reads the stored events and the status of shards of journals; writes nothing."""

    async def read(self, keys: JournalKeys, key: bytes, after: int, max_bytes: int = REPLY_BYTES) -> Reply:
        """Read the next blocks with events of a key after an offset (-1: from the beginning), about ``max_bytes`` of them."""
        reply = await self._call("read", keys, prefix=escaped(key), after=after, max_bytes=min(max_bytes, REPLY_BYTES))
        match reply[0]:
            case b"gone":
                return RemovedReply(int(reply[1]), int(reply[2]))
            case b"gap":
                return GapReply(int(reply[1]), int(reply[2]), int(reply[3]), int(reply[4]), reply[5].decode())
            case b"found":
                return BlocksReply(reply[4], *map(int, reply[1:4]))
            case b"nothing":
                return NoEventsReply(*map(int, reply[1:4]))
        return NoStateReply()

    async def status(self, keys: JournalKeys) -> ShardStatus | None:
        """Read the state of a shard; None if it has none.

        The requests are not atomic. Segments above the fence, which were opened after it was read, are left out.

        Raises:
            NewerFormatError: A newer version has written the state.
        """
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.hmget(keys.meta, ["fence", "clock", "topic_id", "partitions", "owner", "format"])
        pipeline.hgetall(keys.about)
        (fence, clock, topic_id, partitions, owner, stored_format), about = await pipeline.execute()
        check_state_format(f"{keys.meta} in Redis", stored_format)
        if fence is None or clock is None:
            return None
        segments = segments_of(about, int(fence))
        floor = segments[0].first if segments else int(fence) + 1
        return ShardStatus(
            int(partitions or b"0"), int(fence), floor, int(clock), (topic_id or b"").decode(), segments,
            (owner or b"").decode(),
        )  # fmt: skip

    async def fence(self, keys: JournalKeys) -> int | None:
        """Read the fence of a shard, its highest appended offset; None if it has no state."""
        found = await self._redis.hget(keys.meta, "fence")
        return None if found is None else int(found)

    async def scan(self, keys: JournalKeys, segment: Segment, after: bytes, max_bytes: int = REPLY_BYTES) -> list[bytes] | None:
        """Read the next blocks of a segment as :meth:`status` returns it, see :meth:`_scan`."""
        return await self._scan(keys, segment, after, max_bytes)


def _small_blocks(segment: Segment) -> int:
    """Return how many blocks of a segment can be read without exceeding :data:`SMALL_BLOCKS_BYTES`; 0 if that is unknown.

    Each block of a raw segment is assumed to have as many bytes as the segment has received for its largest key.
    """
    if segment.form != "raw" or not segment.largest:
        return 0
    return SMALL_BLOCKS_BYTES // (segment.largest[0][1] + BLOCK_OVERHEAD)
