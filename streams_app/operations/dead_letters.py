"""Reads a dead-letter topic up to the end that it had when the command began; writes nothing.

The end offsets are read once. As long as the replayed events are rejected again, workers write new dead letters for them, and a
reader without a fixed end would never finish.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.kafka.admin import admin_client, partition_counts
from streams_app.kafka.client import client_options
from streams_app.kafka.diagnosis import NOT_ALLOWED, not_allowed
from streams_app.kafka.log_ends import offsets_at, stable_ends
from streams_app.kafka.log_reader import SILENT_SECONDS
from streams_app.operations.dead_letter import DeadLetterSelection, ListedDeadLetter, split_headers
from streams_app.settings import Settings

BATCH_RECORDS: Final = 500
POLL_MS: Final = 100
BEFORE_MS: Final = 3_600_000
"""How much before the requested start reading begins, in ms. A dead letter ``finished-late`` may be written some time before
the dead letter ``interrupted`` of the same event, so it may lie before the requested start."""


@dataclass(frozen=True, slots=True)
class DeadLetterTopic:
    """A dead-letter topic, open for reading.

    Attributes:
        source_partitions: Number of partitions of the topic into which events would be replayed; 0: no topic was given, or it does
            not exist.
        begins: Offset of each partition from which it is read.
        ends: Last stable offset of each partition when the command began; later records are not read.
    """

    name: str
    source_partitions: int
    begins: dict[TopicPartition, int]
    ends: dict[TopicPartition, int]
    consumer: AIOKafkaConsumer

    @property
    def offsets(self) -> int:
        """Number of offsets to read, in all partitions."""
        return sum(self.ends[tp] - begin for tp, begin in self.begins.items())

    async def batches(self) -> AsyncIterator[list[ListedDeadLetter]]:
        """Yield all dead letters, and receipts of replays, in batches, ordered by offset within a partition. A batch may be empty.

        Each call reads the topic again, from :attr:`begins` to :attr:`ends`.
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
            fetched = await consumer.getmany(timeout_ms=POLL_MS, max_records=BATCH_RECORDS)
            silent_ms = 0 if fetched else silent_ms + POLL_MS
            if silent_ms > SILENT_SECONDS * 1000:
                raise TryAgainError(f"Kafka does not answer while {self.name} is read: {SILENT_SECONDS:.0f} s without an answer")
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
    """Open a dead-letter topic for the ``async with`` block.

    Args:
        source: Topic into which the events are to be replayed. None: they are only listed, or are replayed into a read store.
        since_ms: Time of the first record to read in each partition; 0: read all records. Some of the records that
            follow it may be older.
    """
    async with admin_client(settings.kafka) as client:
        counts = await partition_counts(client, [name, *filter(None, [source])])
    if name not in counts:
        raise ConfigurationError([f"topic {name!r} does not exist: nothing was ever rejected"])
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
        await _require_readable(consumer, ends)
        if since_ms:
            begins = await offsets_at(consumer, ends, since_ms)
        yield DeadLetterTopic(name, counts.get(source or "", 0), begins, ends, consumer)
    except NOT_ALLOWED as error:
        raise not_allowed(settings.kafka, error) from error
    except KafkaError as error:
        raise TryAgainError(f"Kafka at {settings.kafka.bootstrap_servers} does not answer: {error!r}") from error
    finally:
        await consumer.stop()


async def _require_readable(consumer: AIOKafkaConsumer, ends: Mapping[TopicPartition, int]) -> None:
    """Fetch once from each partition: without the right to read, only a fetch fails, and nothing is fetched of an empty topic."""
    for tp, end in ends.items():
        consumer.seek(tp, end)
    for _ in range(int(SILENT_SECONDS * 1000) // POLL_MS):
        await consumer.getmany(timeout_ms=POLL_MS)
        if None not in [consumer.last_stable_offset(tp) for tp in ends]:
            return
    raise TryAgainError(f"Kafka does not answer a fetch within {SILENT_SECONDS:.0f} s")


class ShownDeadLetter(NamedTuple):
    """The oldest of all dead letters with the same event, and the number of these dead letters."""

    dead_letter: ListedDeadLetter
    times: int = 1


class DeadLetterListing(NamedTuple):
    """The selected dead letters of one component, and which of them were replayed.

    Attributes:
        shown: The oldest of the selected dead letters, up to the limit; oldest first.
        finished_late: Positions, as ``topic/partition/offset``, of interrupted or timed-out events that finished afterwards.
        replayed: Digests of events that were replayed.
        total: Number of selected dead letters, including those beyond the limit.
        has_others: Whether the component has dead letters that were not selected.
    """

    shown: list[ShownDeadLetter]
    finished_late: frozenset[str]
    replayed: frozenset[str]
    total: int
    has_others: bool = False

    @property
    def dead_letters(self) -> list[ListedDeadLetter]:
        """The listed dead letters, without the numbers of their duplicates."""
        return [one.dead_letter for one in self.shown]


async def read_dead_letters(
    settings: Settings,
    topic_name: str,
    selection: DeadLetterSelection,
    limit: int,
    show: Callable[[str, int, int | None], None] = lambda words, done, total: None,
) -> DeadLetterListing:
    """Read the dead letters of a component, oldest first across all partitions; at most ``limit`` are returned, all are counted.

    Args:
        show: Called with a message, the number of records read so far, and the number of offsets to read.
    """
    oldest = OldestDeadLetters(limit)
    finished_late: set[str] = set()
    replayed: set[str] = set()
    has_others = False
    read = 0
    async with dead_letter_topic(settings, topic_name, since_ms=max(0, selection.since_ms - BEFORE_MS)) as topic:
        async for batch in topic.batches():
            mine = [dead_letter for dead_letter in batch if selection.concerns(dead_letter)]
            taken = [dead_letter for dead_letter in mine if selection.matches(dead_letter)]
            has_others = has_others or len(taken) < len(mine)
            oldest.add(taken)
            finished_late.update(dead_letter.source for dead_letter in mine if dead_letter.is_late)
            replayed.update(digest for dead_letter in batch for digest in dead_letter.receipt(selection.address))
            read += len(batch)
            show(f"{read:,} records of {topic_name} read", read, topic.offsets)
    return DeadLetterListing(oldest.shown(), frozenset(finished_late), frozenset(replayed), oldest.total, has_others)


class OldestDeadLetters:
    """Collects the oldest dead letters of a stream in bounded memory, without duplicates (pure).

    Attributes:
        total: Number of dead letters that were added, without duplicates. A duplicate of a discarded dead letter counts again.
    """

    def __init__(self, limit: int) -> None:
        self.total = 0
        self._limit = limit
        self._kept: dict[str, ShownDeadLetter] = {}

    def add(self, dead_letters: Iterable[ListedDeadLetter]) -> None:
        """Add dead letters, in any order."""
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
        """Return the oldest dead letters up to the limit, oldest first."""
        return sorted(self._kept.values(), key=lambda one: _age(one.dead_letter))[: self._limit]


def _age(dead_letter: ListedDeadLetter) -> tuple[int, int, int]:
    return dead_letter.timestamp_ms, dead_letter.partition, dead_letter.offset
