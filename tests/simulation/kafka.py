"""Simulated Kafka: a log with gaps in its offsets and a moving start, a consumer group with generations, a producer.

Acknowledgements and commits are reported to the :class:`tests.simulation.ledger.Ledger` when the broker executes them, even
if the reply is lost.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from aiokafka.errors import KafkaError

from streams_app.delivery.batch import TP, Batch
from streams_app.delivery.clocks import ReaderView
from streams_app.delivery.fingerprints import GONE, OTHER, Incarnation, checksum_of
from streams_app.delivery.group_consumer import Member, NotOwnerError, PartitionCommit
from streams_app.delivery.producer import OutgoingRecord
from streams_app.kafka.member_requests import commit_as
from streams_app.local.group import NOTHING_FETCHED, PartitionReader
from tests.helpers.virtual_loop import LoopClock
from tests.simulation.group import Coordinator, SimulatedGroup

if TYPE_CHECKING:
    from tests.simulation.worker import Worker

PARTITIONS = 4


@dataclass(frozen=True, slots=True)
class Record:
    """One event in the source.

    Attributes:
        offset: Offset in its partition.
        timestamp: Record timestamp; may be late, or in the future.
        born_ms: Time at which it was appended.
        key: Record key.
        value: Record value.
        headers: Record headers.
    """

    offset: int
    timestamp: int
    born_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(slots=True)
class Log:
    """One source partition.

    Attributes:
        tp: Topic and partition.
        entries: Records by offset; None for an offset that is never delivered (compacted, aborted, a marker).
        start: First offset; retention has removed the records below.
        stable: Last stable offset: an open transaction begins here.
        readable_ms: Time from which each offset can be read.
    """

    tp: TP
    entries: list[Record | None] = field(default_factory=list)
    start: int = 0
    open_from: int | None = None
    readable_ms: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        """End of the log (high watermark)."""
        return len(self.entries)

    @property
    def stable(self) -> int:
        """Last stable offset."""
        return self.end if self.open_from is None else self.open_from

    def append(self, entry: Record | None) -> None:
        """Append an offset."""
        self.entries.append(entry)
        self._record_readable()

    def _record_readable(self) -> None:
        self.readable_ms += [LoopClock().now_ms()] * (self.stable - len(self.readable_ms))

    def checksum_at(self, offset: int) -> int:
        """Return the checksum of one record, as a broker would return the record."""
        if offset < self.start:
            return GONE
        entry = self.entries[offset] if offset < self.end else None
        return OTHER if entry is None else checksum_of(entry)

    def abort(self) -> None:
        """Abort the open transaction: its records are not events."""
        if self.open_from is not None:
            for offset in range(self.open_from, self.end):
                self.entries[offset] = None
        self.commit()

    def commit(self) -> None:
        """Commit the open transaction."""
        if self.open_from is not None:
            self.entries.append(None)
        self.open_from = None
        self._record_readable()


class Reader:
    """The consumer of one worker: a :class:`streams_app.delivery.group_consumer.GroupConsumer`."""

    def __init__(self, worker: Worker, group: SimulatedGroup, log: Log) -> None:
        self._worker = worker
        self._group = group
        self._log = log
        self._connection = asyncio.Lock()
        self._coordinator = Coordinator(worker, group, self._connection)
        self._partition = PartitionReader(log.tp)
        self.was_reset = False
        self.fetched: deque[Batch] = deque()

    def begin(self) -> None:
        """Begin a new assignment, without what was fetched under an earlier one."""
        self._partition.assign(self._group.committed.get(self._log.tp))

    def assignment(self) -> set[TP]:
        """Return the assignment as this member knows it."""
        return {self._log.tp} if self._worker.is_assigned else set()

    def partition_count(self, topic: str) -> int:
        """Return the number of partitions of the source."""
        return PARTITIONS

    async def topic_id(self, topic: str) -> str:
        """Return the id of the source, which is never recreated."""
        return await self._worker.call(lambda: "the one", KafkaError)

    @property
    def generation(self) -> int:
        """Generation of the group in this member."""
        return self._worker.generation

    @property
    def member_id(self) -> str:
        """Id of this member, which joins once."""
        return self._worker.name

    def pause(self, tps: Collection[TP]) -> None:
        """Stop fetching."""
        self._partition.is_paused = True

    def resume(self, tps: Collection[TP]) -> None:
        """Resume fetching."""
        self._partition.is_paused = False

    def reader_view(self, tp: TP) -> tuple[ReaderView, int | None]:
        """Return the last fetch reply and the position."""
        return (self._partition.view, self._partition.position) if self._worker.is_assigned else (NOTHING_FETCHED, None)

    async def committed(self, tp: TP) -> PartitionCommit | None:
        """Return the commit at the coordinator; a claim begins with this request."""
        self._worker.claim_began_at = self._worker.world.now()
        self._worker.end_at_claim = self._log.stable
        self._worker.highest_at_claim = dict(self._worker.world.ledger.highest)
        async with self._connection:
            return await self._worker.call(lambda: self._group.committed.get(tp), KafkaError)

    async def commits(self, topic: str) -> dict[int, PartitionCommit]:
        """Return the commits of the only partition."""
        return await self._worker.call(dict[int, PartitionCommit], KafkaError)

    async def commit(self, positions: Mapping[TP, PartitionCommit], claim: Member) -> None:
        """Commit under the generation and member id of a claim, as the product does."""
        await commit_as(cast("Any", SimpleNamespace(_coordinator=self._coordinator)), positions, claim)

    async def log_range(self, tp: TP) -> tuple[int, int]:
        """Return first offset and end of the log."""
        log = self._log
        return await self._worker.call(lambda: (log.start, log.stable), KafkaError)

    async def offset_at(self, tp: TP, time_ms: int) -> int:
        """Return the offset for a time as a broker does under ``read_committed``: never above the last stable offset."""
        log = self._log
        readable = enumerate(log.entries[: log.stable])
        first = next((offset for offset, entry in readable if entry and entry.timestamp >= time_ms), log.stable)
        return await self._worker.call(lambda: first, KafkaError)

    async def checksum_at(self, tp: TP, offset: int) -> int:
        """Return the checksum of the current record at that offset."""
        return await self._worker.call(lambda: self._log.checksum_at(offset), KafkaError)

    async def incarnations(self, topic: str) -> dict[int, Incarnation]:
        """Return a constant, because the leader never changes."""
        return await self._worker.call(dict[int, Incarnation], KafkaError)

    async def seek(self, tp: TP, offset: int) -> int:
        """Seek within the process; batches that were handed over before still arrive."""
        await self._worker.pause()
        if not self._worker.is_assigned:
            raise NotOwnerError("not assigned")
        return self._partition.seek(offset)

    def fetch(self, most: int, now_ms: int) -> None:
        """Send one fetch and handle its reply."""
        log, reader = self._log, self._partition
        if reader.position is None or reader.is_paused or not self._worker.is_assigned:
            return
        if not log.start <= reader.position <= log.end:
            reader.position, self.was_reset = log.start, True
        end = min(log.stable, reader.position + most)
        records = [entry for entry in log.entries[reader.position : end] if entry is not None]
        if batch := reader.fetch(records, end, log.stable, now_ms):
            self.fetched.append(batch)


class Sender:
    """The producer of one worker: the part of ``AckedProducer`` that the product uses."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def clear_faults(self) -> None:
        """Do nothing."""

    async def send(self, records: Sequence[OutgoingRecord]) -> list[BaseException | None]:
        """Send records, each with its own outcome; after an error, it is unknown whether a record was appended."""
        ledger = self._worker.world.ledger
        outcomes: list[BaseException | None] = []
        for record in records:
            try:
                await self._worker.call(partial(ledger.on_record, record), KafkaError, may_be_late=True)
            except KafkaError as error:
                outcomes.append(error)
            else:
                outcomes.append(None)
        return outcomes
