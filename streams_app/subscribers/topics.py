"""The topics that an application needs: those of its catalogue, beside those of its folds and read stores."""

from __future__ import annotations

from collections import defaultdict

from streams_app.kafka.admin import Topic
from streams_app.settings import Settings
from streams_app.subscribers.loading import catalogue_of
from streams_app.subscribers.original_position import again_topic
from streams_app.subscribers.subscription import subscriptions_of


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
