"""The kinds of components: folds, read stores, subscribers, live views and journals, each described in one place.

A description says which topics, rights, consumer group and keys a component has. Whoever needs something of every component
iterates over :data:`COMPONENTS`: the checks at the start and ``check``, ``topics``, ``reset``, and the removal of the demo.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final, NamedTuple

from streams_app.fold import Fold
from streams_app.folding.store.keys import fold_pattern
from streams_app.journal.store.keys import journal_pattern
from streams_app.kafka.admin import Topic
from streams_app.kafka.rights import GROUP, TOPIC, RequiredRight, Right
from streams_app.live.store.keys import presence_pattern, view_pattern
from streams_app.requirements.workload import Workload
from streams_app.settings import JournalSettings, LiveView, ReadStoreSettings, Settings
from streams_app.subscribers.declaration.loading import catalogue_of
from streams_app.subscribers.declaration.replayed_event import replay_topic
from streams_app.subscribers.declaration.subscription import Subscription
from streams_app.subscribers.state.keys import scan_pattern

SOURCE: Final = "source"
OUTPUT: Final = "output"
DEAD_LETTERS: Final = "dead letters"
REPLAYED: Final = "put back"


class TopicUse(NamedTuple):
    """A topic that a component reads or writes.

    Attributes:
        role: Role of the topic, as in :class:`.Topic`; "": another component or an event declares the topic.
        why: Beginning of the reason for the right, which ends with the component.
        user: Name by which operators know the producer of the topic; "": the name of the component.
    """

    right: Right
    topic: str
    role: str
    why: str = ""
    user: str = ""


class DeclaredComponent(NamedTuple):
    """One component of an application.

    Attributes:
        what: Kind and name, as in ``journal accounts``.
        group: Complete name of its consumer group.
        uses: Its topics; if several components use a topic in different roles, the earlier one in their lists is named.
    """

    what: str
    name: str
    group: str
    uses: tuple[TopicUse, ...]

    def rights(self) -> Iterator[RequiredRight]:
        """Yield the rights on its topics and its group."""
        for use in self.uses:
            yield RequiredRight(use.right, TOPIC, use.topic, f"{use.why}{self.what}")
        yield RequiredRight(Right.READ, GROUP, self.group, self.what)

    @property
    def inputs(self) -> list[str]:
        """Topics that it reads, except that of replayed events."""
        return [use.topic for use in self.uses if use.right is Right.READ and use.role != REPLAYED]


@dataclass(frozen=True, slots=True)
class ComponentKind:
    """A kind of component.

    Attributes:
        what: The kind in messages, as in ``live view``.
        header: Header of a dead letter that names the component; "": it rejects no records.
        names: Returns the names of the declared components.
        describe: Describes a component, given as its settings or declaration.
        state: Returns the patterns of all its keys in Redis, by application id and name; None: it has no state there.
    """

    what: str
    header: str
    names: Callable[[Settings], list[str]]
    describe: Callable[[Settings, Any], DeclaredComponent]
    state: Callable[[str, str], tuple[str, ...]] | None = None


def reads(topic: str, role: str = SOURCE) -> TopicUse:
    """Return that a component reads a topic, as its source."""
    return TopicUse(Right.READ, topic, role, f"{SOURCE} of ")


def rejects_to(topic: str) -> TopicUse:
    """Return that a component writes its dead letters to a topic."""
    return TopicUse(Right.WRITE, topic, DEAD_LETTERS, f"{DEAD_LETTERS} of ")


def _fold(settings: Settings, fold: Fold) -> DeclaredComponent:
    output = TopicUse(Right.WRITE, fold.output, OUTPUT, f"{OUTPUT} of ")
    uses = (reads(fold.source), output, rejects_to(fold.dead_letters))
    # All folds share one consumer group.
    return DeclaredComponent(f"fold {fold.name}", fold.name, settings.app_id, uses)


FOLDS: Final = ComponentKind(
    "fold",
    "fold",
    lambda settings: [fold.name for fold in settings.folds],
    _fold,
    lambda app_id, name: (fold_pattern(app_id, name),),
)


def _read_store(settings: Settings, store: ReadStoreSettings) -> DeclaredComponent:
    # The fold is the user: an operator learns which fold must have produced the topic.
    outputs = (TopicUse(Right.READ, settings.fold(name).output, OUTPUT, user=name) for name in store.folds)
    group = f"{settings.app_id}.{store.group}"
    return DeclaredComponent(f"read store {store.name}", store.name, group, (*outputs, rejects_to(store.dead_letters)))


READ_STORES: Final = ComponentKind(
    "read store", "store", lambda settings: [store.name for store in settings.read_stores], _read_store
)


def _view(settings: Settings, view: LiveView) -> DeclaredComponent:
    uses = (reads(view.source), rejects_to(view.dead_letters))
    return DeclaredComponent(f"live view {view.name}", view.name, f"{settings.app_id}.{view.group}", uses)


LIVE_VIEWS: Final = ComponentKind(
    "live view",
    "view",
    lambda settings: [view.name for view in settings.live],
    _view,
    lambda app_id, name: (view_pattern(app_id, name), presence_pattern(app_id, name)),
)
"""A view of the presence of browsers has state, but reads no topic: it is no part of a workload."""


def _journal(settings: Settings, journal: JournalSettings) -> DeclaredComponent:
    group = f"{settings.app_id}.{journal.group}"
    return DeclaredComponent(f"journal {journal.name}", journal.name, group, (reads(journal.source),))


JOURNALS: Final = ComponentKind(
    "journal",
    "",
    lambda settings: [journal.name for journal in settings.journals],
    _journal,
    lambda app_id, name: (journal_pattern(app_id, name),),
)


def _subscriber(settings: Settings, one: Subscription) -> DeclaredComponent:
    uses = (
        TopicUse(Right.READ, one.topic, ""),
        TopicUse(Right.READ, replay_topic(settings.app_id), REPLAYED, f"{REPLAYED} for "),
        rejects_to(one.dead_letters),
    )
    return DeclaredComponent(f"subscriber {one.subscriber.name}", one.subscriber.name, one.group, uses)


def _subscriber_names(settings: Settings) -> list[str]:
    return [] if settings.events.catalogue is None else [one.name for one in catalogue_of(settings).subscribers]


SUBSCRIBERS: Final = ComponentKind(
    "subscriber", "subscriber", _subscriber_names, _subscriber, lambda app_id, name: (scan_pattern(app_id, name),)
)

COMPONENTS: Final[Sequence[tuple[ComponentKind, str]]] = (
    (FOLDS, "folds"),
    (READ_STORES, "stores"),
    (LIVE_VIEWS, "views"),
    (JOURNALS, "journals"),
    (SUBSCRIBERS, "subscriptions"),
)
"""Every kind of component, with its field of :class:`.Workload`. If a topic has several roles, the first kind decides."""


def kind_of(what: str) -> ComponentKind:
    """Return the kind that messages call ``what``, as in ``live view``."""
    return next(kind for kind, _ in COMPONENTS if kind.what == what)


def components_of(workload: Workload) -> list[DeclaredComponent]:
    """Return the components of a workload, by kind."""
    return [one for _, of_kind in components_by_kind(workload) for one in of_kind]


def inputs_of(workload: Workload) -> set[str]:
    """Return the topics that the components of a workload read, except that of replayed events."""
    return {topic for one in components_of(workload) for topic in one.inputs}


def dead_letter_topics(workload: Workload) -> dict[tuple[str, str], str]:
    """Map each component that may reject records, as the header of its kind and its name, to its dead-letter topic."""
    return {
        (kind.header, one.name): use.topic
        for kind, components in components_by_kind(workload)
        for one in components
        for use in one.uses
        if use.role == DEAD_LETTERS
    }


def components_by_kind(workload: Workload) -> Iterator[tuple[ComponentKind, list[DeclaredComponent]]]:
    """Yield each kind with its components, also if there are none."""
    for kind, part in COMPONENTS:
        yield kind, [kind.describe(workload.settings, declared) for declared in getattr(workload, part)]


def rights_of(workload: Workload, topics: Sequence[Topic]) -> list[RequiredRight]:
    """Return the rights that a workload needs in Kafka: on topics, on consumer groups, and to describe the given topics."""
    found = [right for one in components_of(workload) for right in one.rights()]
    used = {right.name for right in found if right.kind == TOPIC}
    return found + [RequiredRight(Right.DESCRIBE, TOPIC, topic.name, topic.role) for topic in topics if topic.name not in used]


def topics_of(workload: Workload) -> list[Topic]:
    """Return the topics of a workload, each topic once.

    A topic with several roles is returned with one of them: that of the first kind in :data:`COMPONENTS`, and within a kind the
    first one that its components list, such as ``source``, ``output``, ``dead letters``. The topics of events come first.
    """
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for _, components in components_by_kind(workload):
        for topic, role, user in _uses_of(components):
            found.setdefault(topic, (role, {}))[1][user] = None
    events: dict[str, list[str]] = defaultdict(list)
    for event in workload.events:
        events[event.topic].append(event.key)
    of_events = [Topic(name, "events", tuple(keys)) for name, keys in events.items() if name not in found]
    return of_events + [Topic(name, role, tuple(users)) for name, (role, users) in found.items()]


def _uses_of(components: Iterable[DeclaredComponent]) -> Iterable[tuple[str, str, str]]:
    """Yield topic, role and user: first the first use of each component, then the second one of each."""
    for uses in zip_longest(*([(use, one.name) for use in one.uses] for one in components)):
        for found in uses:
            if found is not None and found[0].role:
                use, name = found
                yield use.topic, use.role, use.user or name
