"""Commits the initial offsets of a subscriber for the commands ``topics create`` and ``reset``, while no worker runs.

``topics create`` commits them only for a subscriber with ``idempotent = "no"``. For another subscriber, a worker determines the
initial offset at its first claim, see ``guarantees/restored_position.py``. For a subscriber with ``"no"``, a worker must not
determine the initial offset: it cannot distinguish a lost commit from one that never existed, and might run all events a second
time. ``topics create`` makes the first commit before it creates the dead-letter topic. So if that topic exists, there was a commit.

If Kafka does not answer, the functions raise a TryAgainError; if it denies access, a ConfigurationError.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal, TypeAlias

from streams_app.delivery.batch import TP
from streams_app.delivery.group_consumer import PartitionCommit
from streams_app.delivery.offset_metadata import OffsetAndMetadata, commit_of, offsets_in
from streams_app.errors import ConfigurationError
from streams_app.kafka.admin import admin_client, partition_counts
from streams_app.kafka.group_offsets import commits_in, in_group, move
from streams_app.kafka.log_ends import offsets_at, stable_ends
from streams_app.kafka.log_reader import log_reader
from streams_app.kafka.topic_ids import topic_ids
from streams_app.settings import KafkaSettings, Settings
from streams_app.subscribers.declaration.replayed_event import replay_topic
from streams_app.subscribers.declaration.subscription import Subscription
from streams_app.subscribers.state.offset_metadata import OffsetMetadata, encoded
from streams_app.subscribers.state.offset_tracker import NOTHING

At: TypeAlias = Literal["earliest", "latest"] | int
"""Where to begin: at the first record, after the last one, or at a time in ms since 1970."""

NO_METADATA: Final = "the broker keeps no metadata with commits, as the embedded one: idempotent = 'no' cannot be promised there"


def initial_commit(subscriber: str, offset: int, topic_id: str) -> PartitionCommit:
    """Return a commit by which exactly the offsets below ``offset`` are finished."""
    return commit_of({subscriber: OffsetAndMetadata(offset, encoded(offset, OffsetMetadata(topic_id, NOTHING)))})


def how_to_set_offsets(subscriber: str) -> str:
    """Return instructions for an operator: how to set the offsets of a subscriber without a commit that lists its begun events."""
    return (
        "streams-app topics create where it is new or its topic has new partitions, else streams-app reset --subscriber "
        f"{subscriber} --at ...; while no worker runs it"
    )


async def missing_initial_offsets(settings: Settings, subscriptions: Iterable[Subscription]) -> list[str]:
    """Find subscribers that a worker must not run, because no commit shows which events have begun.

    Return one sentence for each, with instructions for an operator.
    """
    faults = []
    for one in subscriptions:
        name, topics = one.subscriber.name, [one.topic, replay_topic(settings.app_id)]
        async with admin_client(settings.kafka) as client:
            counts = await partition_counts(client, topics)
        tps = [TP(topic, number) for topic in topics for number in range(counts.get(topic, 0))]
        commits = await committed(settings, one, tps)
        if missing := len(tps) - len(commits):
            faults.append(f"subscriber {name!r} has no commit in {missing} of {len(tps)} partitions: {how_to_set_offsets(name)}")
        elif not any(commit.metadata for commit in commits.values()):
            faults.append(f"subscriber {name!r}: {NO_METADATA}")
        elif not all(
            (positions := offsets_in(commit)) and name in positions and positions[name].metadata for commit in commits.values()
        ):
            faults.append(f"subscriber {name!r} has a commit that does not record the begun events: {how_to_set_offsets(name)}")
    return faults


def were_added(missing: Iterable[TP], commits: Iterable[TP]) -> bool:
    """Return whether partitions without a commit may have been added to their topics after the first commit.

    This is so if the topic of each such partition has commits, all of them in partitions with lower numbers. If Kafka loses
    commits, it loses those of a whole topic or consumer group, never only those of the last partitions.
    """
    last: dict[str, int] = {}
    for topic, number in commits:
        last[topic] = max(number, last.get(topic, number))
    return all(topic in last and number > last[topic] for topic, number in missing)


async def commits_at(settings: Settings, one: Subscription, at: At, replays_at: At = "latest") -> dict[TP, PartitionCommit]:
    """Return, for each partition, the commit with which a subscriber begins at a given position.

    By default, it skips the events in the replay topic, because its own topic contains them.

    Raises:
        ConfigurationError: A topic does not exist.
    """
    begins: dict[str, At] = {one.topic: at, replay_topic(settings.app_id): replays_at}
    async with admin_client(settings.kafka) as client:
        counts = await partition_counts(client, list(begins))
        if missing := begins.keys() - counts.keys():
            raise ConfigurationError(
                [f"topic {topic!r} does not exist; create it with `streams-app topics create`" for topic in missing]
            )
        ids = await topic_ids(client._client, list(begins))
    found: dict[TP, PartitionCommit] = {}
    for topic, begin in begins.items():
        for tp, offset in (await _offsets(settings.kafka, topic, counts[topic], begin)).items():
            found[tp] = initial_commit(one.subscriber.name, offset, ids[topic])
    return found


async def committed(settings: Settings, one: Subscription, tps: Iterable[TP]) -> dict[TP, PartitionCommit]:
    """Read the commits of a subscriber's consumer group; partitions without a commit are left out."""
    async with in_group(settings.kafka, one.group) as consumer:
        return await commits_in(settings.kafka, consumer, one.group, tps)


async def commit_offsets(settings: Settings, one: Subscription, offsets: Mapping[TP, PartitionCommit]) -> None:
    """Commit offsets of a subscriber. If it must not run events twice, check that the broker has stored their metadata.

    Raises:
        ConfigurationError: A worker runs the subscriber, or the broker has not stored the metadata. In the second case, the offsets
            have been committed.
    """
    async with in_group(settings.kafka, one.group) as consumer:
        await move(settings.kafka, consumer, one.group, offsets)
        commits = await commits_in(settings.kafka, consumer, one.group, offsets)
    if one.subscriber.requires_commit and commits != offsets:
        raise ConfigurationError([f"subscriber {one.subscriber.name!r}: {NO_METADATA}"])


async def commit_initial_offsets(settings: Settings, one: Subscription) -> int:
    """Commit the offsets that ``start`` declares, in all partitions that have no commit; return the number of these."""
    wanted = await commits_at(settings, one, one.subscriber.start)
    commits = await committed(settings, one, wanted)
    missing = {tp: position for tp, position in wanted.items() if tp not in commits}
    if missing:
        await commit_offsets(settings, one, missing)
    return len(missing)


async def _offsets(kafka: KafkaSettings, topic: str, partitions: int, at: At) -> dict[TP, int]:
    async with log_reader(kafka, topic, range(partitions)) as reader:
        tps = sorted(reader.assignment())
        if at == "earliest":
            return {TP(*tp): begin for tp, begin in (await reader.beginning_offsets(tps)).items()}
        ends = await stable_ends(reader, tps)
        if at == "latest":
            return {TP(*tp): end for tp, end in ends.items()}
        return {TP(*tp): offset for tp, offset in (await offsets_at(reader, ends, at)).items()}
