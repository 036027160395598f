"""Reads the newest records of a topic, the events of a group, and what is left to do in each partition of a fold; for the console.

Each reads a bounded number of offsets, without a consumer group.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from aiokafka import TopicPartition

from streams_app.codec import member_of
from streams_app.delivery.batch import TP
from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.fold import Fold
from streams_app.folding.reading.reader import RangeFaults
from streams_app.folding.reading.readers import reader_of
from streams_app.folding.reading.replay_routing import RoutedRange
from streams_app.journal.reading.entries import Gap, keys_meant
from streams_app.kafka.admin import admin_client, partition_counts
from streams_app.kafka.log_ends import stable_ends
from streams_app.kafka.log_reader import log_reader, read_ranges
from streams_app.kafka.partitioner import murmur2
from streams_app.operations.auto_quiet_state import AutoQuietState
from streams_app.operations.folded_events import RecordRange, has_key_of, raw_events
from streams_app.operations.groups import redis_of, stored_shards
from streams_app.operations.outbox_blocks import count_records
from streams_app.schemas.registry import registry_of
from streams_app.settings import JournalSettings, Settings

READ_SECONDS: Final = 4.0
"""Time after which the records that were read by then are returned."""

_POSITIVE: Final = 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A record of a topic as it was produced; ``at_ms`` is -1 if it has no time."""

    partition: int
    offset: int
    at_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class NewestRecords:
    """The newest records of some partitions of a topic.

    Attributes:
        records: Records that were kept, the newest first.
        read: Number of records that were read to find them.
        is_whole: Whether all records that the topic has were read.
        partitions: Number of partitions of the topic.
    """

    records: Sequence[TopicRecord]
    read: int
    is_whole: bool
    partitions: int


def partition_of_key(key: bytes, partitions: int) -> int:
    """Return the partition to which the producers of this application, and those of Java, send records with a key (pure)."""
    return (murmur2([key])[0] & _POSITIVE) % partitions


async def newest_records(
    settings: Settings, topic: str, keep: Callable[[TopicRecord], bool], *, most: int, limit: int, key: bytes | None = None,
    partition: int | None = None,
) -> NewestRecords:  # fmt: skip
    """Read the newest records of a topic, and keep some of them.

    Args:
        keep: Whether to keep a record; called for each that is read.
        most: Maximum number of records that are kept; the newest ones.
        limit: Maximum number of offsets that are read, of all partitions together.
        key: Only the partition to which records with this key are sent; None: all partitions.
        partition: Only this partition; None: all, or that of the key.

    Raises:
        ConfigurationError: The topic or the partition does not exist.
        TryAgainError: Kafka does not answer.
    """
    async with admin_client(settings.kafka) as client:
        count = (await partition_counts(client, [topic])).get(topic, 0)
    if not count:
        raise ConfigurationError([f"topic {topic!r} does not exist"])
    if partition is not None and partition >= count:
        raise ConfigurationError([f"topic {topic!r} has no partition {partition}: they are numbered from 0 to {count - 1}"])
    chosen = [partition] if partition is not None else [partition_of_key(key, count)] if key is not None else list(range(count))
    found: dict[int, deque[TopicRecord]] = {number: deque(maxlen=most) for number in chosen}
    read = 0
    async with log_reader(settings.kafka, topic, chosen) as consumer:
        tps = [TopicPartition(topic, number) for number in chosen]
        begins, ends = await consumer.beginning_offsets(tps), await stable_ends(consumer, tps)
        share = max(1, limit // len(tps))
        ranges = {TP(*tp): (max(begins[tp], ends[tp] - share), ends[tp]) for tp in tps}
        is_whole = all(ranges[TP(*tp)][0] == begins[tp] for tp in tps)
        with suppress(TimeoutError):
            async with asyncio.timeout(READ_SECONDS):
                async for batch in read_ranges(consumer, ranges):
                    read += len(batch.records)
                    number = batch.tp.partition
                    found[number].extend(filter(keep, (_record(number, record) for record in batch.records)))
                return NewestRecords(_newest(found, most), read, is_whole, count)
    return NewestRecords(_newest(found, most), read, is_whole=False, partitions=count)


async def record_at(settings: Settings, topic: str, partition: int, offset: int) -> TopicRecord | None:
    """Return the record at an offset; None if there is none, or no longer.

    Raises:
        ConfigurationError: The topic or the partition does not exist.
        TryAgainError: Kafka does not answer.
    """
    async with admin_client(settings.kafka) as client:
        count = (await partition_counts(client, [topic])).get(topic, 0)
    if partition >= count:
        raise ConfigurationError([f"topic {topic!r} has no partition {partition}"])
    try:
        async with asyncio.timeout(READ_SECONDS), log_reader(settings.kafka, topic, [partition]) as consumer:
            tp = TopicPartition(topic, partition)
            begin, end = (await consumer.beginning_offsets([tp]))[tp], (await stable_ends(consumer, [tp]))[tp]
            if begin <= offset < end:
                async for batch in read_ranges(consumer, {TP(topic, partition): (offset, offset + 1)}):
                    for record in batch.records:
                        return _record(partition, record)
    except TimeoutError as error:
        raise TryAgainError(f"Kafka does not answer within {READ_SECONDS:g} s") from error
    return None


def _record(partition: int, record: Any) -> TopicRecord:
    at_ms = -1 if record.timestamp is None else record.timestamp
    return TopicRecord(partition, record.offset, at_ms, record.key, record.value, tuple(record.headers))


def _newest(found: Mapping[int, Iterable[TopicRecord]], most: int) -> list[TopicRecord]:
    records = [record for of_partition in found.values() for record in of_partition]
    return sorted(records, key=lambda record: (record.at_ms, record.partition, record.offset), reverse=True)[:most]


MOST: Final = 2_000
"""Maximum number of events that are returned; of more, the newest ones."""

MOST_OFFSETS: Final = 20_000
"""Maximum number of offsets of a source that are read for them."""


@dataclass(frozen=True, slots=True)
class GroupEvent:
    """An event of a group.

    Attributes:
        changed: Names that it changed; None if the fold keeps whole events.
        value: As received; None for a tombstone.
    """

    offset: int
    at_ms: int
    changed: tuple[str, ...] | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class GroupEvents:
    """The events of a group in a range of offsets.

    Attributes:
        events: In the order of their offsets.
        source: Where they were read, such as "journal accounts".
        is_whole: Whether these are all; if not, earlier ones are missing, or some could not be read.
    """

    events: tuple[GroupEvent, ...]
    source: str
    is_whole: bool


async def events_in(settings: Settings, fold: Fold, where: RecordRange, group: str, members: Collection[bytes]) -> GroupEvents:
    """Read the events of a group in a range of offsets: those of its open fold, or of a record.

    Args:
        group: Group key as typed, see :func:`.keys_typed`.
        members: The members that it may mean.

    Raises:
        TryAgainError: Redis or Kafka does not answer.
        ConfigurationError: They reject the connection.
    """
    for journal in settings.journals:
        if journal.source == fold.source and has_key_of(journal, fold):
            return await _in_journal(settings, journal, where, group)
    return await _in_source(settings, fold, where, members)


def member_of_key(key: Any) -> bytes:
    """Return the member of a group from its key with its JSON type (pure)."""
    return member_of(tuple(key) if isinstance(key, list) else (key,))


async def _in_journal(settings: Settings, journal: JournalSettings, where: RecordRange, group: str) -> GroupEvents:
    events: list[GroupEvent] = []
    is_whole = False
    with suppress(TimeoutError):
        async with (
            asyncio.timeout(READ_SECONDS),
            aclosing(raw_events(settings, journal, keys_meant(journal, group), where)) as items,
        ):
            is_whole = True
            async for item in items:
                if isinstance(item, Gap):
                    is_whole = False
                elif not item.rejected:
                    events.append(GroupEvent(item.entry.offset, item.entry.at_ms, item.changed, item.entry.value))
    return GroupEvents(tuple(events[-MOST:]), f"journal {journal.name}", is_whole and len(events) <= MOST)


async def _in_source(settings: Settings, fold: Fold, where: RecordRange, members: Collection[bytes]) -> GroupEvents:
    first = max(where.first, where.last - MOST_OFFSETS + 1)
    registry = registry_of(settings, [fold.format])
    folds = [one.name for one in settings.folds if one.source == fold.source]
    reader = reader_of(fold, settings.limits, registry)
    events: list[GroupEvent] = []
    is_read = False
    with suppress(TimeoutError):
        async with asyncio.timeout(READ_SECONDS), log_reader(settings.kafka, fold.source, [where.partition]) as consumer:
            begin = (await consumer.beginning_offsets([TopicPartition(fold.source, where.partition)])).popitem()[1]
            first = max(first, begin)
            async for batch in read_ranges(consumer, {TP(fold.source, where.partition): (first, where.last + 1)}):
                records: list[Any] = list(batch.records)
                if registry is not None:
                    await registry.prepare([part for record in records for part in (record.key, record.value)])
                mine, _ = RoutedRange(settings.app_id, folds, records, None).records_for(fold.name, RangeFaults())
                by_offset = {record.offset: record for record in mine}
                events += [
                    GroupEvent(
                        event.offset, by_offset[event.offset].timestamp, None if fold.keeps_events else tuple(event.changed),
                        by_offset[event.offset].value,
                    )
                    for event in reader.read(mine).events
                    if event.group in members
                ]  # fmt: skip
            is_read = True
    is_whole = is_read and first == where.first and len(events) <= MOST
    return GroupEvents(tuple(events[-MOST:]), f"topic {fold.source}", is_whole)


MOST_PARTITIONS: Final = 1_000
MOST_COUNTED: Final = 100_000
"""Maximum number of sealed records of a fold that are read to count them."""


class FoldPartition(msgspec.Struct, frozen=True):
    """A partition of a fold's source.

    Attributes:
        outbox: Records that the broker has not acknowledged. If the fold has more than 100 000 of them, there may be more.
        lag: Offsets that are not folded yet.
        is_claimed: Whether a worker has ever claimed the partition; if not, the other numbers are 0, and all of its log is unread.
        auto_quiet: The quiet period if it sets itself; otherwise None.
    """

    partition: int
    open_groups: int
    outbox: int
    lag: int
    is_claimed: bool
    auto_quiet: AutoQuietState | None = None


async def fold_partitions(settings: Settings, fold: Fold) -> list[FoldPartition]:
    """Return the first 1 000 partitions of a fold's source in their order.

    Raises:
        ConfigurationError: The source does not exist.
        TryAgainError: Kafka or Redis does not answer.
    """
    try:
        async with asyncio.timeout(READ_SECONDS):
            logs = await _logs(settings, fold)
    except TimeoutError as error:
        raise TryAgainError(f"Kafka does not answer within {READ_SECONDS:g} s") from error
    async with redis_of(settings) as redis:
        shards = {shard.partition: shard for shard in await stored_shards(redis, settings, fold.name) if shard.partition in logs}
        async with redis.pipeline(transaction=False) as pipe:
            for shard in shards.values():
                pipe.zcard(shard.keys.first)
                pipe.zcard(shard.keys.outbox)
                pipe.hget(shard.keys.meta, "learned")
            counts = await pipe.execute()
        open_groups, outbox, learned = (dict(zip(shards, counts[at::3], strict=True)) for at in range(3))
        left = MOST_COUNTED
        for number, blocks in outbox.items():
            if blocks and left > 0:
                outbox[number] = await count_records(redis, shards[number].keys.outbox, left)
                left -= outbox[number]
    return [
        FoldPartition(
            number, open_groups.get(number, 0), outbox.get(number, 0),
            max(0, end - max(begin, shards[number].fence + 1 if number in shards else begin)), number in shards,
            AutoQuietState.of(fold, learned.get(number)),
        )
        for number, (begin, end) in sorted(logs.items())
    ]  # fmt: skip


async def _logs(settings: Settings, fold: Fold) -> dict[int, tuple[int, int]]:
    """Return begin and end of the log of each partition."""
    async with admin_client(settings.kafka) as client:
        count = (await partition_counts(client, [fold.source])).get(fold.source, 0)
    if not count:
        raise ConfigurationError([f"topic {fold.source!r} does not exist"])
    numbers = range(min(count, MOST_PARTITIONS))
    async with log_reader(settings.kafka, fold.source, numbers) as consumer:
        tps = [TopicPartition(fold.source, number) for number in numbers]
        begins, ends = await consumer.beginning_offsets(tps), await stable_ends(consumer, tps)
    return {tp.partition: (begins[tp], ends[tp]) for tp in tps}
