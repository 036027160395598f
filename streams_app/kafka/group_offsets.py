"""Reads and changes the committed offsets of a consumer group without members, for commands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import CommitFailedError, KafkaError
from aiokafka.structs import OffsetAndMetadata

from streams_app.delivery.batch import TP
from streams_app.delivery.group_consumer import PartitionCommit
from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.kafka.admin import ANSWER_SECONDS
from streams_app.kafka.client import client_options
from streams_app.kafka.diagnosis import NOT_ALLOWED, not_allowed, why_unreachable
from streams_app.kafka.member_requests import committed_of
from streams_app.settings import KafkaSettings

COMMITS_SECONDS = 15.0
"""Time that a coordinator may take to return or accept commits; a new coordinator first reads its log."""


@asynccontextmanager
async def in_group(kafka: KafkaSettings, group: str) -> AsyncIterator[AIOKafkaConsumer]:
    """Connect a consumer that can commit while the group has no members, without joining it; stop it at the end of the block."""
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


async def commits_in(kafka: KafkaSettings, consumer: AIOKafkaConsumer, group: str, tps: Iterable[TP]) -> dict[TP, PartitionCommit]:
    """Return the commits of a group, read by a consumer from :func:`in_group`; partitions without a commit are left out.

    Raises:
        TryAgainError: The broker does not answer in time, which does not mean that there is no commit.
    """
    try:
        async with asyncio.timeout(COMMITS_SECONDS):
            return await committed_of(consumer, tps)
    except NOT_ALLOWED as error:
        raise not_allowed(kafka, error) from error
    except TimeoutError as error:
        # While a coordinator is not ready, the client retries until the timeout and hides the errors.
        why = f"not within {COMMITS_SECONDS:g} s; its coordinator may be starting"
        raise TryAgainError(f"Kafka does not say what group {group!r} has committed: {why}. Try again") from error
    except (KafkaError, OSError) as error:
        raise TryAgainError(f"Kafka does not say what group {group!r} has committed: {error!r}") from error


async def move(kafka: KafkaSettings, consumer: AIOKafkaConsumer, group: str, offsets: Mapping[TP, PartitionCommit]) -> None:
    """Commit offsets for a group without members by a consumer from :func:`in_group`, all partitions in one request.

    Raises:
        ConfigurationError: The group has members, or a right is missing.
        TryAgainError: The broker does not answer; the outcome is unknown.
    """
    if not offsets:
        return
    consumer.assign([TopicPartition(*tp) for tp in offsets])
    commits = {
        TopicPartition(*tp): OffsetAndMetadata(of_partition.offset, of_partition.metadata) for tp, of_partition in offsets.items()
    }
    try:
        async with asyncio.timeout(COMMITS_SECONDS):
            await consumer.commit(commits)
    except CommitFailedError as error:  # its text would be misleading: it describes a rebalance of this client
        raise ConfigurationError([f"Kafka refuses to move the offsets of group {group!r}: stop its workers first"]) from error
    except NOT_ALLOWED as error:
        raise not_allowed(kafka, error) from error
    except (KafkaError, OSError, TimeoutError) as error:
        text = (
            f"Kafka does not say whether it has moved the offsets of group {group!r} ({error!r}): the same command may be repeated"
        )
        raise TryAgainError(text) from error


async def member_count(client: AIOKafkaAdminClient, group: str) -> int:
    """Return the number of members of a group; 0 also if the request fails."""
    try:
        (reply,) = await client.describe_consumer_groups([group])
        return sum(len(found[5]) for found in reply.groups if found[0] == 0)
    except (KafkaError, ValueError, IndexError, AttributeError):
        return 0
