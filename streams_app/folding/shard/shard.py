"""The state of a shard in its owner's memory: fence and range as expected in Redis, unsent records, and a lock.

Claim, fold, seal and finish of a shard never overlap within the process: each runs under :attr:`Shard.lock` until its reply. While
the owner waits for the broker or retries, the lock is released.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import orjson

from streams_app.delivery.batch import TP
from streams_app.delivery.clocks import ReaderView
from streams_app.delivery.fingerprints import Fingerprint, followed_by
from streams_app.delivery.scripts import FencedError
from streams_app.fold import Fold
from streams_app.folding.core.chunks import Chunk, digest_of
from streams_app.folding.core.closing import Bounds
from streams_app.folding.core.event import DetailedEvent, FoldInput
from streams_app.folding.core.record import RecordShape, SealedGroup
from streams_app.folding.core.shard_clock import ShardClock
from streams_app.folding.shard import range_progress
from streams_app.folding.shard.outbox import Outbox
from streams_app.folding.shard.quiet_period import ShardQuietPeriod
from streams_app.folding.shard.range_progress import ChunkProgress, FoldStep, ScriptSizing, chunks_of
from streams_app.folding.store.arguments import GroupPacker
from streams_app.folding.store.keys import owner_text
from streams_app.folding.store.replies import FoldOutcome, OutboxEntry, RangeInProgress, SealedGroups
from streams_app.folding.store.shard_store import ShardStore
from streams_app.redis_access.client import REDIS_ERRORS

logger = logging.getLogger(__name__)

SPLIT_SECONDS: Final = 2.0
"""Maximum time for which the release of a shard waits until older versions can read its state, see :meth:`Shard.make_readable`."""

MOST_UNPACKED: Final = 20_000
"""The release of a shard with more packed groups than this does not unpack them: Redis would be busy for more than 0.3 s."""

OUTBOX_LIMIT: Final = 5_000
"""From this number of unacknowledged sealed records on, nothing is folded or sealed; the last script that folds may exceed it.

``fold.lua`` compares it with the number of entries in Redis, each with one or more records: a second check, in case the copy in
this process has fewer.
"""

SEAL_LIMIT: Final = 150
"""Maximum number of groups that one script seals, or gives a new timer because they are not due yet.

Such a script must not block Redis for more than 20 ms on a busy core.
"""


class Shard:
    """The state of one (fold, source topic, partition), owned by this process.

    Attributes:
        definition: This worker's definition of the fold, and the one under which the groups in Redis were folded.
        in_progress: The range of which only some groups are folded; None if there is none.
        outbox: Sealed groups in the order of sealing, not acknowledged yet; a copy of the outbox in Redis.
        stores_singly: Whether each sealed record becomes an entry of the outbox of its own, and each group a hash, because workers
            of an older version may claim the shard.
        log: Fingerprints of the folded records, see :mod:`streams_app.delivery.fingerprints`.
        lost: Number of offsets by which the broker has truncated the log so far; part of the ids and versions of records.
        quiet_period: The quiet period of the shard if it sets itself; otherwise None.
        is_claimed: False before the claim, after the release, and after a seal whose reply was lost, until the next claim.
        last_seal: Reply of the last seal since the claim; None if there was none.
    """

    def __init__(self, fold: Fold, tp: TP, store: ShardStore) -> None:
        self.fold = fold
        self.tp = tp
        self.store = store
        self.definition = Definition(RecordShape.of(fold), RecordShape.of(fold))
        self.bounds = Bounds.of(fold)
        self.clock = ShardClock(backlog=fold.backlog, quiet_ms=fold.quiet_period_ms)
        self.quiet_period = ShardQuietPeriod.of(fold, tp)
        self.outbox = Outbox()
        self.stores_singly = self._is_readable = False
        self.lock = asyncio.Lock()
        self.token = ""
        self.fence = -1
        self.in_progress: RangeInProgress | None = None
        self.log: tuple[Fingerprint, ...] = ()
        self.lost = 0
        self.is_claimed = False
        self.last_seal: SealedGroups | None = None
        self._packing = GroupPacker(self.bounds, b"", 1, keeps_values=fold.keeps_values)
        self._sizing = ScriptSizing()

    def __repr__(self) -> str:
        return f"<Shard fold={self.fold.name} source={self.tp} fence={self.fence}>"

    @property
    def key(self) -> tuple[str, TP]:
        return self.fold.name, self.tp

    # ---- ownership

    async def claim(self, position: int, partitions: int, topic_id: str = "", token: str = "") -> bool:
        """Take over the shard and load its state from Redis; return whether the state is new, because Redis had none.

        The caller must just have committed as the member and generation of the claim, which Kafka accepts only from the worker to
        which the partition is assigned.

        Args:
            position: Offset at which the fold begins if Redis has no state: its low watermark in Kafka.
            topic_id: Id of the source topic; "" if it is unknown.
            token: Token of the claim; if it is "", a new one is made.
        """
        async with self.lock:
            self.is_claimed = self.outbox.is_exact = self._is_readable = False
            self.token = token or secrets.token_hex(8)
            topics = orjson.dumps([self.fold.output, self.fold.dead_letters]).decode()
            claimed = await self.store.claim(
                self.token, position - 1, secrets.token_bytes(4), self.definition.present.to_text(), owner_text(), topics, topic_id
            )
            assert claimed is not None  # with a position, the state is created
            self.fence, self.in_progress = claimed.fence, claimed.in_progress
            self.log, self.lost = claimed.log, claimed.lost
            self.clock.take_over(claimed.clocks)
            if self.quiet_period is not None:
                self.quiet_period.take_over(claimed.learned)
            self.definition = Definition(self.definition.present, RecordShape.from_text(claimed.definition))
            self.last_seal = None
            self._packing = GroupPacker(self.bounds, claimed.epoch, partitions, keeps_values=self.fold.keeps_values)
            await self._load_outbox()
            self.is_claimed = True
        logger.info(
            "claimed fold=%s source=%s fence=%d open_groups=%d outbox=%d state=%s",
            self.fold.name, self.tp, self.fence, claimed.open_groups, len(self.outbox),
            "new" if claimed.created else "kept",
        )  # fmt: skip
        return claimed.created

    def release(self) -> None:
        """Mark the shard as not owned, so that further calls raise FencedError; its state in Redis remains for the next owner."""
        self.is_claimed = False

    async def store_singly(self, *, singly: bool) -> None:
        """Set :attr:`stores_singly`, split what the outbox has, and unpack groups; do not call this while records are being sent.

        Raises:
            FencedError: The shard must be claimed again.
            redis.exceptions.RedisError: The outcome is unknown; call again.
        """
        self.stores_singly = singly
        self._is_readable = self._is_readable and singly and len(self.outbox) == self.outbox.entries
        if singly and not self._is_readable:
            async with self.lock:
                self.check_owned()
                self.outbox.is_exact = False
                await self.store.unpack(self.token)
                await self.store.split(self.token)  # afterwards, because it removes the format only if no group is packed
                await self._load_outbox()
            self._is_readable = True

    async def make_readable(self, seconds: float) -> None:
        """After :meth:`release`, and the end of all calls: store a state that the next owner can read if it has an older version.

        The next owner may have to be one of this version if Redis does not answer, the process is killed, or more than
        :data:`MOST_UNPACKED` groups are packed.
        """
        with suppress(FencedError, TimeoutError, *REDIS_ERRORS):
            async with asyncio.timeout(min(seconds, SPLIT_SECONDS)):
                if not self._is_readable:
                    # Also if no group is packed: this removes the format that they have left. It is the first request, so Redis
                    # executes it before the claim of the next owner even if the reply is late.
                    await self.store.unpack(self.token, MOST_UNPACKED)
                if self.outbox or not self.outbox.is_exact:
                    await self.store.split(self.token)

    def check_owned(self) -> None:
        if not self.is_claimed:
            raise FencedError("owner", "released")

    # ---- folding

    def waits_for(self, end: int) -> bool:
        """Return whether a range with this last offset is too short, because the range in progress ends later."""
        return self.in_progress is not None and end < self.in_progress.to

    def chunks(self, events: Iterable[FoldInput], end: int, view: ReaderView, now_ms: int) -> Iterator[Chunk]:
        """Cut the events of a range, for whose ``end`` :meth:`waits_for` is False, into chunks.

        Request each chunk only after the chunks before it are folded.
        """
        keeps_values = self.fold.keeps_values
        return chunks_of(
            events, self.fence, end, self.in_progress, self.clock, self.bounds, view, now_ms,
            keeps_values=keeps_values, quiet_period=self.quiet_period,
        )  # fmt: skip

    def add_fingerprint(self, record: Any) -> None:
        """Add the fingerprint of the last record of the chunk that is folded next to :attr:`log`; do nothing if it is None."""
        if record is not None:
            self.log = followed_by(self.log, record)

    def begin(self, chunk: Chunk, events: Callable[[], Iterable[FoldInput]]) -> ChunkProgress:
        """Return the progress of a chunk; pass it to :meth:`fold_once` until the chunk is folded.

        If another owner has folded some groups of the chunk, the progress begins after them.
        """
        digest = digest_of(chunk) if self.fold.may_read_otherwise else b""
        begun = self.in_progress or RangeInProgress(chunk.to, b"", chunk.time, digest)
        # Groups up to the cursor are skipped. If the digests differ, some of their events might be in no record.
        self.definition.functions_disagree |= begun.digest != digest
        quiet_period = self.quiet_period
        if quiet_period is None:
            return ChunkProgress(chunk, begun.cursor, events, digest)

        def reread() -> Iterable[FoldInput]:
            return quiet_period.reread(cast("Iterable[DetailedEvent]", events()), chunk.time)

        return ChunkProgress(chunk, begun.cursor, reread, digest)

    async def fold_once(self, progress: ChunkProgress) -> FoldStep:
        """Fold the next groups of a chunk by one script call, which is repeated with split runs if Redis requests that.

        While the outbox is full or the definition of the fold has changed, nothing is folded, and the outcome is ``FULL``.

        Raises:
            FencedError: The shard must be claimed again.
            redis.exceptions.RedisError: The outcome is unknown; call again.
        """
        async with self.lock:
            self.check_owned()
            if len(self.outbox) >= OUTBOX_LIMIT or self.definition.has_changed:
                return FoldStep(FoldOutcome.FULL)
            if self.in_progress is None:
                # The range may have been dropped since the chunk was begun, together with the former definition of the fold.
                progress.restart()
            if self.bounds.dedupes:
                progress.forget_split_runs()
            chunk = progress.chunk
            after = self.clock.after(chunk.time, chunk.clock_ms, has_events=chunk.events > 0)
            silent_from_ms = self.clock.silent_from_ms(chunk.time, after)
            in_progress = RangeInProgress(chunk.to, b"", chunk.time, progress.digest)
            learned = b"" if self.quiet_period is None else self.quiet_period.to_store(chunk.time.cap_ms)
            while True:
                singly = self.stores_singly
                groups, is_last = progress.next_groups(self._sizing.groups, self._packing, silent_from_ms, may_pack=not singly)
                was_exact, self.outbox.is_exact = self.outbox.is_exact, False
                reply = await self.store.fold(
                    self.token, self.fence, in_progress, progress.cursor, groups, after, self.bounds,
                    is_last=is_last, outbox_limit=OUTBOX_LIMIT, max_work=range_progress.SCRIPT_WORK,
                    partitions=self._packing.partitions, log=self.log, learned=learned if is_last else b"", singly=singly,
                )  # fmt: skip
                self.outbox.is_exact = was_exact
                if reply.outcome is not FoldOutcome.DETAIL:
                    break
                progress.detail(reply.detail, self.bounds)
            if reply.outcome is FoldOutcome.FULL:
                # Redis has more entries than the copy in this process.
                await self._load_outbox()
                return FoldStep(FoldOutcome.FULL)
            if reply.outcome is FoldOutcome.ALREADY:
                await self._load_outbox()
            self._add_to_outbox(reply.entry, singly=singly)
            self._sizing.learn(reply.taken, reply.work)
            if reply.cursor:
                progress.advance_to(reply.cursor)
                self.in_progress = replace(in_progress, cursor=reply.cursor)
                return FoldStep(FoldOutcome.MORE, len(reply.sealed), reply.duplicates)
            self.in_progress, self.fence = None, chunk.to
            if self.quiet_period is not None:
                self.quiet_period.folded(chunk.time.cap_ms, has_stored=bool(learned))
            self.clock.stored = after._replace(clock_ms=max(after.clock_ms, reply.clock_ms))
            return FoldStep(FoldOutcome.DONE, len(reply.sealed), reply.duplicates)

    # ---- emission

    def observe_fetch(self, view: ReaderView, now_ms: int) -> bool:
        """Do the same as :meth:`.ShardClock.observe_fetch`; return False if the shard is not claimed."""
        return self.is_claimed and self.clock.observe_fetch(self.fence, view, now_ms)

    async def seal(
        self, now_ms: int, *, folded_until_ms: int | None, everything: bool = False, is_redis_full: bool = False
    ) -> SealedGroups | None:
        """Seal due groups by one script call, which moves them into the outbox. Also flush or drop groups on request.

        Args:
            folded_until_ms: Wall-clock time up to which all records that had arrived are folded; the partition clock advances to
                it. None: the time is unknown, and the partition clock does not advance.
            is_redis_full: Whether Redis is full. While a range is only partly folded, the partition clock normally does not
                advance, because the events in the rest of the range are scored by it. If Redis is full, this rest could wait for
                ever. So groups are then due by the advanced clock, which is not stored.

        Returns:
            The reply of the script; None while the outbox is full.

        Raises:
            FencedError: The shard must be claimed again.
            redis.exceptions.RedisError: If :attr:`is_claimed` is False now, the outcome is unknown, and the shard must be claimed
                again, which also reads the outbox. Otherwise call again.
        """
        async with self.lock:
            self.check_owned()
            room = OUTBOX_LIMIT - len(self.outbox)
            if room <= 0:
                return None
            singly = self.stores_singly
            clock_ms = self.clock.due_ms(folded_until_ms)
            late_ms = self.clock.stored.late_ms
            was_exact, self.outbox.is_exact = self.outbox.is_exact, False
            try:
                done = await self.store.seal(
                    self.token, self.fence, clock_ms, replace(self.bounds, hold_ms=self.bounds.hold_ms + late_ms),
                    quiet=self.clock.quiet_groups_close(clock_ms, now_ms), everything=everything, is_redis_full=is_redis_full,
                    limit=min(SEAL_LIMIT, room), partitions=self._packing.partitions, singly=singly,
                )  # fmt: skip
            except FencedError:
                raise
            except BaseException:  # also if it was cancelled: the sealed groups are unknown
                # The next claim reads the outbox.
                self.is_claimed = False
                raise
            self.outbox.is_exact = was_exact
            self.clock.stored = self.clock.stored._replace(clock_ms=done.clock_ms)
            self.last_seal = done
            self._add_to_outbox(OutboxEntry(done.sealed, done.first_offset), singly=singly)
            await self._compare_outbox(done.outbox_entries)
            return done

    async def finish(self, sent: Sequence[SealedGroup]) -> None:
        """Remove acknowledged records from the outbox; an entry leaves Redis with the last of its records.

        Raises:
            redis.exceptions.RedisError: The outcome is unknown; call again.
        """
        async with self.lock:
            self.check_owned()
            was_exact, finished = self.outbox.is_exact, self.outbox.finished(sent)
            if not finished:
                self.outbox.remove(sent)
                return
            self.outbox.is_exact = False
            left = await self.store.finish(self.token, self.outbox.ranges(finished))
            self.outbox.remove(sent)
            if was_exact:
                self.outbox.is_exact = True
                await self._compare_outbox(left)
            else:
                await self._load_outbox()

    def _add_to_outbox(self, sealed: OutboxEntry, *, singly: bool) -> None:
        for entry in sealed.singles() if singly else (sealed,):
            self.outbox.add(entry)

    async def _compare_outbox(self, entries: int) -> None:
        """Read the outbox again if its size is unexpected: a rollback of Redis may restore acknowledged records."""
        if entries != self.outbox.entries:
            await self._load_outbox()

    async def _load_outbox(self) -> None:
        self.outbox.load(await self.store.outbox(self.token, SEAL_LIMIT))

    # ---- changes of the definition and of the log

    async def adopt_definition(self) -> None:
        """Store this worker's definition of the fold in Redis; raises FencedError if groups or records of the former are left."""
        async with self.lock:
            self.check_owned()
            present = self.definition.present
            await self.store.define(self.token, present.to_text())
            self.definition, self.in_progress = Definition(present, present), None

    async def rewind_to(self, fence: int, log: tuple[Fingerprint, ...], lost: int) -> None:
        """Move the fence back over offsets that the broker has lost; no group may be open, and the outbox must be empty.

        ``log`` has the fingerprints up to the new fence.
        """
        async with self.lock:
            self.check_owned()
            await self.store.rewind(self.token, self.fence, fence, log, lost)
            self.fence, self.in_progress, self.log, self.lost = fence, None, log, lost

    async def skip_to(self, fence: int) -> None:
        """Move the fence over offsets that the log no longer contains; no group may be open."""
        async with self.lock:
            self.check_owned()
            await self.store.skip(self.token, self.fence, fence)
            self.fence = fence
            if self.in_progress is not None and self.in_progress.to <= fence:
                self.in_progress = None


@dataclass(slots=True)
class Definition:
    """The definition of a fold in this worker, compared with the one under which the groups in Redis were folded.

    Attributes:
        functions_disagree: Whether another worker has folded some groups of a range from which this worker reads other groups or
            events, for example because a function of the user has changed.
    """

    present: RecordShape
    stored: RecordShape
    functions_disagree: bool = False

    @property
    def has_changed(self) -> bool:
        """Whether the stored groups must be emitted before this worker folds events under its own definition."""
        return self.stored != self.present or self.functions_disagree
