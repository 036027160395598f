"""Queries the leaders of partitions for the first and end offsets of their logs, and for offsets by time.

This is a separate module because clients of every kind use it. A log has two ends: the last stable offset, up to which consumers
with ``read_committed`` read, and the high watermark, the end of acknowledged records. Open transactions hide records in between.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias

from aiokafka import AIOKafkaConsumer
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import LeaderNotAvailableError, for_code
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.structs import TopicPartition

from streams_app.delivery.batch import TP
from streams_app.kafka.embedded_broker import exact_ends

LATEST: Final = -1
EARLIEST: Final = -2
READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1

Asked: TypeAlias = list[tuple[str, list[Any]]]


async def ask_offsets(
    client: AIOKafkaClient,
    leaders: Mapping[TP, int | None],
    which: int,
    found: dict[TP, int],
    isolation: Literal[0, 1] = READ_COMMITTED,
) -> None:
    """Query all leaders for the first or the end offset of their partitions. Store each reply even if another leader fails.

    Args:
        leaders: Node id of the leader of each partition; None or negative if it has no leader.
        which: :data:`LATEST` or :data:`EARLIEST`.
        found: Receives the offset of each partition.
        isolation: Which end offset is returned for :data:`LATEST`: the last stable offset for :data:`READ_COMMITTED`, the high
            watermark for :data:`READ_UNCOMMITTED`.
    """
    by_leader: dict[int | None, list[tuple[TP, tuple[int, int]]]] = defaultdict(list)
    for tp, leader in leaders.items():
        by_leader[leader].append((tp, (tp.partition, which)))
    asking = [_ask_leader(client, leader, by_topic(asked), which, found, isolation) for leader, asked in by_leader.items()]
    for outcome in await asyncio.gather(*asking, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


async def stable_ends(consumer: AIOKafkaConsumer, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the last stable offset of each partition, for a consumer that only reads committed records."""
    listed = await consumer.end_offsets(list(tps))
    client: AIOKafkaClient = consumer._client
    by_leader: dict[int, dict[TP, int]] = defaultdict(dict)
    for tp, end in listed.items():
        if (leader := client.cluster.leader_for_partition(tp)) is not None and leader >= 0:
            by_leader[leader][TP(*tp)] = end
    for leader, ends in by_leader.items():
        listed |= {TopicPartition(*tp): end for tp, end in (await exact_ends(client, leader, ends)).items()}
    return listed


async def offsets_at(consumer: AIOKafkaConsumer, ends: Mapping[TopicPartition, int], time_ms: int) -> dict[TopicPartition, int]:
    """Return an offset in each partition from which to read all records with timestamps >= ``time_ms``.

    Records with lower timestamps may follow it.

    Args:
        ends: End of each partition, queried before: returned if a partition has no such record. If it was queried afterwards, a
            record that arrived in between would be skipped.
    """
    found = await consumer.offsets_for_times(dict.fromkeys(ends, time_ms))
    return {tp: end if found[tp] is None else int(found[tp].offset) for tp, end in ends.items()}


async def high_watermarks(consumer: AIOKafkaConsumer, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the high watermark of each partition, regardless of the isolation level of the consumer."""
    client: AIOKafkaClient = consumer._client
    found: dict[TP, int] = {}
    await ask_offsets(client, {TP(*tp): client.cluster.leader_for_partition(tp) for tp in tps}, LATEST, found, READ_UNCOMMITTED)
    return {TopicPartition(*tp): offset for tp, offset in found.items()}


def by_topic(asked: Iterable[tuple[TP, Any]]) -> Asked:
    """Group (partition, value) pairs into (topic, values) pairs, the form of Kafka requests."""
    topics: dict[str, list[Any]] = defaultdict(list)
    for tp, what in asked:
        topics[tp.topic].append(what)
    return list(topics.items())


async def _ask_leader(
    client: AIOKafkaClient, leader: int | None, asked: Asked, which: int, found: dict[TP, int], isolation: int
) -> None:
    if leader is None or leader < 0:
        topic, partitions = asked[0]
        raise LeaderNotAvailableError(f"{topic}-{partitions[0][0]} has no leader")
    reply = await client.send(leader, OffsetRequest(-1, isolation, asked))
    listed: dict[TP, int] = {}
    for topic, answers in reply.topics:
        for partition, error, _, offset in answers:
            if error:
                raise for_code(error)(f"{topic}-{partition}")
            listed[TP(topic, partition)] = offset
    found |= listed if which == EARLIEST else await exact_ends(client, leader, listed)
