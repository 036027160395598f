"""The subscribers of an application: the catalogue combined with the settings (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from streams_app.errors import ConfigurationError
from streams_app.fold import TOPIC_NAME
from streams_app.formatting import suggestion
from streams_app.settings import Settings, SubscriberSettings
from streams_app.subscribers.declaration.catalogue import Catalogue
from streams_app.subscribers.declaration.replayed_event import replay_topic
from streams_app.subscribers.declaration.subscriber import Records, Subscriber, rate_of


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscriber with its topics and its consumer group.

    Attributes:
        group: Its consumer group, ``<app_id>.<name>``.
        dead_letters: Its dead-letter topic, which no other subscriber uses.
    """

    subscriber: Subscriber[Any, Any, Any]
    topic: str
    group: str
    dead_letters: str


def subscriptions_of(catalogue: Catalogue, settings: Settings) -> tuple[Subscription, ...]:
    """Combine the catalogue with the settings; disabled subscribers are included, in the order of the catalogue.

    Raises:
        ConfigurationError: The catalogue and the settings contradict each other; the error lists all faults.
    """
    all_chosen, faults = overridden(catalogue, settings.subscribers)
    found = []
    for chosen in all_chosen:
        topic, fault = _topic(chosen, settings)
        faults += fault
        found.append(Subscription(chosen, topic, f"{settings.app_id}.{chosen.name}", dead_letter_topic(topic, chosen.name)))
    faults += _clashes(catalogue, settings, found)
    if faults:
        raise ConfigurationError(faults)
    return tuple(found)


def overridden(catalogue: Catalogue, settings: Iterable[SubscriberSettings]) -> tuple[list[Subscriber[Any, Any, Any]], list[str]]:
    """Apply the settings sections ``[subscribers.NAME]`` to the subscribers of a catalogue.

    Returns:
        The subscribers with their settings applied, and all faults of the settings. A subscriber whose settings have a fault is
        returned as declared.
    """
    overrides = {one.name: one for one in settings}
    names = [one.name for one in catalogue.subscribers]
    faults = [
        f"subscribers.{name}: there is no subscriber {name!r}{suggestion(name, names)}" for name in overrides if name not in names
    ]
    found = []
    for declared in catalogue.subscribers:
        try:
            found.append(_overridden(declared, overrides.get(declared.name)))
        except ConfigurationError as error:
            faults += [f"subscribers.{declared.name}: {fault}" for fault in error.faults]
            found.append(declared)
    return found, faults


def dead_letter_topic(topic: str, subscriber: str) -> str:
    """Return the name of the dead-letter topic of a subscriber that reads ``topic``."""
    return f"{topic}.{subscriber}.dead"


def _overridden(declared: Subscriber[Any, Any, Any], settings: SubscriberSettings | None) -> Subscriber[Any, Any, Any]:
    if settings is None:
        return declared
    given = settings.model_dump(exclude_none=True, exclude={"name"})
    faults: list[str] = []
    if "rate" in given:
        given["rate"] = rate_of(given["rate"], faults)
    if "enabled" in given:
        given["is_enabled"] = given.pop("enabled")
    rule = {key: given.pop(key) for key in ("attempts", "first", "longest") if key in given}
    retry, chosen = declared.retry, declared
    try:
        retry = replace(retry, **rule)
    except ConfigurationError as error:
        faults += error.faults
    try:
        chosen = replace(declared, retry=retry, **given)
    except ConfigurationError as error:
        # The caller prepends the settings section instead.
        faults += [fault.removeprefix(f"subscriber {declared.name!r}: ") for fault in error.faults]
    if faults:
        raise ConfigurationError(faults)
    return chosen


def _topic(declared: Subscriber[Any, Any, Any], settings: Settings) -> tuple[str, list[str]]:
    if not isinstance(declared.source, Records):
        return declared.source.topic, []
    names = [fold.name for fold in settings.folds]
    for fold in settings.folds:
        if fold.name == declared.source.fold:
            return fold.output, []
    wanted = declared.source.fold
    return wanted, [f"subscriber {declared.name!r}: there is no fold {wanted!r}{suggestion(wanted, names)}"]


def _clashes(catalogue: Catalogue, settings: Settings, found: list[Subscription]) -> list[str]:
    folds = {fold.name for fold in settings.folds}
    faults = [f"{name!r} is both a fold and a subscriber" for one in found if (name := one.subscriber.name) in folds]
    written = {topic for fold in settings.folds for topic in (fold.output, fold.dead_letters)}
    # These topics contain no events: a fold would read its own output, or a subscriber would process dead letters.
    faults += [
        f"event {event.key!r}: the topic {event.topic!r} holds what a fold writes"
        for event in catalogue.events
        if event.topic in written
    ]
    dead_letter_topics = {store.dead_letters for store in settings.read_stores}
    faults += [
        f"event {event.key!r}: the topic {event.topic!r} holds the dead letters of a read store"
        for event in catalogue.events
        if event.topic in dead_letter_topics
    ]
    read = {*written, *dead_letter_topics, *settings.sources, *(event.topic for event in catalogue.events)}
    if (replays_topic := replay_topic(settings.app_id)) in read:
        faults.append(f"the topic {replays_topic!r} holds replayed events of subscribers, and has another use")
    for one in found:
        if one.dead_letters in read:
            faults.append(f"subscriber {one.subscriber.name!r}: its dead-letter topic {one.dead_letters!r} has another use")
        elif not TOPIC_NAME.fullmatch(one.dead_letters):
            faults.append(f"subscriber {one.subscriber.name!r}: {one.dead_letters!r} is too long for a topic")
    return faults
