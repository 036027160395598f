"""A source partition in the hands of this process: its shards, what waits to be folded, and the tasks that do it.

Claimed by :class:`streams_app.folding.agents.ownership.Ownership`; released on revocation, on a refusal, and at the end.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain

from redis.exceptions import OutOfMemoryError

from streams_app.delivery.batch import TP, Batch
from streams_app.delivery.commits import Committed
from streams_app.delivery.marks import commit_of, raised
from streams_app.delivery.partition_clock import ReaderView
from streams_app.errors import text_of
from streams_app.folding.agents import drained as retired
from streams_app.folding.agents.emission import Emitter
from streams_app.folding.agents.parts import Hooks, Parts
from streams_app.folding.agents.refusals import count_misrouted, send_until_acknowledged
from streams_app.folding.core.chunks import Chunk, Event
from streams_app.folding.reading.addressing import Post
from streams_app.folding.reading.reader import EventReader, Reading, decode_all
from streams_app.folding.shard.cutting import ChunkTooLongError
from streams_app.folding.shard.shard import Shard
from streams_app.folding.store.replies import OutboxFullError, RefusedError
from streams_app.redis_client import REDIS_ERRORS

logger = logging.getLogger(__name__)

WAITING_BATCHES = 1
"""Batches of a partition in memory before its reader is paused; what has been fetched meanwhile waits as bytes."""

STUCK_MS = 1_000
"""A chunk takes a fraction of it."""
WORTH_SENDING = 500
"""Records: what one request to the broker costs, whatever is in it, is small beside them."""

RESET = "reset"
"""Cause of a resync: the client has reset its position by itself."""

RETRY_SECONDS = (0.1, 0.2, 0.5, 1.0)


class Partition:
    """One claimed source partition."""

    def __init__(
        self,
        tp: TP,
        shards: list[Shard],
        readers: dict[str, EventReader],
        emitters: list[Emitter],
        parts: Parts,
        hooks: Hooks,
    ) -> None:
        self.tp = tp
        self.source = f"{tp.topic}-{tp.partition}"
        self.shards = shards
        self.marks: dict[str, int] = {}
        self.resumed: dict[str, int] = {}
        self.began: dict[str, int] = {}
        self.committed: Committed | None = None
        self.seek_number = -1
        self.generation = -1
        self.position = 0
        self.is_claimed = False
        self.is_paused = False
        self.progress_ms = parts.clock.monotonic_ms()
        self._readers = readers
        self.emitters = emitters
        self.retired: list[Emitter] = []
        self._parts = parts
        self._limits = parts.settings.limits
        self._clock = parts.clock
        self._metrics = parts.metrics
        self._status = parts.status
        self._hooks = hooks
        self._waiting: deque[Batch] = deque()
        self._arrived = asyncio.Event()
        self._ticked = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def waiting(self) -> int:
        """Batches not yet folded."""
        return len(self._waiting)

    @property
    def held(self) -> int:
        """Records of those batches; 0 while nothing of them gets folded: no other partition waits for this one."""
        is_stuck = self._clock.monotonic_ms() - self.progress_ms > STUCK_MS
        return 0 if is_stuck else sum(len(batch.records) for batch in self._waiting)

    def start(self) -> None:
        """Begins folding and emission; the shards have been claimed."""
        self.is_claimed = True
        self.progress_ms = self._clock.monotonic_ms()
        self._tasks = [asyncio.create_task(self._fold_forever(), name=f"fold {self.tp}")]
        self._tasks += [
            asyncio.create_task(self._emit_forever(emitter), name=f"emit {emitter.shard.fold.name} {self.tp}")
            for emitter in self.emitters
        ]
        self._tasks += [
            asyncio.create_task(retired.drain(emitter, lambda: self.is_claimed), name=f"drain {emitter.shard.fold.name} {self.tp}")
            for emitter in self.retired
        ]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._hooks.on_crash(error)

    def release(self) -> None:
        """Stops at once; what is in Redis stays for the next owner."""
        self.is_claimed = False
        for shard in (*self.shards, *(emitter.shard for emitter in self.retired)):
            shard.release()
        self._waiting.clear()
        for task in self._tasks:
            task.cancel()

    async def stopped(self) -> None:
        """Waits until the tasks have ended after :meth:`release`."""
        tasks, self._tasks = self._tasks, []
        await asyncio.gather(*(task for task in tasks if task is not asyncio.current_task()), return_exceptions=True)

    def tick(self) -> None:
        """Wakes the emission."""
        self._ticked.set()

    def deliver(self, batch: Batch) -> None:
        """Takes a batch from the reader; one fetched before the last seek is dropped quietly."""
        if not self.is_claimed or batch.seek_number != self.seek_number:
            return
        if batch.begin < self.position:
            # The client reset its position by itself: what it read from was removed, or the topic was made again.
            self._hooks.on_refused(self, "fold", RESET)
            return
        self._waiting.append(batch)
        self.position = batch.end
        self._arrived.set()

    # ---- folding

    async def _fold_forever(self) -> None:
        try:
            while self.is_claimed:
                while self._waiting:
                    await self.fold_once(self._waiting[0])
                    if self._waiting:
                        # Emptied by hand: Faust's wrappings of it are cycles, and would keep every event until they are looked for.
                        self._waiting.popleft().records = []
                    self._hooks.on_backlog(self)
                    await asyncio.sleep(0)
                self._arrived.clear()
                await self._arrived.wait()
        except RefusedError as refused:
            self._hooks.on_refused(self, refused.script, refused.cause)

    async def fold_once(self, batch: Batch) -> None:
        """Folds one fetched range into every shard.

        Raises:
            RefusedError: The range does not continue a shard (the chain rule), or Redis refused.
        """
        self.progress_ms = self._clock.monotonic_ms()
        end = batch.end - 1
        clock = self._hooks.clock
        view = ReaderView(batch.stable_offset, batch.fetched_at_ms)
        behind = [shard for shard in self.shards if shard.fence < end]
        if not behind:
            return
        for shard in behind:
            if batch.begin > shard.fence + 1:
                # An earlier range was dropped with the buffers of a rebalance; folding this one would lose it for good.
                raise RefusedError("fold", "hole")
        is_shared = any(self._readers[shard.fold.name].needs_decoded for shard in behind)
        decoded = decode_all(batch.records, self._limits) if is_shared else None
        post = Post(self._parts.settings.app_id, [shard.fold.name for shard in self.shards], batch.records, decoded)
        for shard in behind:
            above = shard.fence
            at = 0
            if batch.begin <= above:
                at = next((i for i, record in enumerate(batch.records) if record.offset > above), len(batch.records))
            reader = self._readers[shard.fold.name]
            reading = Reading()
            mine = post.of(shard.fold.name, at, reading)
            events: Iterable[Event] = reader.events(*mine, reading)
            again = partial(reader.events, *mine, Reading())
            if reader.needs_decoded:
                # A user's functions need not say the same twice.
                events = listed = list(events)
                again = partial(iter, listed)
            chunks = shard.chunks(events, end, view, clock.now_ms())
            await self._fold_all(shard, chunks, reading, again)
            if clock.is_trusted() and shard.look(view, clock.now_ms()) and shard.arrived_ms is None:
                self.tick()  # a backlog ends: what is due need not wait for the clock
            if reading.misrouted:
                count_misrouted(shard.fold.name, reading, self.tp, self._metrics)

    async def _fold_all(
        self, shard: Shard, chunks: Iterator[Chunk], reading: Reading, again: Callable[[], Iterable[Event]]
    ) -> None:
        while chunk := next(chunks, None):
            await self._send_dead_letters(shard, reading)
            if shard.is_behind and await self._emitter(shard).seal_ahead():
                self._wake(shard)
            try:
                await self._fold_chunk(shard, chunk, again)
            except ChunkTooLongError as long:
                chunks = chain(long.parts, chunks)
            self.progress_ms = self._clock.monotonic_ms()

    async def _fold_chunk(self, shard: Shard, chunk: Chunk, events: Callable[[], Iterable[Event]]) -> None:
        """Folds one chunk, for as long as it takes; the same call again is harmless."""
        attempt = 0
        name = shard.fold.name
        while True:
            try:
                with self._metrics.script_seconds.labels(script="fold").time():
                    step = await shard.fold_chunk(chunk, events)
            except OutboxFullError:
                self.tick()
                await shard.pending.room(RETRY_SECONDS[-1])
                continue
            except OutOfMemoryError as error:
                self._emitter(shard).is_starved = True
                self._status.set_not_ready("redis-memory", f"Redis refuses writes: {error}")
                if attempt == 0:
                    logger.warning("folding paused, Redis is full; emission goes on fold=%s source=%s", name, self.source)
            except REDIS_ERRORS as error:
                self._status.set_not_ready("redis", f"Redis does not answer: {error}")
                if attempt == 0:
                    logger.warning("folding paused, Redis does not answer fold=%s source=%s error=%s", name, self.source, error)
            else:
                if attempt:
                    self._emitter(shard).is_starved = False
                    self._status.clear("redis-memory")
                    self._status.clear("redis")
                    logger.info("folding resumed fold=%s source=%s", name, self.source)
                self._metrics.events_folded.labels(fold=name).inc(step.events)
                if step.sealed:
                    self._wake(shard)
                return
            await asyncio.sleep(RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)])
            attempt += 1

    def _wake(self, shard: Shard) -> None:
        """Wakes the emission; in a backlog not for a few records, which the next tick takes along."""
        if not shard.is_behind or len(shard.pending) >= WORTH_SENDING:
            self.tick()

    def _emitter(self, shard: Shard) -> Emitter:
        return next(emitter for emitter in self.emitters if emitter.shard is shard)

    async def _send_dead_letters(self, shard: Shard, reading: Reading) -> None:
        """Produces refused events and waits for the broker, before the fence may pass them."""
        if reading.refused:
            await send_until_acknowledged(shard.fold, reading.refused, self.tp, self._parts)
            reading.refused.clear()

    # ---- emission

    async def _emit_forever(self, emitter: Emitter) -> None:
        shard = emitter.shard
        failures = 0
        while self.is_claimed:
            try:
                emitted = await emitter.emit_due_once()
            except RefusedError as refused:
                self._hooks.on_refused(self, refused.script, refused.cause)
                return
            except REDIS_ERRORS as error:
                if failures == 0:
                    logger.warning("emission paused fold=%s source=%s error=%s", shard.fold.name, self.source, text_of(error))
                failures += 1
                if not shard.is_claimed and self.is_claimed:
                    self._hooks.on_refused(self, "seal", "lost-reply")
                    return
                await asyncio.sleep(RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)])
                continue
            if emitted.failed is not None:
                if failures == 0:
                    logger.warning("emission paused fold=%s source=%s error=%r", shard.fold.name, self.source, emitted.failed)
                failures += 1
                await asyncio.sleep(RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)])
                continue
            if failures:
                logger.info("emission resumed fold=%s source=%s", shard.fold.name, self.source)
                failures = 0
            if not emitted.more:
                await emitter.turn(self._ticked, emitted)

    # ---- commit

    async def low_marks(self) -> Committed | None:
        """What may be committed now: the lowest mark over all folds; None if any shard has no state."""
        lows: dict[str, int] = {}
        for shard in self.shards:
            low = await shard.store.watermark()
            if low is None:
                return None
            lows[shard.fold.name] = low
        for emitter in self.retired:
            drained = await emitter.shard.store.watermark()
            if drained is not None:
                lows[emitter.shard.fold.name] = drained
        self.marks = raised(self.marks, lows)
        return commit_of(self.marks, self.began)
