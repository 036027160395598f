"""Checks of Redis: version, writability, memory, eviction policy and clock."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, OutOfMemoryError, ReadOnlyError, ResponseError

from streams_app.checking.kafka import LOOPBACK
from streams_app.clock import Clock
from streams_app.delivery.clocks import SKEW_MS
from streams_app.errors import ConfigurationError, StreamsAppError
from streams_app.finding import Finding, Level
from streams_app.folding.store.keys import probe_key
from streams_app.redis_access.client import REDIS_ERRORS, connect_briefly, require_redis_rights, servers_of, why_unreachable
from streams_app.redis_access.request_limit import PROCESS_CONNECTIONS
from streams_app.redis_access.sentinel import SentinelState, sentinel_state
from streams_app.settings import RedisSettings, Settings

logger = logging.getLogger(__name__)

OLDEST_REDIS: Final = (7, 0)
SKEW_WARNING_MS: Final = 1_000
FULL_PERCENT: Final = 80
PROBE_SECONDS: Final = 60
"""Time after which the key that the check writes expires, in case the check is killed before it removes the key."""


@asynccontextmanager
async def shared_client(settings: RedisSettings) -> AsyncIterator[Redis | StreamsAppError]:
    """Create one client for all checks, or return why this is impossible; close it at the end of the ``async with`` block."""
    try:
        redis = connect_briefly(settings)
    except StreamsAppError as error:
        yield error
        return
    try:
        yield redis
    finally:
        await redis.aclose()


@dataclass(frozen=True, slots=True)
class RedisFacts:
    """What Redis reports; the facts end where it has not answered.

    Attributes:
        fault: Why it does not answer, or denies access; None: it has answered.
        can_connect: Whether there is a client; if not, a file of the settings cannot be read.
        advice: What the operator has to do about the fault.
        sentinel: State of its service; None: the settings name no Sentinels.
        servers: Reply to ``INFO`` of each server by its address, or the error if the user may not query it.
        is_probed: Whether a write was tried.
        rejection: Error of this write; None: it succeeded.
        skew_ms: Clock of Redis compared with that of this machine, without the time of the request.
    """

    fault: StreamsAppError | None = None
    advice: str = ""
    can_connect: bool = True
    sentinel: SentinelState | None = None
    servers: Mapping[str, Mapping[str, Any]] | NoPermissionError = field(default_factory=dict)
    is_probed: bool = False
    rejection: ResponseError | None = None
    skew_ms: int | None = None


async def redis_facts(redis: Redis | StreamsAppError, settings: Settings, clock: Clock) -> RedisFacts:
    """Fetch what the checks need to know of Redis. One key is written and removed again."""
    if isinstance(redis, StreamsAppError):
        return RedisFacts(redis, "correct the path, or the rights of the file", can_connect=False)
    facts = RedisFacts()
    try:
        sentinel = await sentinel_state(redis)
        facts = replace(facts, sentinel=sentinel, servers=await _servers(redis))
        await require_redis_rights(redis, probe_key(settings.app_id))
        facts = replace(facts, rejection=await _rejection(redis, settings.app_id), is_probed=True)
        return replace(facts, skew_ms=await _skew_ms(redis, clock))
    except REDIS_ERRORS as error:
        why = await why_unreachable(settings.redis, error)
        advice = "correct the settings" if isinstance(why, ConfigurationError) else "start it, or correct redis.url"
        return replace(facts, fault=why, advice=advice)


def redis_findings(settings: Settings, facts: RedisFacts) -> Iterator[Finding]:
    """Check version, memory, eviction policy, rights and clock of Redis (pure)."""
    hosts = {host for host, _ in settings.redis.nodes}
    if facts.can_connect and not settings.redis.url.startswith("rediss") and not hosts <= set(LOOPBACK):
        yield Finding(Level.WARNING, "the connection to Redis is not encrypted and leaves this machine", "use rediss:// (TLS)")
    yield from _sentinel_findings(facts.sentinel)
    yield from _all_server_findings(facts.servers, settings.redis.redacted_url)
    if facts.is_probed:
        yield _write_finding(facts.rejection)
    if facts.skew_ms is not None:
        yield _skew_finding(facts.skew_ms)
    if facts.fault is not None:
        yield Finding(Level.ERROR, str(facts.fault), facts.advice, is_away=True)


async def warn_of_servers(redis: Redis, settings: Settings) -> None:
    """Check the Redis servers, and log each finding that is an error: it means that a worker may lose its state in Redis.

    Raises:
        RedisError, OSError: Redis does not answer, and nothing was logged.
    """
    for finding in _all_server_findings(await _servers(redis), settings.redis.redacted_url):
        if finding.level is Level.ERROR:
            logger.error("%s; %s", finding.text, finding.advice)


async def _servers(redis: Redis) -> Mapping[str, Mapping[str, Any]] | NoPermissionError:
    try:
        return await servers_of(redis)
    except NoPermissionError as error:
        return error


def _sentinel_findings(state: SentinelState | None) -> list[Finding]:
    if state is None:
        return []
    found = [Finding(Level.OK, f"Sentinel names {state.primary} as the primary of {state.service!r}")]
    advice = "restore it: without a majority of the Sentinels and a replica no failover is possible"
    return found + [Finding(Level.WARNING, fault, advice) for fault in state.faults]


def _all_server_findings(servers: Mapping[str, Mapping[str, Any]] | NoPermissionError, url: str) -> list[Finding]:
    if isinstance(servers, NoPermissionError):
        text = f"version, role, memory and eviction policy of Redis cannot be checked: {servers}"
        return [Finding(Level.WARNING, text, "grant its user +info; a worker runs without it")]
    return [finding for address, info in servers.items() for finding in server_findings(address or url, info)]


def server_findings(address: str, info: Mapping[str, Any]) -> list[Finding]:
    """Return the findings about one Redis server: version, role, memory, clients, eviction policy and append-only file (pure)."""
    name, version = ("Valkey", info["valkey_version"]) if "valkey_version" in info else ("Redis", info["redis_version"])
    speaks = tuple(int(part) for part in str(info["redis_version"]).split(".")[:2])
    found = [Finding(Level.OK, f"{name} {version} answers at {address}")]
    if speaks < OLDEST_REDIS:
        found.append(Finding(Level.ERROR, f"{name} {version} is too old", "version 7.0 or newer is needed (script flags)"))
    policy = info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        found.append(Finding(Level.OK, "maxmemory-policy is noeviction"))
    else:
        text = f"maxmemory-policy is {policy}: open groups and the state of subscribers may be evicted"
        found.append(Finding(Level.ERROR, text, "CONFIG SET maxmemory-policy noeviction; do not share Redis with a cache"))
    if info.get("role", "master") != "master":
        text = f"{address} is a replica: a worker can write nothing there"
        found.append(Finding(Level.ERROR, text, "name the primary in redis.url"))
    found += [*_memory_findings(info), *_client_findings(info)]
    if info.get("aof_enabled"):
        found.append(Finding(Level.OK, "the append-only file is on"))
    else:
        text = (
            "the append-only file is off: after a restart of Redis some events are folded again, into overlapping records, and "
            'subscribers with idempotent = "unknown" are called again for some'
        )
        found.append(Finding(Level.WARNING, text, "appendonly yes (nothing is lost without it)"))
    return found


def _memory_findings(info: Mapping[str, Any]) -> list[Finding]:
    used, most = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if not most:
        return []
    percent = 100 * used // most
    text = f"{percent} % of maxmemory are used ({used // 2**20} of {most // 2**20} MB)"
    if percent >= FULL_PERCENT:
        return [Finding(Level.WARNING, text, "raise maxmemory: once it is full, folding pauses and only emission continues")]
    return [Finding(Level.OK, text)]


def _client_findings(info: Mapping[str, Any]) -> list[Finding]:
    used, most = int(info.get("connected_clients", 0)), int(info.get("maxclients", 0))
    if not most:
        return []
    text = f"{used} of {most} clients are connected (maxclients)"
    if most - used < PROCESS_CONNECTIONS:
        advice = f"raise maxclients: a worker opens up to {PROCESS_CONNECTIONS} connections, as does a hub or a reader of journals"
        return [Finding(Level.WARNING, text, advice)]
    return [Finding(Level.OK, text)]


async def _rejection(redis: Redis, app_id: str) -> ResponseError | None:
    """Write a key and remove it; return the error if Redis rejects this."""
    key = probe_key(app_id)
    try:
        await redis.set(key, "", ex=PROBE_SECONDS)
        await redis.delete(key)
    except ResponseError as error:
        return error
    return None


def _write_finding(rejection: ResponseError | None) -> Finding:
    if rejection is None:
        return Finding(Level.OK, "Redis can be written to")
    if isinstance(rejection, OutOfMemoryError):
        return Finding(Level.ERROR, f"Redis is full: {rejection}", "raise maxmemory; folding pauses until there is room")
    if isinstance(rejection, ReadOnlyError):
        return Finding(Level.ERROR, f"Redis cannot be written to: {rejection}", "name the primary in redis.url")
    return Finding(Level.ERROR, f"Redis refuses a write: {rejection}", "check its log, its disk and the rights of the user")


async def _skew_ms(redis: Redis, clock: Clock) -> int:
    before_ms = clock.now_ms()
    seconds, micros = await redis.time()
    after_ms = clock.now_ms()
    theirs_ms = int(seconds) * 1000 + int(micros) // 1000
    return before_ms - theirs_ms if theirs_ms < before_ms else max(0, theirs_ms - after_ms)


def _skew_finding(skew_ms: int) -> Finding:
    text = f"the clocks of this machine and of Redis are {abs(skew_ms)} ms apart"
    if abs(skew_ms) > SKEW_MS:
        return Finding(Level.ERROR, text, "a worker would not follow its clock; synchronise both clocks by NTP")
    if abs(skew_ms) > SKEW_WARNING_MS:
        return Finding(Level.WARNING, text, "synchronise both clocks by NTP")
    return Finding(Level.OK, text)
