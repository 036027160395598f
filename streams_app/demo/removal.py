"""Removes topics, consumer groups and Redis keys of a demo from servers of the user. Logs a warning if it cannot remove some."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import GroupIdNotFound, KafkaError, NonEmptyGroup, for_code
from aiokafka.protocol.admin import DeleteGroupsRequest

from streams_app.errors import ConfigurationError, TryAgainError, text_of
from streams_app.folding.store.keys import APP_PATTERN
from streams_app.kafka.admin import admin_client
from streams_app.redis_access.client import REDIS_ERRORS, connect_briefly
from streams_app.requirements.components import components_of, topics_of
from streams_app.requirements.workload import declared
from streams_app.settings import Settings

logger = logging.getLogger(__name__)

EMPTY_SECONDS: Final = 15.0
"""Maximum time to wait until a consumer group has no members. A killed worker remains a member for its session timeout."""

POLL_SECONDS: Final = 0.5


async def remove_all(settings: Settings) -> None:
    """Delete the topics, consumer groups and Redis keys of the demo. Errors are logged and not raised."""
    try:
        async with admin_client(settings.kafka) as client:
            workload = declared(settings)
            await client.delete_topics([topic.name for topic in topics_of(workload)])
            for group in sorted({component.group for component in components_of(workload)}):
                await _remove_group(client, group)
    except (KafkaError, OSError, TimeoutError, TryAgainError, ConfigurationError) as error:
        logger.warning("topics or consumer groups of the demo are left behind prefix=%s error=%r", settings.app_id, error)
    redis = connect_briefly(settings.redis)
    try:
        # Includes the keys of live views and of presence.
        async for key in redis.scan_iter(match=APP_PATTERN.format(app_id=settings.app_id), count=1_000):
            await redis.unlink(key)
    except REDIS_ERRORS as error:
        logger.warning("keys of the demo are left behind prefix=%s error=%s", settings.app_id, text_of(error))
    finally:
        await redis.aclose()


async def _remove_group(client: AIOKafkaAdminClient, group: str) -> None:
    """Delete a consumer group as soon as it has no members. It is no error if the group never existed.

    The request is sent directly, because the admin client of aiokafka has no method for it.
    """
    async with asyncio.timeout(EMPTY_SECONDS):
        while True:
            coordinator = await client.find_coordinator(group)
            reply = await client._send_request(DeleteGroupsRequest([group]), coordinator)
            error = for_code(reply.results[0][1])
            if error is not NonEmptyGroup:
                break
            await asyncio.sleep(POLL_SECONDS)
    if reply.results[0][1] and error is not GroupIdNotFound:
        raise error(f"cannot delete the consumer group {group}")
