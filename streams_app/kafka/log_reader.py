"""Reads given ranges of partitions once and fast, without a consumer group or commits.

The ends are determined before the first record is read, and no record beyond them is returned. So reading a growing topic ends.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Final, Literal

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from streams_app.delivery.batch import TP, Batch
from streams_app.errors import TryAgainError
from streams_app.kafka.client import client_options
from streams_app.kafka.diagnosis import NOT_ALLOWED, not_allowed
from streams_app.kafka.fetching import take_fetched
from streams_app.settings import KafkaSettings

FETCH_MAX_BYTES: Final = 4 * 1024 * 1024
PARTITION_FETCH_BYTES: Final = 2 * 1024 * 1024
"""Maximum bytes of one partition in a reply. With this size, the next reply is in flight while one is parsed.

Reading is a sixth faster than with 1 MB.
"""


FETCH_MAX_WAIT_MS: Final = 50
MAX_RECORDS: Final = 5_000
"""Maximum number of records taken from the client at once; the rest stays unparsed."""

SILENT_SECONDS: Final = 15.0
"""Time after which the broker is considered down if no record has arrived and the end of the log is not reached."""


@asynccontextmanager
async def log_reader(
    kafka: KafkaSettings,
    topic: str,
    partitions: Iterable[int],
    *,
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
) -> AsyncIterator[AIOKafkaConsumer]:
    """Connect a consumer that reads partitions of a topic without a group; stop it at the end of the ``async with`` block."""
    consumer = AIOKafkaConsumer(
        **client_options(kafka),
        client_id="streams-app-reader",
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level=isolation,
        fetch_max_bytes=FETCH_MAX_BYTES,
        max_partition_fetch_bytes=PARTITION_FETCH_BYTES,
        fetch_max_wait_ms=FETCH_MAX_WAIT_MS,
    )
    try:
        await consumer.start()
        consumer.assign([TopicPartition(topic, number) for number in partitions])
        yield consumer
    except NOT_ALLOWED as error:
        raise not_allowed(kafka, error) from error
    except KafkaError as error:
        raise TryAgainError(f"Kafka at {kafka.bootstrap_servers} does not answer: {error!r}") from error
    finally:
        await consumer.stop()


async def read_ranges(consumer: AIOKafkaConsumer, ranges: Mapping[TP, tuple[int, int]]) -> AsyncGenerator[Batch, None]:
    """Yield records in batches, read by a consumer from :func:`log_reader`, and pause each partition whose range is read.

    The ``end`` of the last batch of a partition may lie beyond the range. If the caller pauses a partition, the rest of the
    partition's range is skipped.

    Args:
        ranges: Range of each assigned partition: its first offset, and the offset after its last one.
    """
    unread = {tp for tp, (begin, end) in ranges.items() if begin < end}
    consumer.pause(*(tp for tp in consumer.assignment() if TP(*tp) not in unread))
    for tp in unread:
        consumer.seek(TopicPartition(*tp), ranges[tp][0])
    fetcher = consumer._fetcher
    seek_numbers: Mapping[TP, int] = defaultdict(int)
    while unread := unread - {TP(*tp) for tp in consumer.paused()}:
        with fetcher._subscriptions.fetch_context():
            batches = take_fetched(fetcher, unread, seek_numbers, MAX_RECORDS, MAX_RECORDS)
            if not batches:
                waiter = fetcher._create_fetch_waiter()
                done, _ = await asyncio.wait([waiter], timeout=SILENT_SECONDS)
                if not done:
                    waiter.cancel()
                    topic = next(iter(unread)).topic
                    raise TryAgainError(f"Kafka does not answer while {topic} is read: {SILENT_SECONDS:.0f} s without an answer")
                waiter.result()
                continue
        for tp, batch in batches.items():
            end = ranges[tp][1]
            if batch.end >= end:
                consumer.pause(TopicPartition(*tp))
                batch.records = [record for record in batch.records if record.offset < end]
            yield batch
        # Fetched records may always be available: give other tasks a turn to process replies.
        await asyncio.sleep(0)
