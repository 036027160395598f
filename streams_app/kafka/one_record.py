"""Reads one record of a partition without moving the position of the consumer."""

from __future__ import annotations

from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import LeaderNotAvailableError, NoError, OffsetOutOfRangeError, for_code
from aiokafka.protocol.fetch import FetchRequest

from streams_app.delivery.batch import TP
from streams_app.delivery.fingerprints import GONE, OTHER, checksum_of
from streams_app.kafka.log_ends import stable_ends
from streams_app.kafka.patches.record_batches import RecordBatches

READ_UNCOMMITTED: Final = 0
"""Isolation level of the fetch. The record was read before, so it is committed; the fetch need not wait for open transactions."""

FIRST_BATCH: Final = 1
"""Maximum bytes of the reply. A broker sends the first batch even if it is larger, so the reply is as short as possible."""

MAX_WAIT_MS: Final = 100


async def checksum_at(consumer: AIOKafkaConsumer, tp: TP, offset: int) -> int:
    """Implement :meth:`.GroupConsumer.checksum_at`; call this function on the event loop of the consumer."""
    key = TopicPartition(*tp)
    client = consumer._client
    leader = client.cluster.leader_for_partition(key)
    if leader is None or leader < 0:
        await client.force_metadata_update()
        raise LeaderNotAvailableError(f"{tp} has no leader")
    wanted = [(tp.topic, [(tp.partition, offset, FIRST_BATCH)])]
    response = await client.send(leader, FetchRequest(MAX_WAIT_MS, 1, FIRST_BATCH, READ_UNCOMMITTED, wanted))
    ((_, ((_, code, *answer),)),) = response.topics
    error = for_code(code)
    if error is OffsetOutOfRangeError:
        begin = (await consumer.beginning_offsets([key]))[key]
        return GONE if offset < begin else OTHER
    if error is not NoError:
        await client.force_metadata_update()
        raise error(str(tp))
    found = _found(answer[-1], offset)
    if found is None:
        if (await stable_ends(consumer, [key]))[key] > offset:
            raise LeaderNotAvailableError(f"the leader of {tp} does not show offset {offset} yet")
        return OTHER
    return found


def _found(data: bytes | None, offset: int) -> int | None:
    """Find a record by its offset in fetched batches (pure). Return its checksum, GONE or OTHER; None if there is no batch."""
    batches = RecordBatches(data or b"")
    is_empty = True
    while (batch := batches.open_batch()) is not None:
        is_empty = False
        if batch.next_offset <= offset:
            continue
        for record in () if getattr(batch, "is_control_batch", False) else _records(batch, batches):
            if record.offset == offset:
                return checksum_of(record)
        covers = getattr(batch, "base_offset", offset + 1) <= offset
        return OTHER if covers and batch.is_control_batch else GONE
    return None if is_empty else GONE


def _records(batch: Any, batches: RecordBatches) -> list[Any]:
    try:
        return list(batch)
    except UnicodeDecodeError:
        return list(batches.reopened())
