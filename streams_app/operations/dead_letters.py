"""A dead-letter topic, read from its beginning to where it ended when the command began.

The end is asked for once: a worker whose fault is not mended makes new letters of what is put back, and a reader that went on to
those would never end. Nothing is written here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.kafka.admin import admin_client, partition_counts
from streams_app.kafka.client import client_options
from streams_app.kafka.diagnosis import NOT_ALLOWED, not_allowed
from streams_app.kafka.log_reader import POLL_MS, SILENT_SECONDS, stable_ends
from streams_app.operations.dead_letter import ListedDeadLetter, Selection, split_headers
from streams_app.settings import Settings

PAGE_RECORDS: Final = 500
BEFORE_MS: Final = 3_600_000
"""So much more is read than was asked for: that an event has ended late may be said before it is said that it was interrupted."""


@dataclass(frozen=True, slots=True)
class DeadLetterTopic:
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

    async def pages(self) -> AsyncIterator[list[ListedDeadLetter]]:
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
                ListedDeadLetter(
                    tp.partition, record.offset, record.key, record.value, record.timestamp, *split_headers(record.headers)
                )
                for tp, records in fetched.items()
                for record in records
                if record.offset < self.ends[tp]
            ]


@asynccontextmanager
async def dead_letter_topic(
    settings: Settings, name: str, source: str | None = None, since_ms: int = 0
) -> AsyncIterator[DeadLetterTopic]:
    """A dead-letter topic.

    Args:
        settings: Settings of the application.
        name: Name of the topic.
        source: The topic its letters would be put back into; None: they are not put back into one.
        since_ms: Each partition begins with its first record that is not older; the embedded broker names an earlier one.

    Raises:
        TryAgainError: Kafka does not answer.
        ConfigurationError: There is no dead-letter topic, or it may not be read.
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
        begins, ends = await consumer.beginning_offsets(tps), await stable_ends(consumer, tps)
        if since_ms:
            at = await consumer.offsets_for_times(dict.fromkeys(tps, since_ms))
            begins = {tp: ends[tp] if found is None else found.offset for tp, found in at.items()}
        yield DeadLetterTopic(name, counts.get(source or "", 0), begins, ends, consumer)
    except NOT_ALLOWED as error:
        raise not_allowed(settings.kafka, error) from error
    except KafkaError as error:
        raise TryAgainError(f"Kafka at {settings.kafka.bootstrap_servers} does not answer: {error!r}") from error
    finally:
        await consumer.stop()


class ShownDeadLetter(NamedTuple):
    """A letter that is shown.

    Attributes:
        dead_letter: The oldest of those that are the same.
        times: How often it is there.
    """

    dead_letter: ListedDeadLetter
    times: int = 1


class DeadLetterListing(NamedTuple):
    """Letters that were asked for.

    Attributes:
        shown: Oldest first.
        late: Sources of events that were interrupted, or had timed out, and have ended well after all.
        replayed: Digests of events that a replay has put back.
        total: How many there are, those that are not shown with them.
        has_others: Whether letters were met that were not asked for.
    """

    shown: list[ShownDeadLetter]
    late: frozenset[str]
    replayed: frozenset[str]
    total: int
    has_others: bool = False

    @property
    def dead_letters(self) -> list[ListedDeadLetter]:
        """Those that are shown."""
        return [one.dead_letter for one in self.shown]


async def read_dead_letters(
    settings: Settings,
    topic_name: str,
    selection: Selection,
    limit: int,
    show: Callable[[str, int, int | None], None] = lambda words, done, total: None,
) -> DeadLetterListing:
    """Dead letters of whoever refused, oldest first by the time of the letter, whatever its partition.

    Args:
        settings: Settings of the application.
        topic_name: Its dead-letter topic.
        selection: Letters that are wanted.
        limit: Number of letters at most.
        show: Takes words, how many records were read, and of how many.

    Raises:
        TryAgainError: Kafka does not answer.
        ConfigurationError: There is no dead-letter topic.
    """
    oldest = OldestDeadLetters(limit)
    late: set[str] = set()
    replayed: set[str] = set()
    has_others = False
    read = 0
    async with dead_letter_topic(settings, topic_name, since_ms=max(0, selection.since_ms - BEFORE_MS)) as topic:
        async for page in topic.pages():
            mine = [dead_letter for dead_letter in page if selection.concerns(dead_letter)]
            taken = [dead_letter for dead_letter in mine if selection.matches(dead_letter)]
            has_others = has_others or len(taken) < len(mine)
            oldest.add(taken)
            late.update(dead_letter.source for dead_letter in mine if dead_letter.is_late)
            replayed.update(digest for dead_letter in page for digest in dead_letter.receipt(selection.address))
            read += len(page)
            show(f"{read:,} records of {topic_name} read", read, topic.offsets)
    return DeadLetterListing(oldest.shown(), frozenset(late), frozenset(replayed), oldest.total, has_others)


class OldestDeadLetters:
    """The oldest of the letters it is given, each once (pure).

    Attributes:
        total: How many it was given, those that were dropped with them. One that is the same as one that was dropped counts again.
    """

    def __init__(self, limit: int) -> None:
        """Has none yet.

        Args:
            limit: So many are kept at most.
        """
        self.total = 0
        self._limit = limit
        self._kept: dict[str, ShownDeadLetter] = {}

    def add(self, dead_letters: Iterable[ListedDeadLetter]) -> None:
        """Takes letters in any order."""
        for dead_letter in dead_letters:
            same = self._kept.get(dead_letter.identity)
            if same is None:
                self.total += 1
                self._kept[dead_letter.identity] = ShownDeadLetter(dead_letter)
            else:
                self._kept[dead_letter.identity] = ShownDeadLetter(min(same.dead_letter, dead_letter, key=_age), same.times + 1)
        if len(self._kept) > 2 * self._limit:
            self._kept = {one.dead_letter.identity: one for one in self.shown()}

    def shown(self) -> list[ShownDeadLetter]:
        """Those that are left, oldest first."""
        return sorted(self._kept.values(), key=lambda one: _age(one.dead_letter))[: self._limit]


def _age(dead_letter: ListedDeadLetter) -> tuple[int, int, int]:
    return dead_letter.timestamp_ms, dead_letter.partition, dead_letter.offset
