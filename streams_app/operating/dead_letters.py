"""A dead-letter topic, read from its beginning to where it ended when the command began.

The end is asked for once: a worker whose fault is not mended makes new letters of what is put back, and a reader that went on to
those would never end. Nothing is written here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from heapq import heappush, heappushpop
from typing import Final, NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.kafka.admin import admin_client, partition_counts
from streams_app.kafka.client import client_options
from streams_app.kafka.log_reader import POLL_MS, SILENT_SECONDS, stable_ends
from streams_app.operating.letters import Letter, Selection, taken_apart
from streams_app.settings import Settings

PAGE_RECORDS: Final = 500


@dataclass(frozen=True, slots=True)
class LetterTopic:
    """A dead-letter topic, open for reading.

    Attributes:
        name: Name of the topic.
        source_partitions: Number of partitions of the topic that letters are put back into; 0: there is none.
        begins: First offset of each partition.
        ends: Offset at which each partition ended when the command began; nothing beyond it is read.
    """

    name: str
    source_partitions: int
    begins: dict[TopicPartition, int]
    ends: dict[TopicPartition, int]
    consumer: AIOKafkaConsumer

    @property
    def offsets(self) -> int:
        """How many offsets there are to read."""
        return sum(self.ends[tp] - begin for tp, begin in self.begins.items())

    async def pages(self) -> AsyncIterator[list[Letter]]:
        """All letters up to the ends, each partition in its order; a page may be empty.

        Raises:
            TryAgainError: The broker has fallen silent.
        """
        consumer = self.consumer
        for tp, begin in self.begins.items():
            consumer.seek(tp, begin)
        consumer.resume(*self.begins)
        unread = dict(self.ends)
        silent_ms = 0
        while True:
            for tp in [tp for tp, end in unread.items() if await consumer.position(tp) >= end]:
                del unread[tp]
                consumer.pause(tp)
            if not unread:
                return
            fetched = await consumer.getmany(timeout_ms=POLL_MS, max_records=PAGE_RECORDS)
            silent_ms = 0 if fetched else silent_ms + POLL_MS
            if silent_ms > SILENT_SECONDS * 1000:
                raise TryAgainError(f"Kafka does not go on with {self.name}: {SILENT_SECONDS:.0f} s without an answer")
            yield [
                Letter(tp.partition, record.offset, record.key, record.value, record.timestamp, *taken_apart(record.headers))
                for tp, records in fetched.items()
                for record in records
                if record.offset < self.ends[tp]
            ]


@asynccontextmanager
async def letter_topic(settings: Settings, name: str, source: str | None = None) -> AsyncIterator[LetterTopic]:
    """A dead-letter topic.

    Args:
        settings: Settings of the application.
        name: Name of the topic.
        source: The topic its letters would be put back into; None: they are not put back into one.

    Raises:
        TryAgainError: Kafka does not answer.
        ConfigurationError: There is no dead-letter topic.
    """
    async with admin_client(settings.kafka) as client:
        counts = await partition_counts(client, [name, *filter(None, [source])])
    if name not in counts:
        raise ConfigurationError([f"topic {name!r} does not exist: nothing was ever refused"])
    tps = [TopicPartition(name, number) for number in range(counts[name])]
    consumer = AIOKafkaConsumer(
        **client_options(settings.kafka),
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    try:
        await consumer.start()
        consumer.assign(tps)
        begins = await consumer.beginning_offsets(tps)
        yield LetterTopic(name, counts.get(source or "", 0), begins, await stable_ends(consumer, tps), consumer)
    except KafkaError as error:
        raise TryAgainError(f"Kafka at {settings.kafka.bootstrap_servers} does not answer: {error!r}") from error
    finally:
        await consumer.stop()


class Listed(NamedTuple):
    """Letters that were asked for.

    Attributes:
        letters: Oldest first.
        late: Sources of events that were interrupted and have ended well after all.
    """

    letters: list[Letter]
    late: frozenset[str]


async def letters_of(settings: Settings, topic_name: str, selection: Selection, limit: int) -> Listed:
    """Dead letters of one fold, read store or subscriber, oldest first by the time of the letter, whatever its partition.

    Args:
        settings: Settings of the application.
        topic_name: Its dead-letter topic.
        selection: Letters that are wanted.
        limit: Number of letters at most.

    Raises:
        TryAgainError: Kafka does not answer.
        ConfigurationError: There is no dead-letter topic.
    """
    found: list[tuple[int, int, int, Letter]] = []
    late: set[str] = set()
    async with letter_topic(settings, topic_name) as topic:
        async for page in topic.pages():
            mine = [letter for letter in page if selection.concerns(letter)]
            keep_oldest(found, (letter for letter in mine if selection.takes(letter)), limit)
            late.update(letter.source for letter in mine if letter.is_late)
    return Listed([letter for *_, letter in sorted(found, reverse=True)], frozenset(late))


def keep_oldest(found: list[tuple[int, int, int, Letter]], letters: Iterable[Letter], limit: int) -> None:
    """Adds letters to a heap, and leaves the oldest of all in it.

    Args:
        found: A heap; its first entry is the newest letter.
        letters: In any order.
        limit: So many letters are left at most.
    """
    for letter in letters:
        entry = (-letter.timestamp_ms, -letter.partition, -letter.offset, letter)
        if len(found) < limit:
            heappush(found, entry)
        else:
            heappushpop(found, entry)
