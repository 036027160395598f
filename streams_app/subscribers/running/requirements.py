"""The topics that a worker requires in Kafka, and the rights that it requires on topics and consumer groups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.fold import Fold
from streams_app.folding.metadata_size import faults_of
from streams_app.kafka.admin import Topic, admin_client, require, topics_of
from streams_app.kafka.rights import GROUP, TOPIC, RequiredRight, Right, missing_of
from streams_app.settings import JournalSettings, LiveView, ReadStoreSettings, Settings
from streams_app.subscribers.declaration.loading import catalogue_of
from streams_app.subscribers.declaration.replayed_event import replay_topic
from streams_app.subscribers.declaration.subscription import Subscription, subscriptions_of


async def require_topics(settings: Settings) -> None:
    """Check that the topics and rights of all folds, read stores, subscribers, live views and journals exist.

    Raises:
        ConfigurationError: Topics or rights are missing; the error lists the commands that create or grant them. Or the offsets of
            the folds do not fit into a commit, or the catalogue has a fault.
        TryAgainError: The broker does not answer.
    """
    if too_many := faults_of(settings.folds):
        raise ConfigurationError(too_many)
    await require_rights(settings, needed_rights(settings))
    topics = {topic.name: topic for topic in (*declared_topics(settings), *topics_of(settings))}
    await require(settings.kafka, list(topics.values()))


async def require_rights(settings: Settings, needed: Sequence[RequiredRight]) -> None:
    """Check that the broker grants the needed rights; return without a check if it does not answer.

    A missing right is an error and not an outage, because waiting does not grant it.

    Raises:
        ConfigurationError: Rights are missing; the error lists the commands that grant them. Or the broker denies access.
    """
    try:
        async with admin_client(settings.kafka) as client:
            missing = await missing_of(client, needed)
    except TryAgainError:
        return
    if missing:
        raise ConfigurationError([f"{one}: {one.command(settings.kafka)}" for one in missing])


def declared_topics(settings: Settings) -> list[Topic]:
    """Return the topics of events, of dead letters and of replayed events; none without a catalogue.

    Raises:
        ConfigurationError: The catalogue cannot be imported, or contradicts the settings.
    """
    if settings.events.catalogue is None:
        return []
    catalogue = catalogue_of(settings)
    subscriptions = subscriptions_of(catalogue, settings)
    events: dict[str, list[str]] = defaultdict(list)
    for event in catalogue.events:
        events[event.topic].append(event.key)
    found = [Topic(topic, "events", tuple(keys)) for topic, keys in events.items()]
    found += [Topic(one.dead_letters, "dead letters", (one.subscriber.name,)) for one in subscriptions]
    if subscriptions:
        names = tuple(one.subscriber.name for one in subscriptions)
        found.append(Topic(replay_topic(settings.app_id), "put back", names))
    return found


def enabled_subscriptions(settings: Settings) -> list[Subscription]:
    """Return the enabled subscribers; none without a catalogue.

    Raises:
        ConfigurationError: The catalogue cannot be imported, or contradicts the settings.
    """
    if settings.events.catalogue is None:
        return []
    return [one for one in subscriptions_of(catalogue_of(settings), settings) if one.subscriber.is_enabled]


def needed_rights(settings: Settings) -> list[RequiredRight]:
    """Return the Kafka rights of a worker that runs everything, including the right to describe each topic.

    Raises:
        ConfigurationError: The catalogue cannot be imported, or contradicts the settings.
    """
    found = [
        *of_folds(settings.app_id, settings.folds),
        *rights_without_folds(
            settings, settings.read_stores, enabled_subscriptions(settings), settings.live_of_topics, settings.journals
        ),
    ]
    used = {one.name for one in found if one.kind == TOPIC}
    topics: list[Topic] = [*declared_topics(settings), *topics_of(settings)]
    return found + [RequiredRight(Right.DESCRIBE, TOPIC, topic.name, topic.role) for topic in topics if topic.name not in used]


def rights_without_folds(
    settings: Settings,
    stores: Sequence[ReadStoreSettings],
    subscriptions: Sequence[Subscription],
    views: Sequence[LiveView],
    journals: Sequence[JournalSettings] = (),
) -> Iterator[RequiredRight]:
    """Yield the Kafka rights that read stores, subscribers, live views and journals need."""
    app_id = settings.app_id
    for store in stores:
        what = f"read store {store.name}"
        for fold in store.folds:
            yield RequiredRight(Right.READ, TOPIC, settings.fold(fold).output, what)
        yield RequiredRight(Right.WRITE, TOPIC, store.dead_letters, f"dead letters of {what}")
        yield RequiredRight(Right.READ, GROUP, f"{app_id}.{store.group}", what)
    for one in subscriptions:
        what = f"subscriber {one.subscriber.name}"
        yield RequiredRight(Right.READ, TOPIC, one.topic, what)
        yield RequiredRight(Right.READ, TOPIC, replay_topic(app_id), f"put back for {what}")
        yield RequiredRight(Right.WRITE, TOPIC, one.dead_letters, f"dead letters of {what}")
        yield RequiredRight(Right.READ, GROUP, one.group, what)
    for view in views:
        what = f"live view {view.name}"
        yield RequiredRight(Right.READ, TOPIC, view.source, f"source of {what}")
        yield RequiredRight(Right.WRITE, TOPIC, view.dead_letters, f"dead letters of {what}")
        yield RequiredRight(Right.READ, GROUP, f"{app_id}.{view.group}", what)
    for journal in journals:
        what = f"journal {journal.name}"
        yield RequiredRight(Right.READ, TOPIC, journal.source, f"source of {what}")
        yield RequiredRight(Right.READ, GROUP, f"{app_id}.{journal.group}", what)


def of_folds(app_id: str, folds: Sequence[Fold]) -> Iterator[RequiredRight]:
    """Yield the Kafka rights that folds need; the name of their consumer group is the id of the application."""
    for fold in folds:
        what = f"fold {fold.name}"
        yield RequiredRight(Right.READ, TOPIC, fold.source, f"source of {what}")
        yield RequiredRight(Right.WRITE, TOPIC, fold.output, f"output of {what}")
        yield RequiredRight(Right.WRITE, TOPIC, fold.dead_letters, f"dead letters of {what}")
        yield RequiredRight(Right.READ, GROUP, app_id, what)
