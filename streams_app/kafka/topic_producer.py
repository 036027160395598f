"""Produces to one topic: every record has an outcome within half a minute, even if the topic is deleted.

Each topic has its own aiokafka producer, so that a missing topic, or one without a leader, delays no other topic. Records that were
not acknowledged in time may still be appended; the caller retries them under the same id.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    ProducerClosed,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from crc32c import crc32c

from streams_app.clock import SystemClock
from streams_app.delivery.producer import TOO_LARGE, Outcomes, OutgoingRecord
from streams_app.kafka.partitioner import partitions_of
from streams_app.kafka.patches.producer_end import end
from streams_app.kafka.rendered_records import RenderedRecords
from streams_app.native import NATIVE_ERROR

logger = logging.getLogger(__name__)

SEND_SECONDS = 25.0
"""Deadline of a send; longer than the time for which a partition has no leader after its broker was killed."""

MAX_BATCH_BYTES = 262_144
"""Maximum size of a batch that has more than one record."""

LOOKUPS, LOOKUP_PAUSE_SECONDS = 10, 0.2
"""Number and interval of metadata requests for an unknown topic before a send fails; a broker may not know a new topic at once."""

POLL_SECONDS, SLOW_POLLS = 1.0, 5
"""Interval at which a pending send checks that the topic exists, and the number of checks after which it reports a fault."""


_COUNT: Final = struct.Struct(">i")
_COUNT_AT: Final = 57

_PRODUCER: Final = struct.Struct(">qhi")
"""Producer id, epoch and sequence number of the first record."""
_PRODUCER_AT: Final = 43

_CHECKSUM: Final = struct.Struct(">I")
_CHECKSUM_AT, _CHECKED_FROM = 17, 21


class PackedBatch:
    """A record batch of the native core, complete but for its producer and its checksum.

    It has the methods of aiokafka's ``BatchBuilder`` that its accumulator and its sender call.
    """

    def __init__(self, batch: bytearray) -> None:
        self._batch = batch

    def record_count(self) -> int:
        (count,) = _COUNT.unpack_from(self._batch, _COUNT_AT)
        return int(count)

    def size(self) -> int:
        return len(self._batch)

    def closed(self) -> bool:
        return True

    def close(self) -> None: ...

    def _set_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        _PRODUCER.pack_into(self._batch, _PRODUCER_AT, producer_id, producer_epoch, base_sequence)

    def _build(self) -> bytearray:
        """Write the checksum; return the batch. A batch that is sent again is the same."""
        _CHECKSUM.pack_into(self._batch, _CHECKSUM_AT, crc32c(memoryview(self._batch)[_CHECKED_FROM:]))
        return self._batch


class ProducerBatch:
    """Records of one partition that are sent together, and their indexes in the list given to :meth:`.TopicProducer.send`."""

    __slots__ = ("builder", "partition", "positions")

    def __init__(self, partition: int, builder: Any, positions: list[int] | None = None) -> None:
        self.partition = partition
        self.builder = builder
        self.positions = [] if positions is None else positions

    def append(self, record: OutgoingRecord, position: int) -> bool:
        """Add a record; return False if the batch is full. An empty batch accepts any record."""
        _, key, value, headers, timestamp_ms, _ = record
        if self.builder.append(timestamp=timestamp_ms, key=key, value=value, headers=headers) is None:
            return False
        self.positions.append(position)
        return True


@dataclass(slots=True, eq=False)
class OpenProducer:
    """An aiokafka producer and the sends that use it.

    Attributes:
        buffer_locks: Lock for each partition, which allows only one batch of the partition at a time to wait for buffer space.
        is_retired: Whether new sends must not use it; it is closed when its last pending send ends.
    """

    producer: AIOKafkaProducer
    buffer_locks: dict[int, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))
    users: int = 0
    is_retired: bool = False


class TopicProducer:
    """Produces to one topic and waits for acknowledgements."""

    def __init__(
        self,
        topic: str,
        opener: Callable[[], Awaitable[AIOKafkaProducer]],
        report_fault: Callable[[str, str | None], None],
        send_seconds: float = SEND_SECONDS,
    ) -> None:
        self._topic = topic
        self._opener = opener
        self._report_fault = report_fault
        self._send_seconds = send_seconds
        self._opened: OpenProducer | None = None
        self._opening = asyncio.Lock()
        self._ending: set[asyncio.Task[None]] = set()
        self._failing_partitions: set[int | None] = set()
        self._turn = 0

    def next_partition(self, record: OutgoingRecord) -> int | None:
        """Return the partition to which a record would be sent; None if the number of partitions is not known yet.

        Records with neither a partition nor a key go to the partitions in rotation; each call advances the rotation.
        """
        if record.partition is not None or self._opened is None:
            return record.partition
        numbers = self._opened.producer.client.cluster.partitions_for_topic(self._topic)
        return self._partitions([record], len(numbers))[0] if numbers else None

    async def send(self, records: Sequence[OutgoingRecord]) -> Outcomes:
        late = KafkaTimeoutError(f"not acknowledged within {self._send_seconds:g} s")
        outcomes: Outcomes = [late] * len(records)
        opened: OpenProducer | None = None
        has_begun = has_failed = False
        try:
            async with asyncio.timeout(self._send_seconds):
                opened = await self._open()
                opened.users += 1
                count = await self._partition_count(opened.producer)
                has_begun = True
                await self._send(opened, records, count, outcomes)
                has_failed = any(outcome is not None and not isinstance(outcome, TOO_LARGE) for outcome in outcomes)
        except (KafkaError, OSError, TimeoutError) as error:
            has_failed = has_begun
            fault = error if str(error) else late
            outcomes = [fault if outcome is late else outcome for outcome in outcomes]
            self._report_partition_fault(None, fault)
        finally:
            if opened is not None:
                opened.users -= 1
                # A producer that failed may keep failing because of a missing sequence number. The next send opens another one.
                if has_failed:
                    self._retire(opened)
                elif opened.is_retired:
                    self._end_unused(opened)
        return list(outcomes)  # a copy, because late acknowledgements still change the list

    def clear_faults(self) -> None:
        self._failing_partitions.clear()
        self._report_fault(self._topic, None)

    async def stop(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            await end(opened.producer)
        if self._ending:
            await asyncio.wait(self._ending)

    # ---- the producer

    async def _open(self) -> OpenProducer:
        async with self._opening:
            if self._opened is None:
                self._opened = OpenProducer(await self._opener())
            return self._opened

    def _retire(self, opened: OpenProducer) -> None:
        """Retire a producer, so that no new send uses it. Its pending sends continue until their deadlines."""
        opened.is_retired = True
        if self._opened is opened:
            self._opened = None
        self._end_unused(opened)

    def _end_unused(self, opened: OpenProducer) -> None:
        if not opened.users:
            task = asyncio.create_task(end(opened.producer), name=f"end the producer of {self._topic}")
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _partition_count(self, producer: AIOKafkaProducer) -> int:
        client, has_answer = producer.client, True
        for _ in range(LOOKUPS):
            numbers = client.cluster.partitions_for_topic(self._topic)
            if numbers is not None:
                return len(numbers)
            if self._topic in client.cluster.unauthorized_topics:
                raise TopicAuthorizationFailedError(self._topic)
            client.add_topic(self._topic)
            has_answer = await client.force_metadata_update()
            if client.cluster.partitions_for_topic(self._topic) is None:
                await asyncio.sleep(LOOKUP_PAUSE_SECONDS)
        if not has_answer:
            raise KafkaConnectionError("no broker answers")
        raise self._missing()

    def _missing(self) -> KafkaError:
        return UnknownTopicOrPartitionError(f"topic {self._topic!r} does not exist")

    # ---- batches

    async def _send(self, opened: OpenProducer, records: Sequence[OutgoingRecord], count: int, outcomes: Outcomes) -> None:
        batches = self._batches(opened.producer, records, count, range(len(records)))
        await self._send_all(opened, batches, outcomes)
        if not any(outcomes):
            return
        # A batch may be too large although each of its records is accepted. So each record is sent alone.
        for position in [at for batch in batches if len(batch.positions) > 1 for at in batch.positions]:
            if isinstance(outcomes[position], TOO_LARGE):
                alone = self._batches(opened.producer, records, count, [position])
                await self._send_all(opened, alone, outcomes)

    def _batches(
        self, producer: AIOKafkaProducer, records: Sequence[OutgoingRecord], count: int, positions: Sequence[int]
    ) -> list[ProducerBatch]:
        """Pack records into batches by partition, because a future per batch costs a fraction of one per record."""
        if isinstance(records, RenderedRecords):
            some = None if len(positions) == len(records) else list(positions)
            try:
                packed = records.columns.batches(count, MAX_BATCH_BYTES, SystemClock().now_ms(), some)
            except NATIVE_ERROR:
                logger.exception("native core failed, records are packed by Python topic=%s", self._topic)
            else:
                return [ProducerBatch(partition, PackedBatch(batch), owned) for partition, batch, owned in packed]
        batches: list[ProducerBatch] = []
        waiting: dict[int, ProducerBatch] = {}
        for position, partition in zip(positions, self._partitions([records[at] for at in positions], count), strict=True):
            record = records[position]
            batch = waiting.get(partition)
            if batch is None or not batch.append(record, position):
                batch = waiting[partition] = ProducerBatch(partition, producer.create_batch())
                batches.append(batch)
                batch.append(record, position)
        return batches

    def _partitions(self, records: list[OutgoingRecord], count: int) -> list[int]:
        found = partitions_of([record.key or b"" for record in records], count)
        for position, record in enumerate(records):
            if record.partition is not None:
                found[position] = record.partition
            elif record.key is None:
                self._turn += 1
                found[position] = self._turn % count
        return found

    async def _send_all(self, opened: OpenProducer, batches: Iterable[ProducerBatch], outcomes: Outcomes) -> None:
        queues: dict[int, list[ProducerBatch]] = {}
        for batch in batches:
            queues.setdefault(batch.partition, []).append(batch)
        await asyncio.gather(*(self._send_in_order(opened, queue, outcomes) for queue in queues.values()))

    async def _send_in_order(self, opened: OpenProducer, queue: Sequence[ProducerBatch], outcomes: Outcomes) -> None:
        """Send the batches of one partition in order, and set the outcome of each record.

        Only one batch of a partition waits for buffer space at a time. If several waited, aiokafka (``add_batch`` in its
        ``message_accumulator.py``) would subtract the time waited so far from their timeouts whenever a batch before them is sent,
        so that they would time out after a few megabytes.
        """
        acks: list[asyncio.Future[Any]] = []
        for number, batch in enumerate(queue):
            try:
                async with opened.buffer_locks[batch.partition]:
                    ack = await opened.producer.send_batch(batch.builder, self._topic, partition=batch.partition)
            except (KafkaError, TimeoutError, AssertionError) as error:
                # aiokafka asserts that the partition exists: the topic was created again with fewer partitions.
                fault = self._missing() if isinstance(error, AssertionError) else error
                for unsent in queue[number:]:
                    self._settle(unsent, outcomes, fault)
                break
            ack.add_done_callback(partial(self._on_ack, batch, outcomes))
            acks.append(ack)
        await self._wait(opened, acks, queue, outcomes)
        for ack in acks:
            fault = ack.exception() if ack.done() else None
            if fault is not None and not isinstance(fault, (KafkaError, TimeoutError)):
                raise fault

    async def _wait(
        self, opened: OpenProducer, acks: Sequence[asyncio.Future[Any]], queue: Sequence[ProducerBatch], outcomes: Outcomes
    ) -> None:
        """Wait until all batches are answered, or the topic no longer exists."""
        polls, waiting = 0, set(acks)
        while waiting:
            _, waiting = await asyncio.wait(waiting, timeout=POLL_SECONDS)
            if not waiting:
                return
            polls += 1
            if opened.producer.client.cluster.partitions_for_topic(self._topic) is None:
                for batch, ack in zip(queue, acks, strict=False):
                    if not ack.done():
                        self._settle(batch, outcomes, self._missing())
                return
            if polls == SLOW_POLLS:
                slow = KafkaTimeoutError(f"nothing for {SLOW_POLLS * POLL_SECONDS:g} s")
                self._report_partition_fault(queue[0].partition, slow)

    # ---- outcomes

    def _on_ack(self, batch: ProducerBatch, outcomes: Outcomes, ack: asyncio.Future[Any]) -> None:
        if not ack.cancelled():
            self._settle(batch, outcomes, ack.exception())

    def _settle(self, batch: ProducerBatch, outcomes: Outcomes, outcome: BaseException | None) -> None:
        for position in batch.positions:
            outcomes[position] = outcome
        if isinstance(outcome, ProducerClosed):
            return  # a producer that this process closed gives no information about the topic
        if outcome is not None and not isinstance(outcome, TOO_LARGE):
            self._report_partition_fault(batch.partition, outcome)
        elif self._failing_partitions:
            self._failing_partitions -= {batch.partition, None}
            if not self._failing_partitions:
                self._report_fault(self._topic, None)

    def _report_partition_fault(self, partition: int | None, error: BaseException) -> None:
        """Record and report that a partition does not acknowledge records; None means all partitions."""
        self._failing_partitions.add(partition)
        is_missing = isinstance(error, UnknownTopicOrPartitionError)
        self._report_fault(
            self._topic, f"topic {self._topic!r} " + ("does not exist" if is_missing else f"does not acknowledge: {error}")
        )
