"""What the embedded broker (tansu) does differently from Apache Kafka; clients of every kind get the same results from both.

* For the end of a partition, its ListOffsets returns the offset after the *first* record of the last batch. A fetch returns the
  right end, see :func:`exact_ends`.
* For a time, its ListOffsets returns the first offset of the log. So `offsets_at` in `log_ends.py` promises only that no later
  record is left out.
* It stores no commit metadata, see :meth:`.GroupConsumer.commits`, and accepts commits of any generation.
* It reports neither the rights of users nor the settings of topics; both are then unknown, as on old versions of Kafka.
* It has no idempotent producers, see :mod:`streams_app.kafka.producer`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.fetch import FetchRequest

from streams_app.delivery.batch import TP

OFFSET_FOR_LEADER_EPOCH: Final = 23
"""A request that every Kafka since 0.11 knows, and the embedded broker does not."""

FIRST_BATCH: Final = 1
MAX_WAIT_MS: Final = 1


def is_embedded(client: AIOKafkaClient, node: int) -> bool:
    """Return whether a broker that has just answered is the embedded one, by the requests that it knows.

    Raises:
        KafkaConnectionError: The connection has just been closed.
    """
    connection = client._conns.get((node, ConnectionGroup.DEFAULT))
    if connection is None:
        raise KafkaConnectionError(f"the connection to node {node} was closed")
    return OFFSET_FOR_LEADER_EPOCH not in connection._versions


async def exact_ends(client: AIOKafkaClient, leader: int, listed: Mapping[TP, int]) -> dict[TP, int]:
    """Return the ends of partitions, given those that ListOffsets of their leader has just returned.

    There is one end for every isolation level, because the embedded broker has no transactions.
    """
    ends = dict(listed)
    asked: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for tp, end in listed.items():
        if end > 0:
            # From the last batch on: without a record to return, the broker would wait.
            asked[tp.topic].append((tp.partition, end - 1, FIRST_BATCH))
    if not asked or not is_embedded(client, leader):
        return ends
    reply = await client.send(leader, FetchRequest(MAX_WAIT_MS, 1, FIRST_BATCH, 0, list(asked.items())))
    for topic, partitions in reply.topics:
        for partition, code, high_watermark, *_ in partitions:
            if not code:
                ends[TP(topic, partition)] = max(high_watermark, ends[TP(topic, partition)])
    return ends
