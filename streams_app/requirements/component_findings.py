"""What the command ``check`` asks of each kind of component: its findings, and which position it has stored in each partition.

Folds are left out: their checks are those of Kafka and Redis.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping
from contextlib import aclosing
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis
from redis.exceptions import NoPermissionError

from streams_app.delivery.log_continuity import Policy, StoredPosition
from streams_app.delivery.offset_metadata import OffsetAndMetadata
from streams_app.delivery.processor import NO_OFFSET
from streams_app.finding import Finding, Level
from streams_app.journal.agents.beginning import policy_of as journal_policy
from streams_app.journal.agents.findings import journal_findings
from streams_app.journal.store.keys import journal_keys
from streams_app.kafka.facts import KafkaFacts
from streams_app.live.agents.processor import policy_of as view_policy
from streams_app.live.hub.findings import live_findings
from streams_app.live.store.keys import view_keys
from streams_app.read_store.sync.findings import read_store_findings
from streams_app.read_store.sync.processor import policy_of as store_policy
from streams_app.read_store.sync.processor import stored_position as position_of_store
from streams_app.requirements.components import (
    JOURNALS,
    LIVE_VIEWS,
    READ_STORES,
    SUBSCRIBERS,
    DeclaredComponent,
    components_by_kind,
)
from streams_app.requirements.declarations import Declarations
from streams_app.requirements.workload import Workload
from streams_app.subscribers.guarantees.restored_position import policy_of as subscriber_policy
from streams_app.subscribers.running.findings import subscriber_findings
from streams_app.subscribers.state.offset_metadata import decoded, stored_position


class ReachableRedis(NamedTuple):
    """A Redis that answers.

    Attributes:
        servers: Reply to ``INFO`` of each server, or the error if the user may not query it.
    """

    client: Redis
    servers: Collection[Mapping[str, Any]] | NoPermissionError


async def component_findings(
    declarations: Declarations, kafka: KafkaFacts, redis: ReachableRedis | None
) -> AsyncGenerator[Finding, None]:
    """Yield the findings about each read store, subscriber, live view and journal.

    Args:
        redis: None if Kafka or Redis does not answer; then the checks that need either are left out.
    """
    client = None if redis is None else redis.client
    for found in (
        read_store_findings(declarations.settings),
        _of_catalogue(declarations, None if redis is None else kafka),
        live_findings(declarations.settings, kafka, client),
    ):
        async with aclosing(found):
            async for finding in found:
                yield finding
    if redis is not None:
        for finding in journal_findings(declarations.settings, kafka, redis.servers):
            yield finding


async def _of_catalogue(declarations: Declarations, kafka: KafkaFacts | None) -> AsyncGenerator[Finding, None]:
    settings = declarations.settings
    if settings.events.catalogue is None:
        return
    if declarations.fault is not None:
        yield Finding(Level.ERROR, str(declarations.fault), "correct the catalogue, or events.catalogue and [subscribers.NAME]")
        return
    async with aclosing(subscriber_findings(settings, declarations.enabled, declarations.events, kafka)) as found:
        async for finding in found:
            yield finding


class KeptPosition(NamedTuple):
    """Where a kind of component stores its position in a partition: in Redis, or in the commits of its consumer group.

    Attributes:
        policy: Returns what the component of a name does if the log is not the one that was read.
        meta: Returns the key of the hash that has the position, by application id, component, topic and partition; None: a commit
            has it.
        of_commit: Interprets what the commit has of the component; None: Redis has its position.
    """

    policy: Callable[[str], Policy]
    meta: Callable[[str, str, str, int], str] | None = None
    of_commit: Callable[[OffsetAndMetadata], StoredPosition] | None = None


def _position_of_subscriber(position: OffsetAndMetadata) -> StoredPosition:
    return stored_position(position.offset, decoded(position.metadata, position.offset, NO_OFFSET))


POSITIONS: Final = {
    READ_STORES: KeptPosition(store_policy, of_commit=position_of_store),
    LIVE_VIEWS: KeptPosition(view_policy, lambda *names: view_keys(*names).meta),
    JOURNALS: KeptPosition(journal_policy, lambda *names: journal_keys(*names).meta),
    SUBSCRIBERS: KeptPosition(subscriber_policy, of_commit=_position_of_subscriber),
}


def kept_positions(workload: Workload) -> Iterator[tuple[DeclaredComponent, KeptPosition]]:
    """Yield each component of a workload, except folds, with where its positions are."""
    for kind, components in components_by_kind(workload):
        for component in components if kind in POSITIONS else ():
            yield component, POSITIONS[kind]
