"""The scripts of journals, and what calls them: the owner's view of a shard, and what readers ask.

Keys: all of :mod:`.keys`. What runs in Redis is in ``lua/``, one script a file.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import count
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgpack
from redis.asyncio import Redis

from streams_app.delivery.fingerprints import Fingerprint, of_text, to_text, up_to
from streams_app.delivery.scripts import Script, Timer, unmeasured, with_included
from streams_app.journal.core.block import escaped, scan_position
from streams_app.journal.store.keys import JournalKeys

SCRIPTS: Final = ("claim", "append", "read", "scan", "stage", "swap", "drop")

REPLY_BYTES: Final = 300_000
"""What one call of *read* or *scan* returns at most, and one block more."""

STAGED_BYTES: Final = 300_000
"""What one call of *stage* should write at most."""

MOST_STAGED: Final = 1_000
"""Blocks of one call of *stage*, at most."""

LARGEST_BYTES: Final = 600
"""Bytes of the largest keys of a segment together: a claim reads those of all segments."""

Form = Literal["raw", "packed", "gap"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A range of offsets of a shard, for all keys: a UTC day, or a part of one.

    Attributes:
        first: First offset; it names the segment.
        day: Its UTC day, as in ``2026-08-20``.
        part: Number within the day, from 0 on.
        form: ``raw``: blocks as they were appended; ``packed``: of neighbouring keys; ``gap``: the source had lost these offsets.
        generation: Which blocks are its own: random, fresh for those that are staged.
        is_closed: Nothing is appended any more, even if no other segment follows.
        entries: Events in it.
        received_bytes: Keys, values and headers of its events.
        stored_bytes: Bytes that its blocks take in Redis, see ``core/block.py``.
        newest_ms: Newest record time in it, capped by the clock of the shard.
        largest: The keys with most received bytes, and those bytes; at most ten, and as many as :data:`LARGEST_BYTES` hold.
        last: Last offset; of the segment that is appended to, the fence.
    """

    first: int
    day: str
    part: int = 0
    form: Form = "raw"
    generation: str = ""
    is_closed: bool = False
    entries: int = 0
    received_bytes: int = 0
    stored_bytes: int = 0
    newest_ms: int = 0
    largest: tuple[tuple[bytes, int], ...] = ()
    last: int | None = None


class Beginning(NamedTuple):
    """A state that is to be created.

    Attributes:
        fence: Its first event comes after this offset.
        clock_ms: Its clock.
    """

    fence: int
    clock_ms: int


class Claimed(NamedTuple):
    """A state as its new owner finds it.

    Attributes:
        fence: Highest offset that is kept.
        clock_ms: Clock of the shard.
        topic_id: Of the source, as it was stored first; "" if no broker has named it.
        log: Fingerprints of what was appended, up to the fence.
        segments: In the order of their offsets.
        is_new: Whether it was created now.
    """

    fence: int
    clock_ms: int
    topic_id: str
    log: tuple[Fingerprint, ...]
    segments: tuple[Segment, ...]
    is_new: bool


class ShardStatus(NamedTuple):
    """A shard as it is now, for whoever only looks at it.

    Attributes:
        partitions: How many partitions the source has, as the owner of this one knows.
        fence: Highest offset that is kept.
        floor: First offset of the oldest segment; behind the fence if there is none.
        clock_ms: Clock of the shard.
        topic_id: Of the source.
        segments: In the order of their offsets.
        owner: Worker that has claimed it last.
    """

    partitions: int
    fence: int
    floor: int
    clock_ms: int
    topic_id: str
    segments: tuple[Segment, ...]
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Gone:
    """What follows the reader's offset is removed; the journal begins at the floor."""

    floor: int
    fence: int


@dataclass(frozen=True, slots=True)
class GapReply:
    """Offsets that are not kept: the source had lost them (``retention``), or Redis has (``damaged``)."""

    first: int
    last: int
    fence: int
    floor: int
    why: str = "retention"


@dataclass(frozen=True, slots=True)
class Found:
    """Blocks in the order of the key's events; no other event of the key is up to ``up_to``.

    The reader filters by key and offset: blocks may begin at or below the offset it has had, and hold other keys.
    """

    blocks: list[bytes]
    up_to: int
    fence: int
    floor: int


@dataclass(frozen=True, slots=True)
class Nothing:
    """No event of the key is up to ``up_to``; more may follow at once if that is below the fence."""

    up_to: int
    fence: int
    floor: int


@dataclass(frozen=True, slots=True)
class NoState:
    """Nobody has begun the shard, or Redis has lost it."""


Reply = Gone | GapReply | Found | Nothing | NoState


class Scripts(Protocol):
    """The scripts, wherever they run."""

    @property
    def by_name(self) -> Mapping[str, Callable[[Sequence[str], Mapping[str, Any]], Awaitable[Any]]]:
        """Name → what takes keys and arguments and returns the reply, or raises :class:`.FencedError`."""


class ScriptSet:
    """The scripts in Redis, loaded once a process."""

    def __init__(self, redis: Redis, timer: Timer = unmeasured) -> None:
        self.by_name = {name: Script(f"journal-{name}", redis.register_script(script_source(name)), timer) for name in SCRIPTS}


class _ScriptCaller:
    """Calls the scripts; what owner and readers share."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts.by_name

    async def _call(self, script: str, keys: JournalKeys, **arguments: Any) -> Any:
        return await self._scripts[script](keys.in_order, arguments)

    async def _scan(self, keys: JournalKeys, segment: Segment, after: bytes, max_bytes: int) -> list[bytes] | None:
        """Members of a segment, in the order of (key, last offset).

        A raw segment may have rows twice, and rows behind its last offset, of a script that died half-way: whoever scans clips.

        Args:
            keys: Of the shard.
            segment: As its owner or ``status`` has it, or as it becomes while its blocks are staged.
            after: Last member that was had, or a position: ``block.position(key, offset)``; b"": from the begin.
            max_bytes: No further member is returned once there are so many bytes of them.

        Returns:
            Empty at the end; None where the segment is removed or has other blocks now: ask for its status and go on from the
            position of the last row.
        """
        reply = await self._call(
            "scan", keys, first=str(segment.first), generation=segment.generation, after=scan_position(after),
            max_bytes=min(max_bytes, REPLY_BYTES),
        )  # fmt: skip
        return None if reply[0] == b"none" else msgpack.unpackb(reply[1], raw=True) if reply[0] == b"packed" else reply[1]


class JournalStore(_ScriptCaller):
    """The state of one journal and partition, in the hands of one claim.

    Every method but :meth:`claim` and :meth:`scan` raises :class:`.FencedError` where another owner has claimed the shard or Redis
    has lost it; nothing was written then.

    Attributes:
        changed: Number of the last change that the fence does not tell. Where Redis has a lower one, it has lost that.
    """

    def __init__(self, scripts: Scripts, keys: JournalKeys, token: str, owner: str = "") -> None:
        """Asks nothing yet.

        Args:
            scripts: Those of the application's Redis.
            keys: Of the journal and partition.
            token: Of the claim.
            owner: Name of the worker, for people.
        """
        super().__init__(scripts)
        self._keys = keys
        self._token = token
        self._owner = owner
        self.changed = 0
        self._changes = count(1)

    async def claim(
        self, topic_id: str, partitions: int, *, begin: Beginning | None = None, fence_at_most: int | None = None
    ) -> Claimed | None:
        """Takes the state from whoever had it; removes staged blocks, and segments that begin above the fence.

        Args:
            topic_id: Id of the source; "" where the broker gives none. If the state is of another topic, that is returned
                and stays.
            partitions: How many partitions the source has.
            begin: What to create where there is nothing; None: create nothing.
            fence_at_most: The log differs from this offset on, as ``Claim.common_end`` returns it: the segment that holds the
                offset and all behind it are removed, and read from the log once more.

        Returns:
            None where there is nothing and nothing was to be created.
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
        segments = _segments(dict(zip(reply[5][0::2], reply[5][1::2], strict=True)), fence)
        return Claimed(fence, int(reply[2]), reply[3].decode(), log, segments, reply[0] == b"new")

    async def append(
        self, fence: int, to: int, blocks: Sequence[bytes], segment: Segment, clock_ms: int, log: Sequence[Fingerprint]
    ) -> bool:
        """Appends the offsets behind the fence, up to and with ``to``; may be repeated after a lost reply.

        Args:
            fence: The fence it continues.
            to: Last offset of the range, which becomes the fence.
            blocks: Members of one chunk, see ``core/block.py``; none of a gap, or where the range holds no records.
            segment: What the segment is afterwards, as a whole; it is opened if its first offset is new and right behind the fence.
            clock_ms: Clock of the shard afterwards.
            log: Fingerprints of what was appended.

        Returns:
            Whether it was appended before, and the reply was lost.

        Raises:
            FencedError: Also ``closed``: the segment is over; ``first``: it is new and does not begin behind the fence.
        """
        reply = await self._call(
            "append", self._keys, token=self._token, fence=str(fence), to=str(to), first=str(segment.first),
            about=_of_segment(segment), blocks=list(blocks), clock=str(clock_ms), log=to_text(log),
        )  # fmt: skip
        return bool(reply[0] == b"already")

    async def close(self, first: int) -> bool:
        """Closes a segment, so that nothing is appended to it any more; whether it is there."""
        return await self._stage(first, "", [], begins=False)

    async def stage(self, segment: Segment, blocks: Sequence[bytes], *, begins: bool) -> bool:
        """Writes blocks that are to take the place of those of a segment, and closes it.

        Args:
            segment: As it becomes: with the generation of the new blocks.
            blocks: About :data:`STAGED_BYTES`, at most :data:`MOST_STAGED`.
            begins: The first call for these blocks, which removes what was staged before.

        Returns:
            False where the segment is removed, or packed already.
        """
        return await self._stage(segment.first, segment.generation, blocks, begins=begins)

    async def _stage(self, first: int, generation: str, blocks: Sequence[bytes], *, begins: bool) -> bool:
        return self._is_changed(change := next(self._changes), await self._call(
            "stage", self._keys, token=self._token, first=str(first), generation=generation, begins=begins, blocks=list(blocks),
            change=change,
        ))  # fmt: skip

    async def swap(self, segment: Segment, blocks: int) -> bool:
        """Puts the staged blocks in the place of the raw ones, which are removed; may be repeated after a lost reply.

        Args:
            segment: As it becomes.
            blocks: How many blocks were staged.

        Returns:
            False where the segment is removed, or other blocks are staged.
        """
        return self._is_changed(change := next(self._changes), await self._call(
            "swap", self._keys, token=self._token, first=str(segment.first), about=_of_segment(segment), blocks=blocks,
            change=change,
        ))  # fmt: skip

    async def drop(self, first: int) -> bool:
        """Removes the oldest segment; may be repeated after a lost reply.

        Returns:
            Whether it is removed now; False where it is not the oldest one, or may be appended to.
        """
        return self._is_changed(change := next(self._changes), await self._call(
            "drop", self._keys, token=self._token, first=str(first), change=change,
        ))  # fmt: skip

    def _is_changed(self, change: int, reply: Any) -> bool:
        self.changed = max(self.changed, change if reply[0] == b"ok" else 0)
        return bool(reply[0] == b"ok")

    async def scan(self, segment: Segment, after: bytes, max_bytes: int = REPLY_BYTES) -> list[bytes] | None:
        """Members of a segment in their order: empty at the end, None where it has other blocks now; see :meth:`_scan`."""
        return await self._scan(self._keys, segment, after, max_bytes)


class JournalShardReader(_ScriptCaller):
    """Reads the shards of journals; it changes nothing."""

    def __init__(self, redis: Redis, scripts: Scripts) -> None:
        super().__init__(scripts)
        self._redis = redis

    async def read(self, keys: JournalKeys, key: bytes, after: int, max_bytes: int = REPLY_BYTES) -> Reply:
        """The next blocks of a key.

        Args:
            keys: Of the shard.
            key: See :class:`.Row`.
            after: Last offset that was had; -1: none.
            max_bytes: No further block is returned once there are so many bytes of them.
        """
        reply = await self._call("read", keys, prefix=escaped(key), after=after, max_bytes=min(max_bytes, REPLY_BYTES))
        match reply[0]:
            case b"gone":
                return Gone(int(reply[1]), int(reply[2]))
            case b"gap":
                return GapReply(int(reply[1]), int(reply[2]), int(reply[3]), int(reply[4]), reply[5].decode())
            case b"found":
                return Found(reply[4], *map(int, reply[1:4]))
            case b"nothing":
                return Nothing(*map(int, reply[1:4]))
        return NoState()

    async def status(self, keys: JournalKeys) -> ShardStatus | None:
        """Fence, floor and segments of a shard; None where it does not exist.

        They are asked for together, the fence first: segments that were begun since then are left out.
        """
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.hmget(keys.meta, ["fence", "clock", "topic_id", "partitions", "owner"])
        pipeline.hgetall(keys.about)
        (fence, clock, topic_id, partitions, owner), about = await pipeline.execute()
        if fence is None or clock is None:
            return None
        segments = _segments(about, int(fence))
        floor = segments[0].first if segments else int(fence) + 1
        return ShardStatus(
            int(partitions or b"0"), int(fence), floor, int(clock), (topic_id or b"").decode(), segments,
            (owner or b"").decode(),
        )  # fmt: skip

    async def fence(self, keys: JournalKeys) -> int | None:
        """Highest offset that is kept; None where the shard does not exist."""
        found = await self._redis.hget(keys.meta, "fence")
        return None if found is None else int(found)

    async def scan(self, keys: JournalKeys, segment: Segment, after: bytes, max_bytes: int = REPLY_BYTES) -> list[bytes] | None:
        """Members of a segment in their order: empty at the end, None where it has other blocks now; see :meth:`_scan`."""
        return await self._scan(keys, segment, after, max_bytes)


def script_source(name: str) -> str:
    """A script as it is run."""
    return with_included(script_text(name), lambda shared: script_text(f"shared/{shared}"))


def script_text(name: str) -> str:
    """A script as it is written."""
    return (files("streams_app.journal.store") / "lua" / f"{name}.lua").read_text("utf-8")


def _of_segment(segment: Segment) -> bytes:
    about = {name: getattr(segment, name) for name in Segment.__slots__ if name not in ("first", "last")}
    while sum(len(key) for key, _ in about["largest"]) > LARGEST_BYTES:
        about["largest"] = about["largest"][:-1]
    packed: bytes = msgpack.packb({**about, "last": segment.last}, use_bin_type=False)
    return packed


def _segments(about: Mapping[bytes, bytes], fence: int) -> tuple[Segment, ...]:
    """Segments in their order; each ends where the next one begins, the last one at the fence."""
    firsts = sorted(int(first) for first in about if first != b"staged" and int(first) <= fence)
    lasts = [*(first - 1 for first in firsts[1:]), fence][: len(firsts)]
    return tuple(_segment(first, last, about[b"%d" % first]) for first, last in zip(firsts, lasts, strict=True))


def _segment(first: int, last: int, packed: bytes) -> Segment:
    about = msgpack.unpackb(packed, raw=True, strict_map_key=False)
    found = {name.decode(): value for name, value in about.items()}
    texts = {name: found[name].decode() for name in ("day", "form", "generation")}
    largest = tuple((key, count) for key, count in found.get("largest") or ())
    # Of an append that died half-way: at most so many of the events are not filed, and are counted again when they are.
    beyond = max(0, (found.get("last") or 0) - last)
    entries = max(0, found["entries"] - beyond)
    return Segment(**{**found, **texts, "first": first, "last": last, "entries": entries, "largest": largest})
