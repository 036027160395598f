"""The producer of folded records and dead letters: every send waits for acknowledgement, with a deadline.

Faust's own producer is not used, because it returns before the broker has answered and is not idempotent.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, ProducerClosed

from streams_app.delivery.batch import TP
from streams_app.delivery.producer import Outcomes, OutgoingRecord
from streams_app.kafka.client import client_options
from streams_app.kafka.patches.producer_end import end
from streams_app.kafka.rendered_records import RenderedRecords
from streams_app.kafka.topic_producer import MAX_BATCH_BYTES, SEND_SECONDS, TopicProducer
from streams_app.settings import KafkaSettings

logger = logging.getLogger(__name__)
_SENDER_LOGGER = logging.getLogger("aiokafka.producer.sender")

LINGER_MS = 5
START_SECONDS = 15.0


def _nobody(_: str, __: str | None) -> None: ...


class AckedProducer:
    """Producer that waits for acknowledgements; idempotent if the broker supports it.

    A topic that cannot be written does not delay sends to other topics.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        *,
        client_id: str,
        report_fault: Callable[[str, str | None], None] = _nobody,
        send_seconds: float = SEND_SECONDS,
        linger_ms: int = LINGER_MS,
    ) -> None:
        """Create a producer, without connecting.

        Args:
            report_fault: Called with a topic and a text about its fault; with None once the topic has no fault.
            linger_ms: Time for which a send waits for records of other partitions, to share a request with them.
        """
        self._kafka = kafka
        self._client_id = client_id
        self._report_fault = report_fault
        self._send_seconds = send_seconds
        self._linger_ms = linger_ms
        self._topics: dict[str, TopicProducer] = {}
        self.is_idempotent = True
        self._is_stopped = False

    async def stop(self) -> None:
        """Close all connections within a few seconds; pending and later sends fail."""
        self._is_stopped = True
        topics, self._topics = self._topics, {}
        await asyncio.gather(*(topic.stop() for topic in topics.values()))

    def clear_faults(self) -> None:
        """Report that none of the topics has a fault; a send that fails later reports the fault of its topic again."""
        for topic in self._topics.values():
            topic.clear_faults()

    def next_partition(self, record: OutgoingRecord) -> TP | None:
        """Return the partition to which a record would be sent; None if the number of partitions of its topic is not known yet.

        That number is known after a send to the topic, until a send fails.
        """
        topic = self._topics.get(record.topic)
        partition = None if topic is None else topic.next_partition(record)
        return None if partition is None else TP(record.topic, partition)

    async def send(self, records: Sequence[OutgoingRecord]) -> Outcomes:
        """Produce records and wait for all acknowledgements, for at most ``send_seconds``."""
        if isinstance(records, RenderedRecords):
            return await self._topic(records.topic).send(records)
        by_topic: dict[str, list[int]] = defaultdict(list)
        for position, record in enumerate(records):
            by_topic[record.topic].append(position)
        if len(by_topic) == 1:
            return await self._topic(records[0].topic).send(records)
        outcomes: Outcomes = [None] * len(records)
        answers = await asyncio.gather(
            *(self._topic(topic).send([records[at] for at in positions]) for topic, positions in by_topic.items())
        )
        for positions, answer in zip(by_topic.values(), answers, strict=True):
            for position, outcome in zip(positions, answer, strict=True):
                outcomes[position] = outcome
        return outcomes

    def _topic(self, name: str) -> TopicProducer:
        if name not in self._topics:
            self._topics[name] = TopicProducer(name, self._open, self._report_fault, self._send_seconds)
        return self._topics[name]

    async def _open(self) -> AIOKafkaProducer:
        if self._is_stopped:
            raise ProducerClosed("the producer has been stopped")
        if self.is_idempotent:
            try:
                return await self._started(idempotent=True)
            except KafkaError as error:
                if not _refuses_idempotence(error):
                    raise
                if self.is_idempotent:
                    logger.info("the broker has no idempotent producers, an ordinary one is used error=%r", error)
                self.is_idempotent = False
        return await self._started(idempotent=False)

    async def _started(self, *, idempotent: bool) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(
            **client_options(self._kafka),
            client_id=self._client_id,
            acks="all",
            enable_idempotence=idempotent,
            linger_ms=self._linger_ms,
            max_batch_size=MAX_BATCH_BYTES,
            request_timeout_ms=15_000,
            max_request_size=8_000_000,
        )
        _SENDER_LOGGER.addFilter(_is_not_raised)
        try:
            async with asyncio.timeout(START_SECONDS):
                await producer.start()
        except BaseException:  # Also on cancellation: close its connections and end its task.
            await end(producer)
            raise
        finally:
            _SENDER_LOGGER.removeFilter(_is_not_raised)
        return producer


def _refuses_idempotence(error: KafkaError) -> bool:
    """Return whether the broker does not support idempotent producers; False if the error is retriable, such as no answer."""
    return not error.retriable


def _is_not_raised(record: logging.LogRecord) -> bool:
    """Return False for the error that ``start()`` of an idempotent producer both logs and raises."""
    return "InitProducerIdRequest" not in str(record.msg)
