"""The processors of one read store: each syncs one partition of an output topic, in the order of the offsets.

A partition continues from the checkpoint of the store, which is written together with the values. The commit in Kafka is only
for lag monitoring, and for the fingerprints in its metadata. If a store or source is down, locked or misconfigured, the processor
retries. It skips no record and raises no error, and only partitions that have records to sync are paused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator
from functools import partial
from typing import Final, TypeVar

from streams_app.delivery.batch import TP, Batch
from streams_app.delivery.claim import Claim
from streams_app.delivery.fingerprints import Fingerprint, of_text, to_text, up_to, with_last_for_metadata
from streams_app.delivery.log_continuity import Action, LogVerdict, Policy, StoredPosition, is_comparable
from streams_app.delivery.offset_metadata import OffsetAndMetadata
from streams_app.delivery.processor import Processor, Processors
from streams_app.delivery.tasks import cancel_all, run
from streams_app.health.outage_reporter import OutageReporter
from streams_app.read_store.core.store import CheckpointError, CheckpointStep, check_format, former_end_of
from streams_app.read_store.sync.dead_letters import OutputRecord
from streams_app.read_store.sync.store_sync import StoreSync, parts_of
from streams_app.read_store.sync.traced import SyncOnce

logger = logging.getLogger(__name__)

T = TypeVar("T")

ACTIONS: Final = {
    LogVerdict.SAME: Action.CONTINUE,
    LogVerdict.RECREATED: Action.RESTART,
    LogVerdict.TRUNCATED: Action.REREAD,
    LogVerdict.WENT_BACK: Action.RESTART,
    LogVerdict.SHORTER: Action.RESTART,
    LogVerdict.UNCOMPARED: Action.RESTART,
    LogVerdict.UNIDENTIFIED: Action.RESTART,
}
"""Versions make it harmless to read too much again. If Kafka has deleted the commit with its topic, only the end shows that."""

CHECK_SECONDS: Final = 10.0
"""Interval at which a partition without new records checks the stored checkpoint."""

MAX_WAIT_MS: Final = 10_000
"""Maximum wait between attempts of a call on the store."""


class StoreProcessors(Processors):
    """Creates a :class:`StoreProcessor` for each partition; the processors use the store and its source one at a time."""

    def __init__(self, sync: StoreSync, outages: OutageReporter, sync_once: SyncOnce | None = None) -> None:
        """``sync_once`` syncs a batch within a span; None means that batches are synced without a span."""
        self.sync = sync
        self._traced = sync_once
        self.outages = outages
        self._turn = asyncio.Lock()
        self._busy: dict[TP, int] = {}
        self._active: StoreProcessor | None = None

    @property
    def topics(self) -> Collection[str]:
        return self.sync.topics

    @property
    def sync_once(self) -> SyncOnce:
        """Function that syncs a batch: :meth:`.StoreSync.sync_once`, within a span if tracing is on."""
        return self.sync.sync_once if self._traced is None else self._traced

    def of(self, tp: TP, committed: Collection[str]) -> dict[str, StoreProcessor]:
        return {self.sync.store_name: StoreProcessor(tp, self)}

    async def run_in_turn(self, processor: StoreProcessor, call: Callable[[], Awaitable[T]]) -> T:
        """Run a call on the store, retry it until it succeeds, and return its result.

        Calls run one at a time: cancelling a processor interrupts the running statement, which must not be that of another
        processor. Between two attempts, other processors run their calls, because the records of one partition may be the only
        cause of a failure.

        Raises:
            CheckpointError: The store is available, but the checkpoint of the partition is not the one that the call expects.
        """

        async def in_turn() -> T | CheckpointError:
            async with self._turn:
                self._active = processor
                try:
                    return await call()
                except CheckpointError as error:
                    return error  # the store has answered
                finally:
                    self._active = None

        async def reported(error: BaseException) -> bool:
            logger.debug("read store not available, trying again", exc_info=error)
            return False

        # After any error, because the worker must continue to fold.
        found = await self.outages.retry(in_turn, processor, (Exception,), reported, max_wait_ms=MAX_WAIT_MS)
        if isinstance(found, CheckpointError):
            raise found
        return found

    def oldest_ms(self) -> dict[TP, int]:
        """Return, by partition, the timestamp of the oldest record that was delivered and is not synced yet, in ms."""
        return dict(self._busy)

    def syncing(self, tp: TP, oldest: OutputRecord | None) -> None:
        """Set the oldest record that was delivered from a partition and is not synced yet; None means that there is none."""
        if oldest is None or oldest.timestamp is None or oldest.timestamp < 0:
            self._busy.pop(tp, None)
        else:
            self._busy[tp] = oldest.timestamp

    def is_busy_with(self, processor: StoreProcessor) -> bool:
        return self._active is processor


class StoreProcessor(Processor):
    """Syncs one partition of an output topic to the store. The version guard makes it harmless to sync a record twice."""

    in_flight = 0

    def __init__(self, tp: TP, processors: StoreProcessors) -> None:
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
        """Wait for the store, and return the offset from which the partition is read.

        Usually, this is the checkpoint of the store. It is lower if the log is another one, or was restored from an older copy:
        from there on, the log may contain other records than those that were synced. Then the checkpoint is lowered to it.

        Raises:
            NewerFormatError: A newer version has written what the store has of the partition; nothing was written.
            NotOwnerError: Kafka rejects the first commit of the partition, because another worker owns the partition.
            KafkaError, TimeoutError: Kafka does not answer; the caller must repeat the claim.
        """
        self._topic_id = claim.topic_id
        checkpoints = await self._processors.run_in_turn(self, self._sync.store.checkpoints)
        check_format(self._sync.store_name, checkpoints, self._tp)
        stored = checkpoints.get(self._tp)
        start, other_from = claim.log_bounds.begin, None
        if stored is not None:
            start, other_from = await self._start(claim, stored, checkpoints.get(former_end_of(self._tp), 0))
        if claim.committed is None:
            # This is the first commit of the partition. Only its success proves that this worker owns the partition.
            await claim.commit_now(self._offset_and_metadata(start))
        if stored is not None and stored < start:
            self._processors.sync.count_removed_records(start - stored)
            logger.warning(
                "retention overtook the read store, names changed by missing records may be out of date "
                "source=%s offsets=%d-%d",
                self._tp, stored, start - 1,
            )  # fmt: skip
        if stored is not None and (start < stored or other_from is not None):
            # Lower the checkpoint at once: if the log grew beyond the old offset before the first step, records would be skipped.
            await self._processors.run_in_turn(self, partial(self._sync.set_checkpoint, self._tp, start, other_from))
            stored = start
        self._next, self._stored = start, stored
        self._task = run(claim, self._sync_forever(claim), f"sync {self._tp}")
        return start

    def deliver(self, batch: Batch) -> None:
        self.in_flight += len(batch.records)
        self._arrived.put_nowait(batch)

    async def position_to_commit(self) -> OffsetAndMetadata | None:
        """None also once the store has another checkpoint than expected, so that no offset is committed that the store lacks."""
        return None if self._next is None else self._offset_and_metadata(self._next)

    async def revoke(self, seconds: float) -> None:
        """Queued records are dropped."""
        self._is_over = True
        if self._task is not None:
            if self._processors.is_busy_with(self):
                await asyncio.wait({self._task}, timeout=seconds)
            await cancel_all({self._task})
        self._processors.syncing(self._tp, None)
        self._processors.outages.forget(self)

    async def _sync_forever(self, claim: Claim) -> None:
        try:
            while not self._is_over:
                try:
                    async with asyncio.timeout(CHECK_SECONDS):
                        batch = await self._arrived.get()
                except TimeoutError:
                    await self._check_checkpoint()
                else:
                    await self._sync_batch(batch, claim)
        except CheckpointError as error:
            self._next = None  # otherwise an offset would be committed that the store does not have
            claim.resync("progress", str(error), "sync")

    async def _check_checkpoint(self) -> None:
        """Check the stored checkpoint while there are no new records, so that a restored store is noticed."""
        stored = (await self._processors.run_in_turn(self, self._sync.store.checkpoints)).get(self._tp)
        if stored != self._stored:
            raise CheckpointError(f"read store {self._sync.store_name}", self._tp, stored, self._stored)

    async def _sync_batch(self, batch: Batch, claim: Claim) -> None:
        for records, next_offset in _parts(batch):
            left = records
            while self._stored != next_offset:
                self._processors.syncing(self._tp, left[0] if left else None)
                step = CheckpointStep(self._tp, self._stored, next_offset)
                done = await self._processors.run_in_turn(self, partial(self._processors.sync_once, step, left))
                self._next = self._stored = done.next_offset
                self.in_flight -= done.records
                left = left[done.records :]
                claim.on_progress()
                if self._is_over:
                    return
            self._read = with_last_for_metadata(self._read, records)
        self._processors.syncing(self._tp, None)
        # A range without records advances the commit, too; the checkpoint of the store follows with the next record.
        self._next = batch.end
        claim.on_progress()

    async def _start(self, claim: Claim, stored: int, former_end: int) -> tuple[int, int | None]:
        """Decide from which offset to read, by the checkpoint of the store and the commit, whose metadata has the fingerprints.

        A broker that was restored from an older copy has also lost commits. Therefore all records between the commit and the
        checkpoint of the store are read again. After a crash of a worker, these are few, and the version guard makes them harmless.
        Records from before a reset are not read again, because the versions that would guard against them were reset.

        Returns:
            Two offsets: the one from which to read, and the one from which the log differs from the one that was read before; None
            means that no difference was found.
        """
        position, begin = claim.committed or OffsetAndMetadata(stored), claim.log_bounds.begin
        read = stored_position(position)
        read = read._replace(read_to=max(stored, read.read_to))
        action, offset = await claim.continuation(read, policy_of(self._sync.store_name))
        if action is Action.RESTART:
            return begin, begin if begin < stored else None
        if is_comparable(read, claim.topic_id):
            self._read = up_to(read.fingerprints, offset)
        if action is Action.REREAD:
            return max(begin, min(stored, offset, position.offset)), offset
        # Without fingerprints, a log that has grown beyond the checkpoint since it was restored looks the same.
        is_same_topic = bool(claim.topic_id) and read.topic_id == claim.topic_id
        uncommitted_from = max(position.offset, former_end) if is_same_topic or self._read else stored
        return max(begin, min(stored, uncommitted_from)), None

    def _offset_and_metadata(self, offset: int) -> OffsetAndMetadata:
        """Return an offset with the metadata of its commit: topic id and fingerprints, which reveal a recreated or restored log."""
        return OffsetAndMetadata(offset, f"{self._topic_id}~{to_text(self._read)}" if self._read else self._topic_id)


def stored_position(position: OffsetAndMetadata) -> StoredPosition:
    """Return what a commit shows about the log."""
    topic_id, _, text = position.metadata.partition("~")
    return StoredPosition(position.offset, topic_id, of_text(text))


def policy_of(store: str) -> Policy:
    """Return what a read store does if the log is not the one that was read."""
    return Policy(f"read store {store}", ACTIONS)


def _parts(batch: Batch) -> Iterator[tuple[list[OutputRecord], int]]:
    """Split a batch into parts of limited size; yield the records of each part, and the checkpoint of the store after it."""
    taken = list(parts_of(batch.records))
    for at, records in enumerate(taken):
        yield records, taken[at + 1][0].offset if at + 1 < len(taken) else batch.end
