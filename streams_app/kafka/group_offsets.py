"""The committed offsets of a consumer group that has no members: moved by a command, which joins nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from aiokafka.structs import OffsetAndMetadata

from streams_app.delivery.batch import TP
from streams_app.delivery.commits import Committed
from streams_app.errors import ConfigurationError
from streams_app.kafka.admin import ANSWER_SECONDS
from streams_app.kafka.client import client_options
from streams_app.kafka.diagnosis import why_unreachable
from streams_app.settings import KafkaSettings


@asynccontextmanager
async def in_group(kafka: KafkaSettings, group: str) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer in a group that joins nothing: it may commit while the group has no members.

    Raises:
        TryAgainError: The broker cannot be reached.
        ConfigurationError: The broker does not let us in.
    """
    consumer = AIOKafkaConsumer(**client_options(kafka), group_id=group, enable_auto_commit=False, isolation_level="read_committed")
    try:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await consumer.start()
        except (KafkaError, OSError, TimeoutError) as error:
            raise await why_unreachable(kafka, error) from error
        yield consumer
    finally:
        await consumer.stop()


async def move(consumer: AIOKafkaConsumer, group: str, offsets: Mapping[TP, Committed]) -> None:
    """Commits in the name of nobody, all partitions in one request.

    Args:
        consumer: Of :func:`in_group`.
        group: Its group, for people.
        offsets: What is committed, with its metadata.

    Raises:
        ConfigurationError: The group has members.
    """
    if not offsets:
        return
    consumer.assign([TopicPartition(*tp) for tp in offsets])
    commits = {TopicPartition(*tp): OffsetAndMetadata(held.offset, held.metadata) for tp, held in offsets.items()}
    try:
        await consumer.commit(commits)
    except KafkaError as error:
        raise ConfigurationError(
            [f"Kafka refuses to move the offsets of group {group!r}: stop its workers first ({error!r})"]
        ) from error


async def member_count(client: AIOKafkaAdminClient, group: str) -> int:
    """How many members a group has now; 0 where the broker does not tell."""
    try:
        (reply,) = await client.describe_consumer_groups([group])
        return sum(len(found[5]) for found in reply.groups if found[0] == 0)
    except (KafkaError, ValueError, IndexError, AttributeError):
        return 0
