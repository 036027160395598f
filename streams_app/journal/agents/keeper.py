"""The keeper of a shard: removes segments by age and size, then packs closed ones, that is, compresses their blocks.

Old segments are removed first, so that compression that fails does not delay the removal. A segment is packed in four steps: the
keeper reads its blocks in order, stages packed blocks, reads these back, and swaps them in if they contain the same rows. After a
crash, the segment has either the raw or the packed blocks, and the next claim removes staged ones. A worker packs one segment at a
time. The token of the claim ensures that a shard has only one keeper.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol

from redis.exceptions import OutOfMemoryError

from streams_app.delivery.batch import TP
from streams_app.journal.core.block import DamagedBlockError, stored_bytes
from streams_app.journal.core.repack import Repacker, RowDigest, digest_of
from streams_app.journal.store.journal_store import MAX_STAGED, REPLY_BYTES, STAGED_BYTES, JournalStore
from streams_app.journal.store.segment import Segment
from streams_app.redis_access.client import REDIS_ERRORS
from streams_app.retries import retried
from streams_app.settings import JournalSettings

logger = logging.getLogger(__name__)

IDLE_SECONDS: Final = 0.5
"""Time after which an idle keeper looks for due segments again, and after which a failed request to Redis is repeated."""

SLICE_SECONDS: Final = 0.5
"""Time after which a throttled keeper checks again whether the processor of a shard waits for a keeper."""

READ_BYTES: Final = 4_000_000
"""Size of the raw blocks that are read and packed in one step, in bytes."""

MAX_LAG: Final = 10_000
"""Maximum lag, in records, at which a keeper packs any due segment. With a higher lag, it packs only if :data:`MAX_DUE` are due."""

MAX_DUE: Final = 2
"""With this many segments to pack, the shard appends nothing until one is packed: a rebuild must not fill Redis with raw blocks."""


class KeptShard(Protocol):
    """The part of a claimed shard that its keeper uses, see :class:`.JournalShard`."""

    clock_ms: int
    lag: int | None

    @property
    def journal(self) -> JournalSettings: ...

    @property
    def tp(self) -> TP: ...

    @property
    def partitions(self) -> int:
        """Number of partitions of the source, among which ``max_bytes`` is divided."""

    @property
    def store(self) -> JournalStore: ...

    @property
    def segments(self) -> Sequence[Segment]:
        """All segments, the oldest first."""

    @property
    def closed(self) -> Sequence[Segment]:
        """The segments that receive no more events, the oldest first."""

    def replace_segment(self, segment: Segment) -> None:
        """Replace the owner's copy of the segment with this first offset. Call this after Redis has stored the new state."""

    def drop_segment(self, segment: Segment) -> None:
        """Remove a segment from the owner's copy of the state. Call this after Redis has removed the segment."""


@dataclass(slots=True)
class KeeperContext:
    """State that the keepers of a worker share; only the one that has ``lock`` packs.

    Attributes:
        on_dropped: Called with a removed segment and the cause: ``age``, ``size`` or ``memory``.
        on_packed: Called with the bytes of a segment in Redis before and after packing.
        on_damaged: Called if a segment cannot be packed, with the number of damaged blocks: 1 if a damaged block is the cause, 0 if
            the cause is another one.
    """

    on_dropped: Callable[[Segment, str], None] = lambda segment, cause: None
    on_packed: Callable[[int, int], None] = lambda before, after: None
    on_damaged: Callable[[int], None] = lambda blocks: None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    running: set[Keeper] = field(default_factory=set)

    @property
    def is_urgent(self) -> bool:
        """Whether the processor of any shard waits until its keeper has packed a segment; then no keeper is throttled."""
        return any(keeper.is_behind for keeper in self.running)


class _NotPackedError(Exception):
    """A segment cannot be packed, so its blocks remain raw."""


class Keeper:
    """Removes old segments of one shard, and packs closed ones.

    A closed segment is due for packing once its newest event is at least as old as the setting ``compress_after``, unless packing
    is off or has failed for the segment.
    """

    def __init__(self, shard: KeptShard, keeper_context: KeeperContext, on_kept: Callable[[], None] = lambda: None) -> None:
        """Create a keeper that calls ``on_kept`` after each :meth:`keep_once`, which may have changed :attr:`is_behind`."""
        self._shard = shard
        self._keeper_context = keeper_context
        self._on_kept = on_kept
        self._failed: set[int] = set()
        self._has_room = True
        self._is_woken = asyncio.Event()

    def wake(self) -> None:
        """Make :meth:`run` look for due segments at once; call this when another segment is closed."""
        self._is_woken.set()

    @property
    def is_behind(self) -> bool:
        """Whether no event may be appended until a segment is packed, because at least :data:`MAX_DUE` segments are due.

        False if Redis is too full for packed blocks: then appending must continue, because it removes the oldest segments.
        """
        return self._has_room and len(self._due()) >= MAX_DUE

    async def run(self) -> None:
        """Remove old segments and pack due ones until cancelled; retry while Redis fails, but not after a FencedError."""
        self._keeper_context.running.add(self)
        try:
            while True:
                try:
                    is_packed = await self.keep_once()
                except REDIS_ERRORS as error:
                    self._failed_with(error)
                    is_packed = False
                self._on_kept()
                if is_packed:
                    await asyncio.sleep(0)
                    continue
                with suppress(TimeoutError):
                    async with asyncio.timeout(IDLE_SECONDS):
                        await self._is_woken.wait()
                self._is_woken.clear()
        finally:
            self._keeper_context.running.discard(self)

    async def keep_once(self) -> bool:
        """Drop all due segments, then pack one if one is due; if this returns True, another one may be due."""
        await self.drop_once()
        return await self.pack_once()

    # ---- dropping

    async def drop_once(self) -> int:
        """Remove closed segments older than ``keep``, and the oldest ones while the shard exceeds its share of ``max_bytes``."""
        count, shard = 0, self._shard
        keep_ms, share = shard.journal.keep_ms, shard.journal.share(shard.partitions)
        while shard.closed:
            if shard.clock_ms - shard.closed[0].newest_ms > keep_ms:
                cause = "age"
            elif sum(segment.stored_bytes for segment in shard.segments) > share:
                cause = "size"
            else:
                break
            if not await self.drop_oldest(cause):
                break
            count += 1
        return count

    async def drop_oldest(self, cause: str) -> bool:
        """Remove the oldest closed segment; the cause is ``age``, ``size`` or ``memory``.

        Returns:
            Whether the segment is removed now, by this call or a concurrent one. False if there is no closed segment, or Redis
            keeps it because it is not the oldest one.
        """
        closed = self._shard.closed
        if not closed or not await self._shard.store.drop(closed[0].first):
            return False
        if closed[0].first not in {segment.first for segment in self._shard.segments}:
            return True  # processor and keeper may both have removed it: count it once
        self._shard.drop_segment(closed[0])
        self._keeper_context.on_dropped(closed[0], cause)
        logger.info(
            "removed a segment journal=%s source=%s offsets=%d-%s day=%s cause=%s",
            self._shard.journal.name, self._shard.tp, closed[0].first, closed[0].last, closed[0].day, cause,
        )  # fmt: skip
        return True

    # ---- packing

    async def pack_once(self) -> bool:
        """Pack the oldest due segment, and return whether one was packed. If the shard lags, :data:`MAX_DUE` segments must be due.

        A segment that cannot be packed is logged and keeps its raw blocks; this keeper does not try it again.
        """
        if len(self._due()) < (1 if self._is_at_rest() else MAX_DUE):
            return False
        async with self._keeper_context.lock:
            due = self._due()
            if not due:
                return False
            try:
                packed = await self._packed_or_gone(due[0])
            except (DamagedBlockError, _NotPackedError) as error:
                self._failed.add(due[0].first)
                self._keeper_context.on_damaged(isinstance(error, DamagedBlockError))
                logger.error(  # noqa: TRY400  # the message is complete; a traceback adds nothing
                    "a segment cannot be compressed and stays as it is journal=%s day=%s part=%d: %s",
                    self._shard.journal.name, due[0].day, due[0].part, error,
                )  # fmt: skip
                return False
            if packed is None:  # it was removed meanwhile
                self._shard.drop_segment(due[0])
                return False
            self._has_room = True
            self._shard.replace_segment(packed)
            self._keeper_context.on_packed(due[0].stored_bytes, packed.stored_bytes)
            return True

    def _is_at_rest(self) -> bool:
        return self._shard.lag is not None and self._shard.lag <= MAX_LAG

    def _due(self) -> list[Segment]:
        """Return the closed raw segments that are due for packing and have not failed, the oldest first; none if packing is off."""
        journal = self._shard.journal
        if journal.compress_rate == 0:
            return []
        until_ms = self._shard.clock_ms - journal.compress_after_ms
        return [
            segment
            for segment in self._shard.closed
            if segment.form == "raw" and segment.newest_ms <= until_ms and segment.first not in self._failed
        ]

    async def _packed_or_gone(self, raw: Segment) -> Segment | None:
        """Pack a segment; return its new state, or None if it was removed meanwhile."""
        packed = await self._pack(raw)
        if packed is None and await self._shard.store.close(raw.first):  # it is closed already: this checks that it exists
            raise _NotPackedError("its blocks have changed, or Redis has lost the staged blocks")
        return packed

    async def _pack(self, raw: Segment) -> Segment | None:
        """Pack a segment; return its new state, or None if it was removed, its blocks have changed, or other blocks are staged."""
        assert raw.last is not None  # every segment that was claimed or appended to has one
        packer = Repacker(raw.first, raw.last)
        packed = replace(raw, form="packed", generation=secrets.token_hex(8), is_closed=True)
        staged = _StagedSegment(self._shard.store, packed)
        after = b""
        while members := await self._read(raw, after):
            after = members[-1]
            if not await staged.write(await asyncio.to_thread(packer.add, members)):
                return None
            await self._throttle(stored_bytes(members) * raw.received_bytes // max(1, raw.stored_bytes))
        if members is None or not await staged.write(packer.finish(), ends=True):
            return None
        expected = packer.digest.value
        if expected[0] < raw.entries:
            raise _NotPackedError(f"Redis has lost some of its events: {expected[0]:,} are left of {raw.entries:,}")
        actual = await self._digest(packed)
        if actual is None:
            return None
        if actual != expected:
            raise _NotPackedError("the blocks that were read back differ from those written")
        done = replace(packed, entries=expected[0], stored_bytes=staged.bytes)
        return done if await self._swap(done, staged.blocks) else None

    async def _swap(self, packed: Segment, blocks: int) -> bool:
        """Replace raw blocks by staged ones. Retry until Redis replies, because only a reply shows whether they are replaced."""

        async def reported(error: BaseException) -> float:
            self._failed_with(error)
            return IDLE_SECONDS

        return await retried(partial(self._shard.store.swap, packed, blocks), REDIS_ERRORS, reported)

    def _failed_with(self, error: BaseException) -> None:
        if isinstance(error, OutOfMemoryError):
            self._has_room = False
        logger.debug("the keeper of a journal cannot reach Redis, trying again", exc_info=error)

    async def _read(self, segment: Segment, after: bytes) -> list[bytes] | None:
        """Read about :data:`READ_BYTES` of a segment; an empty list after its last block, None if it was removed or rewritten."""
        found: list[bytes] = []
        size = 0
        while size < READ_BYTES:
            members = await self._shard.store.scan(segment, after, REPLY_BYTES)
            if members is None:
                return None
            if not members:
                break
            found += members
            size += sum(map(len, members))
            after = members[-1]
        return found

    async def _digest(self, packed: Segment) -> tuple[int, bytes] | None:
        """Return the digest of the staged blocks; None if they were removed meanwhile, with their segment or by another owner."""
        digest, after = RowDigest(), b""
        while members := await self._read(packed, after):
            after = members[-1]
            await asyncio.to_thread(digest_of, members, digest)
        return None if members is None else digest.value

    async def _throttle(self, received_bytes: int) -> None:
        """Wait as long as ``received_bytes`` take at ``compress_rate``; stop if a processor of this worker waits for a keeper."""
        left = received_bytes / self._shard.journal.compress_rate
        while left > 0 and not self._keeper_context.is_urgent:
            await asyncio.sleep(min(left, SLICE_SECONDS))
            left -= SLICE_SECONDS


class _StagedSegment:
    """Stages the packed blocks of one segment in Redis, several in a script call. The raw blocks remain in place."""

    def __init__(self, store: JournalStore, segment: Segment) -> None:
        self.blocks = 0
        self.bytes = 0
        self._store = store
        self._segment = segment
        self._waiting: list[bytes] = []
        self._size = 0
        self._begins = True

    async def write(self, blocks: Sequence[bytes], *, ends: bool = False) -> bool:
        """Collect blocks; stage them whenever a script call is full, or if ``ends`` is set. False if they could not be staged."""
        for block in blocks:
            is_full = self._size + len(block) > STAGED_BYTES or len(self._waiting) >= MAX_STAGED
            if is_full and self._waiting and not await self._flush():
                return False
            self._waiting.append(block)
            self._size += len(block)
        return await self._flush() if ends else True

    async def _flush(self) -> bool:
        waiting, self._waiting, self._size = self._waiting, [], 0
        self.blocks += len(waiting)
        self.bytes += stored_bytes(waiting)
        begins, self._begins = self._begins, False
        return await self._store.stage(self._segment, waiting, begins=begins)
