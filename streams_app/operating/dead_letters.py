"""Dead letters: what was refused and why; put back after a fix, for the fold that refused it and no other.

A letter that is put back carries the header ``streams-app-replay`` with the names of application and fold: the other folds of the
source have taken the event already and skip it. How far letters have been put back is remembered as the committed offsets of a consumer
group of its own, so that a second replay does not fold them twice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.folding.addressing import REPLAY_HEADER, address_of
from streams_app.folding.definition import Fold
from streams_app.kafka.admin import admin_client, partition_counts
from streams_app.kafka.client import client_options
from streams_app.kafka.producer import AckedProducer, Outgoing
from streams_app.settings import Settings

POLL_MS: Final = 500
QUIET_POLLS: Final = 4
"""Fetches in a row that bring nothing: then the end is reached, wherever the broker says it is."""

PREVIEW_BYTES: Final = 120


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter.

    Attributes:
        partition: Of the dead-letter topic.
        offset: In it.
        key: As received.
        value: As received.
        timestamp_ms: When it became one.
        headers: Text of each.
    """

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: dict[str, str]

    @property
    def fold(self) -> str:
        """The fold that refused it."""
        return self.headers.get("fold", "")

    @property
    def reason(self) -> str:
        """Why."""
        return self.headers.get("reason", "")

    @property
    def is_event(self) -> bool:
        """Whether it can be put back: a folded record that was too large for the broker is no event."""
        return self.reason != "record-too-large"

    def row(self) -> dict[str, Any]:
        """For people and programs; the value is cut."""
        value = (self.value or b"")[:PREVIEW_BYTES].decode("utf-8", "backslashreplace")
        key = None if self.key is None else self.key.decode("utf-8", "backslashreplace")
        return {"partition": self.partition, "offset": self.offset, **self.headers, "key": key, "value": value}


@dataclass(slots=True)
class Replayed:
    """What a replay did, or would do."""

    put_back: int = 0
    skipped: int = 0


async def letters_of(settings: Settings, fold: Fold, reason: str | None, limit: int) -> list[Letter]:
    """Dead letters of one fold, oldest first.

    Args:
        settings: Of the application.
        fold: That refused them.
        reason: Only these.
        limit: At most so many.

    Raises:
        TryAgainError: Kafka does not answer.
        ConfigurationError: There is no dead-letter topic.
    """
    found: list[Letter] = []
    async with _reader(settings, fold, group=None) as (consumer, _):
        async for letter in _letters(consumer):
            if letter.fold == fold.name and reason in (None, letter.reason):
                found.append(letter)
                if len(found) >= limit:
                    break
    return found


async def replay(settings: Settings, fold: Fold, reason: str | None, *, again: bool, dry_run: bool) -> Replayed:
    """Puts letters back into the source, each once; waits for the acknowledgement of each page.

    Args:
        settings: Of the application.
        fold: That refused them.
        reason: Only these; the others count as seen.
        again: From the beginning, also what was put back before.
        dry_run: Only count.

    Raises:
        TryAgainError: Kafka does not answer; what was put back is remembered.
        ConfigurationError: There is no dead-letter topic, or another replay is running.
    """
    done = Replayed()
    producer = AckedProducer(settings.kafka, client_id=f"{settings.app_id}-replay")
    async with _reader(settings, fold, group=f"{settings.app_id}.dead-letters.{fold.name}", again=again) as (consumer, tps):
        try:
            async for page in _pages(consumer):
                wanted = [letter for letter in page if letter.fold == fold.name and reason in (None, letter.reason)]
                events = [letter for letter in wanted if letter.is_event]
                done.skipped += len(wanted) - len(events)
                if not dry_run:
                    await _put_back(producer, settings.app_id, fold, events)
                    await consumer.commit({tp: await consumer.position(tp) for tp in tps})
                done.put_back += len(events)
        except KafkaError as error:
            raise TryAgainError(f"replay interrupted after {done.put_back} events: {error!r}") from error
        finally:
            await producer.stop()
    return done


async def _put_back(producer: AckedProducer, app_id: str, fold: Fold, letters: list[Letter]) -> None:
    mark = [(REPLAY_HEADER, address_of(app_id, fold.name))]
    outcomes = await producer.send([Outgoing(fold.source, letter.key, letter.value, mark) for letter in letters])
    failed = next((outcome for outcome in outcomes if outcome is not None), None)
    if failed is not None:
        raise TryAgainError(f"the source does not take events: {failed!r}") from failed


@asynccontextmanager
async def _reader(
    settings: Settings, fold: Fold, group: str | None, *, again: bool = False
) -> AsyncIterator[tuple[AIOKafkaConsumer, list[TopicPartition]]]:
    async with admin_client(settings.kafka) as client:
        counts = await partition_counts(client, [fold.dead_letters])
    if fold.dead_letters not in counts:
        raise ConfigurationError([f"topic {fold.dead_letters!r} does not exist: nothing was ever refused"])
    tps = [TopicPartition(fold.dead_letters, number) for number in range(counts[fold.dead_letters])]
    consumer = AIOKafkaConsumer(
        **client_options(settings.kafka), group_id=group, enable_auto_commit=False, auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        consumer.assign(tps)
        if again or group is None:
            await consumer.seek_to_beginning(*tps)
        yield consumer, tps
    finally:
        await consumer.stop()


async def _pages(consumer: AIOKafkaConsumer) -> AsyncIterator[list[Letter]]:
    quiet = 0
    while quiet < QUIET_POLLS:
        fetched = await consumer.getmany(timeout_ms=POLL_MS, max_records=500)
        page = [
            Letter(tp.partition, record.offset, record.key, record.value, record.timestamp, _text(record.headers))
            for tp, records in fetched.items()
            for record in records
        ]
        quiet = 0 if page else quiet + 1
        if page:
            yield page


async def _letters(consumer: AIOKafkaConsumer) -> AsyncIterator[Letter]:
    async for page in _pages(consumer):
        for letter in page:
            yield letter


def _text(headers: Any) -> dict[str, str]:
    return {name: (value or b"").decode("utf-8", "backslashreplace") for name, value in headers}
