"""What a worker must find in Kafka before it starts: its topics, and the rights on what it reads and writes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from streams_app.errors import ConfigurationError, TryAgainError
from streams_app.fold import Fold
from streams_app.folding.metadata_size import faults_of
from streams_app.kafka.admin import Topic, admin_client, require, topics_of
from streams_app.kafka.rights import GROUP, TOPIC, Needed, Right, missing_of
from streams_app.settings import JournalSettings, LiveView, ReadStoreSettings, Settings
from streams_app.subscribers.declaration.loading import catalogue_of
from streams_app.subscribers.declaration.original_position import again_topic
from streams_app.subscribers.declaration.subscription import Subscription, subscriptions_of


async def require_topics(settings: Settings) -> None:
    """Refuses to start a worker any of whose topics or rights is missing, of folds, read stores, subscribers or live views.

    Raises:
        ConfigurationError: Topics or rights are missing, all of which it names with the command that creates or grants them; or the
            marks of the folds do not fit into a commit; or the catalogue has a fault.
        TryAgainError: The broker cannot be reached.
    """
    if too_many := faults_of(settings.folds):
        raise ConfigurationError(too_many)
    await require_rights(settings, needed_rights(settings))
    topics = {topic.name: topic for topic in (*declared_topics(settings), *topics_of(settings))}
    await require(settings.kafka, list(topics.values()))


async def require_rights(settings: Settings, needed: Sequence[Needed]) -> None:
    """Refuses to start where a right is missing: no waiting grants it. A broker that is away is left to whoever asks it next.

    Raises:
        ConfigurationError: Each right that is missing, with the command that grants it; or the broker does not let us in.
    """
    try:
        async with admin_client(settings.kafka) as client:
            missing = await missing_of(client, needed)
    except TryAgainError:
        return
    if missing:
        raise ConfigurationError([f"{one}: {one.command(settings.kafka)}" for one in missing])


def declared_topics(settings: Settings) -> list[Topic]:
    """Topics of events, of dead letters and of what was put back; none without a catalogue.

    Raises:
        ConfigurationError: The catalogue cannot be imported, or does not fit the settings.
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
        found.append(Topic(again_topic(settings.app_id), "put back", names))
    return found


def enabled_of(settings: Settings) -> list[Subscription]:
    """The subscribers that are enabled; none without a catalogue.

    Raises:
        ConfigurationError: The catalogue cannot be imported, or does not fit the settings.
    """
    if settings.events.catalogue is None:
        return []
    return [one for one in subscriptions_of(catalogue_of(settings), settings) if one.subscriber.is_enabled]


def needed_rights(settings: Settings) -> list[Needed]:
    """What a worker that runs everything needs; it also looks whether each topic is there.

    Raises:
        ConfigurationError: The catalogue cannot be imported, or does not fit the settings.
    """
    found = [
        *of_folds(settings.app_id, settings.folds),
        *needed_apart(settings, settings.read_stores, enabled_of(settings), settings.live_of_topics, settings.journals),
    ]
    used = {one.name for one in found if one.kind == TOPIC}
    topics: list[Topic] = [*declared_topics(settings), *topics_of(settings)]
    return found + [Needed(Right.DESCRIBE, TOPIC, topic.name, topic.role) for topic in topics if topic.name not in used]


def needed_apart(
    settings: Settings,
    stores: Sequence[ReadStoreSettings],
    subscriptions: Sequence[Subscription],
    views: Sequence[LiveView],
    journals: Sequence[JournalSettings] = (),
) -> Iterator[Needed]:
    """What read stores, subscribers, live views and journals need."""
    app_id = settings.app_id
    for store in stores:
        what = f"read store {store.name}"
        for fold in store.folds:
            yield Needed(Right.READ, TOPIC, settings.fold(fold).output, what)
        yield Needed(Right.WRITE, TOPIC, store.dead_letters, f"dead letters of {what}")
        yield Needed(Right.READ, GROUP, f"{app_id}.{store.group}", what)
    for one in subscriptions:
        what = f"subscriber {one.subscriber.name}"
        yield Needed(Right.READ, TOPIC, one.topic, what)
        yield Needed(Right.READ, TOPIC, again_topic(app_id), f"put back for {what}")
        yield Needed(Right.WRITE, TOPIC, one.dead_letters, f"dead letters of {what}")
        yield Needed(Right.READ, GROUP, one.group, what)
    for view in views:
        what = f"live view {view.name}"
        yield Needed(Right.READ, TOPIC, view.source, f"source of {what}")
        yield Needed(Right.WRITE, TOPIC, view.dead_letters, f"dead letters of {what}")
        yield Needed(Right.READ, GROUP, f"{app_id}.{view.group}", what)
    for journal in journals:
        what = f"journal {journal.name}"
        yield Needed(Right.READ, TOPIC, journal.source, f"source of {what}")
        yield Needed(Right.READ, GROUP, f"{app_id}.{journal.group}", what)


def of_folds(app_id: str, folds: Sequence[Fold]) -> Iterator[Needed]:
    """What folds need, whose consumer group is called as the application."""
    for fold in folds:
        what = f"fold {fold.name}"
        yield Needed(Right.READ, TOPIC, fold.source, f"source of {what}")
        yield Needed(Right.WRITE, TOPIC, fold.output, f"output of {what}")
        yield Needed(Right.WRITE, TOPIC, fold.dead_letters, f"dead letters of {what}")
        yield Needed(Right.READ, GROUP, app_id, what)
