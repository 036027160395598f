"""Checks of journals: retention of their source topics, and memory of Redis for their events."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from redis.exceptions import NoPermissionError

from streams_app.finding import Finding, Level, lasting
from streams_app.kafka.admin import NO_RETENTION_LIMIT
from streams_app.kafka.facts import KafkaFacts
from streams_app.settings import JournalSettings, Settings
from streams_app.settings.journals import MIN_BYTES

MAX_PERCENT: Final = 80
"""Maximum share of the memory of Redis for journals, in percent. Folds, views and compression need the rest."""


def journal_findings(
    settings: Settings, kafka: KafkaFacts, servers: Collection[Mapping[str, Any]] | NoPermissionError
) -> Iterator[Finding]:
    """Check whether Redis has memory for the journals, and their topics retain events as long (pure).

    Args:
        servers: Reply to ``INFO`` of each Redis server, or the error if the user may not query it.
    """
    if not settings.journals:
        return
    if not isinstance(servers, NoPermissionError):  # the check of Redis reports it
        yield room_finding(settings.journals, servers)
    if kafka.hides_any([journal.source for journal in settings.journals]):
        return
    for journal in settings.journals:
        if journal.source in kafka.configs:
            yield from source_findings(journal, kafka.configs[journal.source], kafka.partitions[journal.source])


def room_finding(journals: Sequence[JournalSettings], servers: Collection[Mapping[str, Any]]) -> Finding:
    """Check whether Redis has enough memory for ``max_bytes`` of all journals together (pure).

    Args:
        servers: Reply to ``INFO`` of each Redis server; in a cluster, of each primary.
    """
    wanted = sum(journal.max_bytes for journal in journals)
    names = ", ".join(journal.name for journal in journals)
    masters = [info for info in servers if info.get("role", "master") == "master"]
    limits = [int(info.get("maxmemory", 0)) for info in masters]
    what = "maxmemory" if all(limits) else "the memory of its machine"
    room = sum(limits) if all(limits) else sum(int(info.get("total_system_memory", 0)) for info in masters)
    if not room:
        return Finding(Level.OK, f"journals ({names}) may take {_megabytes(wanted)} of Redis, which does not say how much it has")
    text = f"journals ({names}) may take {_megabytes(wanted)}; {what} of Redis is {_megabytes(room)}"
    if wanted * 100 > room * MAX_PERCENT:
        advice = "lower max_bytes, or give Redis more memory: if Redis is full, journals remove their oldest events first"
        return Finding(Level.WARNING, text, advice)
    return Finding(Level.OK, text)


def source_findings(journal: JournalSettings, config: Mapping[str, str], partitions: int) -> list[Finding]:
    """Check whether retention, cleanup policy and number of partitions of a source suit a journal (pure)."""
    found = []
    if (share := journal.share(partitions)) < MIN_BYTES:
        what = f"journal {journal.name} has {share:,} bytes of Redis for each of the {partitions:,} partitions of {journal.source}"
        advice = f"max_bytes = {MIN_BYTES * partitions} or more: so small segments take more than their events"
        found.append(Finding(Level.WARNING, what, advice))
    kept_ms = int(config.get("retention.ms", NO_RETENTION_LIMIT))
    if kept_ms != NO_RETENTION_LIMIT and kept_ms < journal.keep_ms:
        kept = f"topic {journal.source} is kept for {lasting(kept_ms)}"
        what = f"{kept}, and journal {journal.name} keeps {lasting(journal.keep_ms)} of it"
        advice = f"after a loss of Redis it reaches no further back than the topic: retention.ms={journal.keep_ms} or more"
        found.append(Finding(Level.WARNING, what, advice))
    if "compact" in config.get("cleanup.policy", ""):
        loss = f"if Redis loses its data, journal {journal.name} can restore only the newest event of each record key"
        what = f"topic {journal.source} is compacted: {loss}"
        found.append(Finding(Level.WARNING, what, "use a topic that is not compacted"))
    what = f"retention of topic {journal.source} suffices to restore journal {journal.name} after a loss of Redis"
    return found or [Finding(Level.OK, what)]


def _megabytes(size: int) -> str:
    return f"{size // 1_000_000} MB"
