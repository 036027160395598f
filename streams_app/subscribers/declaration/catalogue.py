"""Catalogue of an application: its events and its subscribers (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import Any

from streams_app.errors import ConfigurationError
from streams_app.events.declaration import Event
from streams_app.formatting import suggestion
from streams_app.subscribers.declaration.subscriber import Records, Subscriber

Lifespan = Callable[[], AbstractAsyncContextManager[Any]]


@dataclass(frozen=True, slots=True, init=False, eq=False)
class Catalogue:
    """All events and subscribers of an application, in one place.

    Attributes:
        events: Events that are published or subscribed to.
        subscribers: Subscribers that a worker runs.
        lifespan: Function that each worker calls once; None: there is none. The async context manager that it returns is entered
            before the first event and exited after the last one. Use it for clients and connection pools.
    """

    events: tuple[Event[Any, Any], ...]
    subscribers: tuple[Subscriber[Any, Any, Any], ...]
    lifespan: Lifespan | None

    def __init__(
        self,
        events: Sequence[Event[Any, Any]] = (),
        subscribers: Sequence[Subscriber[Any, Any, Any]] = (),
        lifespan: Lifespan | None = None,
    ) -> None:
        """Declare the catalogue.

        Raises:
            ConfigurationError: The catalogue is not valid. Keys and names are checked only if all arguments have the right types.
        """
        if faults := _one_alone("events", events) + _one_alone("subscribers", subscribers):
            raise ConfigurationError([f"catalogue: {fault}" for fault in faults])
        object.__setattr__(self, "events", tuple(events))
        object.__setattr__(self, "subscribers", tuple(subscribers))
        object.__setattr__(self, "lifespan", lifespan)
        if faults := _kind_faults(events, subscribers, lifespan) or [*self._event_faults(), *self._subscriber_faults()]:
            raise ConfigurationError([f"catalogue: {fault}" for fault in faults])

    def _event_faults(self) -> list[str]:
        keys = Counter(event.key for event in self.events)
        return [f"{number} events have the key {key!r}" for key, number in keys.items() if number > 1]

    def _subscriber_faults(self) -> list[str]:
        names = Counter(one.name for one in self.subscribers)
        faults = [f"{number} subscribers have the name {name!r}" for name, number in names.items() if number > 1]
        by_key = {event.key: event for event in self.events}
        for one in self.subscribers:
            if isinstance(one.source, Records) or one.source in self.events:
                continue
            key = one.source.key
            if key in by_key:
                faults.append(f"subscriber {one.name!r} takes another event {key!r} than the one in events")
            else:
                faults.append(f"subscriber {one.name!r} takes {key!r}, which is not in events{suggestion(key, list(by_key))}")
        return faults


def _one_alone(label: str, given: Any) -> list[str]:
    """Return a fault if ``given`` is a single event or subscriber, usually a tuple of one element without its comma."""
    if not isinstance(given, (Event, Subscriber)):
        return []
    return [f"{label} = {given!r} is not a tuple or list: a tuple of one element needs a comma, as in {label}=(it,)"]


def _kind_faults(events: Sequence[Any], subscribers: Sequence[Any], lifespan: Any) -> list[str]:
    faults = [f"{one!r} is not an Event" for one in events if not isinstance(one, Event)]
    faults += [
        f"{getattr(one, '__name__', repr(one))} is not a subscriber: decorate the function with @subscriber(…)"
        for one in subscribers
        if not isinstance(one, Subscriber)
    ]
    if any(is_kind(lifespan) for is_kind in (isasyncgenfunction, isgeneratorfunction, iscoroutinefunction)):
        faults.append("lifespan has to be an async function that yields, decorated with contextlib.asynccontextmanager")
    elif lifespan is not None and not callable(lifespan):
        faults.append("lifespan is not a function that returns an async context manager")
    return faults
