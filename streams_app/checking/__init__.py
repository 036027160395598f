"""Checks whether a worker can run: HTTP, tracing, servers, rights, logs, transactions, stores, subscribers, live views, journals.

Servers are queried at the same time, so that silent ones cost one timeout together. If a server does not answer within a few
seconds, the checks that need it end. A finding that is an error does not prevent other checks. Rights to write are checked by
writes that are undone: a key in Redis, and a transaction in each read store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from streams_app.checking.facts import declarations_of, kafka_facts
from streams_app.checking.finding import Finding, Level
from streams_app.checking.http import http_finding
from streams_app.checking.journals import journal_findings
from streams_app.checking.kafka import kafka_findings
from streams_app.checking.live import live_findings
from streams_app.checking.logs import log_findings
from streams_app.checking.read_store import read_store_findings
from streams_app.checking.redis import redis_findings
from streams_app.checking.rights import rights_findings
from streams_app.checking.schema_registry import schema_registry_findings
from streams_app.checking.subscribers import subscriber_findings
from streams_app.checking.tracing import tracing_finding
from streams_app.checking.transactions import transaction_findings
from streams_app.clock import Clock
from streams_app.settings import Settings

__all__ = ["Finding", "Level", "findings"]


async def findings(settings: Settings, clock: Clock) -> AsyncGenerator[Finding, None]:
    """Run all checks and yield their findings.

    If Kafka or Redis does not answer, this is a finding, and the checks that need Kafka or Redis are skipped.
    """
    yield http_finding(settings.http)
    if (tracing := tracing_finding(settings)) is not None:
        yield tracing
    declarations = declarations_of(settings)
    registry, kafka, redis = await asyncio.gather(
        _all(schema_registry_findings(declarations)), kafka_facts(declarations), _all(redis_findings(settings, clock))
    )
    away = False
    for finding in (*registry, *kafka_findings(declarations, kafka), *redis):
        away |= finding.is_away
        yield finding
    if not away:
        for finding in rights_findings(declarations, kafka):
            yield finding
    others = [] if away else [log_findings(declarations, kafka)]
    others += [read_store_findings(settings)]
    others += [subscriber_findings(declarations, kafka, asks=not away), live_findings(settings, kafka, asks=not away)]
    others += [journal_findings(settings, kafka, asks=not away)]
    others += [] if away else [transaction_findings(declarations)]
    for check_results in others:
        async with aclosing(check_results) as found:
            async for finding in found:
                yield finding


async def _all(found: AsyncIterator[Finding]) -> list[Finding]:
    return [finding async for finding in found]
