"""Kafka as the simulated workers see it: a log with holes and a moving start, a consumer group with generations, a producer.

What happened before (acknowledged, committed) is told to the :class:`tests.chaos.simulation_ledger.Ledger` at the moment at
which the broker does it, whatever becomes of the reply.
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
from streams_app.delivery.group_consumer import Committed, Member, NotOwnerError
from streams_app.delivery.producer import Outgoing
from streams_app.kafka.members import commit_as
from streams_app.local.group import NOTHING_FETCHED, PartitionReader
from tests.chaos.simulation_group import Coordinator, SimulatedGroup
from tests.virtual_loop import LoopClock

if TYPE_CHECKING:
    from tests.chaos.simulation_worker import Worker

PARTITIONS = 4


@dataclass(frozen=True, slots=True)
class Record:
    """One event in the source.

    Attributes:
        offset: In its partition.
        timestamp: Of the record; may be late, or in the future.
        born_ms: When it was appended.
        key: As produced.
        value: As produced.
        headers: As produced.
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
        tp: Which.
        entries: By offset; None for what is never delivered (compacted, aborted, a marker).
        start: What is below was removed by retention.
        stable: Last stable offset: an open transaction begins here.
        readable_ms: By offset, since when it can be read.
    """

    tp: TP
    entries: list[Record | None] = field(default_factory=list)
    start: int = 0
    open_from: int | None = None
    readable_ms: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        """End of the log, stable or not."""
        return len(self.entries)

    @property
    def stable(self) -> int:
        """End of what may be read."""
        return self.end if self.open_from is None else self.open_from

    def append(self, entry: Record | None) -> None:
        """One more offset."""
        self.entries.append(entry)
        self._note_readable()

    def _note_readable(self) -> None:
        self.readable_ms += [LoopClock().now_ms()] * (self.stable - len(self.readable_ms))

    def checksum_at(self, offset: int) -> int:
        """As a broker answers that is asked for one record."""
        if offset < self.start:
            return GONE
        entry = self.entries[offset] if offset < self.end else None
        return OTHER if entry is None else checksum_of(entry)

    def abort(self) -> None:
        """The open transaction is aborted: nothing of it is an event."""
        if self.open_from is not None:
            for offset in range(self.open_from, self.end):
                self.entries[offset] = None
        self.commit()

    def commit(self) -> None:
        """The open transaction ends."""
        if self.open_from is not None:
            self.entries.append(None)
        self.open_from = None
        self._note_readable()


class Reader:
    """One worker's consumer: a :class:`streams_app.delivery.group_consumer.GroupConsumer`."""

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
        """As this member believes."""
        return {self._log.tp} if self._worker.is_assigned else set()

    def partition_count(self, topic: str) -> int:
        """Of the source."""
        return PARTITIONS

    async def topic_id(self, topic: str) -> str:
        """It is never made again."""
        return await self._worker.call(lambda: "the one", KafkaError)

    @property
    def generation(self) -> int:
        """As this member knows it."""
        return self._worker.generation

    @property
    def member_id(self) -> str:
        """It joins once."""
        return self._worker.name

    def pause(self, tps: Collection[TP]) -> None:
        """No more fetches."""
        self._partition.is_paused = True

    def resume(self, tps: Collection[TP]) -> None:
        """Fetches again."""
        self._partition.is_paused = False

    def reader_view(self, tp: TP) -> tuple[ReaderView, int | None]:
        """The last fetch reply and the position."""
        return (self._partition.view, self._partition.position) if self._worker.is_assigned else (NOTHING_FETCHED, None)

    async def committed(self, tp: TP) -> Committed | None:
        """Of the coordinator; a claim begins with this question."""
        self._worker.claim_began_at = self._worker.world.now()
        self._worker.end_at_claim = self._log.stable
        self._worker.highest_at_claim = dict(self._worker.world.ledger.highest)
        async with self._connection:
            return await self._worker.call(lambda: self._group.committed.get(tp), KafkaError)

    async def commits(self, topic: str) -> dict[int, Committed]:
        """There is one partition in these schedules."""
        return await self._worker.call(dict[int, Committed], KafkaError)

    async def commit(self, marks: Mapping[TP, Committed], claim: Member) -> None:
        """Under the generation and member id of a claim, as the product commits."""
        await commit_as(cast("Any", SimpleNamespace(_coordinator=self._coordinator)), marks, claim)

    async def log_range(self, tp: TP) -> tuple[int, int]:
        """First offset and end."""
        log = self._log
        return await self._worker.call(lambda: (log.start, log.stable), KafkaError)

    async def offset_at(self, tp: TP, time_ms: int) -> int:
        """As a broker finds it under ``read_committed``: never behind the last stable offset."""
        log = self._log
        readable = enumerate(log.entries[: log.stable])
        first = next((offset for offset, entry in readable if entry and entry.timestamp >= time_ms), log.stable)
        return await self._worker.call(lambda: first, KafkaError)

    async def checksum_at(self, tp: TP, offset: int) -> int:
        """Of what is at that offset now."""
        return await self._worker.call(lambda: self._log.checksum_at(offset), KafkaError)

    async def incarnations(self, topic: str) -> dict[int, Incarnation]:
        """One broker leads it all the time."""
        return await self._worker.call(dict[int, Incarnation], KafkaError)

    async def seek(self, tp: TP, offset: int) -> int:
        """Within the process; batches that have been handed over already come all the same."""
        await self._worker.pause()
        if not self._worker.is_assigned:
            raise NotOwnerError("not assigned")
        return self._partition.seek(offset)

    def fetch(self, most: int, now_ms: int) -> None:
        """One fetch and its reply."""
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
    """One worker's producer: the part of ``AckedProducer`` that the product uses."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def forget_trouble(self) -> None:
        """There is none."""

    async def send(self, records: Sequence[Outgoing]) -> list[BaseException | None]:
        """Each record has an outcome of its own; an error leaves open whether it was appended."""
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
