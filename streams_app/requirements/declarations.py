"""What an application declares, by its settings and its catalogue, also if these contradict each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from streams_app.errors import StreamsAppError
from streams_app.events.declaration import Event
from streams_app.kafka.rights import TOPIC, RequiredRight, Right
from streams_app.requirements.components import inputs_of, rights_of, topics_of
from streams_app.requirements.workload import Workload, declared, without_subscribers
from streams_app.settings import Settings
from streams_app.subscribers.declaration.loading import catalogue_of
from streams_app.subscribers.declaration.subscription import Subscription


@dataclass(frozen=True, slots=True)
class Declarations:
    """What settings and catalogue declare.

    Attributes:
        workload: All that is declared, disabled subscribers included. Without events and subscribers if there is a ``fault``.
        events: Events of the catalogue, even if it contradicts the settings.
        fault: Why the catalogue cannot be used; None: it can be, or there is none.
    """

    settings: Settings
    workload: Workload
    events: Sequence[Event[Any, Any]] = ()
    fault: StreamsAppError | None = None

    @property
    def enabled(self) -> list[Subscription]:
        return [one for one in self.workload.subscriptions if one.subscriber.is_enabled]

    @property
    def running(self) -> Workload:
        """What workers run."""
        return self.workload._replace(subscriptions=self.enabled)

    def required_rights(self) -> list[RequiredRight]:
        """Return the rights that workers need; none if the catalogue cannot be used."""
        if self.fault is not None:
            return []
        return rights_of(self.running, topics_of(self.workload))

    def useful_rights(self) -> Iterator[RequiredRight]:
        """Yield the rights to describe the retention of sources, and to publish events that this application does not read."""
        if self.fault is not None:
            return
        compared = self.running._replace(stores=())  # no check compares how long an output is kept for its store
        for topic in sorted(inputs_of(compared)):
            yield RequiredRight(Right.DESCRIBE_CONFIGS, TOPIC, topic, "check cannot see how long it is kept")
        for event in self.events:
            if event.topic not in {*self.settings.sources, *(one.topic for one in self.enabled)}:
                yield RequiredRight(Right.WRITE, TOPIC, event.topic, f"event {event.key} cannot be published")


def declarations_of(settings: Settings) -> Declarations:
    """Import the catalogue, once even if this fails, because a module of the user may take long to fail."""
    events: Sequence[Event[Any, Any]] = ()
    try:
        if settings.events.catalogue is not None:
            events = catalogue_of(settings).events
        return Declarations(settings, declared(settings), events)
    except StreamsAppError as error:
        return Declarations(settings, without_subscribers(settings), events, error)
