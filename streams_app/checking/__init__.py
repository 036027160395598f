"""Checks whether a worker can run: HTTP, tracing, native core, servers, rights, logs, transactions, stores, and each component.

Servers are queried at the same time, so that silent ones cost one timeout together. If a server does not answer within a few
seconds, the checks that need it end. A finding that is an error does not prevent other checks. Rights to write are checked by
writes that are undone: a key in Redis, and a transaction in each read store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from redis.asyncio import Redis
from redis.exceptions import NoPermissionError

from streams_app.checking.kafka import kafka_facts, kafka_findings
from streams_app.checking.logs import log_findings
from streams_app.checking.process import http_finding, native_finding, tracing_finding
from streams_app.checking.redis import redis_facts, redis_findings, shared_client
from streams_app.checking.rights import rights_findings
from streams_app.checking.schema_registry import schema_registry_findings
from streams_app.checking.transactions import transaction_findings
from streams_app.clock import Clock
from streams_app.errors import StreamsAppError
from streams_app.finding import Finding, Level
from streams_app.requirements.component_findings import ReachableRedis, component_findings
from streams_app.requirements.declarations import declarations_of
from streams_app.settings import Settings

__all__ = ["Finding", "Level", "findings"]


async def findings(settings: Settings, clock: Clock) -> AsyncGenerator[Finding, None]:
    """Run all checks and yield their findings.

    If Kafka or Redis does not answer, this is a finding, and the checks that need Kafka or Redis are skipped.
    """
    yield http_finding(settings.http)
    for finding in filter(None, (tracing_finding(settings), native_finding(settings))):
        yield finding
    async with shared_client(settings.redis) as redis, aclosing(_findings_of_servers(settings, clock, redis)) as found:
        async for finding in found:
            yield finding


async def _findings_of_servers(settings: Settings, clock: Clock, redis: Redis | StreamsAppError) -> AsyncGenerator[Finding, None]:
    declarations = declarations_of(settings)
    of_registry, kafka, facts_of_redis = await asyncio.gather(
        _all(schema_registry_findings(declarations)), kafka_facts(declarations), redis_facts(redis, settings, clock)
    )
    away = isinstance(redis, StreamsAppError)
    for finding in (*of_registry, *kafka_findings(declarations, kafka), *redis_findings(settings, facts_of_redis)):
        away |= finding.is_away
        yield finding
    if away or isinstance(redis, StreamsAppError):
        groups = [component_findings(declarations, kafka, None)]
    else:
        for finding in rights_findings(declarations, kafka):
            yield finding
        servers = facts_of_redis.servers
        answers = ReachableRedis(redis, servers if isinstance(servers, NoPermissionError) else servers.values())
        groups = [
            log_findings(declarations, kafka, redis),
            component_findings(declarations, kafka, answers),
            transaction_findings(declarations),
        ]
    for found in groups:
        async with aclosing(found):
            async for finding in found:
                yield finding


async def _all(found: AsyncIterator[Finding]) -> list[Finding]:
    return [finding async for finding in found]
