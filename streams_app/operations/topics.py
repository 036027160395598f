"""Creates topics, and the initial offsets of new subscribers with ``idempotent = "no"``, before the first worker starts.

The command is ``streams-app topics create``. An operator has to run it again after partitions were added, because a subscriber with
``idempotent = "no"`` reads no partition without a commit.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from streams_app.delivery.batch import TP
from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.kafka.admin import Topic, admin_client, create_topics, partition_counts
from streams_app.operations.groups import redis_of
from streams_app.requirements.components import topics_of
from streams_app.requirements.workload import declared
from streams_app.settings import Settings
from streams_app.subscribers.declaration.loading import catalogue_of
from streams_app.subscribers.declaration.subscription import Subscription, subscriptions_of
from streams_app.subscribers.state.initial_offsets import commit_initial_offsets, commit_offsets, commits_at, committed, were_added
from streams_app.subscribers.state.keys import SubscriberKeys


@dataclass(slots=True)
class TopicChanges:
    """Result of ``streams-app topics create``.

    Attributes:
        started: For each new subscriber with ``idempotent = "no"``, the number of partitions that got an initial offset.
        extended: For each existing subscriber with ``idempotent = "no"``, the partitions that were added to its topics. It reads
            them from their first record. A subscriber without added partitions is omitted.
        faults: Descriptions of what failed, one sentence each.
    """

    created: list[str] = field(default_factory=list)
    existing: list[str] = field(default_factory=list)
    started: dict[str, int] = field(default_factory=dict)
    extended: dict[str, list[TP]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


async def create_missing_topics(settings: Settings) -> TopicChanges:
    """Create missing topics, and commit initial offsets for subscribers with ``idempotent = "no"``.

    A new subscriber gets initial offsets by its ``start``, an existing one only in added partitions. The dead-letter topic of a new
    subscriber is created after the commit, because its existence shows that the subscriber is no longer new. After a crash between
    the two, the next call does both again.

    Raises:
        TryAgainError: Kafka or Redis does not answer. Redis is needed to tell whether partitions are new.
    """
    topics = {topic.name: topic for topic in topics_of(declared(settings))}
    async with admin_client(settings.kafka) as client:
        there = await partition_counts(client, list(topics))
    unrepeatable = _unrepeatable(settings)
    new = [one for one in unrepeatable if one.dead_letters not in there]
    last = {one.dead_letters for one in new}
    changes = TopicChanges()
    await _create(settings, changes, [topic for topic in topics.values() if topic.name not in last])
    for one in new:
        try:
            changes.started[one.subscriber.name] = await commit_initial_offsets(settings, one)
        except ConfigurationError as error:
            changes.faults += error.faults
        else:
            await _create(settings, changes, [topics[one.dead_letters]])
    for one in unrepeatable:
        if one not in new:
            try:
                extended = await _start_in_new_partitions(settings, one)
            except ConfigurationError as error:
                changes.faults += error.faults
            else:
                changes.extended |= {one.subscriber.name: extended} if extended else {}
    return changes


async def _start_in_new_partitions(settings: Settings, one: Subscription) -> list[TP]:
    """Commit the offset of the first record in added partitions, because the subscriber has handled none of their records.

    If the subscriber has no commit in any partition, all its commits are lost. Then do nothing; ``check`` and the worker report it.

    Returns:
        The added partitions; empty if there are none.

    Raises:
        ConfigurationError: The commits of the subscriber are lost in some partitions, or a worker runs it.
    """
    name = one.subscriber.name
    wanted = await commits_at(settings, one, "earliest", replays_at="earliest")
    commits = await committed(settings, one, wanted)
    missing = sorted(wanted.keys() - commits.keys())
    if not missing or not commits:
        return []
    if not were_added(missing, commits) or await _has_served(settings, one, missing):
        lost = f"subscriber {name!r} has no commit in {', '.join(map(str, missing))}, which it has read before"
        raise ConfigurationError([f"{lost}: streams-app reset --subscriber {name} --at ..."])
    await commit_offsets(settings, one, {tp: wanted[tp] for tp in missing})
    return missing


async def _has_served(settings: Settings, one: Subscription, tps: list[TP]) -> bool:
    """Return whether a worker has ever claimed one of these partitions, according to Redis. If so, the missing commit was lost."""
    keys = [SubscriberKeys(settings.app_id, one.subscriber.name, *tp).state[0] for tp in tps]
    try:
        async with redis_of(settings) as redis:
            return any([await redis.exists(key) for key in keys])
    except TryAgainError as error:
        new = f"whether {', '.join(map(str, tps))} are new to subscriber {one.subscriber.name!r}"
        raise TryAgainError(f"{error}; only Redis can tell {new}") from error


async def _create(settings: Settings, changes: TopicChanges, topics: list[Topic]) -> None:
    created, existing = await create_topics(settings.kafka, topics)
    changes.created += created
    changes.existing += existing


def _unrepeatable(settings: Settings) -> list[Subscription]:
    if settings.events.catalogue is None:
        return []
    return [one for one in subscriptions_of(catalogue_of(settings), settings) if one.subscriber.requires_commit]
