"""Checks of Kafka: reachability, existence of topics, retention."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from aiokafka.errors import KafkaError

from streams_app.errors import ConfigurationError, StreamsAppError
from streams_app.finding import Finding, Level, lasting
from streams_app.folding.metadata_size import faults_of
from streams_app.formatting import counted
from streams_app.kafka.admin import NO_RETENTION_LIMIT, Topic, admin_client, partition_counts, topic_configs
from streams_app.kafka.facts import KafkaFacts
from streams_app.kafka.rights import GROUP, TOPIC, granted_rights
from streams_app.kafka.topic_ids import topic_ids
from streams_app.requirements.components import topics_of
from streams_app.requirements.declarations import Declarations
from streams_app.settings import Settings

LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


async def kafka_facts(declarations: Declarations) -> KafkaFacts:
    """Fetch what the checks need to know of Kafka, by one client. No topic is created."""
    is_connected = False
    topics = [topic.name for topic in topics_of(declarations.workload)]
    groups = sorted({right.name for right in declarations.required_rights() if right.kind == GROUP})
    try:
        async with admin_client(declarations.settings.kafka) as client:
            is_connected = True
            granted = await granted_rights(client, topics, groups)
            partitions = await partition_counts(client, [name for name in topics if granted.get((TOPIC, name)) != frozenset()])
            configs = await topic_configs(client, list(partitions)) if partitions else {}
            try:
                ids = await topic_ids(client._client, list(partitions)) if partitions else {}
            except (KafkaError, OSError, TimeoutError):
                ids = {}  # only the comparison of logs needs them
    except StreamsAppError as error:
        return KafkaFacts(error, is_connected)
    return KafkaFacts(None, is_connected, partitions, configs, ids, granted)


def kafka_findings(declarations: Declarations, facts: KafkaFacts) -> Iterator[Finding]:
    """Check whether the broker answers, the topics exist, and sources of folds retain events longer than ``max_hold`` (pure).

    If the broker does not answer, :attr:`.Finding.is_away` of the last finding is set.
    """
    settings, kafka = declarations.settings, declarations.settings.kafka
    hosts = [server.strip().rsplit(":", 1)[0].strip("[]") for server in kafka.bootstrap_servers.split(",")]
    if kafka.security_protocol == "PLAINTEXT" and any(host not in LOOPBACK for host in hosts):
        what = "the connection to Kafka is not encrypted and leaves this machine"
        yield Finding(Level.WARNING, what, "set kafka.security_protocol = SASL_SSL")
    for fault in faults_of(settings.folds):
        yield Finding(Level.ERROR, fault, "declare fewer folds of this source: a worker does not start with these")
    if facts.is_connected:
        yield Finding(Level.OK, f"Kafka answers at {kafka.bootstrap_servers}")
    if facts.fault is not None:
        is_wrong = isinstance(facts.fault, ConfigurationError)
        advice = "correct the settings" if is_wrong else "start it, or correct kafka.bootstrap_servers"
        yield Finding(Level.ERROR, str(facts.fault), advice, is_away=True)
        return
    for topic in topics_of(declarations.workload):
        if not facts.is_hidden(topic.name):
            yield _topic_finding(topic, facts.partitions.get(topic.name), kafka.partitions)
    sources = [source for source in settings.sources if source in facts.partitions]
    yield from _retention(settings, sources, facts.retention_ms(sources))


def _topic_finding(topic: Topic, partitions: int | None, wanted: int) -> Finding:
    what = f"topic {topic.name} ({topic.role})"
    if partitions is None:
        return Finding(Level.ERROR, f"{what} does not exist", "streams-app topics create")
    text = f"{what} has {counted(partitions, 'partition')}"
    if partitions == wanted:
        return Finding(Level.OK, text)
    advice = f"set kafka.partitions = {partitions} if that is meant; was the topic made on demand, by a producer?"
    return Finding(Level.WARNING, f"{text}, kafka.partitions is {wanted}", advice)


def _retention(settings: Settings, sources: list[str], retention: Mapping[str, int]) -> list[Finding]:
    """Check whether sources keep events longer than ``max_hold``; otherwise a loss of Redis also loses events of open groups."""
    found = []
    for source in sources:
        hold_ms = max(fold.max_hold_ms for fold in settings.folds if fold.source == source)
        kept_ms = retention.get(source)
        if kept_ms is None:
            found.append(Finding(Level.WARNING, f"the retention of {source} is not known", "the broker does not report it"))
        elif kept_ms != NO_RETENTION_LIMIT and kept_ms <= hold_ms:
            text = f"{source} keeps its log for {lasting(kept_ms)}, groups may stay open for {lasting(hold_ms)}"
            found.append(Finding(Level.ERROR, text, "lengthen retention.ms: it must exceed max_hold plus the longest outage"))
        elif kept_ms != NO_RETENTION_LIMIT and kept_ms < 2 * hold_ms:
            text = f"{source} keeps its log for {lasting(kept_ms)}, groups may stay open for {lasting(hold_ms)}"
            found.append(Finding(Level.WARNING, text, "there is little left for an outage: lengthen retention.ms"))
        else:
            kept = "for ever" if kept_ms == NO_RETENTION_LIMIT else f"for {lasting(kept_ms)}"
            found.append(Finding(Level.OK, f"{source} keeps its log {kept}"))
    return found
