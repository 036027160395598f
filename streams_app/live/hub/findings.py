"""Checks of live views: retention of source topics, state in Redis, web origins, file descriptors, secrets of tokens."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping
from typing import Final

from redis.asyncio import Redis

from streams_app.errors import ConfigurationError
from streams_app.finding import Finding, Level, lasting
from streams_app.kafka.admin import NO_RETENTION_LIMIT
from streams_app.kafka.facts import KafkaFacts
from streams_app.live.hub.sockets import descriptors_for, max_descriptors
from streams_app.live.store.keys import meta_pattern
from streams_app.redis_access.client import REDIS_ERRORS
from streams_app.settings import LiveView, Settings, UrlParts

SCANNED_KEYS: Final = 1_000

LOCAL: Final = frozenset({"localhost", "127.0.0.1", "::1"})


async def live_findings(settings: Settings, kafka: KafkaFacts, redis: Redis | None) -> AsyncGenerator[Finding, None]:
    """Check the settings of the live server and, unless ``redis`` is None, the state of views there and their source topics."""
    try:
        _ = settings.live_server.secrets
    except ConfigurationError as error:
        yield Finding(Level.ERROR, str(error), "private live views cannot be served without it")
    for finding in [*origin_findings(settings), *hosts_findings(settings), *descriptor_findings(settings, max_descriptors())]:
        yield finding
    if redis is None or not settings.live:
        return
    try:
        for finding in stored_findings(settings, await stored_sources(redis, settings.app_id)):
            yield finding
    except REDIS_ERRORS:
        return  # the check of Redis reports it
    if kafka.hides_any([view.source for view in settings.live_of_topics]):
        return
    for view in settings.live_of_topics:
        if view.source in kafka.configs:
            for finding in view_findings(view, kafka.configs[view.source]):
                yield finding


async def stored_sources(redis: Redis, app_id: str) -> dict[str, set[str]]:
    """Map each view that has state in Redis, declared or not, to the topics from which the state was read."""
    found: dict[str, set[str]] = {}
    async for key in redis.scan_iter(match=meta_pattern(app_id), count=SCANNED_KEYS):
        _, view, topic, _ = key.partition(b"}:")[0].decode().split("/")
        found.setdefault(view.removeprefix("live."), set()).add(topic)
    return found


def stored_findings(settings: Settings, stored: Mapping[str, Collection[str]]) -> list[Finding]:
    """Report views that have state in Redis, but are not declared any more or have another source now (pure).

    Args:
        stored: By name of a view that has state in Redis: the topics whose events this state contains.
    """
    sources = {view.name: view.source for view in settings.live_of_topics}
    found = []
    for name, topics in sorted(stored.items()):
        former = ", ".join(sorted(set(topics) - {sources.get(name)}))
        if former:
            now = f"its source is {sources[name]} now" if name in sources else "it is not declared any more"
            what = f"Redis holds state of live view {name} of topic {former}: {now}, and no worker removes it"
            advice = f"streams-app reset --live {name} --yes removes all of it; declared views are read from Kafka again"
            found.append(Finding(Level.WARNING, what, advice))
    return found


def origin_findings(settings: Settings) -> list[Finding]:
    """Report web origins whose pages would send tokens of private views over unencrypted HTTP (pure)."""
    origins = settings.live_server.origins
    private = [view.name for view in settings.live if not view.public]
    plain = [origin for origin in origins if origin.startswith("http://") and not _is_local(origin)]
    if plain and private:
        what = f"live_server.origins names {', '.join(plain)}: tokens of {', '.join(private)} pass the network as they are"
        return [Finding(Level.WARNING, what, "name origins with https:// alone")]
    if not settings.live:
        return []
    whose = ", ".join(origins) or "no other origin: live_server.origins names the origins of other pages"
    return [Finding(Level.OK, f"live views accept pages from the host of the server, and from {whose}")]


def hosts_findings(settings: Settings) -> list[Finding]:
    """Report whether any host name may be used to read public views (pure)."""
    public = [view.name for view in settings.live if view.public]
    if not public:
        return []
    if hosts := settings.live_server.hosts:
        return [Finding(Level.OK, f"live views are served to requests for the hosts {', '.join(hosts)}")]
    what = f"live_server.hosts is not set: {', '.join(public)} can be read by any page whose host name leads to the hub"
    return [Finding(Level.OK, f"{what}; set it if public views are only for your network")]


def descriptor_findings(settings: Settings, descriptors: int) -> list[Finding]:
    """Check whether a process may open enough file descriptors for the maximum number of connections (pure)."""
    wanted = descriptors_for(settings.live_server.connections)
    if not settings.live or wanted <= descriptors:
        return []
    what = f"live_server.connections requires {wanted} file descriptors, and a process here has {descriptors}"
    return [Finding(Level.WARNING, what, f"the hub serves fewer pages: raise the limit (ulimit -n {wanted}), or set fewer")]


def _is_local(origin: str) -> bool:
    return dict(UrlParts.of(origin).hosts).keys() <= LOCAL


def view_findings(view: LiveView, config: Mapping[str, str]) -> list[Finding]:
    """Check whether retention and cleanup policy of a source suit a view (pure)."""
    found = []
    kept_ms = int(config.get("retention.ms", NO_RETENTION_LIMIT))
    if kept_ms != NO_RETENTION_LIMIT and kept_ms < view.expiry_ms:
        what = (
            f"topic {view.source} is kept for {lasting(kept_ms)}, and live view {view.name} shows {lasting(view.expiry_ms)} of it"
        )
        advice = f"after a loss of Redis the rest is missing: retention.ms={view.expiry_ms} or more"
        found.append(Finding(Level.WARNING, what, advice))
    if "compact" in config.get("cleanup.policy", "") and not view.item:
        what = f"topic {view.source} is compacted: after a loss of Redis live view {view.name} shows one event of each record key"
        found.append(Finding(Level.WARNING, what, "a topic that is not compacted, or one record key for each item"))
    elif "compact" in config.get("cleanup.policy", ""):
        what = (
            f"topic {view.source} is compacted: live view {view.name} is whole after a loss of Redis if record keys are its items"
        )
        found.append(Finding(Level.WARNING, what, "key events by item, or use a topic that is not compacted"))
    return found or [Finding(Level.OK, f"topic {view.source} keeps what live view {view.name} shows")]
