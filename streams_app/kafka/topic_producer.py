"""Producing to one topic: every record has an outcome within half a minute, whatever becomes of the topic.

A topic has an aiokafka producer of its own: one that is missing, or has no leader, holds up no other. What was not acknowledged
in time may still arrive; the caller sends it again under the same id.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    ProducerClosed,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)

from streams_app.delivery.producer import TOO_LARGE, Outcomes, Outgoing
from streams_app.kafka.partitioner import partitions_of
from streams_app.kafka.patches.producer_end import end

SEND_SECONDS = 25.0
"""Longer than a partition is without a leader when its broker is killed."""

LOOKUPS, LOOKUP_PAUSE_SECONDS = 10, 0.2
"""How often a topic that the broker does not know is asked for before the send fails: not all brokers know a new one."""

LOOK_SECONDS, SLOW_LOOKS = 1.0, 5
"""How often a waiting send looks whether there still is a topic, and after how many looks it says that it waits."""


class ProducerBatch:
    """Records of one partition that are sent together, and their positions among those of the call."""

    __slots__ = ("builder", "partition", "positions")

    def __init__(self, partition: int, builder: Any) -> None:
        self.partition = partition
        self.builder = builder
        self.positions: list[int] = []

    def append(self, record: Outgoing, position: int) -> bool:
        """Adds a record; returns False where the batch is full. An empty batch takes any record."""
        _, key, value, headers, timestamp_ms, _ = record
        if self.builder.append(timestamp=timestamp_ms, key=key, value=value, headers=headers) is None:
            return False
        self.positions.append(position)
        return True


@dataclass(slots=True, eq=False)
class Opened:
    """One aiokafka producer and the sends that use it.

    Attributes:
        producer: The producer, started.
        places: Partition → the lock that lets one batch at a time wait for its place in that partition.
        users: Number of sends under way.
        is_retired: Whether no send begins with it any more; it ends with the last one under way.
    """

    producer: AIOKafkaProducer
    places: dict[int, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))
    users: int = 0
    is_retired: bool = False


class TopicProducer:
    """Produces to one topic and waits for the acknowledgements."""

    def __init__(
        self,
        topic: str,
        opener: Callable[[], Awaitable[AIOKafkaProducer]],
        tell: Callable[[str, str | None], None],
        send_seconds: float = SEND_SECONDS,
    ) -> None:
        """Connects nothing yet.

        Args:
            topic: Name of the topic.
            opener: Makes a producer and starts it.
            tell: Called with the topic and with what is wrong with it; with None once nothing is wrong any more.
            send_seconds: Time within which every send has an outcome.
        """
        self._topic = topic
        self._opener = opener
        self._tell = tell
        self._send_seconds = send_seconds
        self._opened: Opened | None = None
        self._opening = asyncio.Lock()
        self._ending: set[asyncio.Task[None]] = set()
        self._troubled: set[int | None] = set()
        self._turn = 0

    def partition_of(self, record: Outgoing) -> int | None:
        """The partition of a record, of one without a key the next in turn; None: a send has to ask the broker before."""
        if record.partition is not None or self._opened is None:
            return record.partition
        known = self._opened.producer.client.cluster.partitions_for_topic(self._topic)
        return self._partitions([record], len(known))[0] if known else None

    async def send(self, records: Sequence[Outgoing]) -> Outcomes:
        """Produces records and waits for all acknowledgements, see :meth:`AckedProducer.send`."""
        late = KafkaTimeoutError(f"not acknowledged within {self._send_seconds:g} s")
        outcomes: Outcomes = [late] * len(records)
        opened: Opened | None = None
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
            self._note_trouble(None, fault)
        finally:
            if opened is not None:
                opened.users -= 1
                # A producer that failed once may go on failing (it has lost a sequence number): the next send opens another one.
                if has_failed:
                    self._retire(opened)
                elif opened.is_retired:
                    self._end_unused(opened)
        return list(outcomes)  # a copy: late acknowledgements are still noted in the list itself

    def forget_trouble(self) -> None:
        """Forgets what was wrong with the topic; a send that still fails says so again."""
        self._troubled.clear()
        self._tell(self._topic, None)

    async def stop(self) -> None:
        """Ends the producer; sends that still wait fail."""
        opened, self._opened = self._opened, None
        if opened is not None:
            await end(opened.producer)
        if self._ending:
            await asyncio.wait(self._ending)

    # ---- the producer

    async def _open(self) -> Opened:
        async with self._opening:
            if self._opened is None:
                self._opened = Opened(await self._opener())
            return self._opened

    def _retire(self, opened: Opened) -> None:
        """Lets no further send use a producer. Those that wait for its other partitions go on, each with its own deadline."""
        opened.is_retired = True
        if self._opened is opened:
            self._opened = None
        self._end_unused(opened)

    def _end_unused(self, opened: Opened) -> None:
        if not opened.users:
            task = asyncio.create_task(end(opened.producer), name=f"end the producer of {self._topic}")
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _partition_count(self, producer: AIOKafkaProducer) -> int:
        """The number of partitions of the topic.

        Raises:
            UnknownTopicOrPartitionError: There is no such topic.
            TopicAuthorizationFailedError: We may not produce to it.
            KafkaConnectionError: No broker answers.
        """
        client, has_answer = producer.client, True
        for _ in range(LOOKUPS):
            known = client.cluster.partitions_for_topic(self._topic)
            if known is not None:
                return len(known)
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

    async def _send(self, opened: Opened, records: Sequence[Outgoing], count: int, outcomes: Outcomes) -> None:
        batches = self._batches(opened.producer, records, count, range(len(records)))
        await self._send_all(opened, batches, outcomes)
        if not any(outcomes):
            return
        # A topic may take less than a whole batch: only a record that is sent alone shows whether it is too large by itself.
        for position in [at for batch in batches if len(batch.positions) > 1 for at in batch.positions]:
            if isinstance(outcomes[position], TOO_LARGE):
                alone = self._batches(opened.producer, records, count, [position])
                await self._send_all(opened, alone, outcomes)

    def _batches(
        self, producer: AIOKafkaProducer, records: Sequence[Outgoing], count: int, positions: Sequence[int]
    ) -> list[ProducerBatch]:
        """Packs records by partition: a future for each batch costs a fraction of one for each record."""
        batches: list[ProducerBatch] = []
        waiting: dict[int, ProducerBatch] = {}
        for position, place in zip(positions, self._partitions([records[at] for at in positions], count), strict=True):
            record = records[position]
            batch = waiting.get(place)
            if batch is None or not batch.append(record, position):
                batch = waiting[place] = ProducerBatch(place, producer.create_batch())
                batches.append(batch)
                batch.append(record, position)
        return batches

    def _partitions(self, records: list[Outgoing], count: int) -> list[int]:
        found = partitions_of([record.key or b"" for record in records], count)
        for position, record in enumerate(records):
            if record.partition is not None:
                found[position] = record.partition
            elif record.key is None:
                self._turn += 1
                found[position] = self._turn % count
        return found

    async def _send_all(self, opened: Opened, batches: Iterable[ProducerBatch], outcomes: Outcomes) -> None:
        """Sends batches, those of one partition in order, and notes what becomes of each record."""
        queues: dict[int, list[ProducerBatch]] = {}
        for batch in batches:
            queues.setdefault(batch.partition, []).append(batch)
        await asyncio.gather(*(self._send_in_order(opened, queue, outcomes) for queue in queues.values()))

    async def _send_in_order(self, opened: Opened, queue: Sequence[ProducerBatch], outcomes: Outcomes) -> None:
        """Sends the batches of one partition.

        Only one batch of the process waits for its place in a partition at a time. Where many wait, aiokafka counts the time of
        each turn against all that follow, and gives up after a few megabytes however often it is tried (``add_batch`` in its
        ``message_accumulator.py``).
        """
        acks: list[asyncio.Future[Any]] = []
        for number, batch in enumerate(queue):
            try:
                async with opened.places[batch.partition]:
                    ack = await opened.producer.send_batch(batch.builder, self._topic, partition=batch.partition)
            except (KafkaError, TimeoutError, AssertionError) as error:
                # The assertion is aiokafka's: the topic was made again, with fewer partitions.
                fault = self._missing() if isinstance(error, AssertionError) else error
                for unsent in queue[number:]:
                    self._note(unsent, outcomes, fault)
                break
            ack.add_done_callback(partial(self._on_ack, batch, outcomes))
            acks.append(ack)
        await self._wait(opened, acks, queue, outcomes)
        for ack in acks:
            fault = ack.exception() if ack.done() else None
            if fault is not None and not isinstance(fault, (KafkaError, TimeoutError)):
                raise fault

    async def _wait(
        self, opened: Opened, acks: Sequence[asyncio.Future[Any]], queue: Sequence[ProducerBatch], outcomes: Outcomes
    ) -> None:
        """Returns when all batches are answered, or when the topic does not exist any more."""
        looks, waiting = 0, set(acks)
        while waiting:
            _, waiting = await asyncio.wait(waiting, timeout=LOOK_SECONDS)
            if not waiting:
                return
            looks += 1
            if opened.producer.client.cluster.partitions_for_topic(self._topic) is None:
                for batch, ack in zip(queue, acks, strict=False):
                    if not ack.done():
                        self._note(batch, outcomes, self._missing())
                return
            if looks == SLOW_LOOKS:
                slow = KafkaTimeoutError(f"nothing for {SLOW_LOOKS * LOOK_SECONDS:g} s")
                self._note_trouble(queue[0].partition, slow)

    # ---- outcomes

    def _on_ack(self, batch: ProducerBatch, outcomes: Outcomes, ack: asyncio.Future[Any]) -> None:
        if not ack.cancelled():
            self._note(batch, outcomes, ack.exception())

    def _note(self, batch: ProducerBatch, outcomes: Outcomes, outcome: BaseException | None) -> None:
        for position in batch.positions:
            outcomes[position] = outcome
        if isinstance(outcome, ProducerClosed):
            return  # what we have ended ourselves says nothing about the topic
        if outcome is not None and not isinstance(outcome, TOO_LARGE):
            self._note_trouble(batch.partition, outcome)
        elif self._troubled:
            self._troubled -= {batch.partition, None}
            if not self._troubled:
                self._tell(self._topic, None)

    def _note_trouble(self, partition: int | None, error: BaseException) -> None:
        """Notes that a partition does not acknowledge, or, with None, the topic as a whole."""
        self._troubled.add(partition)
        is_missing = isinstance(error, UnknownTopicOrPartitionError)
        self._tell(self._topic, f"topic {self._topic!r} " + ("does not exist" if is_missing else f"does not acknowledge: {error}"))
