"""A shard as its owner holds it: the marks it expects in Redis, what is sealed and not yet sent, and one lock.

Claim, fold, seal and finish of a shard never overlap within the process: each runs under :attr:`Shard.lock`, reply included.
Whoever waits (for the broker, for Redis) lets go of it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import orjson

from streams_app.delivery.partition_clock import ReaderView, advanced, is_caught_up
from streams_app.fold import Fold
from streams_app.folding.core import partition_clock
from streams_app.folding.core.chunks import Chunk, Event, Pace, Scoring, chunks_of, single_events
from streams_app.folding.core.partition_clock import arrival_ms, quiet_groups_close, silent_from_ms
from streams_app.folding.core.record import RecordShape, Sealed
from streams_app.folding.shard.cutting import MOST_HELD, raise_parts
from streams_app.folding.shard.outbox import Pending
from streams_app.folding.shard.staging import stage
from streams_app.folding.store.arguments import Bounds, arguments_of
from streams_app.folding.store.keys import owner_text
from streams_app.folding.store.replies import (
    DetailNeededError,
    Folded,
    FoldStep,
    OutboxFullError,
    RefusedError,
    SealedGroups,
    StagingNeededError,
)
from streams_app.folding.store.shard_store import ShardStore

logger = logging.getLogger(__name__)

OUTBOX_LIMIT = 5_000
"""Records sealed and not yet acknowledged; beyond it nothing more is folded or sealed."""

SEAL_LIMIT = 150
"""Groups and early timers of one seal script: it may not hold Redis longer than 20 ms, however many processes want its core."""


class Shard:
    """The state of one (fold, source topic, partition) in the hands of this process.

    Attributes:
        fence: Highest offset folded.
        clock_ms: Partition clock.
        caught_up_at_ms: When it last was at the end of its partition, by a fetch reply or by the log's end at the claim.
        known_ms: Everything that had arrived by then is folded, as a fetch reply said; None before any has since the claim.
        arrived_ms: When the range that is being folded was fetched, if the reader had been at the end just before; else None.
        is_behind: Sessions of a backlog are folded: they end by record time, as fast as it is read.
        pace: Of a backlog.
        late_ms: With ``sessions``: by how much record time was behind the wall clock when the last live event arrived; in Redis.
        pending: Sealed entries in the order of sealing, not yet acknowledged; mirrors the outbox in Redis.
        lock: Held while a script of this shard runs.
        is_claimed: False before the claim and from the first refusal on; ``is_new``: Redis had no state then.
    """

    def __init__(self, fold: Fold, topic: str, partition: int, store: ShardStore) -> None:
        self.fold = fold
        self.topic = topic
        self.partition = partition
        self.gaps_close = fold.backlog == "sessions"
        self.store = store
        self.shape = RecordShape.of(fold)
        self.stored_shape = self.shape
        self.bounds = Bounds(
            quiet_ms=fold.quiet_period_ms, hold_ms=fold.max_hold_ms, max_events=fold.max_events, max_changed=fold.max_changed,
            outbox_limit=OUTBOX_LIMIT,
        )  # fmt: skip
        self.partitions = 1
        self.token = ""
        self.epoch = b""
        self.fence = -1
        self.clock_ms = 0
        self.record_clock_ms = 0
        self.caught_up_at_ms: int | None = None
        self.known_ms: int | None = None
        self.arrived_ms: int | None = None
        self.is_behind, self.late_ms, self.pace = False, 0, Pace()
        self.pending = Pending()
        self.lock = asyncio.Lock()
        self.is_claimed = self.is_new = False
        self.seen: SealedGroups | None = None

    def __repr__(self) -> str:
        return f"<Shard fold={self.fold.name} source={self.topic}-{self.partition} fence={self.fence}>"

    async def claim(self, mark: int, partitions: int, topic_id: str = "", token: str = "") -> None:
        """Takes the shard over, from whoever had it; the caller has just committed under its own generation.

        Args:
            mark: Where this fold begins if Redis has no state: its low watermark in Kafka.
            partitions: Partition count of the source.
            topic_id: Of the source; "": not known.
            token: Of the claim; "": a fresh one.
        """
        async with self.lock:
            self.is_claimed = False
            self.token = token or secrets.token_hex(8)
            topics = orjson.dumps([self.fold.output, self.fold.dead_letters]).decode()
            claimed = await self.store.claim(
                self.token, mark - 1, secrets.token_bytes(4), self.shape.to_text(), owner_text(), topics, topic_id
            )
            assert claimed is not None  # a mark was given, so the state exists now
            self.partitions = partitions
            self.epoch = claimed.epoch
            self.fence, self.is_new = claimed.fence, claimed.created
            self.clock_ms = claimed.clock_ms
            self.record_clock_ms = claimed.record_clock_ms
            self.caught_up_at_ms = self.known_ms = None
            self.arrived_ms, self.late_ms = None, claimed.late_ms
            self.stored_shape = RecordShape.from_text(claimed.definition)
            self.seen = None
            await self._load_outbox()
            self.is_claimed = True
        logger.info(
            "claimed fold=%s source=%s-%d fence=%d open_groups=%d outbox=%d state=%s",
            self.fold.name, self.topic, self.partition, self.fence, claimed.open_groups, claimed.outbox_records,
            "new" if claimed.created else "kept",
        )  # fmt: skip

    def release(self) -> None:
        """Forgets the shard; what is in Redis stays for the next owner."""
        self.is_claimed = False

    def check_owned(self) -> None:
        """Raises RefusedError once the shard was released or refused."""
        if not self.is_claimed:
            raise RefusedError("owner", "released")

    async def fold_chunk(self, chunk: Chunk, events: Callable[[], Iterable[Event]]) -> FoldStep:
        """Folds one chunk; may be called again with the same chunk after an error.

        Args:
            chunk: From :meth:`chunks`.
            events: Of its range, read again: where bounds fall inside a run it is taken apart.

        Raises:
            RefusedError: To be claimed again.
            OutboxFullError: To be called again once the outbox has been sent, or the former definition is no longer stored.
            ChunkTooLongError: To be called with its parts instead.
            redis.exceptions.RedisError: Outcome unknown; to be called again.
        """
        async with self.lock:
            self.check_owned()
            if chunk.to <= self.fence:
                return FoldStep(0, 0)
            if len(self.pending) >= OUTBOX_LIMIT or self.stored_shape != self.shape:
                # Groups folded under a former definition leave first: what is folded now means something else.
                raise OutboxFullError
            was_exact, self.pending.is_exact = self.pending.is_exact, False
            reply = await self._fold(chunk, events)
            self.pending.is_exact = was_exact
            if reply.repeated:
                # Before the fence is noted: should this fail, too, the chunk is folded again and the outbox read again.
                await self._load_outbox(chunk.to)
            else:
                self.pending.extend(reply.sealed)
            self.fence, self.clock_ms = chunk.to, reply.clock_ms
            self.late_ms = self._late_after(chunk)
            self.record_clock_ms = max(self.record_clock_ms, chunk.clock_ms)
            return FoldStep(chunk.events, len(reply.sealed))

    async def _fold(self, chunk: Chunk, events: Callable[[], Iterable[Event]]) -> Folded:
        marks = self.token, self.fence, chunk.to
        record_clock = max(self.record_clock_ms, chunk.clock_ms)
        late, clock = self._late_after(chunk), chunk.clock_ms
        silent_from = silent_from_ms(self.arrived_ms, record_clock, late, chunk.now_ms)
        if self.is_behind:
            clock = max(clock, silent_from or 0)
        detail: frozenset[bytes] = frozenset()
        ended: list[Sealed] = []
        repeated = always = False
        while True:
            arguments = arguments_of(
                chunk, self.bounds, gaps_close=self.gaps_close, keeps_values=self.fold.keep == "last", partitions=self.partitions,
                epoch=self.epoch, singles=single_events(events(), chunk, detail) if detail else None,
            )  # fmt: skip
            staged = await stage(self.store, marks, arguments, self.bounds, self.partitions, silent_from, always=always)
            ended += staged.ended
            repeated |= staged.repeated
            if staged.held > MOST_HELD:
                self.pace.learn(chunk.runs, staged.held)
                raise_parts(chunk, events(), self._scoring(chunk.now_ms), staged.held)
            try:
                folded = await self.store.fold(
                    *marks, clock, record_clock, self.bounds,
                    gaps_close=self.gaps_close, partitions=self.partitions, arguments=staged.rest, ahead=staged.ahead,
                    attempt=staged.attempt, arrived_ms=silent_from, late_ms=late,
                )  # fmt: skip
            except StagingNeededError:
                always = True
            except DetailNeededError as needed:
                if needed.groups <= detail:
                    raise RefusedError("fold", "detail") from needed
                detail |= needed.groups
            else:
                self.pace.learn(chunk.runs, max(folded.held, arguments.others))
                sealed = [*ended, *staged.joint, *staged.sessions, *folded.sealed]
                return replace(folded, repeated=folded.repeated or repeated, sealed=sealed)

    def chunks(self, events: Iterable[Event], end: int, view: ReaderView, now_ms: int) -> Iterator[Chunk]:
        """Cuts the events of a range for this shard, by its clock and policy; in a backlog each chunk as it is wanted.

        Args:
            events: In offset order, all above the fence.
            end: Offset of the fence afterwards.
            view: Of the fetch that brought them.
            now_ms: Wall clock.
        """
        self.arrived_ms = arrival_ms(view, self.caught_up_at_ms, now_ms)
        self.is_behind = self.gaps_close and self.arrived_ms is None
        return chunks_of(events, end, self._scoring(now_ms))

    def _late_after(self, chunk: Chunk) -> int:
        if not self.gaps_close or not chunk.events:
            return self.late_ms
        return partition_clock.late_after_ms(self.late_ms, self.arrived_ms, max(self.record_clock_ms, chunk.clock_ms), chunk.now_ms)

    def _scoring(self, now_ms: int) -> Scoring:
        return Scoring(
            clock_ms=self.record_clock_ms if self.gaps_close else self.clock_ms, now_ms=now_ms, arrived_ms=self.arrived_ms,
            gap_ms=self.bounds.quiet_ms if self.gaps_close else None,
            keeps_values=self.fold.keep == "last", pace=self.pace)  # fmt: skip

    def look(self, view: ReaderView, now_ms: int) -> bool:
        """Whether the shard has caught up; remembers when it last had."""
        caught_up = self.is_claimed and is_caught_up(self.fence, view, now_ms)
        if caught_up:
            self.caught_up_at_ms = self.known_ms = min(view.fetched_at_ms or 0, now_ms)
        return caught_up

    async def seal(self, now_ms: int, *, known_ms: int | None, everything: bool = False) -> SealedGroups | None:
        """Puts due groups into the outbox; one script.

        Args:
            now_ms: Wall clock.
            known_ms: Everything that had arrived by then is folded; None: nobody knows until when.
            everything: Every open group, due or not.

        Returns:
            What it did; None while the outbox is too full to take more.

        Raises:
            RefusedError: To be claimed again.
            redis.exceptions.RedisError: Outcome unknown; the outbox is read again before the next seal.
        """
        async with self.lock:
            self.check_owned()
            room = OUTBOX_LIMIT - len(self.pending)
            if room <= 0:
                return None
            clock = advanced(self.clock_ms, known_ms or 0, caught_up=known_ms is not None)
            try:
                done = await self.store.seal(
                    self.token, self.fence, clock,
                    replace(self.bounds, hold_ms=self.bounds.hold_ms + self.late_ms),
                    quiet=quiet_groups_close(self.fold.backlog, clock, now_ms, self.bounds.quiet_ms),
                    everything=everything, limit=min(SEAL_LIMIT, room), partitions=self.partitions,
                )  # fmt: skip
            except RefusedError:
                raise
            except BaseException:
                # Perhaps sealed, perhaps not: what is pending is no longer known. A claim reads it again.
                self.is_claimed = False
                raise
            self.clock_ms = done.clock_ms
            self.seen = done
            self.pending.extend(done.sealed)
            await self._compare_outbox(done.outbox_records)
            return done

    async def finish(self, sent: Sequence[Sealed]) -> None:
        """Removes acknowledged records from the outbox.

        Raises:
            RefusedError: To be claimed again.
            redis.exceptions.RedisError: Outcome unknown; may be repeated.
        """
        async with self.lock:
            self.check_owned()
            was_exact, ranges = self.pending.is_exact, self.pending.ranges(sent)
            self.pending.is_exact = False
            left = await self.store.finish(self.token, ranges)
            self.pending.remove(sent)
            if was_exact:
                self.pending.is_exact = True
                await self._compare_outbox(left)
            else:
                await self._load_outbox()

    async def adopt_definition(self) -> None:
        """Stores this worker's definition once nothing folded under the former one is left."""
        async with self.lock:
            self.check_owned()
            await self.store.define(self.token, self.shape.to_text())
            self.stored_shape = self.shape

    async def skip_to(self, fence: int) -> None:
        """Moves the fence over offsets the log no longer has; no group may be open."""
        async with self.lock:
            self.check_owned()
            await self.store.skip(self.token, self.fence, fence)
            self.fence = fence

    async def _compare_outbox(self, records: int) -> None:
        """A roll-back of Redis may leave token and fence, and bring back a record that was acknowledged: it is sent again."""
        if records != len(self.pending):
            await self._load_outbox()

    async def _load_outbox(self, fence: int | None = None) -> None:
        found = await self.store.outbox(self.token, self.fence if fence is None else fence, SEAL_LIMIT)
        self.pending.clear()
        self.pending.extend(found)
        self.pending.is_exact = True
