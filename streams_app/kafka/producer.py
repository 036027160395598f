"""The producer of folded records and dead letters: every send waits for the broker's acknowledgement.

Faust's own producer returns before the broker has answered and is not idempotent; nothing here goes through it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, RecordListTooLargeError

from streams_app.kafka.client import client_options
from streams_app.kafka.partitioner import partitions_of
from streams_app.settings import KafkaSettings

logger = logging.getLogger(__name__)

TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)
LINGER_MS = 5
START_SECONDS = 15.0


class Outgoing(NamedTuple):
    """One record to be produced; into the partition of its key, or into one that is named and exists."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]] = []  # noqa: RUF012  # nobody changes it
    timestamp_ms: int | None = None
    partition: int | None = None


class _Batch:
    """Records of one partition on their way."""

    __slots__ = ("builder", "partition", "positions", "topic")

    def __init__(self, topic: str, partition: int, builder: Any) -> None:
        self.topic = topic
        self.partition = partition
        self.builder = builder
        self.positions: list[int] = []

    def append(self, record: Outgoing, position: int) -> bool:
        """False where the batch is full; an empty one takes any record."""
        _, key, value, headers, timestamp_ms, _ = record
        if self.builder.append(timestamp=timestamp_ms, key=key, value=value, headers=headers) is None:
            return False
        self.positions.append(position)
        return True


class AckedProducer:
    """Produces and waits for the acknowledgement; idempotent where the broker allows it."""

    def __init__(self, kafka: KafkaSettings, *, client_id: str) -> None:
        self._kafka = kafka
        self._client_id = client_id
        self._producer: AIOKafkaProducer | None = None
        self._opening = asyncio.Lock()
        self._places: dict[tuple[str, int], asyncio.Lock] = defaultdict(asyncio.Lock)
        self._turn = 0
        self.is_idempotent = True

    async def start(self) -> None:
        """Connects; falls back to a producer that is not idempotent where the broker refuses it.

        Raises:
            KafkaError: The broker cannot be reached.
        """
        await self._ensure()

    async def stop(self) -> None:
        """Flushes and closes, within a few seconds."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await _close(producer)

    async def send(self, records: Sequence[Outgoing]) -> list[BaseException | None]:
        """Produces records and waits for all acknowledgements.

        Returns:
            One entry a record: None once the broker has acknowledged it, else the error. An error leaves the outcome of that
            record unknown; the caller sends it again under the same id.
        """
        try:
            producer = await self._ensure()
        except (KafkaError, OSError, TimeoutError) as error:
            return [error] * len(records)
        outcomes: list[BaseException | None] = [None] * len(records)
        try:
            batches = await self._batches(producer, records, range(len(records)))
            await self._send_all(producer, batches, outcomes)
            if not any(outcomes):
                return outcomes
            # A topic may take less than a batch of ours: whether a record is too large by itself is only known alone.
            for position in [at for batch in batches if len(batch.positions) > 1 for at in batch.positions]:
                if isinstance(outcomes[position], TOO_LARGE):
                    alone = await self._batches(producer, records, [position])
                    await self._send_all(producer, alone, outcomes)
        except (KafkaError, TimeoutError) as error:
            outcomes = [error] * len(records)
        if any(outcome is not None and not isinstance(outcome, TOO_LARGE) for outcome in outcomes):
            await self._drop(producer)
        return outcomes

    async def _batches(self, producer: AIOKafkaProducer, records: Sequence[Outgoing], positions: Iterable[int]) -> list[_Batch]:
        """Packs records by partition: several times cheaper than a future for each."""
        batches: list[_Batch] = []
        by_topic: dict[str, list[int]] = defaultdict(list)
        for position in positions:
            by_topic[records[position].topic].append(position)
        for topic, mine in by_topic.items():
            count = len(await producer.partitions_for(topic))
            open_batches: dict[int, _Batch] = {}
            for position, partition in zip(mine, self._partitions([records[at].key for at in mine], count), strict=True):
                record = records[position]
                place = partition if record.partition is None else record.partition
                batch = open_batches.get(place)
                if batch is None or not batch.append(record, position):
                    batch = open_batches[place] = _Batch(topic, place, producer.create_batch())
                    batches.append(batch)
                    batch.append(record, position)
        return batches

    def _partitions(self, keys: list[bytes | None], count: int) -> list[int]:
        found = partitions_of([key or b"" for key in keys], count)
        for position, key in enumerate(keys):
            if key is None:
                self._turn += 1
                found[position] = self._turn % count
        return found

    async def _send_all(self, producer: AIOKafkaProducer, batches: Sequence[_Batch], outcomes: list[BaseException | None]) -> None:
        """Sends batches, those of one partition in order, and notes what became of each record."""
        by_partition: dict[tuple[str, int], list[_Batch]] = {}
        for batch in batches:
            by_partition.setdefault((batch.topic, batch.partition), []).append(batch)
        for sent in await asyncio.gather(
            *(_send_in_order(producer, queue, self._places[place]) for place, queue in by_partition.items())
        ):
            for batch, outcome in sent:
                for position in batch.positions:
                    outcomes[position] = outcome

    async def _ensure(self) -> AIOKafkaProducer:
        async with self._opening:
            if self._producer is None:
                self._producer = await self._open()
            return self._producer

    async def _open(self) -> AIOKafkaProducer:
        if self.is_idempotent:
            producer = self._new(idempotent=True)
            try:
                async with asyncio.timeout(START_SECONDS):
                    await producer.start()
            except KafkaError as error:
                await _close(producer)
                if not _refuses_idempotence(error):
                    raise
                self.is_idempotent = False
                logger.info("the broker knows no idempotent producers, going on without error=%r", error)
            except BaseException:  # cancelled, too: it has connections and a task
                await _close(producer)
                raise
            else:
                return producer
        producer = self._new(idempotent=False)
        try:
            async with asyncio.timeout(START_SECONDS):
                await producer.start()
        except BaseException:  # likewise
            await _close(producer)
            raise
        return producer

    def _new(self, *, idempotent: bool) -> AIOKafkaProducer:
        return AIOKafkaProducer(
            **client_options(self._kafka),
            client_id=self._client_id,
            acks="all",
            enable_idempotence=idempotent,
            linger_ms=LINGER_MS,
            max_batch_size=262_144,
            request_timeout_ms=15_000,
            max_request_size=8_000_000,
        )

    async def _drop(self, producer: AIOKafkaProducer) -> None:
        """A producer that failed once may stay failed (a lost sequence number): the next send opens another."""
        async with self._opening:
            if self._producer is producer:
                self._producer = None
        await _close(producer)


async def _send_in_order(
    producer: AIOKafkaProducer, queue: Sequence[_Batch], place: asyncio.Lock
) -> list[tuple[_Batch, BaseException | None]]:
    """Sends the batches of one partition; each with its outcome.

    In the whole process one batch waits for its place in a partition at a time. Of many, aiokafka counts the time of each turn
    again in every later one, and gives up after a few megabytes, each time it is tried (``add_batch`` in its
    ``message_accumulator.py``).
    """
    acks: list[Any] = []
    failed: BaseException | None = None
    for batch in queue:
        try:
            async with place:
                acks.append(await producer.send_batch(batch.builder, batch.topic, partition=batch.partition))
        except (KafkaError, TimeoutError) as error:
            failed = error
            break
    outcomes = await asyncio.gather(*acks, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, (KafkaError, TimeoutError)):
            raise outcome
    known = [outcome if isinstance(outcome, BaseException) else None for outcome in outcomes]
    return list(zip(queue, known + [failed] * (len(queue) - len(acks)), strict=True))


def _refuses_idempotence(error: KafkaError) -> bool:
    """The broker does not know the request, or the version aiokafka speaks; an unreachable broker is no refusal."""
    return not error.retriable


async def _close(producer: AIOKafkaProducer) -> None:
    try:
        async with asyncio.timeout(5):
            await producer.stop()
    except (KafkaError, OSError, TimeoutError) as error:
        logger.info("a producer did not close cleanly error=%r", error)
