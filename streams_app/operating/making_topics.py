"""Makes what an application needs before its first worker starts: its topics, and the places of new subscribers."""

from __future__ import annotations

from dataclasses import dataclass, field

from streams_app.errors import ConfigurationError
from streams_app.kafka.admin import Topic, admin_client, create_topics, partition_counts, topics_of
from streams_app.settings import Settings
from streams_app.subscribers.loading import catalogue_of
from streams_app.subscribers.placing import place_new
from streams_app.subscribers.subscription import Subscription, subscriptions_of
from streams_app.subscribers.topics import declared_topics


@dataclass(slots=True)
class Made:
    """What was done.

    Attributes:
        created: Topics that were made.
        existing: Topics that were there.
        placed: New subscriber → in how many partitions its begin is committed now.
        faults: What could not be done, a sentence each.
    """

    created: list[str] = field(default_factory=list)
    existing: list[str] = field(default_factory=list)
    placed: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


async def make_topics(settings: Settings) -> Made:
    """Creates the topics that are missing, and places each new subscriber with ``idempotent = "no"`` by its ``start``.

    The dead-letter topic of such a subscriber is made after its begin is committed: that it is there says that the subscriber is no
    longer new. After a crash in between, the next call does both.

    Raises:
        ConfigurationError: The broker refused a topic, or the catalogue has a fault.
        TryAgainError: Kafka does not answer.
    """
    topics = {topic.name: topic for topic in (*declared_topics(settings), *topics_of(settings))}
    async with admin_client(settings.kafka) as client:
        there = await partition_counts(client, list(topics))
    new = [one for one in _unrepeatable(settings) if one.dead_letters not in there]
    last = {one.dead_letters for one in new}
    made = Made()
    await _create(settings, made, [topic for topic in topics.values() if topic.name not in last])
    for one in new:
        try:
            made.placed[one.subscriber.name] = await place_new(settings, one)
        except ConfigurationError as error:
            made.faults += error.faults
        else:
            await _create(settings, made, [topics[one.dead_letters]])
    return made


async def _create(settings: Settings, made: Made, topics: list[Topic]) -> None:
    created, existing = await create_topics(settings.kafka, topics)
    made.created += created
    made.existing += existing


def _unrepeatable(settings: Settings) -> list[Subscription]:
    if settings.events.catalogue is None:
        return []
    return [one for one in subscriptions_of(catalogue_of(settings), settings) if one.subscriber.idempotent == "no"]
