"""Administration of topics: lists the existing ones and their retention, and creates missing ones."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import IncompatibleBrokerVersion, KafkaError, TopicAuthorizationFailedError, for_code
from aiokafka.protocol.metadata import MetadataRequest

from streams_app.backoff import Backoff
from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.kafka.client import client_options
from streams_app.kafka.diagnosis import NOT_ALLOWED, not_allowed, why_unreachable
from streams_app.kafka.rights import TOPIC, Right, grant_command, rights_on_topics
from streams_app.settings import KafkaSettings

logger = logging.getLogger(__name__)

TOPIC_EXISTS = 36
NO_RETENTION_LIMIT = -1
ANSWER_SECONDS = 5.0
"""Time after which a broker that does not answer is considered down."""

VISIBLE_SECONDS = 10.0
"""Time within which every broker must know a new topic."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of the application.

    Attributes:
        role: Use of the topic: ``source``, ``output``, ``dead letters``, ``events``, or ``put back`` for the topic of replayed
            dead letters.
        users: Names of the folds, read stores, events, subscribers, live views and journals that use it.
    """

    name: str
    role: str
    users: tuple[str, ...]


@asynccontextmanager
async def admin_client(kafka: KafkaSettings) -> AsyncIterator[AIOKafkaAdminClient]:
    """Connect an admin client, and close it at the end of the ``async with`` block.

    The errors below are raised if the connection fails, and in place of errors of Kafka in the block.

    Raises:
        TryAgainError: The broker cannot be reached, or does not answer within :data:`ANSWER_SECONDS`.
        ConfigurationError: The broker denies access, or a right is missing.
    """
    client = AIOKafkaAdminClient(
        **client_options(kafka), client_id="streams-app-admin", request_timeout_ms=int(ANSWER_SECONDS * 1000)
    )
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await client.start()
    except (KafkaError, OSError, TimeoutError) as error:
        await client.close()
        raise await why_unreachable(kafka, error) from error
    try:
        yield client
    except NOT_ALLOWED as error:
        raise not_allowed(kafka, error) from error
    except (KafkaError, OSError, TimeoutError) as error:
        raise TryAgainError(f"Kafka at {kafka.bootstrap_servers} does not answer: {str(error) or type(error).__name__}") from error
    finally:
        await client.close()


async def partition_counts(client: AIOKafkaAdminClient, names: Sequence[str]) -> dict[str, int]:
    """Return the number of partitions of each topic that exists, by the name of the topic.

    Raises:
        TopicAuthorizationFailedError: The user may not describe some topics, so it is unknown whether they exist. The error
            names all of them.
    """
    existing = set(await client.list_topics())
    wanted = [name for name in names if name in existing]
    # The list omits topics that this user may not describe. If they counted as missing, the caller would create them.
    unlisted = await rights_on_topics(client._client, [name for name in names if name not in existing])
    if hidden := sorted(name for name, granted in unlisted.items() if granted is not None and Right.DESCRIBE not in granted):
        raise TopicAuthorizationFailedError(*hidden)
    if not wanted:
        return {}
    described = await client.describe_topics(wanted)
    return {topic["topic"]: len(topic["partitions"]) for topic in described if not topic["error_code"]}


async def retention_ms(client: AIOKafkaAdminClient, names: Sequence[str]) -> dict[str, int]:
    """Return ``retention.ms`` of each topic; -1 means no limit. Return {} if the broker does not report it."""
    found = await topic_configs(client, names)
    return {name: int(config["retention.ms"]) for name, config in found.items() if "retention.ms" in config}


async def topic_configs(client: AIOKafkaAdminClient, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the names and values of each topic's settings; {} if the request fails, or the broker does not support it."""
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
    try:
        replies = await client.describe_configs(resources)
    except (KafkaError, IncompatibleBrokerVersion, OSError, TimeoutError, ValueError):
        return {}
    found: dict[str, dict[str, str]] = {}
    for reply in replies:
        for _, _, _, name, entries in (resource[:5] for resource in reply.resources):
            found[name] = {entry[0]: entry[1] for entry in entries if entry[1] is not None}
    return found


async def create_topics(kafka: KafkaSettings, topics: Sequence[Topic]) -> tuple[list[str], list[str]]:
    """Create missing topics, with ``kafka.partitions`` and ``kafka.replication_factor``.

    Returns:
        The names of the topics that were created, and of those that existed.

    Raises:
        TryAgainError: The broker cannot be reached, or a broker does not know the new topics in time.
        ConfigurationError: The broker rejected some topics, and has created the others; or access was denied.
    """
    created: list[str] = []
    async with admin_client(kafka) as client:
        names = list(dict.fromkeys(topic.name for topic in topics))
        existing = await partition_counts(client, names)
        missing = [name for name in names if name not in existing]
        if missing:
            reply = await client.create_topics(
                [NewTopic(name, kafka.partitions, kafka.replication_factor) for name in missing], timeout_ms=10_000
            )
            faults = []
            for name, code, *message in reply.topic_errors:
                if code in (0, TOPIC_EXISTS):
                    created.append(name)
                else:
                    text = next((part for part in message if part), for_code(code).__name__)
                    if code == TopicAuthorizationFailedError.errno:
                        text = f"missing right: Create on topic {name}: {grant_command(kafka, Right.CREATE, TOPIC, name)}"
                    faults.append(f"cannot create topic {name}: {text}")
            if faults:
                raise ConfigurationError(faults)
            await _wait_until_visible(client, created)
    return created, sorted(existing)


async def _wait_until_visible(client: AIOKafkaAdminClient, names: Sequence[str]) -> None:
    """Wait until every broker that answers knows new topics, which the controller announces to brokers after creation."""
    for broker in client._client.cluster.brokers():
        backoff = Backoff(first_seconds=0.02, longest_seconds=0.5)
        try:
            async with asyncio.timeout(VISIBLE_SECONDS):
                while True:
                    if set(names) <= await _topic_names(client, broker.nodeId):
                        break
                    await asyncio.sleep(backoff.failed())
        except TimeoutError as error:
            raise TryAgainError(f"broker {broker.nodeId} does not know the new topics yet: {', '.join(names)}") from error
        except KafkaError as error:
            logger.debug("cannot determine whether a broker knows new topics broker=%s error=%r", broker.nodeId, error)


async def _topic_names(client: AIOKafkaAdminClient, node_id: int) -> set[str]:
    # Request all topics: a request for one name would make a broker create that topic, with its own number of partitions.
    metadata = (await client._send_request(MetadataRequest(None), node_id)).to_object()
    return {topic["topic"] for topic in metadata["topics"] if not topic["error_code"]}


async def require_topics(client: AIOKafkaAdminClient, topics: Sequence[Topic]) -> None:
    """Check that topics exist, because a broker that creates a topic on demand uses its own default number of partitions."""
    existing = await partition_counts(client, [topic.name for topic in topics])
    missing = [topic for topic in topics if topic.name not in existing]
    if missing:
        faults = [f"topic {topic.name!r} ({topic.role} of {', '.join(topic.users)}) does not exist" for topic in missing]
        raise ConfigurationError([*faults, "create what is missing with `streams-app topics create`"])
