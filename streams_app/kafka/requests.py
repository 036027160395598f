"""Requests of a group member to its aiokafka consumer and the broker, on any event loop."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition

from streams_app.delivery.batch import TP
from streams_app.delivery.clocks import ReaderView
from streams_app.delivery.fingerprints import Incarnation
from streams_app.delivery.group_consumer import Member, PartitionCommit
from streams_app.kafka.fetching import view_of
from streams_app.kafka.log_ends import offsets_at, stable_ends
from streams_app.kafka.member_requests import commit_as, committed_of
from streams_app.kafka.one_record import checksum_at
from streams_app.kafka.topic_ids import incarnations, topic_ids

T = TypeVar("T")

CALL_SECONDS: Final = 10.0
"""Timeout of a request to the broker; the caller retries."""


async def in_time(question: Coroutine[Any, Any, T]) -> T:
    """Await a request to the broker for at most :data:`CALL_SECONDS`."""
    try:
        async with asyncio.timeout(CALL_SECONDS):
            return await question
    except TimeoutError as error:
        raise TimeoutError(str(error) or f"Kafka has not answered within {CALL_SECONDS:g} s") from error


class KafkaRequests(ABC):
    """Implements the requests of a :class:`.GroupConsumer`; a subclass defines on which event loop the aiokafka consumer runs."""

    @property
    @abstractmethod
    def client(self) -> AIOKafkaConsumer | None:
        """The current aiokafka consumer; None while there is none. The state of the consumer may be read from any thread."""

    @abstractmethod
    async def _asked(self, question: Callable[[AIOKafkaConsumer], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the event loop of the consumer and await its result.

        Raises:
            TimeoutError: The coroutine took too long; its outcome is unknown.
        """

    @property
    def member_id(self) -> str:
        """Id that the coordinator gave this member; "" without a client."""
        coordinator = self.client._coordinator if self.client is not None else None  # None while the client is starting
        return "" if coordinator is None else str(coordinator.member_id)

    def partition_count(self, topic: str) -> int:
        partitions = self.client.partitions_for_topic(topic) if self.client is not None else None
        return len(partitions) if partitions else 1

    def reader_view(self, tp: TP) -> tuple[ReaderView, int | None]:
        return view_of(self.client, tp)

    async def topic_id(self, topic: str) -> str:
        return (await self._asked(lambda consumer: topic_ids(consumer._client, [topic])))[topic]

    async def committed(self, tp: TP) -> PartitionCommit | None:
        return (await self._asked(lambda consumer: committed_of(consumer, [tp]))).get(tp)

    async def commits(self, topic: str) -> dict[int, PartitionCommit]:
        async def ask(consumer: AIOKafkaConsumer) -> dict[TP, PartitionCommit]:
            return await committed_of(consumer, [TP(topic, number) for number in consumer.partitions_for_topic(topic) or ()])

        return {tp.partition: commit for tp, commit in (await self._asked(ask)).items()}

    async def commit(self, positions: Mapping[TP, PartitionCommit], claim: Member) -> None:
        await self._asked(lambda consumer: commit_as(consumer, positions, claim))

    async def log_range(self, tp: TP) -> tuple[int, int]:
        key = TopicPartition(*tp)

        async def ask(consumer: AIOKafkaConsumer) -> tuple[int, int]:
            return (await consumer.beginning_offsets([key]))[key], (await stable_ends(consumer, [key]))[key]

        return await self._asked(ask)

    async def checksum_at(self, tp: TP, offset: int) -> int:
        return await self._asked(lambda consumer: checksum_at(consumer, tp, offset))

    async def incarnations(self, topic: str) -> dict[int, Incarnation]:
        return await self._asked(lambda consumer: incarnations(consumer._client, topic))

    async def offset_at(self, tp: TP, time_ms: int) -> int:
        key = TopicPartition(*tp)

        async def ask(consumer: AIOKafkaConsumer) -> int:
            return (await offsets_at(consumer, await stable_ends(consumer, [key]), time_ms))[key]

        return await self._asked(ask)
