"""What every host knows of its consumer and asks the broker, whoever runs that consumer."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition

from streams_app.delivery.batch import TP
from streams_app.delivery.clocks import ReaderView
from streams_app.delivery.fingerprints import Incarnation
from streams_app.delivery.group_consumer import Committed, Member
from streams_app.kafka.fetching import view_of
from streams_app.kafka.members import commit_as, committed_of
from streams_app.kafka.one_record import checksum_at
from streams_app.kafka.topic_ids import incarnations, topic_ids

T = TypeVar("T")

CALL_SECONDS: Final = 10.0
"""A call to the broker that takes longer is given up and made again by its caller."""


async def in_time(question: Coroutine[Any, Any, T]) -> T:
    """Waits for the answer of the broker, at most :data:`CALL_SECONDS`.

    Raises:
        TimeoutError: It took too long, which the error says; its outcome is unknown.
    """
    try:
        async with asyncio.timeout(CALL_SECONDS):
            return await question
    except TimeoutError as error:
        raise TimeoutError(str(error) or f"Kafka has not answered within {CALL_SECONDS:g} s") from error


class KafkaQueries(ABC):
    """The part of a :class:`.GroupConsumer` that asks the broker; a subclass adds where its aiokafka consumer runs."""

    @property
    @abstractmethod
    def client(self) -> AIOKafkaConsumer | None:
        """The consumer, where there is one; what it knows may be looked at from any thread."""

    @abstractmethod
    async def _asked(self, question: Callable[[AIOKafkaConsumer], Coroutine[Any, Any, T]]) -> T:
        """Runs a coroutine on the loop of the consumer, and waits for it.

        Raises:
            TimeoutError: It took too long; its outcome is unknown.
        """

    @property
    def member_id(self) -> str:
        """Id of this member, as aiokafka knows it; "" while there is no client."""
        coordinator = self.client._coordinator if self.client is not None else None  # None while the client is starting
        return "" if coordinator is None else str(coordinator.member_id)

    def partition_count(self, topic: str) -> int:
        """How many partitions a topic has by the metadata of the cluster; 1 while that is unknown."""
        partitions = self.client.partitions_for_topic(topic) if self.client is not None else None
        return len(partitions) if partitions else 1

    def reader_view(self, tp: TP) -> tuple[ReaderView, int | None]:
        """What the last fetch of a partition said, and the reader's position; safe to call from any thread."""
        return view_of(self.client, tp)

    async def topic_id(self, topic: str) -> str:
        """The id the broker gave the topic when it was made; "" where it gives none."""
        return (await self._asked(lambda consumer: topic_ids(consumer._client, [topic])))[topic]

    async def committed(self, tp: TP) -> Committed | None:
        """The commit that the broker holds now; None where there never was one."""
        return (await self._asked(lambda consumer: committed_of(consumer, [tp]))).get(tp)

    async def commits(self, topic: str) -> dict[int, Committed]:
        """The commits that the broker holds for a topic, by partition number; partitions without a commit are left out."""

        async def ask(consumer: AIOKafkaConsumer) -> dict[TP, Committed]:
            return await committed_of(consumer, [TP(topic, number) for number in consumer.partitions_for_topic(topic) or ()])

        return {tp.partition: held for tp, held in (await self._asked(ask)).items()}

    async def commit(self, marks: Mapping[TP, Committed], claim: Member) -> None:
        """Commits under the generation and member id of a claim.

        Raises:
            NotOwnerError: Kafka refused it.
            KafkaError, TimeoutError: The outcome is unknown; a low watermark may be committed again at any time.
        """
        await self._asked(lambda consumer: commit_as(consumer, marks, claim))

    async def log_range(self, tp: TP) -> tuple[int, int]:
        """First offset of the log and its end, as ``read_committed`` sees it."""
        key = TopicPartition(*tp)

        async def ask(consumer: AIOKafkaConsumer) -> tuple[int, int]:
            return (await consumer.beginning_offsets([key]))[key], (await consumer.end_offsets([key]))[key]

        return await self._asked(ask)

    async def checksum_at(self, tp: TP, offset: int) -> int:
        """The checksum of the record at an offset, or why there is none."""
        return await self._asked(lambda consumer: checksum_at(consumer, tp, offset))

    async def incarnations(self, topic: str) -> dict[int, Incarnation]:
        """The id of a topic and the epoch of the leader of each partition; nothing where the broker gives none."""
        return await self._asked(lambda consumer: incarnations(consumer._client, topic))

    async def offset_at(self, tp: TP, time_ms: int) -> int:
        """Offset of the first record that is not older than a time, or a lower one; the end of the log where there is none."""
        key = TopicPartition(*tp)

        async def ask(consumer: AIOKafkaConsumer) -> int:
            # The end first: what arrives after it must not be passed over where nothing was found.
            end = (await consumer.end_offsets([key]))[key]
            found = (await consumer.offsets_for_times({key: time_ms}))[key]
            return int(end if found is None else found.offset)

        return await self._asked(ask)
