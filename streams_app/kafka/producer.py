"""The producer of folded records and dead letters: every send waits for the broker's acknowledgement.

Faust's own producer returns before the broker has answered and is not idempotent; nothing here goes through it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, RecordListTooLargeError

from streams_app.kafka.client import client_options
from streams_app.settings import KafkaSettings

logger = logging.getLogger(__name__)

TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)
LINGER_MS = 5
START_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One record to be produced."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]] = field(default_factory=list)
    timestamp_ms: int | None = None


class AckedProducer:
    """Produces and waits for the acknowledgement; idempotent where the broker allows it."""

    def __init__(self, kafka: KafkaSettings, *, client_id: str) -> None:
        self._kafka = kafka
        self._client_id = client_id
        self._producer: AIOKafkaProducer | None = None
        self._opening = asyncio.Lock()
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
        acks: list[asyncio.Future[object] | BaseException] = []
        for record in records:
            try:
                ack = await producer.send(
                    record.topic, record.value, record.key, timestamp_ms=record.timestamp_ms, headers=record.headers
                )
                acks.append(ack)
            except (KafkaError, TimeoutError) as error:  # each record has an outcome of its own
                acks.append(error)
        waiting = [ack for ack in acks if isinstance(ack, asyncio.Future)]
        if waiting:
            await asyncio.wait(waiting)
        outcomes = [ack if isinstance(ack, BaseException) else ack.exception() for ack in acks]
        if any(outcome is not None and not isinstance(outcome, TOO_LARGE) for outcome in outcomes):
            await self._drop(producer)
        return outcomes

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
            except BaseException:
                await _close(producer)
                raise
            else:
                return producer
        producer = self._new(idempotent=False)
        try:
            async with asyncio.timeout(START_SECONDS):
                await producer.start()
        except BaseException:
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


def _refuses_idempotence(error: KafkaError) -> bool:
    """The broker does not know the request, or the version aiokafka speaks; an unreachable broker is no refusal."""
    return not error.retriable


async def _close(producer: AIOKafkaProducer) -> None:
    try:
        async with asyncio.timeout(5):
            await producer.stop()
    except (KafkaError, OSError, TimeoutError) as error:
        logger.info("a producer did not close cleanly error=%r", error)
