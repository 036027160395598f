"""The topics that a workload requires."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from streams_app.kafka.admin import Topic
from streams_app.requirements.workload import Workload
from streams_app.subscribers.declaration.replayed_event import replay_topic


def topics_of(workload: Workload) -> list[Topic]:
    """Return the topics of a workload, each topic once.

    A topic with several roles is returned with one of them. In order of preference, the roles are ``source``, ``output`` and
    ``dead letters`` of folds, those of read stores, live views and journals, and those of events and subscribers.
    """
    found = {topic.name: topic for topic in _of_subscribers(workload)}
    return list((found | {topic.name: topic for topic in _of_others(workload)}).values())


def _of_subscribers(workload: Workload) -> Iterator[Topic]:
    """Yield the topics of events, of dead letters and of replayed events."""
    events: dict[str, list[str]] = defaultdict(list)
    for event in workload.events:
        events[event.topic].append(event.key)
    for topic, keys in events.items():
        yield Topic(topic, "events", tuple(keys))
    for one in workload.subscriptions:
        yield Topic(one.dead_letters, "dead letters", (one.subscriber.name,))
    if names := tuple(one.subscriber.name for one in workload.subscriptions):
        yield Topic(replay_topic(workload.settings.app_id), "put back", names)


def _of_others(workload: Workload) -> list[Topic]:
    found: dict[str, tuple[str, list[str]]] = {}

    def add(topic: str, role: str, user: str) -> None:
        found.setdefault(topic, (role, []))[1].append(user)

    for role, attribute in (("source", "source"), ("output", "output"), ("dead letters", "dead_letters")):
        for fold in workload.folds:
            add(getattr(fold, attribute), role, fold.name)
    for store in workload.stores:
        add(store.dead_letters, "dead letters", store.name)
        for name in store.folds:
            # The fold is the user: an operator learns which fold must have produced the topic.
            output = workload.settings.fold(name).output
            if output not in found:
                add(output, "output", name)
    for view in workload.views:
        add(view.source, "source", view.name)
    for view in workload.views:
        add(view.dead_letters, "dead letters", view.name)
    for journal in workload.journals:
        add(journal.source, "source", journal.name)
    return [Topic(name, role, tuple(users)) for name, (role, users) in found.items()]
