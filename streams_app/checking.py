"""Can this run? Findings about Kafka, Redis and the read store, each with what to do.

Only looks: nothing is created or changed. A check that fails does not keep the others from being made.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final
from urllib.parse import urlsplit

from redis.asyncio import Redis

from streams_app.clock import Clock
from streams_app.errors import StreamsAppError
from streams_app.folding.connection import REDIS_ERRORS, connect
from streams_app.folding.partition_clock import SKEW_MS
from streams_app.kafka.admin import NO_RETENTION_LIMIT, admin_client, partition_counts, retention_ms, topics_of
from streams_app.read_store.sources import open_source
from streams_app.read_store.store import open_store
from streams_app.settings import Settings

LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
OLDEST_REDIS: Final = (7, 0)
SKEW_WARNING_MS: Final = 1_000


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at.

    Attributes:
        level: ``error``: a worker cannot run, or would lose events.
        text: What was found.
        advice: What to do; empty when all is well.
    """

    level: Level
    text: str
    advice: str = ""


async def findings(settings: Settings, clock: Clock) -> AsyncIterator[Finding]:
    """Looks at everything, one finding after the other."""
    async for finding in _kafka(settings):
        yield finding
    async for finding in _redis(settings, clock):
        yield finding
    async for finding in _read_store(settings):
        yield finding


async def _kafka(settings: Settings) -> AsyncIterator[Finding]:
    kafka = settings.kafka
    hosts = [server.strip().rsplit(":", 1)[0].strip("[]") for server in kafka.bootstrap_servers.split(",")]
    if kafka.security_protocol == "PLAINTEXT" and any(host not in LOOPBACK for host in hosts):
        yield Finding(Level.WARNING, "Kafka is spoken to in plain text over the network", "set kafka.security_protocol = SASL_SSL")
    topics = topics_of(settings)
    try:
        async with admin_client(kafka) as client:
            counts = await partition_counts(client, [topic.name for topic in topics])
            retention = await retention_ms(client, [source for source in settings.sources if source in counts])
    except StreamsAppError as error:
        yield Finding(Level.ERROR, str(error), "start it, or correct kafka.bootstrap_servers and the credentials")
        return
    yield Finding(Level.OK, f"Kafka answers at {kafka.bootstrap_servers}")
    for topic in topics:
        if topic.name in counts:
            yield Finding(Level.OK, f"topic {topic.name} ({topic.role}) has {counts[topic.name]} partitions")
        else:
            yield Finding(Level.ERROR, f"topic {topic.name} ({topic.role}) does not exist", "streams-app topics create")
    for finding in _retention(settings, retention):
        yield finding
    yield Finding(
        Level.OK, "adding partitions to a source: at lag 0, after all open groups have been emitted, or versions may go back"
    )


def _retention(settings: Settings, retention: Mapping[str, int]) -> list[Finding]:
    """A log shorter than the longest hold cannot bring back what Redis loses."""
    found = []
    for source in settings.sources:
        hold_ms = max(fold.max_hold_ms for fold in settings.folds if fold.source == source)
        kept_ms = retention.get(source)
        if kept_ms is None:
            found.append(Finding(Level.WARNING, f"the retention of {source} is not known", "the broker does not tell it"))
        elif kept_ms != NO_RETENTION_LIMIT and kept_ms <= hold_ms:
            text = f"{source} keeps its log for {_hours(kept_ms)}, groups may be held for {_hours(hold_ms)}"
            found.append(Finding(Level.ERROR, text, "lengthen retention.ms: it must exceed max_hold plus the longest outage"))
        elif kept_ms != NO_RETENTION_LIMIT and kept_ms < 2 * hold_ms:
            text = f"{source} keeps its log for {_hours(kept_ms)}, groups may be held for {_hours(hold_ms)}"
            found.append(Finding(Level.WARNING, text, "there is little left for an outage: lengthen retention.ms"))
        else:
            kept = "for ever" if kept_ms == NO_RETENTION_LIMIT else f"for {_hours(kept_ms)}"
            found.append(Finding(Level.OK, f"{source} keeps its log {kept}"))
    return found


async def _redis(settings: Settings, clock: Clock) -> AsyncIterator[Finding]:
    url = settings.redis.redacted_url
    try:
        redis = connect(settings.redis)
    except StreamsAppError as error:
        yield Finding(Level.ERROR, str(error), "correct the path, or the rights of the file")
        return
    try:
        parts = urlsplit(settings.redis.url)
        if parts.scheme == "redis" and parts.hostname not in LOOPBACK:
            yield Finding(Level.WARNING, "Redis is spoken to in plain text over the network", "use rediss:// (TLS)")
        info: dict[str, Any] = await redis.info()
        for finding in redis_findings(url, info):
            yield finding
        yield await _skew(redis, clock)
    except REDIS_ERRORS as error:
        yield Finding(Level.ERROR, f"cannot reach Redis at {url}: {error}", "start it, or correct redis.url and the password")
    finally:
        await redis.aclose()


def redis_findings(url: str, info: Mapping[str, Any]) -> list[Finding]:
    """What a server says of itself (pure).

    Args:
        url: Its address without credentials.
        info: Its reply to ``INFO``.
    """
    name, version = ("Valkey", info["valkey_version"]) if "valkey_version" in info else ("Redis", info["redis_version"])
    speaks = tuple(int(part) for part in str(info["redis_version"]).split(".")[:2])
    found = [Finding(Level.OK, f"{name} {version} answers at {url}")]
    if speaks < OLDEST_REDIS:
        found.append(Finding(Level.ERROR, f"{name} {version} is too old", "version 7.0 or newer is needed (script flags)"))
    policy = info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        found.append(Finding(Level.OK, "maxmemory-policy is noeviction"))
    else:
        text = f"maxmemory-policy is {policy}: open groups may be evicted"
        found.append(Finding(Level.ERROR, text, "CONFIG SET maxmemory-policy noeviction; do not share Redis with a cache"))
    if info.get("aof_enabled"):
        found.append(Finding(Level.OK, "the append-only file is on"))
    else:
        text = "the append-only file is off: after a restart of Redis events are folded again, into overlapping records"
        found.append(Finding(Level.WARNING, text, "appendonly yes (nothing is lost without it)"))
    return found


async def _skew(redis: Redis, clock: Clock) -> Finding:
    before_ms = clock.now_ms()
    seconds, micros = await redis.time()
    after_ms = clock.now_ms()
    theirs_ms = int(seconds) * 1000 + int(micros) // 1000
    skew_ms = before_ms - theirs_ms if theirs_ms < before_ms else max(0, theirs_ms - after_ms)
    text = f"the clocks of this machine and of Redis are {abs(skew_ms)} ms apart"
    if abs(skew_ms) > SKEW_MS:
        return Finding(Level.ERROR, text, "a worker would not follow its clock; mend NTP on both machines")
    if abs(skew_ms) > SKEW_WARNING_MS:
        return Finding(Level.WARNING, text, "mend NTP on both machines")
    return Finding(Level.OK, text)


async def _read_store(settings: Settings) -> AsyncIterator[Finding]:
    section = settings.read_store
    if section is None:
        return
    try:
        store, source = open_store(section), open_source(section)
    except StreamsAppError as error:
        yield Finding(Level.ERROR, str(error), "correct [read_store]")
        return
    try:
        missing = await store.missing()
        if missing:
            yield Finding(Level.ERROR, f"read store: no {' and no '.join(missing)}", "streams-app read-store init")
        else:
            yield Finding(Level.OK, f"read store ({store.name}) has its tables")
    except StreamsAppError as error:
        yield Finding(Level.ERROR, str(error), "streams-app read-store init, or correct read_store.url")
    try:
        await source.check()
        yield Finding(Level.OK, f"read store: the source ({section.source}) answers")
    except StreamsAppError as error:
        yield Finding(Level.ERROR, str(error), "correct read_store.source_url and read_store.sql")
    await source.close()
    await store.close()


def _hours(span_ms: int) -> str:
    return f"{span_ms / 3_600_000:g} h"
