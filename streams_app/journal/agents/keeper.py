"""The keeper of a shard: removes what is old or too much, then compresses what is over.

It drops first, so that packing that fails never keeps cleanup waiting. It packs one segment at a time: reads its blocks in order,
writes packed ones beside them, reads those back, and only if they hold the same rows swaps them in. A crash at any point leaves
the raw blocks or the packed ones; what was staged is removed by the next claim. The token of the claim makes a keeper the only one
of its shard.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from redis.exceptions import OutOfMemoryError

from streams_app.delivery.batch import TP
from streams_app.journal.core.block import DamagedBlockError, stored_bytes
from streams_app.journal.core.repack import Repacker, RowDigest, digest_of
from streams_app.journal.store.journal_store import MOST_STAGED, REPLY_BYTES, STAGED_BYTES, JournalStore, Segment
from streams_app.redis_access.client import REDIS_ERRORS
from streams_app.settings import JournalSettings

logger = logging.getLogger(__name__)

IDLE_SECONDS: Final = 0.5
"""How often a keeper looks for something to do."""

SLICE_SECONDS: Final = 0.5
"""A keeper that takes its time looks so often whether filing waits by now."""

READ_BYTES: Final = 4_000_000
"""Bytes of blocks that are packed at a time."""

MOST_LAG: Final = 10_000
"""A keeper rests while so many records are not filed: folding and filing come before compression."""

MOST_DUE: Final = 2
"""Once so many segments are to be packed, filing waits for the keeper: a rebuild never holds many raw days."""


class KeptShard(Protocol):
    """What a keeper uses of its shard."""

    clock_ms: int
    lag: int | None

    @property
    def journal(self) -> JournalSettings:
        """The journal."""

    @property
    def tp(self) -> TP:
        """Its partition of the source."""

    @property
    def partitions(self) -> int:
        """How many partitions share the journal."""

    @property
    def store(self) -> JournalStore:
        """Its state in Redis."""

    @property
    def segments(self) -> Sequence[Segment]:
        """From the oldest to the newest."""

    @property
    def closed(self) -> Sequence[Segment]:
        """Those that nothing is appended to any more."""

    def replaced(self, segment: Segment) -> None:
        """A segment is as this one says now."""

    def dropped(self, segment: Segment) -> None:
        """A segment is removed."""


@dataclass(slots=True)
class Keeping:
    """What the keepers of a worker share.

    Attributes:
        on_dropped: Called with a segment that was removed, and why: ``age``, ``size`` or ``memory``.
        on_packed: Called with the bytes of a segment in Redis before and after.
        on_damaged: Called with the number of blocks that were found damaged.
        lock: Of the keeper that packs.
        running: All keepers.
    """

    on_dropped: Callable[[Segment, str], None] = lambda segment, cause: None
    on_packed: Callable[[int, int], None] = lambda before, after: None
    on_damaged: Callable[[int], None] = lambda blocks: None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    running: set[Keeper] = field(default_factory=set)

    @property
    def is_urgent(self) -> bool:
        """Whether filing waits for a keeper: none is throttled meanwhile."""
        return any(keeper.is_behind for keeper in self.running)


class _NotPackedError(Exception):
    """A segment cannot be packed and stays as it is."""


class Keeper:
    """Keeps one shard in order."""

    def __init__(self, shard: KeptShard, keeping: Keeping, on_kept: Callable[[], None] = lambda: None) -> None:
        """Keep nothing yet.

        Args:
            shard: The shard.
            keeping: What the keepers of this worker share.
            on_kept: Called after each turn, which may have ended :attr:`is_behind`.
        """
        self._shard = shard
        self._keeping = keeping
        self._on_kept = on_kept
        self._failed: set[int] = set()
        self._has_room = True
        self._is_woken = asyncio.Event()

    def wake(self) -> None:
        """Another segment is closed: filing may wait for it to be packed."""
        self._is_woken.set()

    @property
    def is_behind(self) -> bool:
        """Whether filing is to wait until a segment is packed.

        It does not wait where Redis has no room for packed blocks: only filing drops what is oldest then.
        """
        return self._has_room and len(self._due()) >= MOST_DUE

    async def run(self) -> None:
        """Keeps the shard until cancelled.

        Raises:
            FencedError: The state is not ours any more.
        """
        self._keeping.running.add(self)
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
            self._keeping.running.discard(self)

    async def keep_once(self) -> bool:
        """Drops all that is due, then packs one segment.

        Returns:
            Whether a segment was packed: the next one may be due.
        """
        await self.drop_once()
        return await self.pack_once()

    # ---- dropping

    async def drop_once(self) -> int:
        """Removes segments that are too old, and the oldest ones while there is too much; how many."""
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
        """Removes the oldest closed segment.

        Args:
            cause: ``age``, ``size`` or ``memory``.

        Returns:
            False where there is none.
        """
        closed = self._shard.closed
        if not closed or not await self._shard.store.drop(closed[0].first):
            return False
        if closed[0].first not in {segment.first for segment in self._shard.segments}:
            return True  # filing and keeper may want the same one to go: it is counted once
        self._shard.dropped(closed[0])
        self._keeping.on_dropped(closed[0], cause)
        logger.info(
            "removed a segment journal=%s source=%s offsets=%d-%s day=%s cause=%s",
            self._shard.journal.name, self._shard.tp, closed[0].first, closed[0].last, closed[0].day, cause,
        )  # fmt: skip
        return True

    # ---- packing

    async def pack_once(self) -> bool:
        """Packs the oldest segment that is due, unless the shard lags; whether one was packed."""
        if len(self._due()) < (1 if self._is_at_rest() else MOST_DUE):
            return False
        async with self._keeping.lock:
            due = self._due()
            if not due:
                return False
            try:
                packed = await self._packed_or_gone(due[0])
            except (DamagedBlockError, _NotPackedError) as error:
                self._failed.add(due[0].first)
                self._keeping.on_damaged(isinstance(error, DamagedBlockError))
                logger.error(  # noqa: TRY400  # the text says it all
                    "a segment cannot be compressed and stays as it is journal=%s day=%s part=%d: %s",
                    self._shard.journal.name, due[0].day, due[0].part, error,
                )  # fmt: skip
                return False
            if packed is None:  # somebody has removed it
                self._shard.dropped(due[0])
                return False
            self._has_room = True
            self._shard.replaced(packed)
            self._keeping.on_packed(due[0].stored_bytes, packed.stored_bytes)
            return True

    def _is_at_rest(self) -> bool:
        """Whether the shard has filed what there is, but for a little."""
        return self._shard.lag is not None and self._shard.lag <= MOST_LAG

    def _due(self) -> list[Segment]:
        """Segments that are to be packed, the oldest one first."""
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
        """Packs a segment; what it is afterwards, None where somebody has removed it.

        Raises:
            DamagedBlockError, _NotPackedError: As :meth:`_pack`.
        """
        packed = await self._pack(raw)
        if packed is None and await self._shard.store.close(raw.first):  # it is closed, so this only asks
            raise _NotPackedError("it has other blocks than it was left with, or Redis has lost those that were to replace them")
        return packed

    async def _pack(self, raw: Segment) -> Segment | None:
        """Packs a segment; what it is afterwards, None where it is removed, or its old or new blocks are not as they were left.

        Raises:
            DamagedBlockError: A block is damaged, of before or of those that were read back.
            _NotPackedError: Redis has lost raw blocks, or the packed ones hold something else.
        """
        assert raw.last is not None  # as of every segment that was claimed or appended to
        packer = Repacker(raw.first, raw.last)
        packed = replace(raw, form="packed", generation=secrets.token_hex(8), is_closed=True)
        staged = _Staged(self._shard.store, packed)
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
        if await self._digest(packed) != expected:
            raise _NotPackedError("what was read back differs from what was written")
        done = replace(packed, entries=expected[0], stored_bytes=staged.bytes)
        return done if await self._swap(done, staged.blocks) else None

    async def _swap(self, packed: Segment, blocks: int) -> bool:
        """Swaps staged blocks in, for as long as it takes: after a lost reply nobody else knows whether it was done.

        Returns:
            False where the segment is removed, or the staged blocks are not all there.
        """
        while True:
            try:
                return await self._shard.store.swap(packed, blocks)
            except REDIS_ERRORS as error:
                self._failed_with(error)
            await asyncio.sleep(IDLE_SECONDS)

    def _failed_with(self, error: BaseException) -> None:
        if isinstance(error, OutOfMemoryError):
            self._has_room = False
        logger.debug("the keeper of a journal waits for Redis", exc_info=error)

    async def _read(self, segment: Segment, after: bytes) -> list[bytes] | None:
        """The next members of a segment, some MB of them; None where they are no longer its own."""
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

    async def _digest(self, packed: Segment) -> tuple[int, bytes]:
        """Number and digest of the rows that Redis has in staged blocks."""
        digest, after = RowDigest(), b""
        while members := await self._read(packed, after):
            after = members[-1]
            await asyncio.to_thread(digest_of, members, digest)
        return digest.value

    async def _throttle(self, received_bytes: int) -> None:
        """Waits as long as a part may take; not while filing waits for a keeper of this worker."""
        left = received_bytes / self._shard.journal.compress_rate
        while left > 0 and not self._keeping.is_urgent:
            await asyncio.sleep(min(left, SLICE_SECONDS))
            left -= SLICE_SECONDS


class _Staged:
    """Blocks on their way to Redis, some at a time.

    Attributes:
        blocks: How many were written.
        bytes: What they take in Redis.
    """

    def __init__(self, store: JournalStore, segment: Segment) -> None:
        self.blocks = 0
        self.bytes = 0
        self._store = store
        self._segment = segment
        self._waiting: list[bytes] = []
        self._size = 0
        self._begins = True

    async def write(self, blocks: Sequence[bytes], *, ends: bool = False) -> bool:
        """Takes the next blocks; False where the segment is removed or packed already."""
        for block in blocks:
            is_full = self._size + len(block) > STAGED_BYTES or len(self._waiting) >= MOST_STAGED
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
