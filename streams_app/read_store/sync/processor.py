"""The processors of one read store: each syncs one partition of an output topic, in order, a transaction a step.

The store's own progress, written in the transaction of the rows it stands for, says where a partition goes on. What is committed to
Kafka is for those who look at the lag there. A store or source that is down, locked or misconfigured is waited for: nothing is
skipped, nothing is raised, and only partitions that have something to sync are paused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator
from functools import partial
from typing import Final, TypeVar

from streams_app.delivery.batch import TP, Batch
from streams_app.delivery.fingerprints import Fingerprint, followed_by, of_text, thinned, to_text, up_to
from streams_app.delivery.processor import Claim, OffsetAndMetadata, Processor, Processors
from streams_app.delivery.tasks import ended, run
from streams_app.health.outage_reporter import OutageReporter
from streams_app.read_store.core.store import ProgressError, ProgressStep, former_end_of
from streams_app.read_store.sync.dead_letters import OutputRecord
from streams_app.read_store.sync.store_sync import StoreSync, steps

logger = logging.getLogger(__name__)

T = TypeVar("T")

RECENT_FINGERPRINTS: Final = 3
"""Of what was synced last so many fingerprints are noted with each commit, of older records fewer: a note has little room."""

CHECK_SECONDS: Final = 10.0
"""How often a partition without records looks whether the store still stands where it was left."""


class StoreProcessors(Processors):
    """Makes the processors of all partitions; they take turns at one store and one source."""

    def __init__(self, sync: StoreSync, outages: OutageReporter) -> None:
        """Asks nothing yet.

        Args:
            sync: The store and its source.
            outages: How failures of either are waited for and told.
        """
        self.sync = sync
        self._outages = outages
        self._turn = asyncio.Lock()
        self._busy: dict[TP, int] = {}
        self._active: StoreProcessor | None = None

    @property
    def topics(self) -> Collection[str]:
        """The output topics to be read."""
        return self.sync.topics

    def of(self, tp: TP, committed: Collection[str]) -> dict[str, StoreProcessor]:
        """One processor for each partition, by the name of the store."""
        return {self.sync.store_name: StoreProcessor(tp, self)}

    async def run_in_turn(self, processor: StoreProcessor, step: Callable[[], Awaitable[T]]) -> T:
        """Does something in the store as soon as that works.

        One call at a time: whoever is cancelled interrupts what the store is doing, and that is to be its own. Between two tries
        others have their turn; what fails may be the records of one partition alone.

        Raises:
            ProgressError: The store works, and stands elsewhere than the step goes on.
        """
        while True:
            try:
                async with self._turn:
                    self._active = processor
                    try:
                        result = await step()
                    finally:
                        self._active = None
            except ProgressError:
                self._outages.succeeded(processor)
                raise
            except Exception as error:  # whatever it is: the worker beside it goes on folding
                wait_ms = self._outages.failed(error, processor)
                logger.debug("read store is tried again", exc_info=error)
            else:
                self._outages.succeeded(processor)
                return result
            await asyncio.sleep(wait_ms / 1000)

    def oldest_ms(self) -> dict[TP, int]:
        """Partition → timestamp of the oldest record that was delivered and is not in the store yet."""
        return dict(self._busy)

    def syncing(self, tp: TP, oldest: OutputRecord | None) -> None:
        """Notes which record of a partition comes next; None: there is none."""
        if oldest is None or oldest.timestamp is None or oldest.timestamp < 0:
            self._busy.pop(tp, None)
        else:
            self._busy[tp] = oldest.timestamp

    def is_busy_with(self, processor: StoreProcessor) -> bool:
        """Whether the store is doing something for this one."""
        return self._active is processor

    def forget(self, processor: StoreProcessor) -> None:
        """One does not need the store any more."""
        self._outages.forget(processor)


class StoreProcessor(Processor):
    """See :class:`streams_app.delivery.processor.Processor`. At least once: the version guard makes a repetition harmless."""

    in_flight = 0

    def __init__(self, tp: TP, processors: StoreProcessors) -> None:
        """Nothing is claimed yet."""
        self._tp = tp
        self._processors = processors
        self._sync = processors.sync
        self._arrived: asyncio.Queue[Batch] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._next: int | None = None
        self._stored: int | None = None
        self._topic_id = ""
        self._read: tuple[Fingerprint, ...] = ()
        self._is_over = False

    async def claim(self, claim: Claim) -> int:
        """Goes on where the store says, whatever is committed; waits for the store.

        Raises:
            NotOwnerError: Kafka does not take our first commit.
            KafkaError, TimeoutError: Tried again.
        """
        self._topic_id = claim.topic_id
        progress = await self._processors.run_in_turn(self, self._sync.progress)
        stored = progress.get(self._tp)
        start = start_offset(stored, claim)
        repeated_from, common = await self._lost_by_broker(claim, stored, progress.get(former_end_of(self._tp), 0))
        if repeated_from is not None:
            start = min(start, repeated_from)
            await self._processors.run_in_turn(self, partial(self._sync.begin, self._tp, start, common))
            stored = start
        if claim.mark is None:
            # Nobody has committed here before: only now Kafka has said that the partition is ours.
            await claim.commit_now(self._offset_and_metadata(start))
        if stored is not None and stored > start:
            logger.warning(
                "an output topic was made again, reading it from its start source=%s offset=%d stored_offset=%d",
                self._tp, start, stored,
            )  # fmt: skip
            # At once: the log may grow beyond the old offset before anything of it is synced, and would be skipped so far.
            await self._processors.run_in_turn(self, partial(self._sync.begin, self._tp, start, start))
            stored = start
        elif stored is not None and stored < start:
            self._processors.sync.overtaken(start - stored)
            logger.warning(
                "retention overtook the read store, names changed by missing records may be out of date "
                "source=%s offsets=%d-%d",
                self._tp, stored, start - 1,
            )  # fmt: skip
        self._next, self._stored = start, stored
        self._task = run(claim, self._sync_forever(claim), f"sync {self._tp}")
        return start

    def deliver(self, batch: Batch) -> None:
        """Takes the next range."""
        self.in_flight += len(batch.records)
        self._arrived.put_nowait(batch)

    async def mark(self) -> OffsetAndMetadata | None:
        """What the store has taken."""
        return None if self._next is None else self._offset_and_metadata(self._next)

    async def revoke(self, seconds: float) -> None:
        """Lets a transaction that is under way end, within limits; drops the rest."""
        self._is_over = True
        if self._task is not None:
            if self._processors.is_busy_with(self):
                await asyncio.wait({self._task}, timeout=seconds)
            await ended({self._task})
        self._processors.syncing(self._tp, None)
        self._processors.forget(self)

    async def _sync_forever(self, claim: Claim) -> None:
        try:
            while not self._is_over:
                try:
                    async with asyncio.timeout(CHECK_SECONDS):
                        batch = await self._arrived.get()
                except TimeoutError:
                    await self._check_progress()
                else:
                    await self._sync_batch(batch, claim)
        except ProgressError as error:
            self._next = None  # a mark of what the store does not have
            claim.resync("progress", str(error), "sync")

    async def _check_progress(self) -> None:
        """A store that has gone back is noticed in silence, too."""
        stored = (await self._processors.run_in_turn(self, self._sync.progress)).get(self._tp)
        if stored != self._stored:
            raise ProgressError(f"read store {self._sync.store_name}", self._tp, stored, self._stored)

    async def _sync_batch(self, batch: Batch, claim: Claim) -> None:
        for records, next_offset in _steps(batch):
            left = records
            while self._stored != next_offset:
                self._processors.syncing(self._tp, left[0] if left else None)
                step = ProgressStep(self._tp, self._stored, next_offset)
                done = await self._processors.run_in_turn(self, partial(self._sync.sync_once, step, left))
                self._next = self._stored = done.next_offset
                self.in_flight -= done.records
                left = left[done.records :]
                claim.on_progress()
                if self._is_over:
                    return
            if not self._read or self._read[-1].offset < records[-1].offset:
                self._read = thinned(followed_by(self._read, records[-1]), near=RECENT_FINGERPRINTS, spread=1)
        self._processors.syncing(self._tp, None)
        # A range without records moves the mark, too; the store learns of it with the next record.
        self._next = batch.end
        claim.on_progress()

    async def _lost_by_broker(self, claim: Claim, stored: int | None, former_end: int) -> tuple[int | None, int | None]:
        """The offset from which on the log is to be read once more; None: from none. And its common end with another log.

        A broker that is restored takes its commits back, too: what the store has beyond its commit is read once more as well. After
        a crash that are the records of a moment, which the version guard makes harmless; but not those of before a reset, for which
        it was lowered.
        """
        mark = claim.mark
        if mark is None or stored is None or not claim.topic_id:
            return None, None
        noted, _, text = mark.metadata.partition("~")
        if noted != claim.topic_id or (claim.was_reset and not text):
            return None, None
        self._read = of_text(text)
        common = await claim.common_end(self._read, max(stored, mark.offset))
        if common is not None:
            self._read = up_to(self._read, common)
            return min(common, mark.offset), common
        uncommitted_from = max(mark.offset, claim.log_bounds.begin, former_end)
        return uncommitted_from if self._read and uncommitted_from < stored else None, None

    def _offset_and_metadata(self, offset: int) -> OffsetAndMetadata:
        """The note says of which log the offset is: offsets do not tell one that was made again and filled, or that went back."""
        return OffsetAndMetadata(offset, f"{self._topic_id}~{to_text(self._read)}" if self._read else self._topic_id)


def start_offset(stored: int | None, claim: Claim) -> int:
    """Where a partition goes on (pure).

    Args:
        stored: Progress of the store; None where it has never seen the partition.
        claim: Claim of the partition.

    Returns:
        Below ``stored`` where the topic was made again: its log ended below what the store had taken of it, so that the client was
        thrown back, or it has another id. Above ``stored`` where retention removed what follows it.
    """
    begin = claim.log_bounds.begin
    if stored is None:
        return begin
    noted, _, read = claim.mark.metadata.partition("~") if claim.mark is not None else ("", "", "")
    # Of a log that has kept its id only fingerprints say whether it went back: a first commit has its id and none.
    is_same = bool(noted and read) and noted == claim.topic_id
    is_other = (claim.was_reset and not is_same) or bool(noted and claim.topic_id and noted != claim.topic_id)
    return begin if is_other else max(stored, begin)


def _steps(batch: Batch) -> Iterator[tuple[list[OutputRecord], int]]:
    """The records of a batch by transactions, each with what the store goes on with."""
    taken = list(steps(batch.records))
    for at, records in enumerate(taken):
        yield records, taken[at + 1][0].offset if at + 1 < len(taken) else batch.end
