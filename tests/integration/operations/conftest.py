"""The application from which tests of ``forget`` erase a key."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from tests.conftest import KafkaServer, Names, RedisServer
from tests.helpers.journal.journals import JournalShard
from tests.helpers.kafka.topics import create_topics
from tests.helpers.operations.forgetting import Application


@pytest.fixture
async def application(
    kafka: KafkaServer, redis_server: RedisServer, redis_client: Redis, names: Names
) -> AsyncIterator[Application]:
    source, output, dead = (names.topic(suffix) for suffix in ("events", "folded", "dead"))
    given = {
        "app_id": names.app_id,
        "redis": {"url": redis_server.url},
        "kafka": {"bootstrap_servers": kafka.bootstrap_servers},
        "folds": [{
            "name": "f", "source": source, "output": output, "dead_letters": dead, "group_key": "g", "changed": "m",
            "quiet_period": "1s",
        }],
        "journals": [{"name": "days", "source": source, "key": "g"}],
        "live": [
            {"name": "news", "kind": "list", "source": source, "page": "g", "item": "m", "expiry": "1h", "dead_letters": dead,
                "public": True},
            {"name": "here", "kind": "presence", "expiry": "1m", "public": True},
        ],
    }  # fmt: skip
    await create_topics(kafka.bootstrap_servers, [source, output, dead], partitions=1)
    yield Application(redis_client, given)


@pytest.fixture
async def journal(application: Application) -> JournalShard:
    shard = JournalShard(application.client, application.settings)
    await shard.claim()
    return shard
