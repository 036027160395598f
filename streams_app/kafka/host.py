"""Faust's consumer as a member of its group: the host of the folds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import aiokafka
from aiokafka.errors import IllegalStateError
from aiokafka.structs import TopicPartition
from faust.types import TP as FaustTP

from streams_app.delivery.batch import TP
from streams_app.delivery.commits import Committed, Member, NotOwnerError
from streams_app.delivery.partition_clock import ReaderView
from streams_app.kafka.consumer import FoldingConsumer
from streams_app.kafka.members import commit_as, committed_of, log_range_of, offset_at
from streams_app.kafka.topic_ids import topic_ids


class FaustHost:
    """See :class:`streams_app.delivery.host.Host`. Everything that touches aiokafka happens in its thread."""

    def __init__(self, consumer: Callable[[], FoldingConsumer], generation: Callable[[], int]) -> None:
        """Faust makes its consumer when it starts, and knows the generation."""
        self._consumer = consumer
        self._generation = generation

    @property
    def generation(self) -> int:
        """As Faust knows it: of the last assignment."""
        return self._generation()

    @property
    def member_id(self) -> str:
        """As aiokafka knows it."""
        return self._consumer().thread.member_id

    def assignment(self) -> set[TP]:
        """As Faust knows it."""
        return {TP(*tp) for tp in self._consumer().assignment()}

    def partition_count(self, topic: str) -> int:
        """Partitions the cluster's metadata names for a topic; 1 while it is unknown."""
        return self._consumer().thread.partition_count(topic)

    async def topic_id(self, topic: str) -> str:
        """The id the broker gave the topic when it was made; "" where it gives none."""

        async def ask(consumer: aiokafka.AIOKafkaConsumer) -> dict[str, str]:
            return await topic_ids(consumer._client, [topic])

        return (await self._consumer().thread.run(ask))[topic]

    async def committed(self, tp: TP) -> Committed | None:
        """What the broker holds now; None where nothing was ever committed."""
        return (await self._consumer().thread.run(lambda consumer: committed_of(consumer, [tp]))).get(tp)

    async def commits(self, topic: str) -> dict[int, Committed]:
        """What the broker holds now for all partitions of a topic, by their numbers; without those never committed."""

        async def ask(consumer: aiokafka.AIOKafkaConsumer) -> dict[TP, Committed]:
            return await committed_of(consumer, [TP(topic, number) for number in consumer.partitions_for_topic(topic) or ()])

        return {tp.partition: held for tp, held in (await self._consumer().thread.run(ask)).items()}

    async def commit(self, marks: Mapping[TP, Committed], claim: Member) -> None:
        """Commits under the generation and member id of a claim.

        Raises:
            NotOwnerError: Kafka refused it.
            TimeoutError: The outcome is unknown; a low watermark may be committed again at any time.
        """
        await self._consumer().thread.run(lambda consumer: commit_as(consumer, marks, claim))

    async def log_range(self, tp: TP) -> tuple[int, int]:
        """First offset of the log and its end, as ``read_committed`` sees it."""
        return await self._consumer().thread.run(lambda consumer: log_range_of(consumer, tp))

    async def offset_at(self, tp: TP, timestamp_ms: int) -> int:
        """First offset whose record is not older than that; the end of the log where there is none."""
        return await self._consumer().thread.run(lambda consumer: offset_at(consumer, tp, timestamp_ms))

    async def seek(self, tp: TP, offset: int) -> int:
        """Moves the reader; batches fetched before it are recognised by the number returned.

        Raises:
            NotOwnerError: The partition is not assigned to us.
        """
        thread = self._consumer().thread

        async def move(consumer: aiokafka.AIOKafkaConsumer) -> int:
            consumer.seek(TopicPartition(tp.topic, tp.partition), offset)
            thread.seek_numbers[tp] += 1
            return thread.seek_numbers[tp]

        try:
            return await thread.run(move)
        except IllegalStateError as error:
            raise NotOwnerError(str(error)) from error

    def pause(self, tps: Collection[TP]) -> None:
        """Reads no more of these partitions."""
        self._consumer().pause_partitions(_for_faust(tps))

    def resume(self, tps: Collection[TP]) -> None:
        """Reads again, at once."""
        self._consumer().resume_partitions(_for_faust(tps))

    def reader_view(self, tp: TP) -> tuple[ReaderView, int | None]:
        """What the last fetch said, and the reader's position; safe to call from any thread."""
        return self._consumer().thread.reader_view(tp)


def _for_faust(tps: Collection[TP]) -> set[FaustTP]:
    """Faust insists on its own type among the partitions it reads, equal or not."""
    return {FaustTP(*tp) for tp in tps}
