"""Reads the newest records of a topic without a consumer group, bounded in records and in time; for the console."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from aiokafka import TopicPartition

from streams_app.delivery.batch import TP
from streams_app.errors import ConfigurationError
from streams_app.kafka.admin import admin_client, partition_counts
from streams_app.kafka.log_ends import stable_ends
from streams_app.kafka.log_reader import log_reader, read_ranges
from streams_app.kafka.partitioner import murmur2
from streams_app.settings import Settings

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


def partition_of(key: bytes, partitions: int) -> int:
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
    chosen = [partition] if partition is not None else [partition_of(key, count)] if key is not None else list(range(count))
    found: list[TopicRecord] = []
    read, is_whole = 0, True
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
                    found += filter(keep, (_record(batch.tp.partition, record) for record in batch.records))
                return NewestRecords(_newest(found, most), read, is_whole, count)
    return NewestRecords(_newest(found, most), read, is_whole=False, partitions=count)


def _record(partition: int, record: Any) -> TopicRecord:
    at_ms = -1 if record.timestamp is None else record.timestamp
    return TopicRecord(partition, record.offset, at_ms, record.key, record.value, tuple(record.headers))


def _newest(records: list[TopicRecord], most: int) -> list[TopicRecord]:
    return sorted(records, key=lambda record: (record.at_ms, record.partition, record.offset), reverse=True)[:most]
